"""Data set `predicted-masks` with a segmenter of words that finds bands of HU by name, on small chests."""

import json
from pathlib import Path

import pytest
from evidcore_plugin_segmenters.texts import TextSession
from evidcore_plugin_tables.mask_questions import MaskQuestions
from evidcore_testing import check_dataset
from evidcore_testing.data import TinyDataset

from evidcore.api import Segmenter, read, read_mask
from evidcore.errors import RecipeError
from evidcore.registry import factory
from evidcore.runs.inputs import identity_of

ENTRY_POINTS = "[evidcore.segmenter]\nbands = bands:Bands\n[evidcore.dataset]\nchests = bands:TinyDataset\n"
FOUND = []  # what was looked for


class Bands(Segmenter):
    def __init__(self, recipe_folder: Path, *, weights: str = "bands.json", shift_hu: float = 0.0) -> None:
        self.path, self.shift_hu = recipe_folder / weights, shift_hu

    def session(self, volume):
        array, bands = read(volume).array - self.shift_hu, json.loads(self.path.read_text())

        def find(words):
            FOUND.append(words)
            if words not in bands:
                raise ValueError(f"no band is called {words!r}.")
            return (array >= bands[words][0]) & (array < bands[words][1])

        return TextSession(array.shape, volume.path, find)


@pytest.fixture
def build(offered, tmp_path):
    """Return a function that builds the data set."""
    offered("bands", ENTRY_POINTS, Bands=Bands, TinyDataset=TinyDataset)
    (tmp_path / "bands.json").write_text('{"lung": [-950, -500], "pleural effusion": [0, 500]}')
    given = {"recipe_folder": tmp_path, "cache_folder": tmp_path / "cache", "folder": tmp_path / "scans"}

    def build(*names, use="bands", **options):
        table = {"source": {"use": "chests"}, "names": names, "segmenter": {"use": use, **options}}
        return factory.build("dataset", {"use": "predicted-masks", **table}, given=given, where="dataset.x")

    return build


def test_masks_are_what_the_segmenter_found_and_stand_apart_from_true_ones(build, tmp_path):
    dataset = build("lung", "pleural effusion")
    check_dataset(dataset, other=build("lung"))
    for case in MaskQuestions(tmp_path, source=dataset, kinds=("larger",)).cases("train"):
        volume = read(case.volumes[0])
        band = (volume.array >= -950) & (volume.array < -500)
        assert (read_mask(case.predicted["lung"], like=volume) == band).all()
        assert case.masks.keys().isdisjoint(case.predicted)  # the effusion, where it is known
        assert case.questions == ()  # two masks of other sizes, which are not the truth


def test_a_mask_is_made_once_and_anew_for_another_segmenter_or_scan(build, tmp_path):
    def listed(split="test", **options):
        dataset = build("lung", **options)
        facts = dataset.fingerprint(), str(identity_of(dataset, tmp_path))
        return next(dataset.cases(split)).predicted["lung"].path, *facts

    FOUND.clear()
    first = listed()
    assert (listed(), FOUND) == (first, ["lung"])
    shifted = listed(shift_hu=30.0)
    (tmp_path / "bands.json").write_text('{"lung": [-940, -500]}')
    assert len({*first, *shifted, *listed()}) == 9
    assert listed("validation")[0] != listed()[0]
    assert FOUND == ["lung"] * 4


def test_words_that_are_refused_and_segmenters_without_words_are_named(build):
    with pytest.raises(RecipeError, match=r"'bands' cannot look for 'livr': no band is called 'livr'"):
        next(build("livr").cases("test"))
    with pytest.raises(RecipeError, match=r"'region-growing' cannot look for 'lung': .* takes BoxPrompt or"):
        next(build("lung", use="region-growing").cases("test"))
