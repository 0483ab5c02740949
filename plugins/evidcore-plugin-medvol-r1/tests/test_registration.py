"""Moved and scaled abdominal phantoms, and policies that know where the body lies and look no further."""

import numpy as np
import planted_boxes
import pytest
from evidcore_plugin_medvol_r1.evaluation import SegmentationEvaluation
from evidcore_plugin_medvol_r1.scan_facts import HEIGHTS, outlined, stated
from evidcore_testing.data import save_nifti
from planted_boxes import SEES, HeightOnly, Likes, Looker, OutlineOnly, Planted, World

from evidcore.api import VolumeRef
from evidcore.registry import factory


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("abdomen"))


def audited(policy, world, offered):
    offered("evid-likes", "[evidcore.segmenter]\nlikes = evid_likes:It\n", It=Likes)
    segmenter = factory.build("segmenter", {"use": "likes"}, given={}, where="test")
    return planted_boxes.audited(
        policy, world, SegmentationEvaluation(world.folder / "cache", segmenter=segmenter)
    )


@pytest.mark.parametrize("planted", [HeightOnly, OutlineOnly])
@pytest.mark.slow
def test_who_knows_where_the_body_lies_and_no_organ_is_not_told_to_look(planted, world, offered):
    audit = audited(planted(world), world, offered)
    assert not audit.verdict().startswith(SEES)
    assert audit.gain.name == "registration"
    assert "registration (the usual place in the body's outline" in audit.verdict()


@pytest.mark.slow
def test_who_looks_is_told_so_and_registration_has_a_row(world, offered):
    audit = audited(Looker(world, Planted(world)), world, offered)
    assert audit.verdict().startswith("What is asked is seen")
    covered = "over the same patients with what is asked covered"
    assert covered in audit.verdict()
    kept_still = next(rung for rung in audit.rungs if rung.name == "occluded-elsewhere")
    assert abs(kept_still.above.value) < 0.02
    assert len(kept_still.differences) > 0.8 * len(world.prompts)
    rows = {row.metric: row for row in audit.rows()}
    assert rows["blind_dsc"].value < 0.25
    assert rows["registration_dsc"].value == pytest.approx(0.85, abs=0.02)  # the docs say so
    assert audit.score("own").value == pytest.approx(0.89, abs=0.02)  # its boxes are the gold ones
    assert rows["own_minus_registration"].value < rows["own_minus_blind_rule"].value
    kept = [line for line in audit.lines() if line["condition"] == "registration"]
    assert np.mean([line["figures"]["dsc"] for line in kept]) == pytest.approx(rows["registration_dsc"].value)


def test_an_outline_is_the_body_s_box_and_the_header_alone_knows_nothing_of_it(tmp_path):
    hu = np.full((10, 60, 80), -1000, np.int16)
    hu[2:9, 20:50, 10:60] = 40  # z, y, x
    hu[2:9, 54:55, 5:75] = 100  # a table
    hu[8, 20:50, 10:35] = 500  # half of the top slice is bone
    refs = []
    for name, array in (("body", hu), ("air", np.full_like(hu, -1000))):
        path = save_nifti(tmp_path / f"{name}.nii", array, (3.0, 2.0, 2.0))
        refs.append(VolumeRef(path=str(path)))
    body = outlined(refs[0], tmp_path / "cache")
    assert body.frame == ((2, 9), (20, 50), (10, 60))
    box_mm, profile = body.facts[12:18], np.reshape(body.facts[18:], (5, HEIGHTS))
    assert box_mm == pytest.approx((6, 27, 40, 100, 20, 120))
    assert profile[4, 0] == 0.0
    assert profile[4, -1] == pytest.approx(0.5)
    assert profile[0, 0] == pytest.approx(40)
    assert stated(refs[0]) == stated(refs[1])
    assert outlined(refs[1], tmp_path / "cache").frame == ((0, 10), (0, 60), (0, 80))
