"""Keep of a run what its tables need: results, recipe and lock; no answer, no rollout, no place on a disk."""

from __future__ import annotations

from pathlib import Path


def keep_run(run: Path, place: Path, root: Path) -> None:
    """Copy a run's results, recipe and lock.

    Args:
        run: a run folder.
        place: the folder to copy to; it may exist.
        root: paths below it are written relative to it, others below the home folder with `~`.
    """
    place.mkdir(parents=True, exist_ok=True)
    for file in [*sorted((run / "results").glob("*.json")), *sorted(run.glob("*.toml"))]:
        text = without_places(file.read_text(encoding="utf-8"), root)
        (place / file.name).write_text(text, encoding="utf-8")


def without_places(text: str, root: Path) -> str:
    """Return a text in which no path says where on this machine `root` and the home folder lie."""
    for folder, short in ((root.resolve(), ""), (Path.home(), "~/")):
        text = text.replace(f"{folder}/", short).replace(f'"{folder}"', f'"{short.rstrip("/") or "."}"')
    return text
