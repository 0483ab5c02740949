"""Write a run's evidence page: one file, no network, readable without its script."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from evidcore.cache import write_atomically
from evidcore.errors import EvidError
from evidcore.hooks import Announcer
from evidcore_plugin_pages import charts, outcome
from evidcore_plugin_pages.durations import is_number, is_time, stage_time
from evidcore_plugin_pages.examples import evidence_section
from evidcore_plugin_pages.gallery import Gallery
from evidcore_plugin_pages.jinja import page, part
from evidcore_plugin_pages.markup import DASH, Html, Unit, tag
from evidcore_plugin_pages.record import Line, RunRecord, read_record
from evidcore_plugin_pages.tables import figures, result_table

_SKIPPED = {"stage", "step", "time_s", "epoch"}


class Panel(NamedTuple):
    """One chart and the figures that belong on it."""

    title: str
    figures: str  # a pattern of their names; its group is what a line is called
    unit: Unit = "plain"
    note: str = ""


PANELS = (
    Panel("Measured between steps", r"eval/(.+)", note="of the validation split"),
    Panel("Loss", r"loss(?:_(\w+))?"),
    Panel("Reward", r"reward(?:/(.+))?", note="mean over answers"),
    Panel("Well-formed answers", r"reward/format", "rate"),
    Panel("KL to the reference", r"kl", note="nats a token"),
    Panel("Dead groups", r"dead_groups(?:/(.+))?", "rate", "equal rewards teach nothing"),
    Panel("Entropy", r"entropy", note="nats a token"),
    Panel("Answer length", r"completion_tokens", note="tokens"),
)


def stage_curves(lines: Sequence[Line]) -> Html:
    """Return the charts of one stage's lines, the well-known ones open and the rest folded."""
    rows: dict[str, charts.Curve] = {}
    for name in dict.fromkeys(key for line in lines for key in line):
        points = [(int(line["step"]), float(line[name])) for line in lines if is_number(line.get(name))]
        if points and name not in _SKIPPED and not is_time(name):
            steps, values = zip(*points, strict=True)
            rows[name] = charts.Curve(name, steps, values)
    shown, left = [], dict(rows)
    for panel in PANELS:
        matches = {name: match for name in rows if (match := re.fullmatch(panel.figures, name))}
        curves = []
        for name, match in list(matches.items())[:6]:
            label = (match[1] or "total") if match.re.groups else name
            curves.append(rows[name]._replace(label=label))
            left.pop(name, None)
        if curves:
            shown.append(charts.curves(panel.title, curves, unit=panel.unit, note=panel.note))
    more = [charts.curves(name, [row]) for name, row in left.items()]
    return part("stage_curves", shown, more, template="charts.html")


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
    sections, failed = list[tuple[str, str]](), dict[str, str]()
    for name in record.recipe.get("observers", ()):  # one that is gone or fails is named on the page
        try:
            announcer = Announcer.from_names((), [str(name)])
        except EvidError as cause:
            failed[str(name)] = str(cause)
            continue
        sections += announcer.report_sections(record.folder)
        failed |= announcer.failed
    text = document(record, sections, failed, show_reports=show_reports)
    target = run_folder / "page" / "index.html"
    write_atomically(target, text.encode(errors="backslashreplace"), or_else="write to another run folder")
    return target


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
    by_stage: dict[str, list[Line]] = {}
    for line in record.metrics:
        by_stage.setdefault(str(line.get("stage", "")), []).append(line)
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


def _lock_summary(record: RunRecord) -> list[tuple[str, object]]:
    """Return what the numbers rest on, from lock.toml; the whole lock is folded below."""
    pairs: list[tuple[str, object]] = []
    if packages := record.lock.get("package"):
        versions = [f"{name} {table.get('version', '?')}" for name, table in packages.items()]
        pairs.append(("Packages", ", ".join(versions)))
    if hardware := record.lock.get("hardware"):
        parts = [*hardware.get("gpus", ()), f"{hardware.get('cores', '?')} cores"]
        pairs.append(("Machine", f"{', '.join(parts)}, {hardware.get('memory_gb', '?')} GB"))
    return pairs
