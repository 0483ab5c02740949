"""Reader `slice-reader`: it is fitted, says what slices show, and is refused what it cannot read."""

import dataclasses
import json

import pytest
from disc_cases import SHAPE, disc_case
from evidcore_plugin_emrl.matched_slices import NOTHING
from evidcore_plugin_emrl.reader_fit import ReaderFit
from evidcore_plugin_emrl.slice_reader import SliceReader
from evidcore_testing import check_fit, check_reader

from evidcore.api import Crop, DataError
from evidcore.case import Drawing
from evidcore.contracts import FitData, ImageQuestion
from evidcore.contracts.model import Fittable

SMALL = {"size_yx": (32, 48), "channels": (12, 24), "windows": ((-50.0, 150.0),)}
TOLD = "Which findings are seen?"


@pytest.fixture(scope="module")
def fitted(discs, tmp_path_factory):
    reader, folder = SliceReader(**SMALL), tmp_path_factory.mktemp("fitted")
    reader.fit(FitData(discs[:50], discs[50:], folder, 3, print), options=ReaderFit(steps=150))
    return reader, folder


def crop_of(case, z=None, **changes):
    box = None if z is None else (z, z + 1, 0, SHAPE[1], 0, SHAPE[2])
    return Crop(volume=case.volumes[0], box_zyx=box, **changes)


def ask(reader, *crops, text=TOLD):
    return reader([ImageQuestion(crops=tuple(crops), text=text)])[0]


def test_fit_writes_what_it_reaches_by_finding(fitted):
    _, folder = fitted
    figures = json.loads((folder / "fit.json").read_text())
    assert figures["shortfalls"] == []
    assert figures["validation"]["by_finding"].keys() == {"cyst", "stone"}
    assert figures["validation"]["volumes"] == 20
    assert figures["named_on_blank"] == 0.0
    assert 0 <= figures["named_on_noise"] <= 1  # 12 channels and 150 steps do not learn what noise is


def test_trained_to_answer_by_chance_it_misses_the_lines(discs, tmp_path):
    reader = SliceReader(**SMALL)
    reader.fit(FitData(discs[:20], discs[50:], tmp_path, 3, print), options=ReaderFit(steps=1))
    result = json.loads((tmp_path / "fit.json").read_text())["shortfalls"]
    assert any(line.startswith("auc") for line in result)
    assert any(line.startswith("sensitivity") for line in result)


def test_it_keeps_the_contract_of_a_reader(fitted, discs, tmp_path):
    questions = [ImageQuestion(crops=(crop_of(discs[0], z),), text=TOLD) for z in range(4)]
    questions += [ImageQuestion(crops=(), text=TOLD), ImageQuestion(crops=(crop_of(discs[1]),), text=TOLD)]
    check_reader(fitted[0], questions, tmp_path)


def test_it_keeps_the_contract_of_a_fit(discs, tmp_path):
    small = {"steps": 2, "slices_per_step": 4}
    check_fit(lambda: SliceReader(**SMALL), discs[:12], discs[50:53], tmp_path, options=small)
    assert isinstance(SliceReader(), Fittable)


DISC = (slice(10, 18), slice(20, 28))


def test_it_says_what_any_of_the_slices_shows_and_asked_by_name_what_is_not_seen_too(fitted, tmp_path):
    reader, _ = fitted
    case = disc_case(tmp_path, 1, ["cyst"], where={"cyst": {2: DISC}})
    shown, empty = crop_of(case, 2), crop_of(case, 0)
    for crops in ((shown,), (empty, shown), (crop_of(case),)):
        assert ask(reader, *crops) == "There is a cyst."
    assert (ask(reader, empty), ask(reader)) == (NOTHING, None)
    assert ask(reader, shown, text="Is a stone seen?") == "There is no stone."
    both = "Is a stone or a cyst seen?"
    assert ask(reader, shown, text=both) == "There is a cyst. There is no stone."
    for changes in ({"blank": True}, {"change": "scrambled"}):
        assert ask(reader, crop_of(case, 2, **changes)) == NOTHING


def test_it_goes_by_pixels_and_not_by_the_height_of_the_slice(fitted, tmp_path):
    reader, _ = fitted
    for z in range(SHAPE[0]):
        case = disc_case(tmp_path / str(z), 1, ["stone"], where={"stone": {z: DISC}})
        said = [ask(reader, crop_of(case, at)) for at in range(SHAPE[0])]
        assert said == ["There is a stone." if at == z else NOTHING for at in range(SHAPE[0])]


def test_load_gives_the_same_answers(fitted, discs):
    reader, folder = fitted
    questions = [ImageQuestion(crops=(crop_of(case),), text=TOLD) for case in discs[50:60]]
    other = SliceReader(folder.parent, pretrained=folder.name, **SMALL)
    other.ready()
    assert other(questions) == reader(questions)


def test_a_slice_passes_the_network_once_until_there_are_other_weights(fitted, discs, tmp_path):
    _, folder = fitted
    reader = SliceReader(**SMALL)
    reader.load(folder)
    passed = []
    reader.network.register_forward_hook(lambda _, given, __: passed.append(len(given[0])))
    crops = [crop_of(case, 2) for case in discs[50:53]]
    first = [ask(reader, *crops), *(ask(reader, crop) for crop in crops), ask(reader, crops[0], crops[0])]
    assert passed == [3]
    assert ask(reader, dataclasses.replace(crops[0], blank=True)) == NOTHING
    assert passed == [3, 1]
    reader.fit(FitData(discs[:20], [], tmp_path, 3, print), options=ReaderFit(steps=1))
    untrained = reader.read(crops)
    reader.load(folder)
    assert [ask(reader, *crops), *(ask(reader, crop) for crop in crops), ask(reader, crops[0])] == first
    assert any((item != two).any() for item, two in zip(untrained, reader.read(crops), strict=True))


def test_never_fitted_it_is_not_ready_and_says_what_to_do(discs):
    said = r"slice-reader: was never fitted. Put a fit stage with its service .* or name .* pretrained = '…'"
    with pytest.raises(DataError, match=said):
        SliceReader().ready()
    with pytest.raises(DataError, match="was never fitted"):
        ask(SliceReader(), crop_of(discs[0], 0))


def test_weights_of_another_network_and_a_size_that_cannot_be_halved_are_refused(fitted):
    _, folder = fitted
    with pytest.raises(ValueError, match=r"multiples of 16, got size_yx = \[96, 100\]"):
        SliceReader(size_yx=(96, 100))
    with pytest.raises(DataError, match=r"reader.json: was fitted as .*\[12, 24\].* is .*\[8, 16\]"):
        SliceReader(**{**SMALL, "channels": (8, 16)}).load(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"drawing": Drawing(kind="mean", axis="y")}, "and what is drawn of them is 'mean-y'"),
        ({"box_zyx": (0, 1, 4, 20, 0, 48)}, r"and the crop shows y 4\.\.20, x 0\.\.48 of 32 x 48"),
    ],
)
def test_what_is_no_whole_slice_is_refused(fitted, discs, changes, said):
    with pytest.raises(DataError, match=f"whole slices, {said}"):
        fitted[0].pixels(dataclasses.replace(crop_of(discs[0]), **changes))


@pytest.mark.parametrize(
    ("changed", "options", "said"),
    [
        ({"masks": {}}, {}, "masks of findings are needed, and none of the 4 training cases has any"),
        ({}, {"findings": ("tumour",)}, "masks called tumour are needed, and none of the 4"),
        ({"patient": "p"}, {}, "4 training cases with masks are of one patient"),
    ],
)
def test_data_that_it_cannot_learn_from_is_refused(discs, tmp_path, changed, options, said):
    cases = [case for case in discs if len(case.masks) == 2][:4]
    cases = [dataclasses.replace(case, **changed) for case in cases]
    with pytest.raises(DataError, match=said):
        SliceReader(**SMALL).fit(FitData(cases, cases, tmp_path, 1, print), options=ReaderFit(**options))


def test_a_case_that_lacks_the_mask_of_a_finding_is_passed_over(discs, tmp_path):
    cases = [case for case in discs if len(case.masks) == 2][:6]
    bare = dataclasses.replace(cases[0], masks={"cyst": cases[0].masks["cyst"]})
    options = ReaderFit(steps=1, slices_per_step=4)
    SliceReader(**SMALL).fit(FitData([bare, *cases[1:]], [bare], tmp_path, 1, print), options=options)
    figures = json.loads((tmp_path / "fit.json").read_text())
    assert (figures["cases"], figures["validation"]) == (5, None)
