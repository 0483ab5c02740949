"""A segmenter as a service: fitted by a stage, used again, given to what comes after."""

import csv
import json

import numpy as np
import pytest
from evidcore_plugin_segmenters.slice_propagator import SlicePropagator
from evidcore_testing import prompts_from, volume_case
from evidcore_testing.recipes import recipe_text

from evidcore.api import read, read_mask
from evidcore.contracts import MaskRequest
from evidcore.hooks import Announcer
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.begin import run, start
from evidcore.runs.execute import Execution
from evidcore.runs.inputs import lock_table

EYES = {"use": "slice-propagator", "size": 32, "width": 4, "windows": [[-1000.0, 400.0]]}
RECIPE = recipe_text(
    {"kind": "fit", "component": "service.eyes", "data": [{"dataset": "own"}],
     "options": {"steps": 3, "objects_per_step": 2, "masks": ["nodule"]}},
    name="eyes",
    seed=5,
    dataset={"own": {"use": "folder", "path": "."}},
    service={"eyes": {"kind": "segmenter", **EYES}, "floor": {"kind": "segmenter", "use": "region-growing"}},
)  # fmt: skip


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    with (folder / "cases.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "volume", "patient", "split", "masks"])
        for seed, split in ((0, "train"), (2, "train"), (4, "validation")):
            case = volume_case(folder, seed)
            masks = f"nodule=case-{seed}.npz#lung nodule"
            table.writerow([case.id, f"case-{seed}.nii.gz", case.patient, split, masks])
    (folder / "eyes.toml").write_text(RECIPE)
    return folder


def test_a_stage_fits_it_and_what_follows_has_what_it_learnt(own):
    recipe = load(own / "eyes.toml")
    folder = start(recipe, own / "runs")
    run(folder)
    result = json.loads((folder.path / "results" / "01-fit-eyes.json").read_text())
    assert result["figures"]["cases"] == 2
    assert result["figures"]["validation_objects"] == 1
    written = folder.path / "checkpoints" / "01-fit-eyes"
    assert (written / "weights.safetensors").is_file()

    again = start(recipe, own / "runs")
    assembly = Assembly(recipe)
    lock = {**lock_table(recipe, assembly.datasets), "run": again.lock()["run"]}
    with again.locked():
        Execution(again, assembly, lock, Announcer.from_names((), ())).all()
    assert (again.path / "checkpoints" / "01-fit-eyes").resolve() == written.resolve()  # used again

    case = volume_case(own, 4)
    truth = read_mask(case.masks["lung nodule"], like=read(case.volumes[0]))
    asked = [MaskRequest(prompts=(prompt,)) for prompt in prompts_from(truth)]
    options = {"size": 32, "width": 4, "windows": ((-1000.0, 400.0),)}
    named = SlicePropagator(pretrained=str(written), **options).session(case.volumes[0]).masks(asked)
    given = assembly.services["eyes"].session(case.volumes[0]).masks(asked)
    assert all(np.array_equal(item, other) for item, other in zip(given, named, strict=True))
    assert assembly.services["floor"].session(case.volumes[0]).masks(asked)[0].any()
