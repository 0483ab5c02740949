"""Metric `judge`: a language model grades a text in four dimensions. Texts leave this machine."""

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.api import Metric, Unscored
from evidcore.contracts import Measured, TextSample
from evidcore_plugin_reports.endpoint import ChatClient, Conversation, Endpoint, Unanswered
from evidcore_plugin_reports.sentences import NO_REFERENCE, reference_of

_ASKED = tomllib.loads(Path(__file__).with_name("instructions.toml").read_text(encoding="utf-8"))["judge"]
DIMENSIONS: Mapping[str, str] = _ASKED["dimensions"]
LOWEST, HIGHEST = 1, 5
INSTRUCTION: str = _ASKED["instruction"]

_MOST_TRIES = 50  # at reading JSON, each of which may read an answer to its end
_OF = r"\s*(?:/|out\s+of|of)\s*"
# "4", "4.5", "4/5", "4 out of 5"; not "4/10", "14" or "4-5"
_NUMBER = (
    r"(?<![\d.,/-])([1-5](?:[.,]\d++)?+)(?![\d.,]*\d)"
    rf"(?:{_OF}5(?![\d.,]*\d)|(?!{_OF}\d)(?!\s*[-\u2013]\s*\d))"
)


class Judge(Metric):
    """Grade texts from 1 to 5 in correctness, clarity, differential and concision by a language model.

    Reports are graded, and what was thought before a choice. A grade is read from JSON as asked for, also in
    a code fence or between other words, from numbers in quotes or as "4/5", and from lines such as
    "Correctness: 4/5"; whatever else stands there is unread and counted, never a low grade. Reasons are kept
    beside the answer. Grades of one judge are comparable with themselves alone: judges differ in how high
    they grade, and like long and confident texts.

    Args:
        endpoint: which model is asked; needs `sends_text_away = true`.
        instruction: what it is told, in place of `INSTRUCTION`; `<dimensions>` and `<form>` stand for the
            dimensions' questions and the JSON form.

    Source:
        The dimensions of Lai et al. 2026, Med3D-R1, arXiv:2602.01200, table 4. The paper's prompt is not
        public.
    """

    unit = "plain"
    reads = frozenset({"report", "think"})

    def __init__(self, *, endpoint: Endpoint, instruction: str | None = None) -> None:
        self.client = ChatClient(endpoint)
        questions = "\n".join(f"- {name}: {question}?" for name, question in DIMENSIONS.items())
        form = ", ".join(f'"{name}": {{"score": …, "reason": …}}' for name in DIMENSIONS)
        raw = instruction or INSTRUCTION
        self._instruction = raw.replace("<dimensions>", questions).replace("<form>", form)

    def __call__(self, texts: Sequence[TextSample]) -> Sequence[Measured | Unscored]:
        references = [reference_of(text) for text in texts]
        asked = [self._conversation(text, said) for text, said in zip(texts, references, strict=True) if said]
        answers = iter(self.client.ask(asked))
        return [NO_REFERENCE if not said else _measured(next(answers)) for said in references]

    def notes(self) -> Mapping[str, str]:
        asked = hashlib.sha256(self._instruction.encode()).hexdigest()[:8]
        said = f"{LOWEST} to {HIGHEST}, by {self.client.endpoint.model!r}, instruction {asked}"
        return {f"judge_{name}": said for name in DIMENSIONS}

    def _conversation(self, text: TextSample, reference: str) -> Conversation:
        parts = {"asked": text.asked, "report": reference, "text": text.text}
        mark = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]  # no part can close its tag
        prompt = "\n".join(f"<{tag}-{mark}>\n{part}\n</{tag}-{mark}>" for tag, part in parts.items())
        return [{"role": "system", "content": self._instruction}, {"role": "user", "content": prompt}]


def _measured(answer: str | Unanswered) -> Measured | Unscored:
    if isinstance(answer, Unanswered):
        return Unscored(kind="failed", reason=f"no answer: {answer.reason}")
    grades, reasons = read_grades(answer)
    if not grades:
        return Unscored(kind="failed", reason="unread: the answer holds no grade")
    figures = {f"judge_{name}": grade for name, grade in grades.items()}
    return Measured(figures=figures, remarks={f"judge_{name}": why for name, why in reasons.items()})


def read_grades(answer: str) -> tuple[dict[str, float], dict[str, str]]:
    """Return the grades and reasons by dimension that an answer holds; what cannot be read is absent."""
    read = [graded for table in _tables(answer) if (graded := _graded(table))[0]]
    if read:
        return read[0] if all(graded == read[0][0] for graded, _ in read) else ({}, {})
    grades, reasons = dict[str, float](), dict[str, str]()
    for name in DIMENSIONS:  # a line that begins with one: "2. **Clarity**: 4/5 - well ordered"
        pattern = rf"^(?:[^\S\n]|[\d.)*#_-])*+{name}[*_\s]*[:=\u2013-]+[*_\s]*{_NUMBER}(?P<rest>.*)$"
        matches = list(re.finditer(pattern, answer, re.IGNORECASE | re.MULTILINE))
        values = {float(match[1].replace(",", ".")) for match in matches}
        if len(values) != 1 or max(values) > HIGHEST:  # none, or several that disagree
            continue
        grades[name] = values.pop()
        if reason := matches[0]["rest"].strip(" \t*_.:;,\u2013-()"):
            reasons[name] = reason
    return grades, reasons


def _tables(answer: str) -> list[Mapping[str, Any]]:
    """Return the JSON objects that stand in a text, outermost ones."""
    decoder, end = json.JSONDecoder(), 0
    result: list[Mapping[str, Any]] = []
    for _ in range(_MOST_TRIES):
        if (start := answer.find("{", end)) < 0:
            break
        try:
            value, end = decoder.raw_decode(answer, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            result.append(value)
    return result


def _graded(table: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the grades and reasons of a table, or of the first table in it that has any."""
    named = _lower(table)
    grades = {name: grade for name in DIMENSIONS if (grade := _grade(named.get(name))) is not None}
    if grades:
        return grades, {name: reason for name in grades if (reason := _reason(named[name]))}
    inner = (_graded(value) for value in table.values() if isinstance(value, Mapping))
    return next((result for result in inner if result[0]), ({}, {}))


def _grade(value: Any) -> float | None:
    if isinstance(value, Mapping):
        inner = _lower(value)
        keys = (key for key in ("score", "grade", "rating", "value") if key in inner)
        return next((_grade(inner[key]) for key in keys), None)
    if isinstance(value, str):
        match = re.fullmatch(rf"\s*{_NUMBER}\s*", value, re.IGNORECASE)
        value = float(match[1].replace(",", ".")) if match else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if LOWEST <= value <= HIGHEST else None


def _reason(value: Any) -> str:
    inner = _lower(value) if isinstance(value, Mapping) else {}
    said = next((inner[key] for key in ("reason", "explanation", "comment") if key in inner), "")
    return said.strip() if isinstance(said, str) else ""


def _lower(table: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key).strip().lower(): value for key, value in table.items()}
