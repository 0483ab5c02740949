"""A folder with a small seeded model in transformers' format and a volume."""

import sys
from pathlib import Path

import numpy as np
import pytest
from evidcore_testing.data import save_nifti

sys.path.insert(0, str(Path(__file__).parent))  # seeded, stock

from seeded import seeded_model, small_config

SHAPE = (7, 60, 90)


@pytest.fixture(scope="session")
def values():
    z, y, x = np.meshgrid(*map(np.arange, SHAPE), indexing="ij")
    inside = ((x - 45) / 12) ** 2 + ((y - 30) / 9) ** 2 < 1
    return (-100 + 60 * np.sin(x / 6) * np.cos(y / 7) + 5 * z + 180 * inside).astype(np.int16)


@pytest.fixture(scope="session")
def home(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("home")
    seeded_model(small_config()).save_pretrained(folder / "small")
    save_nifti(folder / "scan.nii.gz", values, (3.0, 1.0, 1.0))
    return folder
