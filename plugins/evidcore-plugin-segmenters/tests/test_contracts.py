"""Region growing keeps the contract of a segmenter."""

from evidcore_testing import check_segmenter, prompts_from, volume_case

from evidcore.api import read, read_mask
from evidcore.registry.factory import build


def test_region_growing(tmp_path):
    case = volume_case(tmp_path)
    (mask,) = case.masks.values()
    truth = read_mask(mask, like=read(case.volumes[0]))
    given = {"recipe_folder": tmp_path, "cache_folder": tmp_path / "cache"}
    segmenter = build("segmenter", {"use": "region-growing"}, given=given, where="test")
    check_segmenter(segmenter, case.volumes[0], prompts_from(truth), truth=truth)
