"""Write what an ablation found beside its cells, archive a small copy to commit, and read both back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.errors import RunError
from evidcore.runs.folder import write
from evidcore_plugin_lab.ablation.cells import Cell
from evidcore_plugin_lab.ablation.tables import latex, markdown, summary

RESULT = "ablation.json"


def write_up(place: Path, found: Mapping[str, Any]) -> None:
    """Write `ablation.json`, `README.md`, `summary.txt` and `table.tex` into a folder."""
    _write_tables(place, found)
    write(place / "table.tex", latex(found))


def _write_tables(place: Path, found: Mapping[str, Any]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    write(place / RESULT, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    write(place / "README.md", markdown(found))
    write(place / "summary.txt", summary(found))


def keep(place: Path, found: Mapping[str, Any], text: str, cells: Sequence[Cell]) -> None:
    """Archive the tables, with the ablation's file and what pins each cell: three small files, no answers.

    Args:
        place: the folder to write to; an ablation that was archived there before is replaced.
        found: what `outcome` returned, with `command`. `definition`, the file's text, is added to it, and
            `locks`: for each cell the hashes of the recipe, of the packages' code and of the data. README.md
            then says that answers are missing.
        text: the ablation's file.
        cells: those that count.

    Raises:
        RunError: if the folder holds something else.
    """
    if place.exists() and not (place / RESULT).is_file() and (not place.is_dir() or any(place.iterdir())):
        raise RunError(f"{place}: holds no ablation, and nothing is overwritten. Name another folder.")
    root = Path.cwd()
    locks = {cell.name: _pins(cell.run.lock()) for cell in cells if cell.run is not None}
    archived = json.loads(
        without_places(json.dumps({**found, "definition": without_places(text, root), "locks": locks}), root)
    )
    _write_tables(place, archived)


def _pins(lock: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hashes of a lock; versions and hardware are in `made_with`, overrides in `arms`."""
    return {
        "recipe": lock["recipe"]["hash"],
        "code": {name: table["code"] for name, table in lock["package"].items()},
        "data": {name: table["fingerprint"] for name, table in lock["dataset"].items()},
    }


def without_places(text: str, root: Path) -> str:
    """Return a text in which no path says where on this machine `root` and the home folder lie."""
    for folder, short in ((root.resolve(), ""), (Path.home(), "~/")):
        text = text.replace(f"{folder}/", short).replace(f'"{folder}"', f'"{short.rstrip("/") or "."}"')
    return text


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
