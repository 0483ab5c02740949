"""`evid data check`: the faults of a data set, before anything is trained on it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from evidcore_plugin_tables.target_options import folder_intensity, target_argument

from evidcore.cli.run import follow
from evidcore.errors import printable

if TYPE_CHECKING:
    from evidcore_plugin_doctor.check import Summary
    from evidcore_plugin_doctor.fault import Fault


@click.command()
@target_argument
@click.option("--dataset", "only", metavar="NAME", help="Of a recipe, only this data set.")
@folder_intensity
@click.option(
    "--processes", type=click.IntRange(min=1), help="How many read volumes at once. Default: one a core."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check(
    context: click.Context,
    target: Path,
    only: str | None,
    intensity: Literal["hu", "arbitrary"],
    processes: int | None,
    as_json: bool,
) -> None:
    """Find what is wrong with the cases of TARGET, one line a fault.

    TARGET is a recipe, or a folder that holds cases.csv or questions.csv. Every fault of every
    case is found in one run.
    Exit status: 0 nothing found, 1 faults found, 2 TARGET cannot be used.
    """
    from evidcore_plugin_tables.target import open_target

    from evidcore_plugin_doctor.check import check as look_at

    cores = processes or len(os.sched_getaffinity(0))
    results: dict[str, Any] = {}
    found = 0
    for name, dataset in open_target(target, only, intensity).items():
        faults: list[Fault] = []

        def tell(fault: Fault, faults: list[Fault] = faults) -> None:
            faults.append(fault)
            if not as_json:
                click.echo(printable(fault.line(), keep=""))

        with follow(name) as done:
            summary = look_at(dataset, name, processes=cores, told=tell, done=done)
        results[name] = {"faults": [fault.record() for fault in faults], "summary": summary.record()}
        found += len(faults)
        if not as_json:
            for line in _summed_up(name, summary):
                click.echo(printable(line))
    if as_json:
        click.echo(json.dumps({"target": str(target), "datasets": results}, indent=1))
    if found:
        context.exit(1)


def _summed_up(name: str, summary: Summary) -> Iterator[str]:
    """Yield what was looked at and how much was found."""
    splits = ", ".join(f"{split} {count}" for split, count in summary.cases.items())
    patients = "patients not known" if summary.patients is None else f"{summary.patients} patients"
    pace = f", {summary.volumes / summary.seconds:.1f} a second" if summary.volumes else ""
    yield (
        f"{name}: {sum(summary.cases.values())} cases ({splits}), {patients}, {summary.volumes} volumes, "
        f"{summary.masks} masks, {summary.reports} reports in {summary.seconds:.0f} s{pace}"
    )
    if summary.relatives:
        yield f"{name}: {summary.relatives} volumes are like others of their patient and split: no fault"
    if summary.templates:
        yield f"{name}: {summary.templates} report texts are shared by many patients: templates, no fault"
    for word, counts in (("error", summary.errors), ("warning", summary.warnings)):
        if counts:
            total = sum(counts.values())
            parts = ", ".join(f"{check} {count}" for check, count in counts.items())
            yield f"{name}: {total} {word}{'s' if total > 1 else ''} ({parts})"
    if not summary.errors and not summary.warnings:
        yield f"{name}: nothing wrong found"
