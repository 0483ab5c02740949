"""Labeler `labels-file`: findings that were told elsewhere, read from a JSON file.

The file names each case, the hash of the text that was read, and what was found in it:

    {"schema": 1, "cases": {"case-1": {"text_sha256": "…", "findings": [
        {"name": "lung nodule", "state": "present", "side": "left", "size_mm": 7.0, "span": [26, 72]}]}}}

A text is looked up by its hash (of UTF-8), so that labels can never meet another text than the one they were
made of. A text that the file does not hold is unread, not without findings.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt
from pydantic import StringConstraints, TypeAdapter, ValidationError

from evidcore.api import DataError, Finding, Labeler, Span
from evidcore.cache import plain_file
from evidcore.case import Side, State
from evidcore.contracts import LabelError
from evidcore.registry.factory import show

_STRICT = {"extra": "forbid"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FindingEntry:
    __pydantic_config__ = _STRICT
    name: Annotated[str, StringConstraints(pattern=r"\S")]
    state: State
    side: Side | None = None
    size_mm: Annotated[float, Gt(0)] | None = None
    malignant: bool | None = None
    location: str | None = None
    span: tuple[Annotated[int, Ge(0)], int] | None = None  # characters, end excluded


@dataclasses.dataclass(frozen=True, kw_only=True)
class _CaseEntry:
    __pydantic_config__ = _STRICT
    text_sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    findings: list[_FindingEntry]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _File:
    __pydantic_config__ = _STRICT
    schema: Literal[1]
    cases: dict[str, _CaseEntry]


class LabelsFile(Labeler):
    """Give the findings that a file holds for a text.

    Args:
        recipe_folder: where a relative `path` starts.
        path: the JSON file; `evidcore_plugin_reports.labels_file` describes it.
        sha256: hash of the file, so that a run's result says which labels it rests on.
    """

    def __init__(self, recipe_folder: Path, *, path: str, sha256: str) -> None:
        self.path = recipe_folder / path
        self.sha256 = sha256
        self._known: Mapping[str, tuple[str, tuple[Finding, ...]]] | None = None  # by hash of the text

    def __call__(self, text: str) -> tuple[Finding, ...]:
        """Return what the file says of `text`; a text without words has no findings.

        Raises:
            LabelError: if the file does not hold the text.
            DataError: if the file is missing, changed or wrong, or a span ends behind its text.
        """
        if not text.strip():
            return ()
        if self._known is None:
            self._known = _by_text(self.path, self.sha256)
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest not in self._known:
            why = f"holds no text with sha256 {digest}, of {len(text)} characters. Label it, or compare how"
            why += " the text was read when the file was made: white space counts."
            raise LabelError(f"{self.path}: {why}")
        case, findings = self._known[digest]
        for number, finding in enumerate(findings):
            if finding.span is not None and finding.span.end > len(text):
                why = f"ends at {finding.span.end}, but the text has {len(text)} characters"
                raise DataError(f"{self.path}: cases.{case}.findings[{number}].span: {why}.")
        return findings


def _by_text(path: Path, sha256: str) -> Mapping[str, tuple[str, tuple[Finding, ...]]]:
    """Return case and findings by the hash of the text."""
    known: dict[str, tuple[str, tuple[Finding, ...]]] = {}
    for case, entry in _read(path, sha256).cases.items():
        where = f"{path}: cases.{case}"
        findings = tuple(_finding(item, f"{where}.findings[{n}]") for n, item in enumerate(entry.findings))
        other, others = known.setdefault(entry.text_sha256, (case, findings))
        if others != findings:
            what = f"has the same text as case {other!r} and other findings"
            raise DataError(f"{where}: {what}. A text can be read one way only; make them agree.")
    return known


def _finding(entry: _FindingEntry, where: str) -> Finding:
    span = None
    if entry.span is not None:
        start, end = entry.span
        if end <= start:
            raise DataError(f"{where}.span: must be [start, end] with end above start, got [{start}, {end}].")
        span = Span(start=start, end=end, label=entry.state)
    return Finding(
        name=entry.name, state=entry.state, side=entry.side, size_mm=entry.size_mm,
        malignant=entry.malignant, location=entry.location, span=span,
    )  # fmt: skip


def _read(path: Path, sha256: str) -> _File:
    try:
        content = plain_file(path).read_bytes()
    except OSError as cause:
        raise DataError(f"{path}: cannot be read: {cause.strerror}. Check `path`.") from cause
    result = hashlib.sha256(content).hexdigest()
    if result != sha256:
        why = f"has sha256 {result}, not {sha256!r} as the recipe says"
        raise DataError(f'{path}: {why}. If this is the file you mean, write: sha256 = "{result}"')
    try:
        table = json.loads(content, object_pairs_hook=once)
    except (ValueError, RecursionError) as cause:
        raise DataError(f"{path}: is no JSON as it should be: {cause}.") from cause
    try:
        return TypeAdapter(_File).validate_json(json.dumps(table), strict=True)
    except ValidationError as cause:
        wrong, lines = cause.errors(), []
        for item in wrong[:10]:
            text = f"{item['msg'].replace('Input should', 'must')}, got {item['input']!r}."
            lines.append(f"  {show(item['loc']).removeprefix('.') or 'the file'}: {text}")
        more = f"\n  and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise DataError(f"{path}: mistakes: {len(wrong)}\n" + "\n".join(lines) + more) from None


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that stands twice: one of the two would vanish."""
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} stands twice in one table")
    return table
