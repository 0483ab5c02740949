"""Labeler `endpoint`: a language model behind an OpenAI-compatible endpoint tells the findings of a text."""

import dataclasses
import hashlib
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from annotated_types import Gt, Lt
from pydantic import TypeAdapter, ValidationError

from evidcore.api import Finding, Labeler, Span
from evidcore.case import Side, State
from evidcore.contracts import LabelError
from evidcore.registry.factory import show
from evidcore_plugin_reports.endpoint import ChatClient, Endpoint, Unanswered
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS

_ASKED = tomllib.loads(Path(__file__).with_name("instructions.toml").read_text(encoding="utf-8"))
INSTRUCTION: str = _ASKED["labeler"]["instruction"]
_STRICT = {"extra": "forbid"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Entry:
    __pydantic_config__ = _STRICT
    name: str
    state: State
    quote: str
    side: Side | None = None
    size_mm: Annotated[float, Gt(0), Lt(10_000)] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Answer:
    __pydantic_config__ = _STRICT
    findings: list[_Entry]


class ModelLabeler(Labeler):
    """Ask a language model what a text says of each finding. Texts leave this machine.

    The answer must be JSON as asked for, with words that stand in the text; else the text is unread, which is
    another thing than "nothing found". Answers are kept in the cache, so a text is paid for once.

    Args:
        endpoint: which model is asked; needs `sends_text_away = true`.
        findings: the names to look for.
        instruction: what the model is told, in place of `INSTRUCTION`; `<findings>` stands for the names.
    """

    audit_exemption = "every text is sent to an endpoint"

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        findings: tuple[str, ...] = CT_RATE_FINDINGS,
        instruction: str | None = None,
    ) -> None:
        self.client = ChatClient(endpoint)
        self.findings = findings
        self._instruction = (instruction or INSTRUCTION).replace("<findings>", ", ".join(findings))

    def label_names(self) -> tuple[str, ...]:
        return self.findings

    def __call__(self, text: str) -> tuple[Finding, ...]:
        """Return what the model found.

        Raises:
            LabelError: if it gave no answer, or one that cannot be taken.
            RunError: if the endpoint cannot be used.
        """
        (result,) = self.read([text])
        if isinstance(result, LabelError):
            raise result
        return result

    def read(self, texts: Sequence[str]) -> Sequence[tuple[Finding, ...] | LabelError]:
        system = {"role": "system", "content": self._instruction}
        asked = [[system, {"role": "user", "content": text}] for text in texts if text.strip()]
        answers = iter(self.client.ask(asked))
        return [self._findings(text, next(answers)) if text.strip() else () for text in texts]

    def _findings(self, text: str, answer: str | Unanswered) -> tuple[Finding, ...] | LabelError:
        if isinstance(answer, Unanswered):
            reason = answer.reason
        else:
            try:
                return read_findings(answer, text, self.findings)
            except ValueError as cause:
                reason = str(cause)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return LabelError(
            f"{self.client}: a text of {len(text)} characters (sha256 {digest[:16]}…) could not be labelled: "
            f"{reason}."
        )


def read_findings(answer: str, text: str, names: Sequence[str]) -> tuple[Finding, ...]:
    """Return the findings of a model's JSON answer, in the text's order.

    Raises:
        ValueError: if the answer is not as asked for; says where, and repeats none of its words.
    """
    fenced = re.fullmatch(r"\s*```(?:json)?\s*\n(.*?)\n\s*```\s*", answer, re.DOTALL)
    try:
        entries = TypeAdapter(_Answer).validate_json(fenced[1] if fenced else answer, strict=True).findings
    except ValidationError as cause:
        wrong = cause.errors(include_input=False)[0]
        if wrong["type"] == "json_invalid":
            raise ValueError("the answer is no JSON") from None
        at = wrong["loc"]  # whose last part is the model's word where no such key was asked for
        known = at[:-1] if wrong["type"] == "unexpected_keyword_argument" else at
        where = show(known).removeprefix(".") or "the answer"
        raise ValueError(f"{where}: {wrong['msg'].replace('Input should', 'must')}") from None
    result = [_finding(entry, text, names, f"findings[{number}]") for number, entry in enumerate(entries)]
    return tuple(sorted(result, key=lambda item: item.span.start if item.span else 0))


def _finding(entry: _Entry, text: str, names: Sequence[str], where: str) -> Finding:
    if entry.name not in names:
        raise ValueError(f"{where}.name is none of the findings asked for")
    words = r"\s+".join(re.escape(word) for word in entry.quote.split())
    match = re.search(words, text, re.IGNORECASE)
    if not words or match is None:
        raise ValueError(f"{where}.quote does not stand in the text")
    span = Span(start=match.start(), end=match.end(), label=entry.state)
    return Finding(name=entry.name, state=entry.state, side=entry.side, size_mm=entry.size_mm, span=span)
