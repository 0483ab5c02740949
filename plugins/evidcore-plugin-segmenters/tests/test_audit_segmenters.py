"""The audit of segmenters, on stand-ins whose figures are known."""

from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_segmenters.audit.audit_segmenters import audit_segmenters
from evidcore_testing.data import save_nifti

from evidcore.api import Case, DataError, MaskRef, Segmenter, VolumeRef
from evidcore.contracts import BoxPrompt, MaskPrompt, SegmenterSession
from evidcore.errors import ContractError
from evidcore.registry import factory

SHAPE = (9, 30, 30)


def truth(number=0):
    """Five slices of 10 x 10 voxels, the third of 12 x 10."""
    mask = np.zeros(SHAPE, dtype=np.bool_)
    mask[2:7, 8:18, 10:20] = True
    mask[4, 8:20, 10:20] = True
    return np.roll(mask, number % 3, axis=2)


class Column(SegmenterSession):
    """The prompt, on every slice from 2 to 6."""

    def __init__(self, path):
        self.path = path

    def mask(self, prompts, z_window=None):
        result = np.zeros(SHAPE, dtype=np.bool_)
        for prompt in prompts:
            match prompt:
                case BoxPrompt(box=box):
                    result[2:7, box.y0 : box.y1, box.x0 : box.x1] = True
                case MaskPrompt(mask=mask):
                    result[2:7] |= mask
        return result


class Knowing(Column):
    """The known mask, whatever is asked."""

    def mask(self, prompts, z_window=None):
        return np.load(Path(self.path).with_suffix(".npz"))["block"].copy()


class Named(Knowing):
    """The known mask, by the name that the data set gives it."""

    takes = (Segmenter.TextPrompt,)

    def mask(self, prompts, z_window=None):
        self.refuse_unusable(prompts, z_window, SHAPE)
        return super().mask(prompts) if prompts[0].words == "block" else np.zeros(SHAPE, dtype=np.bool_)


class Failing(Column):
    def mask(self, prompts, z_window=None):
        raise KeyError("weights")


def kind(session):
    def opened(self, volume):
        return session(volume.path)

    return type(f"{session.__name__}Segmenter", (Segmenter,), {"session": opened})


@pytest.fixture
def built(offered):
    kinds = {
        name: kind(cls)
        for name, cls in (("Col", Column), ("Know", Knowing), ("Name", Named), ("Fail", Failing))
    }
    lines = "\n".join(f"{name.lower()} = evid_known:{name}" for name in kinds)
    offered("evid-known", f"[evidcore.segmenter]\n{lines}\n", **kinds)
    return {
        name.lower(): factory.build("segmenter", {"use": name.lower()}, given={}, where="test")
        for name in kinds
    }


def write(folder, number, mask, patient="own"):
    rng = np.random.default_rng(number)
    hu = np.where(truth(number), 60, -50) + rng.normal(0, 10, SHAPE)
    path = save_nifti(folder / f"{number}.nii", hu.astype(np.int16), (5.0, 2.0, 2.0))
    np.savez_compressed(path.with_suffix(".npz"), block=mask)
    return Case(
        id=f"case-{number}",
        patient=f"patient-{number // 2}" if patient == "own" else patient,
        volumes=(VolumeRef(path=str(path)),),
        masks={"block": MaskRef(path=str(path.with_suffix(".npz")), key="block")},
    )


@pytest.fixture
def cases(tmp_path):
    return [write(tmp_path, number, truth(number)) for number in range(4)]


def value(audit, segmenter, prompt, metric):
    return audit.interval(segmenter, prompt, metric).value


def test_figures_of_known_segmenters_by_hand(built, cases):
    pair = {name: built[name] for name in ("col", "know")}
    heard = []
    audit = audit_segmenters(pair, cases, jitters=(0.5,), done=lambda *counts: heard.append(counts))
    assert heard == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert audit.prompts == ("oracle box", "oracle mask", "box moved 50 %")
    for prompt in audit.prompts:
        assert value(audit, "know", prompt, "dice") == 1.0
        assert value(audit, "know", prompt, "dice/2") == 1.0
        assert value(audit, "know", prompt, "surface_mm/1") == 0.0
    column = 2 * 520 / (520 + 600)
    assert value(audit, "col", "oracle box", "dice") == pytest.approx(column)
    assert value(audit, "col", "oracle box", "iou") == pytest.approx(520 / 600)
    assert value(audit, "col", "oracle box", "dice/0") == 1.0
    assert value(audit, "col", "oracle box", "dice/2") == pytest.approx(2 * 100 / 220)
    assert value(audit, "col", "oracle mask", "dice") == pytest.approx(column)
    # a box of 12 x 10 that is off by 6 x 5 shares 6 rows (up) or 4 (down) with each slice of 10 x 10
    off = [each for each in audit.records if (each.segmenter, each.prompt) == ("col", "box moved 50 %")]
    down, up = (2 * 5 * (4 * rows + 6) / (520 + 600) for rows in (4, 6))
    assert [each.values["dice"] for each in off] == pytest.approx([(down + up) / 2] * 4)
    assert [each.values["dice_spread"] for each in off] == pytest.approx([up - down] * 4)
    assert all(each.values["dice/0"] == pytest.approx(2 * 30 / 240) for each in off)
    assert value(audit, "know", "box moved 50 %", "dice_spread") == 0.0
    assert audit.interval("col", "oracle box", "dice_spread") is None  # one way alone
    assert value(audit, "truth", "", "area_leaps") == 0.0
    neighbours = (1 + 200 / 220 + 200 / 220 + 1) / 4
    assert value(audit, "truth", "", "slice_to_slice_dice") == pytest.approx(neighbours)
    assert value(audit, "perfect propagation", "oracle box", "dice") == 1.0


def test_a_segmenter_of_text_is_asked_by_the_name_of_the_mask_and_with_nothing_else(built, cases):
    audit = audit_segmenters({name: built[name] for name in ("col", "name")}, cases, jitters=(0.5,))
    asked = {(each.segmenter, each.prompt) for each in audit.records if each.segmenter in ("col", "name")}
    assert {prompt for name, prompt in asked if name == "name"} == {"name as text"}
    assert ("col", "name as text") not in asked
    assert value(audit, "name", "name as text", "dice") == 1.0
    assert not [row for row in audit.rows() if row["segmenter"] == "name minus col"]


def test_rows_carry_differences_and_patients(built, cases):
    pair = {name: built[name] for name in ("col", "know")}
    audit = audit_segmenters(pair, cases, jitters=(0.5,))
    rows = audit.rows()
    (better,) = [row for row in rows if row["metric"] == "dice_difference" and row["prompt"] == "oracle box"]
    assert better["segmenter"] == "know minus col"
    assert better["value"] == pytest.approx(1 - 2 * 520 / 1120)
    assert (better["objects"], better["patients"]) == (4, 2)
    assert better["note"] == "too few patients (2 of at least 20)"
    slopes = {
        row["segmenter"]: row["value"] for row in rows if row["prompt"] == "oracle box minus box moved 50 %"
    }
    assert slopes["know"] == 0.0
    assert slopes["col"] > 0.5
    distances = {row["distance_slices"] for row in rows if row["segmenter"] == "col"}
    assert distances == {None, "0", "1", "2"}


def test_intervals_are_drawn_over_patients(built, tmp_path):
    cases = [write(tmp_path, number, truth(number)) for number in range(42)]
    audit = audit_segmenters({"col": built["col"]}, cases, jitters=())
    interval = audit.interval("col", "oracle box", "dice")
    assert (interval.values, interval.patients) == (42, 21)
    assert interval.note == "no interval: every draw gives the same"  # every object is alike


def test_cases_without_masks_and_empty_masks_are_counted(built, cases, tmp_path):
    bare = Case(id="bare", patient="p", volumes=cases[0].volumes)
    empty = write(tmp_path, 9, np.zeros(SHAPE, dtype=np.bool_), patient=None)
    audit = audit_segmenters({"col": built["col"]}, [*cases, bare, empty], jitters=())
    assert (audit.cases, audit.without_masks, audit.empty_masks) == (6, 1, 1)
    assert not audit.patients_known
    with pytest.raises(
        DataError, match=r"none of the 2 cases has a mask that shows anything: 1 have none, 1 m"
    ):
        audit_segmenters({"col": built["col"]}, [bare, empty])
    with pytest.raises(DataError, match=r"none of the 4 cases has a mask called liver .*: 4 have none"):
        audit_segmenters({"col": built["col"]}, cases, masks=("liver",))


def test_a_segmenter_that_fails_is_named_with_case_and_mask(built, cases):
    with pytest.raises(
        ContractError,
        match=r"'fail' from evid-known 1.0 failed while segmenting 'block' of case 'case-0': KeyE",
    ):
        audit_segmenters({"fail": built["fail"]}, cases)


def test_a_mask_on_another_grid_is_named_with_its_case(built, cases, tmp_path):
    other = write(tmp_path, 5, np.ones((3, 4, 5), dtype=np.bool_))
    with pytest.raises(DataError, match=r"5.npz: array 'block' has shape \(3, 4, 5\).* \(case 'case-5'\)"):
        audit_segmenters({"col": built["col"]}, [*cases, other])
