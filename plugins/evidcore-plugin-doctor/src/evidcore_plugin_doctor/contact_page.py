"""The page of a contact sheet: one file, no network, at most 15 MB whatever its texts are."""

from __future__ import annotations

import collections
import dataclasses
import json
import string
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from evidcore_plugin_pages.document import NOTICE, shell
from evidcore_plugin_pages.gallery import AXIAL_SIDES, FILM_SIDES
from evidcore_plugin_pages.markup import Html, join, number, tag
from evidcore_plugin_pages.tables import facts

from evidcore.case import Case, Finding
from evidcore_plugin_doctor.contact_sheet import Entry, Sheet, names_shown
from evidcore_plugin_doctor.fault import CHECKS, Fault
from evidcore_plugin_doctor.figure import densities, quantile_table
from evidcore_plugin_doctor.rendering import HISTOGRAM_HU, Picture, Plane

KICKER = "evidcore contact sheet"
MOST_BYTES = 15_000_000
PICTURES_BYTES = 11_000_000  # of them
_RESERVED_BYTES = 700_000  # for style, script, filters and names of cases without room
_SIDES = {"axial": AXIAL_SIDES, "coronal": FILM_SIDES["y"], "sagittal": FILM_SIDES["x"]}
_MOST_CHARACTERS = 20_000  # of a report
_MOST_SAID = 1_000  # characters of any other text on a card
_MOST_NAMED = 100  # characters of a name
_MOST_ITEMS = 60  # of a list on a card
_MOST_ROWS = 200  # of a list above the cards


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
    """A page, and how many cases found no room on it."""

    text: str
    no_room: int


def page(sheets: Sequence[Sheet], target: str) -> Page:
    """Return the page of some data sets.

    Args:
        sheets: what is shown.
        target: what the command was pointed at.
    """
    summaries = join(_summary(sheet) for sheet in sheets)
    left = MOST_BYTES - _RESERVED_BYTES - _size(summaries)
    cards: list[Html] = []
    shown: list[Entry] = []
    no_room: list[str] = []
    for sheet in sheets:
        for entry in sheet.entries:
            card = _card(entry, sheet.name if len(sheets) > 1 else "")
            if _size(card) > left:
                no_room.append(entry.case.id)
                continue
            left -= _size(card)
            cards.append(card)
            shown.append(entry)
    names = _cut(", ".join(_cut(sheet.name, _MOST_NAMED) for sheet in sheets))
    body = [
        tag(
            "header",
            tag("p", KICKER, class_="kicker"),
            tag("h1", names),
            tag("p", "Made from ", tag("code", _cut(target)), " before anything is trained on it."),
            tag(
                "p",
                tag("b", "May hold patients' data. "),
                "Names, reports and pictures stand here as the data set has them.",
                class_="banner",
            ),
            class_="top",
        ),
        tag(
            "main",
            summaries,
            tag(
                "section",
                tag("h2", "Cases"),
                _left_out(sheets, no_room),
                _filters(shown),
                *cards,
                id="cases",
            ),
        ),
        tag("footer", tag("p", NOTICE), tag("p", "Written by evidcore. Opens without a network.")),
        tag("div", id="tip", role="status", hidden=True),
    ]
    style, script = (
        files("evidcore_plugin_doctor").joinpath(name).read_text(encoding="utf-8")
        for name in ("contact_sheet.css", "contact_sheet.js")
    )
    text = shell(f"{names} · evidcore", join(body), style=style, script=script)
    return Page(text=text, no_room=len(no_room))


def _size(text: str) -> int:
    return len(text.encode("utf-8", errors="backslashreplace"))


def _cut(text: str, most: int = _MOST_SAID) -> str:
    """Return a text, or its beginning and how much is missing."""
    return text if len(text) <= most else f"{text[:most]} … and {len(text) - most} more characters"


def _listed(items: Sequence[Html], most: int, class_: str | None = None) -> Html:
    """Return items as a list, or its beginning and how many are missing."""
    rest = len(items) - most
    more = [tag("li", f"and {rest} more", class_="faint")] if rest > 0 else []
    return tag("ul", *items[:most], *more, class_=class_)


# --- what stands above the cards ------------------------------------------------------------------


def _summary(sheet: Sheet) -> Html:
    found = sheet.summary
    pairs: list[tuple[str, object]] = [(split, f"{count} cases") for split, count in found.cases.items()]
    pairs.append(("patients", "not known" if found.patients is None else found.patients))
    pairs.append(("looked at", f"{len(sheet.entries)} of {sum(found.cases.values())} cases"))
    pairs += [("volumes read", found.volumes), ("masks read", found.masks), ("reports", found.reports)]
    parts = [tag("h2", _cut(sheet.name, _MOST_NAMED)), facts(pairs), tag("h3", "Faults"), _faults(sheet)]
    if sheet.findings:
        parts += [tag("h3", "Findings"), _findings(sheet.findings)]
    rows = [
        (split, what, values)
        for what, by_split in sheet.distributions().items()
        for split, values in by_split.items()
    ]
    if rows:
        parts += [tag("h3", "Voxel sizes and values"), quantile_table(rows)]
    histograms = sheet.histograms()
    if histograms:
        low, high = HISTOGRAM_HU
        drawn = densities(
            "Values",
            histograms,
            start=f"{low:.0f} HU".replace("-", "\N{MINUS SIGN}"),
            stop=f"{high:.0f} HU",
            caption="how densely they lie; 1 is an even spread, what is beyond lies at the ends",
        )
        parts.append(tag("div", drawn, class_="curves"))
    return tag("section", *parts)


def _faults(sheet: Sheet) -> Html:
    """Return the faults by kind, and those that no card tells."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for severity, by_check in (("error", sheet.summary.errors), ("warning", sheet.summary.warnings)):
        for check, count in by_check.items():
            counts[check][severity] += count
    note = Html("")
    if len(sheet.entries) < sum(sheet.summary.cases.values()):
        said = "Files are looked at for the cases on this page alone; evid data check looks at all."
        note = tag("p", said, class_="faint small")
    if not counts:
        return join([tag("p", "Nothing wrong found."), note])
    rows = [
        tag(
            "tr",
            tag("th", check, scope="row"),
            tag("td", meaning),
            tag("td", number(counts[check]["error"], "count"), class_="num"),
            tag("td", number(counts[check]["warning"], "count"), class_="num"),
        )
        for check, meaning in CHECKS.items()
        if check in counts
    ]
    others = [_fault(fault, named=True) for fault in sheet.other_faults]
    return join([
        _table(("Kind", "What it is"), ("errors", "warnings"), rows),
        note,
        _folded(f"{len(others)} of no case on this page", _listed(others, _MOST_ROWS, "faults"))
        if others
        else "",
    ])


def _folded(label: str, content: Html) -> Html:
    return tag("details", tag("summary", label), content)


def _findings(found: Mapping[str, Mapping[str, int]]) -> Html:
    states = ("present", "absent", "uncertain")
    ranked = sorted(found.items(), key=lambda item: -item[1].get("present", 0))
    rows = [
        tag(
            "tr",
            tag("th", _cut(name, _MOST_NAMED), scope="row"),
            *(tag("td", number(counts.get(state, 0), "count"), class_="num") for state in states),
        )
        for name, counts in ranked[:_MOST_ROWS]
    ]
    rest = len(ranked) - _MOST_ROWS
    more = tag("p", f"and {rest} more findings", class_="faint small") if rest > 0 else ""
    return join([_table(("Finding",), states, rows), more])


def _table(heads: Sequence[str], counts: Sequence[str], rows: Sequence[Html]) -> Html:
    cells = [tag("th", head, scope="col") for head in heads]
    cells += [tag("th", head, scope="col", class_="num") for head in counts]
    table = tag("table", tag("thead", tag("tr", *cells)), tag("tbody", *rows))
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=heads[0])


def _left_out(sheets: Sequence[Sheet], no_room: Sequence[str]) -> Html:
    """Say which cases are not shown, and how they are seen."""
    said: list[object] = []
    for sheet in sheets:
        total = sum(sheet.summary.cases.values())
        absent, beyond = total - len(sheet.entries), sheet.matching - len(sheet.entries)
        if not absent:
            continue
        parts = [f"{total - sheet.matching} do not match the filters"] if total > sheet.matching else []
        parts += [f"{beyond} are beyond the limit, those shown are evenly spaced"] if beyond else []
        name = _cut(sheet.name, _MOST_NAMED)
        text = f"{name}: {absent} of {total} cases are left out: {'; '.join(parts)}. See them with "
        said.append(join([text, _options("--limit N", "--split NAME", "--case ID", "--finding NAME"), "."]))
    if no_room:
        names = ", ".join(_cut(name, _MOST_NAMED) for name in no_room[:_MOST_ROWS])
        text = f"{len(no_room)} cases found no room within {MOST_BYTES / 1e6:.0f} MB: {names}. See one with "
        said.append(join([text, _options("--case ID"), "."]))
    return join(tag("p", one, class_="left-out") for one in said or ["Every case is shown."])


def _options(*names: str) -> Html:
    return join((tag("code", name) for name in names), ", ")


def _filters(entries: Sequence[Entry]) -> Html:
    """Return the switches that the page's script listens to; they are hidden without it."""
    splits = sorted({entry.split for entry in entries})
    held = {name for entry in entries for name in names_shown(entry.case)[:_MOST_ITEMS]}
    names = sorted(name for name in held if len(name) <= _MOST_NAMED)[:_MOST_ROWS]
    checks = [check for check in CHECKS if any(check == fault.check for e in entries for fault in e.faults)]
    return tag(
        "form",
        _select("split", "Split", [("", "all"), *((name, name) for name in splits)]),
        _select("finding", "Finding or mask", [("", "all"), *((name, name) for name in names)]),
        _select(
            "faults",
            "Faults",
            [("", "all cases"), ("any", "with faults"), *((name, name) for name in checks)],
        ),
        tag("output", f"{len(entries)} cases"),
        tag("span", "Keys: j next case, k previous case", class_="faint small"),
        class_="filters",
        hidden=True,
    )


def _select(name: str, label: str, options: Sequence[tuple[str, str]]) -> Html:
    held = tag("select", *(tag("option", said, value=value) for value, said in options), name=name)
    return tag("label", tag("span", label, class_="faint small"), held)


# --- one case -------------------------------------------------------------------------------------


def _card(entry: Entry, dataset: str) -> Html:
    case = entry.case
    about = [entry.split, *([dataset] if dataset else [])]
    if case.patient is not None:
        about.append(f"patient {_cut(case.patient, _MOST_NAMED)}")
    pictures = [_picture(picture) for picture in entry.pictures]
    if not pictures:
        pictures = [tag("p", "No picture: no volume of this case can be read.", class_="empty")]
    elif len(case.volumes) > len(entry.pictures):
        said = f"{len(entry.pictures)} of {len(case.volumes)} volumes are shown."
        pictures.append(tag("p", said, class_="faint small"))
    return tag(
        "article",
        tag("h3", _cut(case.id, _MOST_NAMED), " ", tag("span", ", ".join(about), class_="faint small")),
        _listed([_fault(fault) for fault in entry.faults], _MOST_ITEMS, "faults") if entry.faults else None,
        *pictures,
        _known(case),
        class_="evidence card",
        tabindex="-1",
        data_split=entry.split,
        data_names=json.dumps(names_shown(case)[:_MOST_ITEMS], ensure_ascii=False),
        data_checks=" ".join(sorted({fault.check for fault in entry.faults})),
    )


def _fault(fault: Fault, *, named: bool = False) -> Html:
    of = f"case {_cut(fault.case, _MOST_NAMED)}: " if named and fault.case else ""
    head = tag("b", f"{fault.severity}, {fault.check}: ", title=CHECKS[fault.check])
    return tag("li", head, of, _cut(fault.text), class_=fault.severity)


def _picture(picture: Picture) -> Html:
    low, high = picture.window_values
    unit = " HU" if picture.intensity == "hu" else ""
    spacing, extent = (
        picture.spacing_mm_zyx,
        [count * step for count, step in zip(picture.shape_zyx, picture.spacing_mm_zyx, strict=True)],
    )
    through = f"centre of {_cut(picture.centre, _MOST_NAMED)}" if picture.centre else "middle of the volume"
    values = picture.values
    drawn = {name for plane in picture.planes for name in plane.outlines}
    keys = [
        tag(
            "label",
            tag("input", type="checkbox", checked=True, value=index),
            tag("span", _cut(name, _MOST_NAMED), class_=f"key s{index % 6}"),
            None if name in drawn else tag("span", "on none of these planes", class_="faint small"),
        )
        for index, name in enumerate(picture.masks)
    ]
    for why, names in (("empty", picture.empty), ("not drawn", picture.left_out)):
        if names:
            keys.append(tag("span", f"{why}: {_cut(', '.join(names))}", class_="faint"))
    return tag(
        "div",
        tag("div", *(_plane(plane, picture.masks) for plane in picture.planes), class_="planes"),
        tag("div", *keys, class_="keys") if keys else None,
        facts([
            ("shape z, y, x", _by(picture.shape_zyx)),
            ("spacing, mm", _by(spacing)),
            ("extent, mm", _by(extent)),
            ("file's axes run to", picture.axes),
            ("window", f"{picture.window}, {low:.4g} to {high:.4g}{unit}"),
            ("values", f"{values['0 %']:.4g} to {values['100 %']:.4g}{unit}, median {values['50 %']:.4g}"),
            ("planes through", through),
        ]),
        class_="viewer picture",
    )


def _by(numbers: Sequence[float]) -> str:
    return " x ".join(f"{one:.4g}" for one in numbers)


def _plane(plane: Plane, masks: Sequence[str]) -> Html:
    paths = [
        tag("path", d=plane.outlines[name], class_=f"s{index % 6}", data_mask=index)
        for index, name in reversed(list(enumerate(masks)))  # the first is drawn last, above the others
        if name in plane.outlines
    ]
    grid = f"0 0 {plane.width_px} {plane.height_px}"
    is_volume = plane.count > 1  # a photograph has no sides of the body
    where = f"{plane.name}, slice {plane.index} of {plane.count}" if is_volume else "picture"
    screen = tag(
        "div",
        tag("img", src=plane.source, alt=where, draggable="false"),
        tag("svg", *paths, viewBox=grid, preserveAspectRatio="none", aria_hidden="true"),
        *(
            tag("span", letter, class_=f"side {side}", aria_hidden="true")
            for side, letter in (_SIDES[plane.name] if is_volume else ())
        ),
        class_="screen",
        style=f"aspect-ratio:{plane.width_mm / plane.height_mm:.4f}",
    )
    # all planes of a volume in one scale: as wide as they are in the body
    return tag(
        "figure",
        screen,
        tag("figcaption", where),
        class_=f"plane {plane.name}",
        style=f"flex:{plane.width_mm:.1f} 1 0",
    )


def _known(case: Case) -> Html:
    """Return what is known of a case beside its volumes."""
    parts: list[Html] = []
    states: dict[str, list[Finding]] = collections.defaultdict(list)
    for finding in case.findings:
        states[finding.state].append(finding)
    pairs: list[tuple[str, object]] = [
        (state, _cut(", ".join(_said(one) for one in states[state])))
        for state in ("present", "uncertain", "absent")
        if states[state]
    ]
    if pairs:
        parts.append(facts(pairs))
    asked = [_question(one.text, one.options, one.answer) for one in case.questions]
    asked += [
        tag("li", _cut(query.text), " ", tag("b", f"masks: {_cut(', '.join(query.masks))}"))
        for query in case.queries
    ]
    asked += [_open_question(one) for one in case.notes.get("open_questions", ())]
    if asked:
        count = f"{len(asked)} question{'s' * (len(asked) > 1)}"
        parts.append(_folded(count, _listed(asked, _MOST_ITEMS, "questions")))
    if case.report:
        text = case.report.text
        label = f"Report, {len(text.split())} words"
        parts.append(_folded(label, tag("pre", _cut(text, _MOST_CHARACTERS), class_="text")))
    return join(parts)


def _said(finding: Finding) -> str:
    """Return a finding with what is known of it."""
    known = [
        finding.side or "",
        "" if finding.size_mm is None else f"{finding.size_mm:.4g} mm",
        finding.location or "",
        "" if finding.malignant is None else "malignant" if finding.malignant else "benign",
    ]
    known = [one for one in known if one]
    return f"{finding.name} ({', '.join(known)})" if known else finding.name


def _question(text: str, options: Sequence[str], answer: int) -> Html:
    letters = string.ascii_uppercase
    rows = [
        tag(
            "li",
            f"{letters[index % len(letters)]}) {_cut(option)}",
            class_="verdict right" if index == answer else None,
        )
        for index, option in enumerate(options)
    ]
    return tag("li", _cut(text), _listed(rows, _MOST_ITEMS, "options"))


def _open_question(asked: Mapping[str, Any]) -> Html:
    answers = ", ".join(map(str, asked["answers"]))
    return tag("li", _cut(asked["text"]), " ", tag("b", _cut(answers)))
