"""`evid data profile`: what a data set holds, and what can be scored on it without looking."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click
from evidcore_plugin_tables.target_options import folder_intensity, target_argument

from evidcore.cli.run import follow
from evidcore.errors import printable

if TYPE_CHECKING:
    from evidcore.contracts import Labeler, Task
    from evidcore_plugin_doctor.listing import Cases, Columns

_LINES = {
    "uniform_chance": "uniform chance",
    "prior_only": "best blind rule",
    "perfect_perception": "perfect perception",
}


def _comma(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if value else ()


@click.command()
@target_argument
@click.option("--dataset", "only", metavar="NAME", help="Of a recipe, only this data set.")
@click.option(
    "--task",
    "asked",
    multiple=True,
    metavar="NAME",
    help="Only these ways of asking: given, 'random distractors', negatives, or a task of the recipe.",
)
@click.option("--labeler", metavar="NAME", help="Labels the sentences of reports that carry no labels.")
@folder_intensity
@click.option("--id", "id_column", default="", help="Of a CSV: the column with the case's name.")
@click.option("--patient", default="", help="Of a CSV: the column with the patient.")
@click.option("--split", default="", help="Of a CSV: the column with the split. Without, all is train.")
@click.option("--report", default="", help="Of a CSV: the column with the report.")
@click.option(
    "--labels",
    callback=_comma,
    help="Of a CSV: the findings' columns, commas between. Default: all that fit.",
)
@click.option("--question", default="", help="Of a CSV of questions: the column with the question.")
@click.option("--options", callback=_comma, help="Its options: one column each, or one for all.")
@click.option("--answer", default="", help="The right one: a letter, or its text.")
@click.option("--out", type=click.Path(path_type=Path), help="Write profile.json and index.html here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def profile(
    target: Path,
    only: str | None,
    asked: tuple[str, ...],
    labeler: str | None,
    intensity: Literal["hu", "arbitrary"],
    id_column: str,
    patient: str,
    split: str,
    report: str,
    labels: tuple[str, ...],
    question: str,
    options: tuple[str, ...],
    answer: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Describe TARGET: prevalence, reference lines, reports, voxel sizes. No text of a report is shown.

    TARGET is a recipe, a folder that holds cases.csv or questions.csv, or any CSV of labels or questions.
    """
    from evidcore_plugin_doctor.listing import Columns
    from evidcore_plugin_doctor.profile import profile as describe

    columns = Columns(
        id=id_column, patient=patient, split=split, report=report, labels=labels,
        question=question, options=options, answer=answer,
    )  # fmt: skip
    if columns.named() and target.suffix != ".csv":
        raise click.UsageError(f"columns belong to a CSV, {target} is none; a recipe names them itself.")
    built = _labeler(labeler)
    found = []
    for name, cases, unlisted, tasks in _opened(target, only, intensity, columns):
        with follow(name) as done:
            found.append(
                describe(cases, name, tasks=tasks, asked=asked, labeler=built, done=done, unlisted=unlisted)
            )
    if out is not None:
        from evidcore_plugin_doctor.figure import page

        out.mkdir(parents=True, exist_ok=True)
        (out / "profile.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
        (out / "index.html").write_text(page(found), encoding="utf-8")
    if as_json:
        click.echo(json.dumps({"target": str(target), "profiles": found}, indent=1))
        return
    for item in found:
        for line in _said(item, target):
            click.echo(printable(line))
    if out is not None:
        click.echo(f"page: {out / 'index.html'}")


def _opened(
    target: Path, only: str | None, intensity: Literal["hu", "arbitrary"], columns: Columns
) -> Iterator[tuple[str, Cases, int, Mapping[str, Task]]]:
    """Yield name, cases, number of unreadable rows and cells, and tasks of what TARGET stands for."""
    from evidcore_plugin_tables.target import open_target, open_tasks

    from evidcore.case import Split
    from evidcore_plugin_doctor.listing import read_listing

    if target.is_file() and target.suffix == ".csv":
        yield target.stem, read_listing(target, columns), 0, {}
        return
    tasks = open_tasks(target) if target.suffix == ".toml" else {}
    for name, dataset in open_target(target, only, intensity).items():
        cases = {split: list(dataset.listed(split)) for split in get_args(Split)}
        yield name, cases, len(list(dataset.unlisted())), tasks


def _labeler(name: str | None) -> Labeler | None:
    if name is None:
        return None
    from evidcore.cache import cache_folder
    from evidcore.contracts import Labeler
    from evidcore.registry import factory

    given = {"cache_folder": cache_folder(), "recipe_folder": Path.cwd()}
    built = factory.build("labeler", {"use": name}, given=given, where="--labeler")
    return built if isinstance(built, Labeler) else None


def _said(found: Mapping[str, Any], target: Path) -> Iterator[str]:
    """Yield a profile as lines."""
    yield str(found["dataset"])
    for split, item in found["splits"].items():
        if item["cases"]:
            patients = "patients not known" if item["patients"] is None else f"{item['patients']} patients"
            asked = f", {item['questions']} questions" if item["questions"] else ""
            yield f"  {split:11} {item['cases']} cases, {patients}{asked}"
    if found["unlisted"]:
        unread = f"{found['unlisted']} rows and cells cannot be read and are not counted"
        yield f"  {unread}: evid data check {target}"
    for row in found["reference_lines"]:
        yield ""
        whose = "cases" if found["splits"][row["split"]]["patients"] is None else "patients"
        counts = f"{row['questions']} questions, {row['patients']} {whose}"
        yield f"  asked as {row['asked']}, {row['split']}: {counts}"
        for name, said in _LINES.items():
            yield f"    {said:20} {_rate(row[name])}"
        yield f"    the best blind rule: {row['prior_rule']}" + (f"; {row['note']}" if row["note"] else "")
    if found["findings"]:
        yield ""
        yield "  finding                            split       present    of   prevalence"
    for row in found["findings"]:
        known = row["present"] + row["absent"]
        unsure = f", uncertain {row['uncertain']}" if row["uncertain"] else ""
        rate = _rate({**row, "value": row["prevalence"], "note": ""})
        yield f"  {row['finding']:34} {row['split']:11} {row['present']:7} {known:5}   {rate}{unsure}"
    if found["positions"]:
        yield ""
    for split, item in found["positions"].items():
        for label in ("normal", "abnormal"):
            if item[label]["sentences"]:
                yield (
                    f"  {split}: {item[label]['sentences']} {label} sentences, on average at "
                    f"{100 * item[label]['mean_position']:.0f} % of the report"
                )
        if item["unlabelled"]:
            yield f"  {split}: {item['unlabelled']} sentences in which the labeler finds nothing"
    for title in ("reports", "volumes"):
        if found[title]:
            yield ""
        for split, item in found[title].items():
            yield from (_reports if title == "reports" else _voxels)(split, item)


def _rate(figure: Mapping[str, Any]) -> str:
    if figure["value"] is None:
        return f"not known ({figure['note']})"
    interval = (
        f" ({100 * figure['low']:.1f} to {100 * figure['high']:.1f})" if figure["low"] is not None else ""
    )
    note = f", {figure['note']}" if figure["low"] is None and figure["note"] else ""
    return f"{100 * figure['value']:5.1f} %{interval}{note}"


def _reports(split: str, item: Mapping[str, Any]) -> Iterator[str]:
    for what in ("words", "sentences"):
        found = item[what]
        yield (
            f"  {split}: {item['reports']} reports of {found['50 %']:.0f} {what} "
            f"(5 % have up to {found['5 %']:.0f}, 95 % up to {found['95 %']:.0f})"
        )


def _voxels(split: str, item: Mapping[str, Any]) -> Iterator[str]:
    bad = f", {item['unreadable']} headers cannot be read (see evid data check)" if item["unreadable"] else ""
    yield f"  {split}: {item['volumes']} volumes{bad}"
    if item["unreadable"] == item["volumes"]:
        return
    for what, said in (("spacing_mm", "spacing in mm"), ("voxels", "voxels"), ("extent_mm", "extent in mm")):
        shown = ", ".join(
            f"{axis} {found['50 %']:.4g} ({found['0 %']:.4g} to {found['100 %']:.4g})"
            for axis, found in item[what].items()
        )
        yield f"    {said:14} {shown}"
