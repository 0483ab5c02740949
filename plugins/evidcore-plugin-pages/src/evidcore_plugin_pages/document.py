"""Write a run's evidence page: one file, no network, readable without its script."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from evidcore.errors import EvidError
from evidcore.hooks import Announcer, Section
from evidcore.runs.read import Line, RunRecord, read_record
from evidcore_plugin_pages import charts, outcome
from evidcore_plugin_pages.durations import is_number, is_time, stage_time
from evidcore_plugin_pages.examples import evidence_section
from evidcore_plugin_pages.gallery import Gallery
from evidcore_plugin_pages.markup import DASH, Html, Unit, escape, join, tag
from evidcore_plugin_pages.tables import facts, figures, result_table, tree

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
    found = panel.figures.fullmatch(name)
    return (found.group(1) if found else None) or "total"


def _curve(label: str, name: str, lines: Sequence[Line]) -> charts.Curve:
    points = [(int(line["step"]), float(line[name])) for line in lines if is_number(line.get(name))]
    return charts.Curve(
        label=label, steps=[step for step, _ in points], values=[value for _, value in points]
    )


_VOLUMES_BYTES = 11_000_000  # the whole page stays below 15 MB
NOTICE = "Research software, not for clinical use. Not a medical device; not for diagnosis or treatment."


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
    page = document(record, sections, failed, show_reports=show_reports)
    target = run_folder / "page" / "index.html"
    target.parent.mkdir(exist_ok=True)
    unfinished = target.with_suffix(".tmp")
    unfinished.write_text(page, encoding="utf-8", errors="backslashreplace")
    unfinished.replace(target)
    return target


def _observed(record: RunRecord) -> tuple[list[Section], Mapping[str, str]]:
    """Ask the recipe's observers for sections; one that is gone or fails is named on the page."""
    sections: list[Section] = []
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
    sections: Sequence[Section] = (),
    failed: Mapping[str, str] | None = None,
    *,
    show_reports: bool = False,
) -> str:
    """Return the page of `record` as text."""
    gallery = Gallery(_VOLUMES_BYTES)
    evidence = evidence_section(record, gallery, show_reports)
    parts = [
        ("result", "Result", outcome.headline(record)),
        ("looking", "Does it look?", outcome.audit(record)),
        ("changes", "What training changed", outcome.changes(record)),
        ("evidence", "Evidence", evidence),
        ("training", "Training", _training(record)),
        ("tables", "All figures", _tables(record)),
        ("time", "Time", _time(record)),
        *(
            (f"observer-{index}", section.title, tag("div", Html(section.html)))
            for index, section in enumerate(sections)
        ),
        ("record", "Record", _record(record, failed or {})),
    ]
    body = [
        _header(record),
        tag("nav", *(tag("a", title, href=f"#{name}") for name, title, _ in parts), aria_label="Sections"),
        tag("main", *(tag("section", tag("h2", title), content, id=name) for name, title, content in parts)),
        tag("footer", tag("p", NOTICE), tag("p", "Written by evidcore. Opens without a network.")),
        tag("div", id="tip", role="status", hidden=True),
        gallery.blocks(),
    ]
    return shell(f"{record.name} · evidcore", join(body))


def shell(title: str, body: Html, *, style: str = "", script: str = "") -> str:
    """Return a whole page; it may load nothing and run no script but its own, `script` at its end."""
    style, script = _asset("style.css") + style, _asset("script.js") + script
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(style)),
    )
    return (
        f"<!doctype html>\n{tag('html', head, tag('body', body, tag('script', Html(script))), lang='en')}\n"
    )


def _asset(name: str) -> str:
    return files("evidcore_plugin_pages").joinpath(name).read_text(encoding="utf-8")


def _header(record: RunRecord) -> Html:
    state = str(record.status.get("state", "unknown"))
    phantoms, real = record.phantom_datasets(), record.real_datasets()
    stages = [
        f"{stage.get('kind')} {str(stage.get('component', '')).rpartition('.')[2]}".strip()
        for stage in record.recipe.get("stage", ())
    ]
    data = join([*(f"{name} (phantom)" for name in phantoms), *real], ", ")
    pairs: list[tuple[str, object]] = [
        ("Run", tag("code", record.folder.name)),
        ("Seed", record.recipe.get("seed", DASH)),
        ("Data", data or DASH),
        ("Stages", " → ".join(stages) or DASH),
    ]
    pairs += _lock_summary(record)
    if record.status.get("message"):
        pairs.append(("Message", str(record.status["message"])))
    banner = None
    if phantoms:
        scope = "every number" if not real else f"numbers of {', '.join(phantoms)}"
        banner = tag(
            "p",
            tag("b", "Phantom data. "),
            f"On this page {scope} comes from generated CT phantoms, not from patients.",
            class_="banner",
        )
    kind = "".join(letter if letter.isalnum() else "-" for letter in state.lower())
    return tag(
        "header",
        tag("p", "evidcore evidence page", class_="kicker"),
        tag("h1", record.name, " ", tag("span", state, class_=f"state {kind}")),
        *(
            tag("p", tag("b", f"{result['stage']}: "), f"{result['fitted_before']}.", class_="banner")
            for result in record.results
            if result.get("fitted_before")
        ),
        facts(pairs),
        banner,
        tag("p", NOTICE, class_="faint"),
        class_="top",
    )


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


def _tables(record: RunRecord) -> Html:
    badge = tag("span", "phantom", class_="badge") if record.phantom_datasets() else None
    blocks = [
        tag(
            "div",
            tag("h3", outcome.stage_title(record, str(result.get("stage", ""))), " ", badge),
            figures(result["figures"]) if result.get("figures") else None,
            result_table(result) if result.get("rows") else None,
        )
        for result in record.results
        if result.get("rows") or result.get("figures")
    ]
    return join(blocks) if blocks else _empty("No stage has written figures yet.")


def _training(record: RunRecord) -> Html:
    blocks = [tag("div", tag("h3", stage), stage_curves(lines)) for stage, lines in _by_stage(record).items()]
    return join(blocks) if blocks else _empty("No stage has logged a step yet.")


def _by_stage(record: RunRecord) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in record.metrics:
        found.setdefault(str(line.get("stage", "")), []).append(line)
    return found


def _time(record: RunRecord) -> Html:
    blocks = []
    for stage, lines in _by_stage(record).items():
        figure = stage_time(lines)
        if figure is not None:
            blocks.append(tag("div", tag("h3", stage), figure))
    return join(blocks) if blocks else _empty("No stage has logged where its time went.")


def _record(record: RunRecord, failed: Mapping[str, str]) -> Html:
    notes = [
        tag("p", f"Observer {name} failed and added no section: {why}", class_="empty")
        for name, why in failed.items()
    ]
    lock = (
        tag("details", tag("summary", "Lock: packages, files, data, machine"), tree(record.lock))
        if record.lock
        else _empty("This run has no lock file.")
    )
    recipe = tag("details", tag("summary", "Recipe with every default"), tree(record.recipe))
    return join([*notes, lock, recipe])


def _empty(sentence: str) -> Html:
    return tag("p", escape(sentence), class_="empty")
