import collections
import dataclasses
import itertools
import logging
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_tables.folder import Folder
from evidcore_plugin_tables.mask_questions import MaskQuestions
from evidcore_testing import check_dataset
from evidcore_testing.data import save_nifti

from evidcore.api import DataError, read, read_mask
from evidcore.errors import RecipeError
from evidcore.registry import factory

SIZE = (6, 40, 60)  # z, y, x
NAMES = ("liver", "spleen", "heart", "tumour", "kidney_left")


def write(path: Path, array: np.ndarray, axes: str) -> None:
    save_nifti(path, array, (5.0, 5.0, 5.0), axes)


def scan(cut: bool = False) -> np.ndarray:
    """A body 250 mm wide around x = 29.5; cut: the grid shows its middle alone."""
    y, x = np.mgrid[: SIZE[1], : SIZE[2]]
    body = ((y - 20) / 14) ** 2 + ((x - 29.5) / (80 if cut else 25)) ** 2 < 1
    return np.where(body, 40, -1000)[None].repeat(SIZE[0], axis=0).astype(np.int16)


def organs(number: int) -> np.ndarray:
    """Labels 1 to 5 as NAMES: liver right, spleen left, heart in the middle, a tumour that changes sides."""
    labels = np.zeros(SIZE, np.uint8)
    labels[1:5, 14:24, 10:20] = 1
    labels[2:4, 14:20, 40:45] = 2
    labels[2:4, 10:14, 28:32] = 3
    if number % 3:
        side = slice(12, 15) if number % 3 == 1 else slice(45, 48)
        labels[5, 20:24, side] = 4
    labels[1:2, 24:28, 40:44] = 5
    return labels


@pytest.fixture
def source(tmp_path: Path) -> Folder:
    """Twelve patients, RAS and LPS files by turns; the tumour's label is empty in every third."""
    lines = ["id,volume,patient,split"]
    for number in range(12):
        axes = "RAS" if number % 2 else "LPS"
        write(tmp_path / f"c{number}.nii.gz", scan(), axes)
        write(tmp_path / f"c{number}-organs.nii.gz", organs(number), axes)
        lines.append(f"c{number},c{number}.nii.gz,p{number},{'train' if number < 9 else 'test'}")
    (tmp_path / "cases.csv").write_text("\n".join(lines) + "\n")
    masks = {name: f"{{id}}-organs.nii.gz#{label}" for label, name in enumerate(NAMES, 1)}
    return Folder(tmp_path, tmp_path / "cache", path=".", masks=masks)


def ask(source: Folder, split: str = "train", **options):
    """Return each question with its case: (case id, kind, words, right option, wrong ones)."""
    dataset = MaskQuestions(source.cache_folder, source=source, **options)
    return [
        (
            case.id, question.kind, question.text, question.options[question.answer],
            {option for index, option in enumerate(question.options) if index != question.answer},
        )
        for case in dataset.cases(split)
        for question in case.questions
    ]  # fmt: skip


def test_the_dataset_keeps_its_contract(source):
    item, other = (MaskQuestions(source.cache_folder, source=source, seed=seed) for seed in (1, 2))
    check_dataset(item, other=other)


def test_what_is_visible_is_asked_among_what_is_not(source):
    asked = ask(source, kinds=("present",), questions_per_kind=9)
    assert {case for case, *_ in asked} == {"c0", "c3", "c6"}  # elsewhere every mask holds voxels
    assert {wrong for *_, others in asked for wrong in others} == {"tumour"}
    assert {right for *_, right, _ in asked} == {"liver", "spleen", "heart", "kidney left"}


def test_sides_are_the_patients_in_files_of_either_axes(source):
    asked = ask(source, kinds=("side",), questions_per_kind=9)
    assert all({right, *others} == {"left", "right"} for *_, right, others in asked)
    where = "On which side of the body is the {}?".format
    found = {(words, int(case[1:]) % 3, right) for case, _, words, right, _ in asked}
    sides = {"liver": ["right"] * 3, "spleen": ["left"] * 3, "tumour": [None, "right", "left"]}
    assert found == {(where(name), i, side) for name in sides for i, side in enumerate(sides[name]) if side}


def test_no_side_is_asked_where_the_scan_does_not_show_both_flanks(source, caplog):
    for case in source.cases("test"):
        write(Path(case.volumes[0].path), scan(cut=True), "RAS")
    with caplog.at_level(logging.WARNING):
        assert ask(source, "test", kinds=("side",)) == []
    assert "split test: no case allows a question of kind 'side'" in caplog.text


def test_sides_may_be_told_by_the_grid_or_by_a_mask(source):
    for case in source.cases("test"):
        write(Path(case.volumes[0].path), scan(cut=True), "RAS")
    by_grid = ask(source, "test", kinds=("side",), midline="grid", names=("spleen",))
    assert [item[2:4] for item in by_grid] == [
        ("On which side of the scan, as the patient has sides, is the spleen?", "left")
    ] * 3
    by_liver = ask(source, "test", kinds=("side",), midline="liver", questions_per_kind=9)
    heart = {words: right for _, _, words, right, _ in by_liver if "heart" in words}
    assert heart == {"On which side of the body is the heart?": "left"}  # of the liver


def test_the_larger_of_two_is_larger_by_the_factor(source):
    asked = ask(source, kinds=("larger",), questions_per_kind=99)
    pairs = collections.defaultdict(set)
    for case, _, _, right, others in asked:
        (wrong,) = others
        pairs[case].add((right.replace(" ", "_"), wrong.replace(" ", "_")))
    for case in source.cases("train"):
        volume = read(case.volumes[0])
        sizes = {name: int(read_mask(ref, volume).sum()) for name, ref in case.masks.items()}
        both = itertools.permutations((name for name in NAMES if sizes[name]), 2)
        assert pairs[case.id] == {(item, other) for item, other in both if sizes[item] >= 1.5 * sizes[other]}


def test_a_mask_that_is_too_small_is_neither_visible_nor_absent(source):
    asked = ask(source, kinds=("present", "larger"), smallest_ml=2.5, questions_per_kind=99)
    named = {name for *_, right, others in asked for name in (right, *others)}
    # heart 4.0 ml, spleen 7.5 ml, kidney 2.0 ml, tumour 1.5 ml; empty in every third case
    assert named == {"liver", "spleen", "heart", "tumour"}
    assert not any(right == "tumour" for *_, right, _ in asked)


def test_right_options_stand_under_each_letter_equally_often(source):
    dataset = MaskQuestions(source.cache_folder, source=source, questions_per_kind=2)
    for split, count in (("train", 9), ("test", 3)):
        questions = [question for case in dataset.cases(split) for question in case.questions]
        places = collections.Counter((question.kind, question.answer) for question in questions)
        assert places["side", 0] == places["side", 1] == count  # two questions about each case
        assert places["larger", 0] == places["larger", 1] == count


def test_questions_are_the_same_every_time_and_others_with_another_seed(source):
    assert ask(source, seed=3) == ask(source, seed=3)
    assert ask(source, seed=3, questions_per_kind=1) != ask(source, seed=4, questions_per_kind=1)


def test_what_was_measured_is_measured_again_when_a_file_changes(source):
    before = ask(source, "test", kinds=("side",), names=("liver",))
    for case in source.cases("test"):
        write(Path(case.masks["liver"].path), organs(0)[..., ::-1], "RAS")
    after = ask(source, "test", kinds=("side",), names=("liver",))
    assert [item[3] for item in before] == ["right"] * 3
    assert [item[3] for item in after] == ["left"] * 3


def test_one_pass_over_a_label_map_finds_what_each_mask_alone_does(source):
    (case, *_) = source.cases("train")
    together = ask(source, kinds=("side", "larger"), questions_per_kind=99)
    for name, ref in case.masks.items():
        np.savez(Path(ref.path).with_name(f"{name}.npz"), mask=read_mask(ref, read(case.volumes[0])))
    source.masks = {name: f"{name}.npz" for name in NAMES}
    apart = ask(source, kinds=("side", "larger"), questions_per_kind=99)
    assert [item for item in together if item[0] == "c0"] == [item for item in apart if item[0] == "c0"]


def test_a_broken_mask_is_named_with_its_case(source):
    (case, *_) = source.cases("test")
    np.savez(Path(case.masks["liver"].path).with_name("small.npz"), mask=np.ones((2, 2, 2), bool))
    source.masks["liver"] = "small.npz"
    with pytest.raises(DataError, match=r"small\.npz: .*\(2, 2, 2\).*\(case 'c9'\)"):
        ask(source, "test")


def test_the_source_is_a_table_of_its_own_in_the_recipe(source):
    table = {"use": "mask-questions", "source": {"use": "folder", "path": ".", "masks": source.masks}}
    given = {"recipe_folder": source.folder, "cache_folder": source.cache_folder}
    built = factory.build("dataset", table, given=given, where="dataset.ct")
    assert len(list(built.cases("test"))) == 3
    wrong = {"use": "mask-questions", "source": {"use": "folder", "pth": "."}}
    with pytest.raises(RecipeError, match=r"dataset\.ct\.source\.pth: unknown key\. Did you mean 'path'"):
        factory.build("dataset", wrong, given=given, where="dataset.ct")


def test_a_case_without_masks_stays_and_is_asked_nothing(source):
    source.masks = {}
    dataset = MaskQuestions(source.cache_folder, source=source)
    assert [case.questions for case in dataset.cases("test")] == [()] * 3


@pytest.mark.parametrize("midline", ["body", "vertebra"])
def test_anatomy_agrees_on_real_ct(real_data, tmp_path, midline):
    folder = real_data / "totalsegmentator"
    record = f"a,{folder / 'example_ct_sm.nii.gz'},p,test"
    (tmp_path / "cases.csv").write_text(f"id,volume,patient,split\n{record}\n")
    labels = {"spleen": 1, "liver": 5, "stomach": 6, "vertebra": 31}
    masks = {name: f"{folder / 'example_seg.nii.gz'}#{label}" for name, label in labels.items()}
    source = Folder(tmp_path, tmp_path / "cache", path=".", masks=masks)
    (case,) = source.cases("test")
    shown = {name for name, ref in case.masks.items() if read_mask(ref, read(case.volumes[0])).any()}
    asked = {words: right for _, _, words, right, _ in ask(source, "test", kinds=("side",), midline=midline)}
    where = "On which side of the body is the {}?".format
    expected = {"liver": "right", "spleen": "left", "stomach": "left"}
    assert asked == {where(name): side for name, side in expected.items() if name in shown}
    assert where("liver") in asked


def test_what_is_listed_has_its_questions_and_stays_bare_where_masks_are_unusable(source):
    dataset = MaskQuestions(source.cache_folder, source=source)
    assert list(dataset.listed("train")) == list(dataset.cases("train"))
    source = Folder(source.folder, source.cache_folder, path=".", masks=source.masks)
    source.file.write_text(source.file.read_text() + "c99,c0.nii.gz,p99,test\nc98,c0.nii.gz,p98,val\n")
    dataset = MaskQuestions(source.cache_folder, source=source)
    *whole, bare = dataset.listed("test")
    assert (bare.id, bare.questions) == ("c99", ())
    assert len(whole) == 3
    assert all(case.questions for case in whole)
    (message,) = dataset.unlisted()
    assert "case 'c98' has split 'val'" in message


def test_masks_that_no_case_has_are_named(source, caplog):
    ask(source, "test", names=("liver", "splen"), midline="spine", kinds=("side",))
    assert "split test: no case has a mask 'splen'. Did you mean 'spleen'? There are: h" in caplog.text
    assert "no case has a mask 'spine'." in caplog.text
    assert "no case has a mask 'liver'" not in caplog.text
    assert "split validation" not in caplog.text


class Removing(Folder):
    """A folder with the scan of each case without its tumour."""

    def without(self, case, finding):
        others = tuple(dataclasses.replace(ref, path=f"{ref.path}-without") for ref in case.volumes)
        return others if finding == "tumour" else None


def test_the_source_says_how_a_case_looks_without_a_finding(source: Folder, tmp_path: Path):
    removing = Removing(tmp_path, source.cache_folder, path=".")
    dataset = MaskQuestions(source.cache_folder, source=removing)
    case = next(iter(dataset.cases("test")))
    assert dataset.without(case, "tumour") == removing.without(case, "tumour")
    assert dataset.without(case, "liver") is None
