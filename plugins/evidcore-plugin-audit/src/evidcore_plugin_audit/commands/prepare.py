"""`evid audit prepare`: an audit's questions and volumes as files, for a model that is asked elsewhere."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from evidcore_plugin_audit.handout import PromptExport

HANDOUT = "handout"


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A new folder.")
@click.option(
    "--key", type=click.Path(path_type=Path), help="Where the key goes; it is not handed over. [OUT/key.json]"
)
@click.option("--stage", default="", help="Which one asks: 05-audit, or 5. [the last audit, or evaluation]")
@click.option("--limit", type=click.IntRange(min=0), default=0, help="Cases per data entry; 0 = all.")
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a key of the recipe.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def prepare(
    recipe: Path, out: Path, key: Path | None, stage: str, limit: int, overrides: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    """Write an audit's questions and volumes for a model that is asked elsewhere.

    OUT/handout/ is handed over: questions.jsonl and volumes/. It names no patient, no condition and no key.
    """
    from evidcore.cli.run import follow
    from evidcore.errors import RunError
    from evidcore.runs.folder import atomic_directory, write

    place = key or out / "key.json"
    if place.resolve().is_relative_to((out / HANDOUT).resolve()):
        raise RunError(f"{key}: lies in what is handed over, {out / HANDOUT}. Put the key somewhere else.")
    if key is not None and key.exists():
        raise RunError(f"{key}: is there already, and nothing is overwritten. Name another file.")
    handout, made_of = _prepared(recipe, overrides, stage, limit)
    with atomic_directory(out) as partial:
        free_bytes = shutil.disk_usage(partial).free
        most, free = (f"{size / 1e9:.3g} GB" for size in (handout.most_bytes, free_bytes))
        questions, volumes = len(handout.ids), len(handout.volumes)
        line = f"{questions} questions over {volumes} volumes, at most {most}; {free} are free"
        click.echo(line, err=as_json)
        if handout.most_bytes > free_bytes:
            raise RunError(
                f"{out}: {most} may be written, {free} are free. Name a folder on another disk, or ask about "
                "fewer cases with --limit."
            )
        is_beside = place.resolve().is_relative_to(out.resolve())
        kept = partial / place.resolve().relative_to(out.resolve()) if is_beside else place
        kept.parent.mkdir(parents=True, exist_ok=True)
        with follow("prepare", "volumes") as told:
            handout.write(partial / HANDOUT, told)
        write(kept, json.dumps(made_of | handout.key(), indent=1) + "\n")
    if as_json:
        sizes = {"questions": questions, "volumes": volumes, "most_bytes": handout.most_bytes}
        click.echo(json.dumps({"handout": str(out / HANDOUT), "key": str(place), **sizes}))
        return
    click.echo(f"hand over: {out / HANDOUT}")
    click.echo(f"keep:      {place}")
    click.echo(f"then:      evid audit policy {recipe} --key {place} --answers FILE")


def _prepared(
    path: Path, overrides: Sequence[str], stage: str, limit: int
) -> tuple[PromptExport, dict[str, Any]]:
    """Return what an audit of a recipe asks, and what it was made of."""
    from evidcore.recipe import load

    recipe = load(path, overrides)  # a mistake is told before all else is imported

    from evidcore.runs.context import Context
    from evidcore_plugin_audit.external import NAME, audit_alone
    from evidcore_plugin_audit.handout import questions_of

    name, assembly, audited = audit_alone(recipe, stage, limit)
    return questions_of(audited, Context(assembly, NAME)), {
        "recipe": recipe.name, "recipe_hash": hashlib.sha256(recipe.text.encode()).hexdigest(),
        "overrides": list(overrides), "stage": name, "limit": limit,
    }  # fmt: skip
