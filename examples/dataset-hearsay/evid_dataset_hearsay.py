"""Take the cases of a data set, and tell in some reports a finding that the scan does not show."""

import collections
import dataclasses
import functools
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from annotated_types import Ge, Le

from evidcore.api import Case, Dataset, Finding, Report, Span, VolumeRef

Split = Literal["train", "validation", "test"]


class Hearsay(Dataset):
    """Cases of another data set, some of whose reports affirm a finding that the scan does not show.

    As where a report repeats the referral. It is the finding that patients with the same indication have most
    often in training, of those that the case has not; it is present in `findings`, without mask, side or
    size, and `notes["hearsay"]` names it. Report and impression end with it, and what denied it is gone.
    Cases stay as they are without an indication, without a report whose sentences `spans` labels, and where
    they have all that is usual under their indication.
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
            share: how likely a case is added to.
            seed: decides which are.
        """
        self.source = self.derived_from = source  # which is asked what this set does not say itself
        self.share, self.seed = share, seed
        self.findings = source.findings
        self.left_out = source.left_out

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the cases of `split`."""
        return map(self._told, self.source.cases(split))

    def listed(self, split: Split) -> Iterator[Case]:
        """Yield every case that the source names."""
        return map(self._told, self.source.listed(split))

    def fingerprint(self) -> str:
        """Hash the source's fingerprint and the options."""
        known = f"hearsay 1, {self.source.fingerprint()}, {self.share}, {self.seed}"
        return hashlib.sha256(known.encode()).hexdigest()[:16]

    def without(self, case: Case, finding: str) -> tuple[VolumeRef, ...] | None:
        """Return the source's volumes without a finding; None for what was only heard of."""
        return None if case.notes.get("hearsay") == finding else self.source.without(case, finding)

    def _told(self, case: Case) -> Case:
        """Return a case as it is, or with hearsay."""
        usual = self._usual.get(case.notes.get("indication"), ())
        heard = next((name for name in usual if case.state_of(name) == "absent"), None)
        drawn = random.Random(f"hearsay/{self.seed}/{case.id}").random()
        if heard is None or drawn >= self.share or case.report is None or not case.report.spans:
            return case
        sentence = f"{heard.capitalize()}."
        denied = next(item.span for item in case.findings if item.name == heard)
        notes = {**case.notes, "hearsay": heard}
        if "impression" in notes:
            notes["impression"] = f"{notes['impression']} {sentence}" if case.present() else sentence
        findings = tuple(
            Finding(name=heard) if item.name == heard else dataclasses.replace(item, span=None)
            for item in case.findings  # `span` is of the report as it was
        )
        report = _retold(case.report, denied, sentence)
        return dataclasses.replace(case, report=report, findings=findings, notes=notes)

    @functools.cached_property
    def _usual(self) -> Mapping[object, Sequence[str]]:
        """Return the findings of training patients by indication, the most frequent first."""
        counts: dict[object, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for case in self.source.cases("train"):
            if indication := case.notes.get("indication"):
                counts[indication].update(case.present())
        return {key: sorted(count, key=lambda name: (-count[name], name)) for key, count in counts.items()}


def _retold(report: Report, denied: Span | None, sentence: str) -> Report:
    """Return a report that ends with a sentence, and has not the one in which `denied` lies."""
    text, spans = "", []
    for span in report.spans:
        if denied is None or not span.start <= denied.start < span.end:
            start = len(text)
            text += report.text[span.start : span.end]
            spans.append(Span(start=start, end=len(text), label=span.label))
            text += " "
    end = Span(start=len(text), end=len(text) + len(sentence), label="abnormal")
    return Report(text=text + sentence, spans=(*spans, end))
