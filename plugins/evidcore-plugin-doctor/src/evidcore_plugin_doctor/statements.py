"""Statements of one thing that contradict each other: label and report, file and row, table and header.

Only what is sure is read. Of a report these are sentences that hold nothing but a finding, a state and a
side, where no other sentence says otherwise; they are told by number, no text is quoted. What a file or
folder is named by counts where most of the set's are named so.
"""

import dataclasses
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evidcore_plugin_reports.labelers import NegationRules, Phrases
from evidcore_plugin_reports.sentences import sentences

from evidcore.api import Case
from evidcore.case import Side, Split, State
from evidcore_plugin_doctor.fault import Fault

_ENGLISH = tomllib.loads(Path(__file__).with_name("english.toml").read_text(encoding="utf-8"))
ASKING, NOUN, _PLAIN, _HEADING, _MIDDLE = (
    re.compile(_ENGLISH[name], re.IGNORECASE) for name in ("asking", "noun", "plain", "heading", "middle")
)
_SIDE = re.compile(r"\b(left|right)\b")
_SPLIT = re.compile(r"(?P<train>train|training)|(?P<validation>val|valid|validation)|(?P<test>test|testing)")
USUAL, FEWEST = 0.8, 4  # of the files that are named by something, so many agree with their rows
YEARS, YEARS_AT_ONCE = 20.0, 2.0  # between scans of a patient, and between what is said of one scan
_SEX = re.compile(r"(m|male|man)|f|female|woman|w")
_PER_YEAR = {"": 1.0, "y": 1.0, "m": 12.0, "w": 52.18, "d": 365.25}
_NO_VALUE = re.compile(r"(?i:nan|null|none|nat|n/?a|<na>|unknown|anon(ymous|ymi[sz]ed)?|[-?.]+)")
Listed = tuple[Split, Case]


def plain_name(name: str) -> str:
    """Return a name in lower case, with a space for what stands between its words and compares nothing."""
    return " ".join(re.findall(r"[^\W_]+|[<>\u2264\u2265=+]", name.casefold()))


def named_side(name: str) -> tuple[str, Side | None]:
    """Return a name in lower case without its side, and the side; None where it has none or both."""
    words = plain_name(name)
    side: Side = "left" if "left" in words else "right"
    bare = " ".join(_SIDE.sub(" ", words).split())
    return (bare, side) if len(set(_SIDE.findall(words))) == 1 else (words, None)


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a report says of a finding in a plain sentence, and nowhere otherwise."""

    state: State
    side: Side | None
    sentence: int  # from 1

    def __str__(self) -> str:
        return f"{self.state} on the {self.side}" if self.side in ("left", "right") else self.state


def claims(case: Case, names: set[str]) -> dict[str, Claim]:
    """Return what a case's report says of each finding that it speaks of in plain sentences."""
    text = case.report.text if case.report else ""
    labeler, plain = Phrases(findings=tuple(sorted(names))), dict[str, Claim]()
    asks, read = False, 0  # is the last heading that of a question, and up to where headings were read
    for number, stretch in enumerate(sentences(text) if names else (), 1):
        for heading in _HEADING.finditer(text, read, stretch.start):
            asks = bool(heading[1])
        read = stretch.start
        sentence = text[stretch.start : stretch.end]
        mentions = labeler(sentence)
        if len(mentions) != 1 or (span := mentions[0].span) is None or not sentence.endswith("."):
            continue
        claim = Claim(mentions[0].state, mentions[0].side, number)
        is_partial = claim.state == "absent" and claim.side in ("left", "right")
        is_plain = _PLAIN.fullmatch(f"{sentence[: span.start]} {sentence[span.end : -1]}")
        if is_plain and not is_partial and not asks:
            plain.setdefault(mentions[0].name, claim)
    for name, claim in tuple(plain.items()):
        every = NegationRules(findings=(name,))(text)  # in other words too
        if {(item.state, item.side or claim.side) for item in every} != {(claim.state, claim.side)}:
            del plain[name]
    return plain


def without_value(case: Case) -> Iterator[Fault]:
    """Yield the id, patient and report that are what is written where there is none."""
    cells = {"id": case.id, "patient": case.patient, "report": case.report and case.report.text}
    for check, text in cells.items():
        if text and _NO_VALUE.fullmatch(text.strip()):
            text = f"its {check} is {text!r}, which is written for an empty cell. Empty it or correct it."
            yield Fault(check=check, severity="error", case=case.id, text=text)


def mask_sides(case: Case) -> dict[str, tuple[str, Side]]:
    """Return what says on which side a mask lies, and the side: its name, a label, or the report."""
    labels = {named_side(item.name)[0]: item for item in case.findings if item.state == "present"}
    masks = {mask: named_side(mask) for mask in case.masks if not _MIDDLE.search(mask)}
    reported = claims(case, {name for name, _ in masks.values()})
    result: dict[str, tuple[str, Side]] = {}
    for mask, (name, named) in masks.items():
        label, claim = labels.get(name), reported.get(name)
        sides = {"its name": named, "its label": label and (named_side(label.name)[1] or label.side)}
        sides["the report"] = claim.side if claim is not None and claim.state == "present" else None
        for source, side in sides.items():
            if side in ("left", "right"):
                result.setdefault(mask, (source, side))
    return result


def without_texts(case: Case) -> Case:
    """Return what is read of a case, with notes of what its files are compared with."""
    notes = {"sides": mask_sides(case), "spacing": str(case.notes.get("spacing", ""))}
    masks = dict(case.masks)
    return dataclasses.replace(case, masks=masks, report=None, questions=(), queries=(), notes=notes)


def unlike_files(cases: Sequence[Listed]) -> Iterator[Fault]:
    """Yield the cases whose files are named by another patient, case, split or label than their row's."""
    volumes = _placed([(item, item[1].volumes[0].path) for item in cases if item[1].volumes])
    masks = _placed([(item, ref.path) for item in cases for ref in item[1].masks.values()])
    faults: list[Fault] = []
    for what in ("patient", "id"):
        for files in (volumes, masks):
            for level in range(1, 1 + max((len(parts) for _, parts in files), default=0)):
                faults += _unlike(_by_name(what, files, level))
    folders = [(item, part, named_side(part)[0]) for item, parts in volumes for part in parts[:-1]]
    named = [(item, part, hit.lastgroup) for item, part, word in folders if (hit := _SPLIT.fullmatch(word))]
    splits = [_Row(case, part, stated, split) for (split, case), part, stated in named]
    known = {row.stated for row in splits}
    # part of a training folder is often used for validation, and some sets call the test's folder "valid"
    pooled = {("train", "validation"), *([] if "test" in known else [("validation", "test")])}
    if len(known) > 1:
        faults += _unlike([row for row in splits if (row.stated, row.by_row) not in pooled])
    for name in dict.fromkeys(item.name for _, case in cases for item in case.findings):
        bare, _ = named_side(name)
        says = {bare: "present"} | dict.fromkeys((f"no {bare}", f"non {bare}", "normal", "healthy"), "absent")
        rows = [_Row(case, part, says.get(word), case.state_of(name)) for (_, case), part, word in folders]
        rows = [row for row in rows if row.stated and row.by_row in ("present", "absent")]
        faults += _unlike(rows, f"{name!r} ")
    yield from {fault.case: fault for fault in reversed(faults)}.values()  # one cause, the first of its case


class _Row(NamedTuple):
    case: Case
    part: str  # of the path
    stated: str | None  # by the part
    by_row: str | None
    other: str = ""  # the case whose name the part is


def _placed(files: Sequence[tuple[Listed, str]]) -> list[tuple[Listed, list[str]]]:
    """Return the folders and the name of each file below what all have in common, in lower case."""
    base = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for _, path in files]) if files else ""
    return [(item, os.path.relpath(path, base).casefold().split(os.sep)) for item, path in files]


def _by_name(what: str, files: Sequence[tuple[Listed, list[str]]], level: int) -> list[_Row]:
    """Return whose name a part of each path holds: its own, else another's of the set, else None's."""
    parts = [(case, path[-level]) for (_, case), path in files if len(path) >= level and getattr(case, what)]
    names = {getattr(case, what).casefold(): case for case, _ in parts}
    rows = []
    for case, part in parts:
        pieces = re.findall(r"[^\W_]+|[\W_]+", part)
        runs = {"".join(pieces[i:j]) for i in range(len(pieces)) for j in range(i + 1, len(pieces) + 1)}
        # scans have numbers too: of a file's name they prove nothing
        within = [run for run in sorted(runs & names.keys(), key=len) if level > 1 or not run.isdecimal()]
        mine = getattr(case, what)
        other = names[within[-1]] if within and mine.casefold() not in within else case
        stated = f"{what} {getattr(other, what)!r}" if within else None
        rows.append(_Row(case, part, stated, f"{what} {mine!r}", "" if other is case else other.id))
    return rows


def _unlike(rows: Sequence[_Row], of: str = "") -> Iterator[Fault]:
    """Yield the rows that the paths contradict, where most agree."""
    usual = sum(row.stated == row.by_row for row in rows)
    for row in rows if usual >= max(FEWEST, USUAL * len(rows)) else ():
        if row.stated not in (None, row.by_row):
            text = f"{row.part!r} in its path says {of}{row.stated}, its row {row.by_row}; "
            text += f"{usual} of {len(rows)} agree. Correct the row, or move the file."
            yield Fault(check="folder", severity="warning", case=row.case.id, other=row.other, text=text)


def unlike_patients(statements: Sequence[tuple[Case, str, Mapping[str, Any]]]) -> Iterator[Fault]:
    """Yield sex and age that differ within a case, or among the cases of a patient, once for a case.

    A statement is a case, the file that states something, and what it states of `sex` and `age`.
    """
    first: dict[tuple[str, str], tuple[Case, str, str]] = {}
    reported = set()
    for case, file, stated in statements:
        for what, text in ((what, str(stated.get(what, "")).strip().casefold()) for what in ("sex", "age")):
            for owner in (f"case {case.id}", f"patient {case.patient}") if text else ():
                other, source, before = first.setdefault((owner, what), (case, file, text))
                is_same = other.id == case.id
                is_new = (is_same or case.patient is not None) and (case.id, what) not in reported
                if is_new and _differ(what, before, text, is_same):
                    reported.add((case.id, what))
                    whose = "" if is_same else f" of case {other.id!r}, the same patient,"
                    text = f"its {what} is {text!r} ({file}), that{whose} is {before!r} ({source})."
                    text += " Find out which is true, and whose the scans are."
                    yield Fault(check="patient", severity="error", case=case.id, text=text)


def _differ(what: str, text: str, other: str, is_same: bool) -> bool:
    """Compare two sexes, or two ages (45, 45.5, 045Y, 018M) of one scan or of two."""
    if what == "sex":
        sexes = [match[1] is None for sex in (text, other) if (match := _SEX.fullmatch(sex))]
        return sorted(sexes) == [False, True]
    matches = [re.fullmatch(r"(\d+(?:[.,]\d+)?)\s*([ymwd]?)", age) for age in (text, other)]
    years = [float(match[1].replace(",", ".")) / _PER_YEAR[match[2]] for match in matches if match]
    return len(years) == 2 and abs(years[0] - years[1]) > (YEARS_AT_ONCE if is_same else YEARS)


def negatives(statements: Sequence[tuple[Case, str, Mapping[str, Any]]], scans: int) -> Iterator[Fault]:
    """Yield the scans whose low values are to be displayed white, unless all `scans` of the set are so."""
    white = [item for item in statements if item[2].get("PhotometricInterpretation") == "MONOCHROME1"]
    for case, file, _ in white if len(white) < scans else ():
        why = f"low values are to be displayed white (MONOCHROME1), as in {len(white)} of {scans} scans"
        text = f"{why}: it may be a negative of the others. Look at it; convert it to MONOCHROME2 if it is."
        yield Fault(check="intensity", severity="warning", case=case.id, file=file, text=text)
