"""Write what an ablation found beside its cells, keep a copy to commit, and read both back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.errors import RunError
from evidcore.run.ablation.cells import Cell
from evidcore.run.ablation.tables import latex, markdown, summary
from evidcore.run.folder import write
from evidcore.run.keeping import keep_run, without_places

RESULT = "ablation.json"


def write_up(place: Path, found: Mapping[str, Any]) -> None:
    """Write `ablation.json`, `README.md`, `summary.txt` and `table.tex` into a folder."""
    place.mkdir(parents=True, exist_ok=True)
    write(place / RESULT, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    write(place / "README.md", markdown(found))
    write(place / "summary.txt", summary(found))
    write(place / "table.tex", latex(found))


def keep(place: Path, found: Mapping[str, Any], text: str, cells: Sequence[Cell]) -> None:
    """Write the tables to another folder, with the ablation's file, and each cell's results, recipe and lock.

    Args:
        place: where to; an ablation that was kept there before is replaced.
        found: what `outcome` returned, with `command`.
        text: the ablation's file.
        cells: those that count.

    Raises:
        RunError: if the folder holds something else.
    """
    if place.exists() and not (place / RESULT).is_file() and (not place.is_dir() or any(place.iterdir())):
        raise RunError(f"{place}: holds no ablation, and nothing is overwritten. Name another folder.")
    shutil.rmtree(place / "cells", ignore_errors=True)
    root = Path.cwd()
    write_up(place, json.loads(without_places(json.dumps(found), root)))
    write(place / "ablation.toml", without_places(text, root))
    for cell in cells:
        assert cell.run is not None  # it is finished
        keep_run(cell.run.path, place / "cells" / cell.arm / f"seed-{cell.seed}", root)


def read(place: Path) -> dict[str, Any]:
    """Return what an ablation found, from its folder or a kept copy.

    Raises:
        RunError: if the folder holds no ablation.
    """
    file = place / RESULT
    if not file.is_file():
        raise RunError(
            f"{place}: holds no {RESULT}. Give the folder that `evid ablate FILE` or its --keep wrote."
        )
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found
