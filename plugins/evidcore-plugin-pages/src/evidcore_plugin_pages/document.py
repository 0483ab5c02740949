"""Write a run's evidence page: one file, no network, readable without its script."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from evidcore.errors import EvidError
from evidcore.hooks import Announcer
from evidcore.runs.read import Line, RunRecord, read_record
from evidcore_plugin_pages import charts, outcome
from evidcore_plugin_pages.durations import is_number, is_time, stage_time
from evidcore_plugin_pages.examples import evidence_section
from evidcore_plugin_pages.gallery import Gallery
from evidcore_plugin_pages.jinja import page
from evidcore_plugin_pages.markup import DASH, Html, Unit, join, tag
from evidcore_plugin_pages.tables import figures, result_table

_SKIPPED = {"stage", "step", "time_s", "epoch"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart and the figures that belong on it."""

    title: str
    figures: re.Pattern[str]
    unit: Unit = "plain"
    note: str = ""


PANELS = (
    Panel(title="Loss", figures=re.compile(r"loss(?:_(\w+))?")),
    Panel(title="Reward", figures=re.compile(r"reward(?:/(.+))?"), note="mean over answers"),
    Panel(title="Well-formed answers", figures=re.compile(r"reward/format"), unit="rate"),
    Panel(title="KL to the reference", figures=re.compile(r"kl"), note="nats a token"),
    Panel(
        title="Dead groups",
        figures=re.compile(r"dead_groups(?:/(.+))?"),
        unit="rate",
        note="equal rewards teach nothing",
    ),
    Panel(title="Entropy", figures=re.compile(r"entropy"), note="nats a token"),
    Panel(title="Answer length", figures=re.compile(r"completion_tokens"), note="tokens"),
)


def stage_curves(lines: Sequence[Line]) -> Html:
    """Return the charts of one stage's lines, the well-known ones open and the rest folded."""
    names = [
        name
        for name in dict.fromkeys(key for line in lines for key in line)
        if name not in _SKIPPED and not is_time(name) and any(is_number(line.get(name)) for line in lines)
    ]
    shown, left = [], set(names)
    for panel in PANELS:
        mine = [name for name in names if panel.figures.fullmatch(name)][:6]
        if mine:
            left -= set(mine)
            rows = [_curve(_label(panel, name), name, lines) for name in mine]
            shown.append(charts.curves(panel.title, rows, unit=panel.unit, note=panel.note))
    more = [charts.curves(name, [_curve(name, name, lines)]) for name in names if name in left]
    return join([
        tag("div", *shown, class_="curves") if shown else "",
        tag(
            "details",
            tag("summary", f"{len(more)} more figure{'s' * (len(more) > 1)}"),
            tag("div", *more, class_="curves"),
        )
        if more
        else "",
    ])


def _label(panel: Panel, name: str) -> str:
    if not panel.figures.groups:
        return name
    result = panel.figures.fullmatch(name)
    return (result.group(1) if result else None) or "total"


def _curve(label: str, name: str, lines: Sequence[Line]) -> charts.Curve:
    points = [(int(line["step"]), float(line[name])) for line in lines if is_number(line.get(name))]
    return charts.Curve(
        label=label, steps=[step for step, _ in points], values=[value for _, value in points]
    )


_VOLUMES_BYTES = 11_000_000  # the whole page stays below 15 MB


def write_page(run_folder: Path, *, show_reports: bool = False) -> Path:
    """Write `page/index.html` into a run folder and return its path.

    Args:
        run_folder: what `evid run` wrote; pieces that are missing are said to be missing.
        show_reports: put reference reports of real patients on the page; those of phantoms always are.

    Raises:
        RunError: if the folder is not a run or a file in it cannot be read.
    """
    record = read_record(run_folder)
    sections, failed = _observed(record)
    text = document(record, sections, failed, show_reports=show_reports)
    target = run_folder / "page" / "index.html"
    target.parent.mkdir(exist_ok=True)
    unfinished = target.with_suffix(".tmp")
    unfinished.write_text(text, encoding="utf-8", errors="backslashreplace")
    unfinished.replace(target)
    return target


def _observed(record: RunRecord) -> tuple[list[tuple[str, str]], Mapping[str, str]]:
    """Ask the recipe's observers for sections; one that is gone or fails is named on the page."""
    sections: list[tuple[str, str]] = []
    failed: dict[str, str] = {}
    for name in record.recipe.get("observers", ()):
        try:
            announcer = Announcer.from_names((), [str(name)])
        except EvidError as cause:
            failed[str(name)] = str(cause)
            continue
        sections += announcer.report_sections(record.folder)
        failed |= announcer.failed
    return sections, failed


def document(
    record: RunRecord,
    sections: Sequence[tuple[str, str]] = (),
    failed: Mapping[str, str] | None = None,
    *,
    show_reports: bool = False,
) -> str:
    """Return the page of `record` as text."""
    gallery = Gallery(_VOLUMES_BYTES)
    evidence = evidence_section(record, gallery, show_reports)
    state = str(record.status.get("state", "unknown"))
    stages = [
        f"{stage.get('kind')} {str(stage.get('component', '')).rpartition('.')[2]}".strip()
        for stage in record.recipe.get("stage", ())
    ]
    phantoms, real = record.phantom_datasets(), record.real_datasets()
    by_stage = _by_stage(record)
    return page(
        "evidcore_plugin_pages",
        "run.html",
        title=record.name,
        kicker="evidcore evidence page",
        state=state,
        state_class="".join(item if item.isalnum() else "-" for item in state.lower()),
        record=record,
        phantoms=phantoms,
        real=real,
        facts=[
            ("Run", tag("code", record.folder.name)),
            ("Seed", record.recipe.get("seed", DASH)),
            ("Data", ", ".join([*(f"{name} (phantom)" for name in phantoms), *real]) or DASH),
            ("Stages", " → ".join(stages) or DASH),
            *_lock_summary(record),
            *([("Message", record.status["message"])] if record.status.get("message") else []),
        ],
        outcomes=[
            ("result", "Result", outcome.headline(record)),
            ("looking", "Does it look?", outcome.audit(record)),
            ("changes", "What training changed", outcome.changes(record)),
            ("evidence", "Evidence", evidence),
        ],
        curves=[(stage, stage_curves(lines)) for stage, lines in by_stage.items()],
        tables=[
            (
                outcome.stage_title(record, str(result.get("stage", ""))),
                figures(result["figures"]) if result.get("figures") else "",
                result_table(result) if result.get("rows") else "",
            )
            for result in record.results
            if result.get("rows") or result.get("figures")
        ],
        times=[(stage, drawn) for stage, lines in by_stage.items() if (drawn := stage_time(lines))],
        observed=[(title, Html(html)) for title, html in sections],
        failed=failed or {},
        volumes=gallery.blocks(),
    )


def _by_stage(record: RunRecord) -> dict[str, list[Line]]:
    result: dict[str, list[Line]] = {}
    for line in record.metrics:
        result.setdefault(str(line.get("stage", "")), []).append(line)
    return result


def _lock_summary(record: RunRecord) -> list[tuple[str, object]]:
    """Return what the numbers rest on, from lock.toml; the whole lock is folded below."""
    pairs: list[tuple[str, object]] = []
    packages = record.lock.get("package", {})
    if packages:
        said = [f"{name} {table.get('version', '?')}" for name, table in packages.items()]
        pairs.append(("Packages", ", ".join(said)))
    hardware = record.lock.get("hardware", {})
    if hardware:
        said = [*hardware.get("gpus", ()), f"{hardware.get('cores', '?')} cores"]
        pairs.append(("Machine", f"{', '.join(said)}, {hardware.get('memory_gb', '?')} GB"))
    return pairs
