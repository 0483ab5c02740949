"""`evid data`: check, view, profile and prepare a data set before anything is trained on it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from evidcore_plugin_tables.target_options import folder_intensity, target_argument

from evidcore.api import DataError
from evidcore.cache import plain_file, write_atomically
from evidcore.case import Intensity, Split
from evidcore.cli import CommandGroup
from evidcore.cli.run import follow
from evidcore.errors import printable
from evidcore.runs.folder import write

if TYPE_CHECKING:
    from evidcore_plugin_doctor.fault import Fault
    from evidcore_plugin_doctor.listing import Cases

data = CommandGroup("data", help="Check, view, profile and prepare a data set.")
_only = click.option("--dataset", "only", metavar="NAME", help="Of a recipe, only this data set.")
_splits = click.option(
    "--split", "splits", multiple=True, type=click.Choice(get_args(Split)),
    help="Only this split; repeatable.",
)  # fmt: skip
_processes = click.option(
    "--processes", type=click.IntRange(min=1), help="How many read volumes at once. Default: one a core.",
    callback=lambda context, option, count: count or len(os.sched_getaffinity(0)),
)  # fmt: skip
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _list(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if value else ()


def _tell(template: str, **facts: Any) -> None:
    """Print what a template says."""
    from evidcore_plugin_pages.jinja import environment

    plain = environment("evidcore_plugin_doctor").overlay(autoescape=False)
    click.echo(printable(plain.get_template(template).render(**facts)).rstrip("\n"))


def _shard(context: click.Context, option: click.Parameter, text: str) -> tuple[int, int]:
    """Read i/n."""
    share = re.fullmatch(r"(\d+)/(\d+)", text)
    if not share or not 1 <= int(share[1]) <= int(share[2]):
        raise click.BadParameter(f"must be i/n with i from 1 to n, got {text!r}. For instance 2/4.")
    return int(share[1]), int(share[2])


@click.command()
@target_argument
@_only
@folder_intensity
@_processes
@_json
def check(target: Path, only: str | None, intensity: Intensity, processes: int, as_json: bool) -> None:
    """Find what is wrong with the cases of TARGET, one line a fault.

    TARGET is a recipe, or a folder that holds cases.csv or questions.csv. Every fault of every
    case is found in one run.
    Exit status: 0 nothing found, 1 faults found, 2 TARGET cannot be used.
    """
    from evidcore_plugin_tables.target import open_target

    from evidcore_plugin_doctor.check import check as check_cases
    from evidcore_plugin_doctor.check import list_cases
    from evidcore_plugin_doctor.likeness import Library

    results: dict[str, Any] = {}
    library = Library()
    for name, dataset in open_target(target, only, intensity).items():
        faults: list[Fault] = []

        def add(fault: Fault, faults: list[Fault] = faults) -> None:
            faults.append(fault)
            if not as_json:
                click.echo(printable(fault.line(), keep=""))

        with follow(name) as progress:
            listed = list_cases(dataset, name)
            summary = check_cases(
                *listed, processes=processes, on_fault=add, progress=progress, name=name, library=library
            )
        results[name] = {
            "faults": [dataclasses.asdict(fault) for fault in faults], "summary": dataclasses.asdict(summary),
        }  # fmt: skip
        if not as_json:
            _tell("check.txt", name=name, summary=summary)
    if as_json:
        click.echo(json.dumps({"target": str(target), "datasets": results}, indent=1))
    if any(result["faults"] for result in results.values()):
        click.get_current_context().exit(1)


@click.command()
@target_argument
@_only
@folder_intensity
@_splits
@click.option("--case", "ids", multiple=True, metavar="ID", help="Only this case; may be repeated.")
@click.option("--finding", metavar="NAME", help="Only cases that show this: a finding or a mask.")
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many, evenly spaced."
)
@_processes
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Default: NAME.html of TARGET.")
@click.option("--json", "as_json", is_flag=True, help="Print what the page holds as numbers.")
def view(
    target: Path, only: str | None, intensity: Intensity, processes: int, out: Path | None, as_json: bool,
    **filters: Any,
) -> None:  # fmt: skip
    """Write a page of TARGET's cases: three planes, masks, report, questions and faults of each.

    TARGET is a recipe, or a folder that holds cases.csv or questions.csv. The page is one file that opens
    without a network; it may hold patients' data. Files are looked at for the cases on it alone; `evid data
    check` looks at all.
    """
    from evidcore_plugin_tables.target import open_target

    from evidcore_plugin_doctor.contact_sheet import KICKER, PICTURES_BYTES, gather, page
    from evidcore_plugin_doctor.likeness import Library

    path = out or Path(f"{target.resolve().stem}.html")
    if path.exists() and KICKER.encode() not in plain_file(path).read_bytes():
        raise DataError(f"{path}: is there, and no page of this command. Give another --out, or move it.")
    sheets = []
    datasets = open_target(target, only, intensity)
    filters |= {"processes": processes, "pictures_bytes": PICTURES_BYTES // max(1, len(datasets))}
    filters |= {"library": Library()}
    for name, dataset in datasets.items():
        with follow(name) as progress:
            sheets.append(gather(dataset, name, progress=progress, **filters))
    text, no_room = page(sheets, str(target))
    write_atomically(path, text.encode(errors="backslashreplace"), or_else="name another file with --out")
    size_bytes = path.stat().st_size
    if as_json:
        facts = {"target": str(target), "page": str(path), "bytes": size_bytes, "no_room": no_room}
        records = {sheet.name: sheet.record() for sheet in sheets}
        click.echo(json.dumps({**facts, "datasets": records}, indent=1))
        return
    _tell("view.txt", sheets=sheets, no_room=no_room, path=path, size_bytes=size_bytes)


@click.command()
@target_argument
@_only
@click.option(
    "--task", "asked", multiple=True, metavar="NAME",
    help="Only these ways of asking: given, 'random distractors', negatives, or a task of the recipe.",
)  # fmt: skip
@click.option("--labeler", metavar="NAME", help="Labels the sentences of reports that carry no labels.")
@folder_intensity
@click.option("--id", default="", help="Of a CSV: the column with the case's name.")
@click.option("--patient", default="", help="Of a CSV: the column with the patient.")
@click.option("--split", default="", help="Of a CSV: the column with the split. Without, all is train.")
@click.option("--report", default="", help="Of a CSV: the column with the report.")
@click.option("--labels", callback=_list, help="Of a CSV: the findings' columns. Default: all that fit.")
@click.option("--question", default="", help="Of a CSV of questions: the column with the question.")
@click.option("--options", callback=_list, help="Its options: one column each, or one for all.")
@click.option("--answer", default="", help="The right one: a letter, or its text.")
@click.option("--out", type=click.Path(path_type=Path), help="Write profile.json and index.html here.")
@_json
def profile(
    target: Path, only: str | None, asked: tuple[str, ...], labeler: str | None, intensity: Intensity,
    out: Path | None, as_json: bool, **named: Any,
) -> None:  # fmt: skip
    """Describe TARGET: prevalence, reference lines, reports, voxel sizes. No text of a report is shown.

    TARGET is a recipe, a folder that holds cases.csv or questions.csv, or any CSV of labels or questions.
    """
    from evidcore_plugin_tables.target import open_target, open_tasks

    from evidcore.cache import cache_folder
    from evidcore.registry import factory
    from evidcore_plugin_doctor.listing import Columns, read_listing
    from evidcore_plugin_doctor.profile import page, text
    from evidcore_plugin_doctor.profile import profile as describe

    columns = Columns(**named)
    is_csv = target.is_file() and target.suffix == ".csv"
    if columns.named() and not is_csv:
        raise click.UsageError(f"columns belong to a CSV, {target} is none; a recipe names them itself.")
    given = {"cache_folder": cache_folder(), "recipe_folder": Path.cwd()}
    built = labeler and factory.build("labeler", {"use": labeler}, given=given, where="--labeler")
    tasks = open_tasks(target) if target.suffix == ".toml" else {}
    listings: dict[str, tuple[Cases, int]] = {}
    if is_csv:
        listings[target.stem] = read_listing(target, columns), 0
    else:
        for name, dataset in open_target(target, only, intensity).items():
            listed = {split: list(dataset.listed(split)) for split in get_args(Split)}
            listings[name] = listed, len(list(dataset.unlisted()))
    profiles = []
    settings: dict[str, Any] = {"tasks": tasks, "asked": asked, "labeler": built or None}
    for name, (cases, unlisted) in listings.items():
        with follow(name) as progress:
            profiles.append(describe(cases, name, progress=progress, unlisted=unlisted, **settings))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write(out / "profile.json", json.dumps(profiles, indent=1))  # through no link of a stranger's
        write(out / "index.html", page(profiles).encode(errors="backslashreplace").decode())
    if as_json:
        click.echo(json.dumps({"target": str(target), "profiles": profiles}, indent=1))
        return
    for item in profiles:
        click.echo(printable(text(item, str(target))))
    if out is not None:
        click.echo(f"page: {out / 'index.html'}")


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a key of the recipe.")
@_only
@_splits
@click.option(
    "--processes", type=click.IntRange(1), default=1, show_default=True, help="How many read cases at once."
)
@click.option("--shard", default="1/1", callback=_shard, metavar="I/N", help="Only share I of N.")
@click.option("--inputs-only", is_flag=True, help="Keep what the encoder is given, not the volumes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def prepare(
    recipe: Path, overrides: tuple[str, ...], only: str | None, splits: tuple[Split, ...], processes: int,
    shard: tuple[int, int], inputs_only: bool, as_json: bool,
) -> None:  # fmt: skip
    """Read every volume of a recipe's data sets, and keep volumes and encoder inputs in the cache.

    Killed and started again, it goes on where it stopped. EVID_CACHE names the cache folder, EVID_CACHE_GB
    its limit.
    """
    from evidcore.recipe import load

    loaded = load(recipe, overrides)  # a mistake is named before all else is imported

    from evidcore.cache import cache_folder
    from evidcore_plugin_doctor.prepare import fill

    with follow("prepare") as progress:
        summary = fill(
            loaded, only=only, splits=splits, processes=processes, shard=shard,
            keeps_volumes=not inputs_only, progress=progress,
        )  # fmt: skip
    if as_json:
        facts = {"recipe": str(recipe), "cache": str(cache_folder()), "shard": f"{shard[0]}/{shard[1]}"}
        click.echo(json.dumps({**facts, **dataclasses.asdict(summary)}, indent=1))
        return
    for message in summary.unlisted:
        click.echo(printable(f"not read: {message}"))
    for case, reason in summary.left_out.items():
        click.echo(printable(f"left out: {case}: {reason}", keep=""))
    _tell("prepare.txt", recipe=recipe, summary=summary, cache=cache_folder())
