"""A small scan with masks of known shapes, and rollouts about it."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_medvol_r1.task import ReasoningSegmentation
from evidcore_testing.data import save_nifti
from evidcore_testing.fixtures import offered as offered

from evidcore.builtin.views import Slices
from evidcore.case import Case, MaskRef, Query, Rollout, VolumeRef

sys.path.insert(0, str(Path(__file__).parent))  # the planted policies

SHAPE = (20, 40, 50)  # z, y, x
LIVER = {z: (slice(5, 5 + z), slice(2, 12)) for z in range(4, 16)}  # grows upwards: 10 z voxels on slice z
LEFT = {z: (slice(20, 30), slice(35, 45)) for z in range(3, 9)}
RIGHT = {z: (slice(20, 28), slice(5, 15)) for z in range(3, 7)}


def drawn(*objects):
    mask = np.zeros(SHAPE, dtype=bool)
    for planes in objects:
        for z, (rows, columns) in planes.items():
            mask[z, rows, columns] = True
    return mask


MASKS = {
    "liver": drawn(LIVER),
    "kidneys": drawn(LEFT, RIGHT),
    "left kidney": drawn(LEFT),
    "bladder": drawn(),
    "stone": drawn({1: (slice(3, 4), slice(7, 8))}),
}
QUERIES = (
    Query(id="gland", text="The largest gland.", masks=("liver",)),
    Query(id="filters", text="What filters blood?", masks=("kidneys",), kind="both organs"),
)


@pytest.fixture
def case(tmp_path):
    hu = np.full(SHAPE, -1000, dtype=np.int16)
    for mask in MASKS.values():
        hu[mask] = 60
    path = save_nifti(tmp_path / "scan.nii.gz", hu, (5.0, 2.0, 2.0))
    np.savez(tmp_path / "masks.npz", **MASKS)
    return Case(
        id="c7", patient="p7", volumes=(VolumeRef(path=str(path)),),
        masks={name: MaskRef(path=str(tmp_path / "masks.npz"), key=name) for name in MASKS}, queries=QUERIES,
    )  # fmt: skip


@pytest.fixture
def task_of(tmp_path):
    def make(view=None, **options):
        return ReasoningSegmentation(view or Slices(slices=20), tmp_path, tmp_path / "cache", **options)

    return make


@pytest.fixture
def asked(case, task_of):
    """Return the prompt about the kidneys or the liver, and a way to answer it."""

    def ask(question="filters", slices=20, **options):
        view = Slices(slices=slices)
        task = task_of(view, **options)
        (prompt,) = [item for item in task.prompts(case, view, 0) if item.id == f"c7:{question}"]

        def rollout(z=None, *boxes, text=None, group=0):
            said = json.dumps({"slice": z, "bbox_2d_list": [list(box) for box in boxes]})
            text = f"<think>Here.</think><answer>{said}</answer>" if text is None else text
            return Rollout(prompt=prompt, group=group, text=text, answer=task.parse(prompt, text))

        return prompt, rollout

    return ask
