"""Data set `hearsay`: reports that also tell what was heard of the patient, and what no slice shows."""

import collections
import dataclasses
import functools
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

from annotated_types import Ge, Le

from evidcore.api import Case, Dataset, Finding, Report, Span, VolumeRef
from evidcore.cache import key_of
from evidcore.case import Split

REVISION = 1  # of what is written: the fingerprint changes with it


class Hearsay(Dataset):
    """Cases of another data set, some of whose reports affirm a finding that the scan does not show.

    As where a report repeats the referral. It is the finding that patients with the same indication have most
    often in training, of those that the case has not; it is present in `findings`, without mask, side or
    size, and `notes["hearsay"]` names it. Report and impression end with it, and what denied it is gone.
    Cases without an indication stay as they are, and those that have all that is usual under theirs.
    """

    def __init__(
        self,
        *,
        source: Dataset,
        share: Annotated[float, Ge(0), Le(1)] = 0.5,
        seed: Annotated[int, Ge(0)] = 17,
    ) -> None:
        """Take the source; nothing is read before cases are asked for.

        Args:
            source: the data set whose reports are added to.
            share: how likely a case with an indication is added to.
            seed: decides which are.
        """
        self.source, self.share, self.seed = source, share, seed
        self.findings = source.findings
        self.left_out = source.left_out

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the cases of `split`."""
        return map(self._told, self.source.cases(split))

    def listed(self, split: Split) -> Iterator[Case]:
        """Yield every case that the source names."""
        return map(self._told, self.source.listed(split))

    def unlisted(self) -> Iterable[str]:
        """Say what the source cannot read."""
        return self.source.unlisted()

    def fingerprint(self) -> str:
        """Hash the source's fingerprint and the options."""
        return key_of([self.source.fingerprint(), self.share, self.seed, REVISION])

    def without(self, case: Case, finding: str) -> tuple[VolumeRef, ...] | None:
        """Return the source's volumes without a finding; None for what was only heard of."""
        return None if case.notes.get("hearsay") == finding else self.source.without(case, finding)

    def _told(self, case: Case) -> Case:
        usual = self._usual.get(_indication(case), ())
        heard = next((name for name in usual if case.state_of(name) == "absent"), None)
        drawn = random.Random(f"hearsay/{self.seed}/{case.id}").random()
        if heard is None or drawn >= self.share:
            return case
        report, gone = _added(case.report, heard, case.findings)
        notes = {**case.notes, "hearsay": heard}
        if "impression" in notes:
            had = str(notes["impression"]) if case.present() else ""
            notes["impression"] = f"{had} {_sentence(heard)}".strip()
        return dataclasses.replace(
            case,
            report=report,
            findings=tuple(
                Finding(name=heard, span=report.spans[-1] if report is not None else None)
                if item.name == heard
                else dataclasses.replace(item, span=item.span and _shifted(item.span, gone))
                for item in case.findings
            ),
            notes=notes,
        )

    @functools.cached_property
    def _usual(self) -> Mapping[str, Sequence[str]]:
        """Return the findings of training patients by indication, the most frequent first."""
        counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for case in self.source.cases("train"):
            if indication := _indication(case):
                counts[indication].update(case.present())
        return {key: sorted(count, key=lambda name: (-count[name], name)) for key, count in counts.items()}


def _indication(case: Case) -> str:
    return str(case.notes.get("indication") or "")


def _sentence(name: str) -> str:
    return f"{name.capitalize()}."


def _added(
    report: Report | None, name: str, findings: Sequence[Finding]
) -> tuple[Report | None, tuple[int, int]]:
    """Return a report that ends with a finding, and the stretch that is gone: the sentence that denied it."""
    if report is None:
        return None, (0, 0)
    place = next((item.span for item in findings if item.name == name), None)
    gone = (0, 0)
    if place is not None:
        around = (item for item in report.spans if item.start <= place.start and place.end <= item.end)
        sentence = next(around, place)
        space = re.compile(r"\s*").match(report.text, sentence.end)
        gone = (sentence.start, space.end() if space else sentence.end)
    text = report.text[: gone[0]] + report.text[gone[1] :].rstrip()
    text = f"{text.rstrip()} " if text.strip() else ""
    spans = [moved for item in report.spans if (moved := _shifted(item, gone)) is not None]
    end = text + _sentence(name)
    return Report(text=end, spans=(*spans, Span(start=len(text), end=len(end), label="abnormal"))), gone


def _shifted(span: Span, gone: tuple[int, int]) -> Span | None:
    """Return where a stretch of text lies once another is gone; None within it."""
    if gone[0] <= span.start and span.end <= gone[1]:
        return None
    by = gone[1] - gone[0] if span.start >= gone[1] else 0
    return dataclasses.replace(span, start=span.start - by, end=span.end - by)
