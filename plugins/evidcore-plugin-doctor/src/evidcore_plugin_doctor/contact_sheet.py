"""A contact sheet: cases of a data set with their pictures and faults, and the set in numbers.

The page is one file that needs no network, at most 15 MB whatever its texts are.
"""

import collections
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from evidcore_plugin_pages.gallery import SIDES
from evidcore_plugin_pages.jinja import asset, environment
from evidcore_plugin_pages.jinja import page as page_from_template
from evidcore_plugin_pages.markup import Html, join

from evidcore.api import Case, DataError, Dataset, Finding
from evidcore.case import Split
from evidcore.errors import did_you_mean
from evidcore_plugin_doctor.check import Summary, check, list_cases
from evidcore_plugin_doctor.fault import CHECKS, Fault
from evidcore_plugin_doctor.inspection import Inspected
from evidcore_plugin_doctor.likeness import Library
from evidcore_plugin_doctor.profile import quantiles
from evidcore_plugin_doctor.rendering import MOST_PICTURES, Picture, Rendering
from evidcore_plugin_doctor.statements import Listed

KICKER = "evidcore contact sheet"
MOST_BYTES = 15_000_000
PICTURES_BYTES = 11_000_000  # of them
_RESERVED_BYTES = 700_000  # for style, script, filters and names of cases without room
_PACKAGE = "evidcore_plugin_doctor"
_MOST_CHARACTERS = 1_000  # of a text on a card, but for its report
_MOST_OF_NAME = 100  # characters
_MOST_ITEMS = 60  # of a list of a case
_MOST_ROWS = 200  # of a list above the cards


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One case of the sheet."""

    split: Split
    case: Case
    faults: tuple[Fault, ...]
    pictures: tuple[Picture, ...]  # of the volumes that could be read

    def record(self) -> dict[str, Any]:
        volumes = [
            {name: getattr(picture, name) for name in ("shape_zyx", "spacing_mm_zyx", "axes", "values")}
            for picture in self.pictures
        ]
        return {
            "split": self.split,
            "volumes": volumes,
            "masks": len(self.case.masks),
            "present": len(self.case.present()),
            "questions": len(self.case.questions),
            "queries": len(self.case.queries),
            "report_characters": len(self.case.report.text) if self.case.report else None,
            "faults": dict(collections.Counter(fault.check for fault in self.faults)),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sheet:
    """A data set as far as it was looked at."""

    name: str
    entries: tuple[Entry, ...]
    matching: int  # cases that the filters accept
    other_faults: tuple[Fault, ...]  # of no case on the sheet
    findings: Mapping[str, Mapping[str, int]]  # of all cases: name -> state -> count, most present first
    summary: Summary  # tables and reports of all cases, files of those on the sheet

    def record(self) -> dict[str, Any]:
        """Return the sheet in numbers: no id of a case or patient, and no text."""
        return {
            **dataclasses.asdict(self.summary),
            "matching": self.matching,
            "shown": len(self.entries),
            "findings": self.findings,
            "distributions": self.distributions(),
            "shown_cases": [entry.record() for entry in self.entries],
        }

    def distributions(self) -> dict[str, dict[str, dict[str, float] | None]]:
        """Return quantiles over the volumes of the sheet: what is measured -> split -> quantile -> value."""
        measured: dict[str, dict[str, list[float]]] = {}
        for entry in self.entries:
            for picture in entry.pictures:
                unit = "HU" if picture.intensity == "hu" else "as stored"
                steps = zip("zyx", picture.spacing_mm_zyx, strict=True)
                values = {f"spacing {axis}, mm": step for axis, step in steps}
                for share in ("1 %", "50 %", "99 %"):
                    values[f"values at {share} of a volume, {unit}"] = picture.values[share]
                for what, value in values.items():
                    measured.setdefault(what, {}).setdefault(entry.split, []).append(value)
        return {
            what: {split: quantiles(some) for split, some in parts.items()}
            for what, parts in measured.items()
        }


def gather(
    dataset: Dataset,
    name: str,
    *,
    limit: int,
    splits: Sequence[Split] = (),
    ids: Sequence[str] = (),
    finding: str | None = None,
    pictures_bytes: int,
    processes: int,
    progress: Callable[[int, int], None],
    library: Library | None = None,
) -> Sheet:
    """Look at the cases that are wanted, each volume being read once for its faults and its picture.

    Wanted are at most `limit`, evenly spaced, of these `splits` and `ids`, all where there is none, that have
    the `finding` or a mask of its name. All pictures together take at most `pictures_bytes`: they become
    coarser to fit. The `library` has other data sets of the recipe.

    Raises:
        DataError: if the set's table as a whole cannot be read, or no case is accepted.
    """
    cases, unlisted = list_cases(dataset, name)
    accepted = [
        (split, case)
        for split, case in cases
        if (not splits or split in splits)
        and (not ids or case.id in ids)
        and (finding is None or finding in names_of(case))
    ]
    if cases and not accepted:
        raise DataError(_nothing_accepted(name, cases, ids, finding))
    places = np.linspace(0, len(accepted) - 1, min(len(accepted), limit)).round().astype(int)
    chosen = [accepted[place] for place in places]
    pictures = sum(min(len(case.volumes), MOST_PICTURES) for _, case in chosen)
    rendering = Rendering(most_bytes=pictures_bytes // max(1, pictures), finding=finding)
    faults: list[Fault] = []
    inspected: list[Inspected] = []
    summary = check(
        cases, unlisted, processes=processes, on_fault=faults.append, progress=progress, chosen=chosen,
        rendering=rendering, on_case=inspected.append, name=name, library=library,
    )  # fmt: skip
    by_case: dict[str, list[Fault]] = collections.defaultdict(list)
    for fault in faults:
        by_case[fault.case].append(fault)
    findings: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for item in (item for _, case in cases for item in case.findings):
        findings[item.name][item.state] += 1
    on_sheet = {case.id for _, case in chosen}
    return Sheet(
        name=name,
        entries=tuple(
            Entry(split=split, case=case, faults=tuple(by_case[case.id]), pictures=tuple(seen.pictures))
            for (split, case), seen in zip(chosen, inspected, strict=True)
        ),
        matching=len(accepted),
        other_faults=tuple(fault for fault in faults if fault.case not in on_sheet),
        findings=dict(sorted(findings.items(), key=lambda item: -item[1]["present"])),
        summary=summary,
    )


def names_of(case: Case) -> tuple[str, ...]:
    """Return what a case is found by: findings that are present, then masks."""
    return tuple(dict.fromkeys((*case.present(), *case.masks)))


def _nothing_accepted(name: str, cases: Sequence[Listed], ids: Sequence[str], finding: str | None) -> str:
    """Say which filter accepts nothing."""
    known = sorted({case.id for _, case in cases})
    missing = next((wanted for wanted in ids if wanted not in known), None)
    names = sorted({item for _, case in cases for item in names_of(case)})
    if missing is not None:
        hint = did_you_mean(missing, known)
        text = f"has no case {missing!r}.{hint} It lists {len(cases)} cases. Correct --case."
    elif finding is not None and finding not in names:
        hint = did_you_mean(finding, names)
        text = f"no case shows {finding!r}, as a finding or a mask.{hint} Correct --finding."
    else:
        why = f"none of its {len(cases)} cases is accepted by --split, --case and --finding together"
        text = f"{why}. Drop one of them."
    return f"dataset {name!r}: {text}"


def page(sheets: Sequence[Sheet], target: str) -> tuple[str, int]:
    """Return the page of some data sets, made from `target`, and how many cases found no room on it."""
    cards = _cards()
    summaries = join(cards.summary(sheet) for sheet in sheets)
    left = MOST_BYTES - _RESERVED_BYTES - _size(summaries)
    drawn: list[Html] = []
    entries: list[Entry] = []
    no_room: list[str] = []
    for sheet in sheets:
        for entry in sheet.entries:
            card = cards.card(entry, sheet.name if len(sheets) > 1 else "")
            if _size(card) > left:
                no_room.append(entry.case.id)
                continue
            left -= _size(card)
            drawn.append(card)
            entries.append(entry)
    names = sorted({name for entry in entries for name in names_of(entry.case)[:_MOST_ITEMS]})
    checks = {fault.check for entry in entries for fault in entry.faults}
    text = page_from_template(
        _PACKAGE, "contact_sheet.html", kicker=KICKER, target=target, summaries=summaries, cards_=drawn,
        title=_cut(", ".join(_cut(sheet.name, _MOST_OF_NAME) for sheet in sheets)),
        sheets=sheets, no_room=no_room, most_mb=MOST_BYTES // 1_000_000,
        splits=sorted({entry.split for entry in entries}),
        names=[name for name in names if len(name) <= _MOST_OF_NAME][:_MOST_ROWS],
        checks=[name for name in CHECKS if name in checks],
        style=asset(_PACKAGE, "contact_sheet.css"), script=asset(_PACKAGE, "contact_sheet.js"),
    )  # fmt: skip
    return text, len(no_room)


@functools.cache
def _cards() -> Any:
    """Return the macros of cards.html."""
    made = environment(_PACKAGE)
    made.filters |= {
        "cut": _cut, "name": functools.partial(_cut, most=_MOST_OF_NAME), "described": _described,
        "tojson_text": functools.partial(json.dumps, ensure_ascii=False), "names": names_of,
    }  # fmt: skip
    made.globals |= {"CHECKS": CHECKS, "MOST_ITEMS": _MOST_ITEMS, "MOST_ROWS": _MOST_ROWS, "SIDES": SIDES}
    return made.get_template("cards.html").module


def _size(text: str) -> int:
    return len(text.encode("utf-8", errors="backslashreplace"))


def _cut(text: str, most: int = _MOST_CHARACTERS) -> str:
    """Return a text, or its beginning and how much is missing."""
    return text if len(text) <= most else f"{text[:most]} … and {len(text) - most} more characters"


def _described(finding: Finding) -> str:
    """Return a finding with what is known of it."""
    size = "" if finding.size_mm is None else f"{finding.size_mm:.4g} mm"
    nature = {None: "", True: "malignant", False: "benign"}[finding.malignant]
    known = ", ".join(filter(None, (finding.side, size, finding.location, nature)))
    return f"{finding.name} ({known})" if known else finding.name
