"""`evid audit segmenter`: what segmenters make of known objects."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from evidcore_plugin_tables.target_options import folder_intensity, target_argument

from evidcore.api import DataError
from evidcore.cli import printer
from evidcore.cli.run import follow
from evidcore.errors import RecipeError

if TYPE_CHECKING:
    from rich.table import Table

    from evidcore.api import Case, Dataset, Segmenter
    from evidcore.case import Split

_SHOWN = {
    "dice": "Dice",
    "dice_spread": "spread",
    "slice_to_slice_dice": "slice to slice",
    "area_leaps": "leaps",
    "splits": "splits",
    "leaves_body": "leaves body",
}
_WIDE = 200  # columns of a file or a pipe, so that no table is folded
_SHARES = ("area_leaps", "splits", "leaves_body")


def _shares(context: click.Context, option: click.Parameter, value: str) -> tuple[float, ...]:
    try:
        result = tuple(float(part) for part in value.split(",") if part.strip())
    except ValueError as cause:
        raise click.BadParameter(f"must be numbers with commas between, got {value!r}.") from cause
    if any(not 0 < share <= 1 for share in result) or len(set(result)) != len(result):
        raise click.BadParameter(f"must be different shares above 0 and up to 1, got {value!r}.")
    return result


@click.command()
@target_argument
@click.option(
    "--segmenter",
    "asked",
    multiple=True,
    default=("region-growing",),
    show_default=True,
    metavar="NAME",
    help="A name, a TOML table '{ use = \"…\", … }', or service.NAME of the recipe. Repeat to compare.",
)
@click.option("--dataset", "only", metavar="NAME", help="Of a recipe, only this data set.")
@click.option(
    "--split",
    type=click.Choice(["train", "validation", "test"]),
    default="test",
    show_default=True,
    help="Whose cases. A segmenter that was trained here has seen the train split.",
)
@click.option("--mask", "masks", multiple=True, metavar="NAME", help="Only masks of this name. Repeatable.")
@click.option(
    "--jitter",
    callback=_shares,
    default="0.1,0.25,0.5",
    show_default=True,
    help="Shares of its size by which a box is moved, in all four ways.",
)
@click.option("--limit", type=click.IntRange(min=0), default=0, help="Cases of the split; 0 = all.")
@folder_intensity
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def segmenter(
    target: Path,
    asked: tuple[str, ...],
    only: str | None,
    split: Literal["train", "validation", "test"],
    masks: tuple[str, ...],
    jitter: tuple[float, ...],
    limit: int,
    intensity: Literal["hu", "arbitrary"],
    as_json: bool,
) -> None:
    """Segment the known objects of TARGET from oracle prompts, and from boxes that are off.

    TARGET is a recipe, or a folder that holds cases.csv. The key slice is the one that shows most of a mask.
    """
    from evidcore_plugin_tables.target import open_target

    from evidcore.registry.factory import offer_of
    from evidcore_plugin_segmenters.audit.audit_segmenters import audit_segmenters
    from evidcore_plugin_segmenters.audit.drift import DISTANCES

    built = _built(asked, target)
    datasets: dict[str, Any] = {}
    for name, dataset in open_target(target, only, intensity).items():
        cases = _cases(dataset, split, limit, target)
        with follow(name) as done:
            results = audit_segmenters(built, cases, jitters=jitter, masks=masks, done=done)
        datasets[name] = {
            "split": split,
            "is_phantom": offer_of(dataset).name.startswith("phantom-"),
            "cases": results.cases,
            "objects": len({(record.case, record.mask) for record in results.records}),
            "patients": len({record.patient for record in results.records}),
            "patients_known": results.patients_known,
            "without_masks": results.without_masks,
            "empty_masks": results.empty_masks,
            "rows": results.rows(),
            "records": [dataclasses.asdict(record) for record in results.records],
        }
    result = {
        "target": str(target),
        "segmenters": [{"name": name, "package": str(offer_of(item))} for name, item in built.items()],
        "distances": list(DISTANCES),
        "datasets": datasets,
    }
    if as_json:
        click.echo(json.dumps(result, indent=1))
    else:
        _print(result)


def _built(asked: Sequence[str], target: Path) -> dict[str, Segmenter]:
    """Build the segmenters, each under the shortest name that tells it apart."""
    from evidcore.cache import cache_folder
    from evidcore.registry import factory

    tables = {text: _table(text, target) for text in dict.fromkeys(asked)}
    uses = [str(table.get("use")) for table in tables.values()]
    result: dict[str, Segmenter] = {}
    for text, table in tables.items():
        name = text if text.startswith("service.") or uses.count(str(table.get("use"))) > 1 else table["use"]
        folder = target.parent if text.startswith("service.") else Path.cwd()
        given = {"cache_folder": cache_folder(), "recipe_folder": folder}
        result[name] = factory.build("segmenter", table, given=given, where=f"--segmenter {text}")
    return result


def _table(text: str, target: Path) -> Mapping[str, Any]:
    """Return the recipe table that an option stands for."""
    if text.startswith("service."):
        from evidcore.recipe import load

        services = load(target).services if target.suffix == ".toml" else {}
        name = text.removeprefix("service.")
        table = services.get(name, {})
        if table.get("kind") != "segmenter":
            known = [f"service.{key}" for key, value in services.items() if value.get("kind") == "segmenter"]
            listed = ", ".join(known) or "none"
            raise RecipeError(f"--segmenter {text}: {target} has no such segmenter. It has: {listed}.")
        return {key: value for key, value in table.items() if key != "kind"}
    if not text.lstrip().startswith("{"):
        return {"use": text}
    try:
        given: Any = tomllib.loads(f"table = {text}")["table"]
    except (ValueError, RecursionError) as cause:
        remedy = "Write for instance '{ use = \"region-growing\" }'."
        raise RecipeError(f"--segmenter {text}: is no TOML table ({cause}). {remedy}") from cause
    if not isinstance(given, dict) or not isinstance(given.get("use"), str):
        raise RecipeError(f'--segmenter {text}: has no use = "…", which names the segmenter.')
    return given


def _cases(dataset: Dataset, split: Split, limit: int, target: Path) -> list[Case]:
    cases = list(dataset.cases(split))
    if not cases:
        counts = {name: len(list(dataset.cases(name))) for name in ("train", "validation", "test")}
        shown = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise DataError(f"{target}: the {split} split has no cases ({shown}). Name another: --split train.")
    return cases[:limit] if limit else cases


def _print(result: Mapping[str, Any]) -> None:
    console = printer(soft_wrap=False)
    if not console.is_terminal:
        console = printer(soft_wrap=False, width=_WIDE)
    for name, item in result["datasets"].items():
        whose = "patients" if item["patients_known"] else "cases (patients not known)"
        console.print(f"{name}, {item['split']}: {item['objects']} objects of {item['patients']} {whose}")
        if item["is_phantom"]:
            console.print("Phantom data: these are no patients.")
        if item["without_masks"] or item["empty_masks"]:
            console.print(
                f"passed over: {item['without_masks']} cases without masks, {item['empty_masks']} empty masks"
            )
        whole = [row for row in item["rows"] if not row["distance_slices"]]
        absolute = [row for row in whole if row["metric"] != "dice_difference"]
        console.print(_printed(absolute, "metric", _SHOWN, _written))
        distances = {name: name for name in result["distances"]}
        for metric, title in (("dice", "Dice"), ("surface_mm", "Distance between the outlines, mm,")):
            console.print(f"\n{title} by slices from the prompt")
            some = [row for row in item["rows"] if row["metric"] == metric and row["distance_slices"]]
            console.print(_printed(some, "distance_slices", distances, lambda row: f"{row['value']:.3g}"))
        for line in _differences(item["rows"]):
            console.print(line)


def _printed(
    rows: Sequence[Mapping[str, Any]],
    key: str,
    heads: Mapping[str, str],
    write: Callable[[Mapping[str, Any]], str],
) -> Table:
    """Return a line for each segmenter and prompt, a column for each value of `key`."""
    from rich.table import Table

    table = Table("segmenter", "prompt", box=None, pad_edge=False)
    for head in heads.values():
        table.add_column(head, justify="right")
    for pair in dict.fromkeys((row["segmenter"], row["prompt"]) for row in rows):
        own = {row[key]: row for row in rows if (row["segmenter"], row["prompt"]) == pair}
        table.add_row(*pair, *(write(own[name]) if name in own else "-" for name in heads))
    return table


def _differences(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    some = [row for row in rows if row["metric"] == "dice_difference"]
    if some:
        yield "\nDifferences of Dice, paired over objects"
    for row in some:
        spread = f" ({row['low']:+.3f} to {row['high']:+.3f})" if row["low"] is not None else ""
        yield f"  {row['segmenter']}: {row['prompt']}: {row['value']:+.3f}{spread}"
    whole = [row["note"] for row in rows if row["metric"] == "dice" and not row["distance_slices"]]
    for note in dict.fromkeys(note for note in whole if note.startswith("too few")):
        yield f"No intervals: {note}."


def _written(row: Mapping[str, Any]) -> str:
    if row["metric"] in _SHARES:
        return f"{100 * row['value']:.0f} %"
    spread = f" ({row['low']:.3f} to {row['high']:.3f})" if row["low"] is not None else ""
    return f"{row['value']:.3f}{spread}"
