"""A folder with a table, and what its data set says when it cannot be used."""

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from evidcore.api import DataError
from evidcore.registry.factory import build

SPLITS = ("train", "validation", "test")
SECRET = "Mrs Miller, born in 1950, has a rare disease of the left lung and lives nearby"


class Home:
    """A recipe's folder; scans and the table lie in `data`."""

    use, path, table = "table", ".", "questions.csv"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / self.path
        self.data.mkdir(exist_ok=True)

    def scan(self, name: str, array_xyz: np.ndarray) -> None:
        nibabel.save(nibabel.Nifti1Image(array_xyz, np.diag([-1.0, -1.0, 2.0, 1.0])), self.data / name)

    def csv(self, rows: Iterable[dict[str, Any]], name: str = "") -> None:
        rows = list(rows)
        with (self.data / (name or self.table)).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)), restval="")
            writer.writeheader()
            writer.writerows(rows)

    def dataset(self, **options: Any) -> Any:
        given = {"recipe_folder": self.folder, "cache_folder": self.folder / "cache"}
        return build("dataset", {"use": self.use, "path": self.path} | options, given=given, where="test")


def refusal(dataset: Any, split: str = "train") -> str:
    with pytest.raises(DataError) as caught:
        list(dataset.cases(split))
    return str(caught.value)
