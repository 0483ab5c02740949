"""Reward `cross-view`: does a reader that is shown the named slice alone see there what the case has?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal

from annotated_types import Ge
from evidcore_plugin_reports.agreement import affirmed, states
from evidcore_plugin_reports.labelers import NegationRules

from evidcore.api import Case, Crop, DataError, Labeler, Reader, Reward, Rollout, Score, Unscored
from evidcore.case import Evidence, Verdict
from evidcore.contracts import ImageQuestion, LabelError
from evidcore.contracts.judging import Checked
from evidcore.errors import RecipeError
from evidcore.evaluate.bootstrap import FEWEST_PATIENTS
from evidcore_plugin_emrl.matched_slices import MatchedSlices, as_scanned, lacks_mask, shown_findings
from evidcore_plugin_emrl.report_evidence import shown_slices
from evidcore_plugin_emrl.settled import ENOUGH_PAIRS, Settled
from evidcore_plugin_emrl.settling import settle

QUESTION = "Which findings are seen on this slice?"
MOST_CHARACTERS = 4000  # of a reader's answer; a slice has no more to tell

Seen = frozenset[str]


@dataclasses.dataclass(frozen=True)
class _Claim:
    """What is to be judged of a rollout."""

    gold: Seen  # findings of the case
    unsure: Seen  # what the case is uncertain of
    affirmed: Seen  # by the report, with bind = "finding"
    slices: Mapping[str, int]  # of each finding that is paid; without bind = "finding" by whatever name
    own: Mapping[int, ImageQuestion]  # by slice
    controls: Mapping[int, Sequence[ImageQuestion]]  # by slice
    everywhere: Sequence[ImageQuestion]  # each slice that was shown, with elsewhere = "free"


class CrossView(Reward):
    r"""Agreement of what a reader sees on the named slice, and sees no report, with what the case has.

    `k` is the named slice, `J(k)` the findings that the labeler reads in the reader's answer about it, `G`
    those that are present in the case; what the case is uncertain of is left out of all sets.

    | agreement | s(G, S) |
    |---|---|
    | whole | 2·\|G ∩ S\| / (\|G\| + \|S\|), F1 against the gold report: the paper |
    | local | \|G ∩ S\| / \|S\|, 0 where S is empty: what is seen is true |

    | control | reward, with s for s(G, J(k)) |
    |---|---|
    | none | s |
    | blank | max(0, s - s(G, J(the slice as air))) |
    | text | max(0, s - s(G, J(the question without a picture))) |
    | others | s - mean over j of s(G, J(k_j)), k_j of other patients, matched in height and lesion area |

    With `bind = "finding"` the report `A`, the findings that it affirms, stands in for what is seen:

        pay(f) = [f ∈ J(k_f)] - control(f)    for f ∈ A ∩ G, else 0
        whole:  2·Σ pay(f) / (|A| + |G|)      local:  Σ pay(f) / |A|, 0 where A is empty

    `k_f` is the slice that is cited for f, or the slice of the report. The controls are as above, with 1 and
    0 for seen and not. A false finding is paid nothing, and makes the rest pay less.

    So does a true one whose slice is cited wrongly, or that the reader misses: a policy does better to leave
    it out. With `elsewhere = "free"` the reader is shown every slice. What it sees of `G` on none is then not
    in `G`; of the rest, what it does not see on the cited slice is not in `A`, as if it had been left out.

    Values are shares, from 0 to 1, with `control = "others"` from -1 to 1. An answer without a slice is paid
    0. Where slices are cited for findings and `bind = "slice"`, `J` is what is seen on any of them.
    Not applicable: a healthy scan, or with `elsewhere = "free"` one of whose findings the reader sees none;
    a case of unknown findings; one of whose findings has no mask where masks are needed. Failed: the reader
    gave no answer, or one that cannot be read.

    `gate`, a key of every reward, opens by another reward; `mask_gate` is this one's own.

    Args:
        reader: what is shown the slice: a service, or a table such as `{ use = "policy-reader" }`.
        agreement: "whole" or "local".
        control: "none", "blank", "text" or "others". A reader that answers nothing without a picture has no
            prior in words: "text" then takes nothing off.
        control_slices: how many other patients give a slice, with "others"; fewer where there are no more.
        mask_gate: only a slice on which a mask shows a finding of the case is paid; with `bind = "finding"`
            the mask of the finding in question.
        bind: "slice", what is seen there is compared with the case: the paper; or "finding".
        elsewhere: with `bind = "finding"`, what a true finding "costs" that is not seen on its slice, or
            whether it is "free".
        labeler: reads answers and reports; `negation-rules` with the finding names of the cases trained on
            where none is named.
        question: what the reader is asked.
        second_reader: asked by `evid audit reward` alone, which tells the kappa of the two.

    Source:
        E-MRL, arXiv:2606.23888, tells a reward for agreement of the gold report with a local re-query of the
        selected slice. Formulas and options are ours: nothing else of it is published.
    """

    def __init__(
        self,
        cases: Callable[[], Sequence[Case]],
        cache_folder: Path,
        *,
        reader: Reader,
        agreement: Literal["whole", "local"] = "whole",
        control: Literal["none", "blank", "text", "others"] = "others",
        control_slices: Annotated[int, Ge(1)] = 8,
        mask_gate: bool = False,
        bind: Literal["slice", "finding"] = "slice",
        elsewhere: Literal["costs", "free"] = "costs",
        labeler: Labeler | None = None,
        question: str = QUESTION,
        second_reader: Reader | None = None,
    ) -> None:
        if elsewhere == "free" and bind != "finding":
            raise RecipeError(
                f"cross-view.elsewhere: 'free' is about findings that a report affirms, and bind = {bind!r} "
                'asks for none. Set bind = "finding", or leave elsewhere out.'
            )
        self.reader, self.second_reader, self.question = reader, second_reader, question
        self.agreement, self.bind, self.elsewhere = agreement, bind, elsewhere
        self.control, self.control_slices, self.mask_gate = control, control_slices, mask_gate
        self.bounds = (-1.0, 1.0) if control == "others" else (0.0, 1.0)
        self.judges = frozenset({"report", "evidence"} if bind == "finding" else {"evidence"})
        self.audit_exemption = reader.audit_exemption or (labeler.audit_exemption if labeler else "")
        self._cases, self._cache_folder = cases, cache_folder
        self.matched = MatchedSlices(cases, cache_folder)
        self._labeler = labeler

    def ready(self) -> None:
        """Ask the labeler for the findings' names, and whether other patients can stand in."""
        names = self.vocabulary()
        readings = self.reading().read([f"There is a {name}." for name in names])
        for name, read in zip(names, readings, strict=True):
            if isinstance(read, LabelError) or name not in affirmed(read):
                raise DataError(
                    f"cross-view: its labeler reads no finding {name!r} in 'There is a {name}.', so it would "
                    "never be seen. Give a labeler the names of the data set: labeler = { use = "
                    f"'negation-rules', findings = ['{name}', …] }}, or none."
                )
        if self.control == "others":
            self.matched.require_others()

    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> Sequence[Score | Unscored]:
        """Ask the reader about all slices at once, each once, and judge each answer by itself."""
        claims = [self._claim(rollout) for rollout in rollouts]
        asked: dict[ImageQuestion, None] = {}
        for claim in claims:
            if isinstance(claim, _Claim):
                asked.update(dict.fromkeys(claim.own.values()))
                asked.update(dict.fromkeys(item for some in claim.controls.values() for item in some))
                asked.update(dict.fromkeys(claim.everywhere))
        seen = self._seen(list(asked))
        return [self._judge(claim, seen) if isinstance(claim, _Claim) else claim for claim in claims]

    def checks(self, gold: Sequence[Rollout]) -> Sequence[Checked]:
        """Return the settling test; fewer scans with a finding than 20 ask the reader nothing."""
        sick = sum(bool(item.prompt.case.present()) for item in gold)
        settled = self.settled(gold) if sick >= FEWEST_PATIENTS else None
        if settled is not None:
            return settled.checks()
        says = (
            f"{sick} scans with a finding are too few to say whether a contradicting slice pays"
            if sick < FEWEST_PATIENTS
            else f"of {sick} scans with a finding none has masks and another patient's slice to contradict it"
        )
        says += f"; raise --limit ({FEWEST_PATIENTS} are needed, {ENOUGH_PAIRS} are enough)"
        return [Checked(check="settling", outcome="note", says=says, figures={"scans": float(sick)})]

    def settled(self, gold: Sequence[Rollout]) -> Settled | None:
        """Return the settling test over gold answers; None where none has a slice that contradicts it."""
        return settle(self, gold, self._cases(), self._cache_folder)

    def vocabulary(self) -> tuple[str, ...]:
        """Return the names of the findings of the cases that are trained on."""
        return tuple(sorted({finding.name for case in self._cases() for finding in case.findings}))

    def _claim(self, rollout: Rollout) -> _Claim | Score | Unscored:
        """Return what is to be asked, or the verdict where nothing is."""
        case, answer = rollout.prompt.case, rollout.answer
        gold = Seen(case.present())
        if not gold:
            why = "is healthy" if case.findings else "has no known findings"
            return Unscored(kind="not-applicable", reason=f"case {case.id!r} {why}: no slice shows a finding")
        without = lacks_mask(case) if self.mask_gate or self.control == "others" else None
        if without is not None:
            return Unscored(kind="not-applicable", reason=f"finding {without!r} has no mask")
        claimed = Seen()
        if self.bind == "finding":
            (read,) = self.reading().read([answer.report or ""])
            if isinstance(read, LabelError):
                return Unscored(kind="failed", reason=f"the report could not be read: {read}")
            claimed = Seen(affirmed(read)) - _unsure(case)
        slices = self._cited(answer.evidence, claimed & gold)
        if not slices:
            told = answer.malformed or "no slice is named"
            if self.bind == "finding" and answer.malformed is None and not claimed & gold:
                told = "the report affirms nothing that is there"
            return Score(value=0.0, reason=told)
        shown = shown_slices(rollout.prompt)
        if lost := [z for z in slices.values() if z not in shown]:
            return Score(value=0.0, reason=f"slice {lost[0]} was not shown")
        if self.mask_gate:
            folder, binds = self._cache_folder, self.bind == "finding"
            seen = {z: shown_findings(case, as_scanned(shown[z]), folder) for z in slices.values()}
            slices = {name: z for name, z in slices.items() if (name in seen[z] if binds else seen[z])}
            if not slices:
                return Score(value=0.0, reason="the mask shows no finding on the named slice")
        places = {z: shown[z] for z in dict.fromkeys(slices.values())}
        controls = {z: self._controls(case, z, crop) for z, crop in places.items()}
        if self.control == "others" and not all(controls.values()):
            z = next(z for z, some in controls.items() if not some)
            return Unscored(kind="not-applicable", reason=f"no other patient has a slice like {z}")
        own = {z: self._about(crop) for z, crop in places.items()}
        everywhere = [self._about(crop) for crop in shown.values()] if self.elsewhere == "free" else []
        return _Claim(gold, _unsure(case), claimed, slices, own, controls, everywhere)

    def _cited(self, evidence: Evidence | None, paid: Set[str]) -> dict[str, int]:
        """Return the slices that are looked at, by finding where one is cited for each."""
        if evidence is None:
            return {}
        if self.bind == "slice":
            return dict(evidence.slices) if evidence.slice is None else {"": evidence.slice}
        given = evidence.slices if evidence.slice is None else dict.fromkeys(paid, evidence.slice)
        return {name: given[name] for name in sorted(paid) if name in given}

    def _controls(self, case: Case, z: int, crop: Crop) -> list[ImageQuestion]:
        match self.control:
            case "blank":
                return [self._about(dataclasses.replace(crop, blank=True))]
            case "text":
                return [self._about()]
            case "others":
                return [self._about(item) for item in self.matched(case, crop, z, self.control_slices)]
            case _:
                return []

    def _about(self, *crops: Crop) -> ImageQuestion:
        return ImageQuestion(crops=crops, text=self.question)

    def _seen(self, questions: Sequence[ImageQuestion]) -> dict[ImageQuestion, Seen | str]:
        """Return what the reader sees, or why that is not known, by question."""
        if not questions:
            return {}
        answers = list(self.reader(questions))
        if len(answers) != len(questions):
            raise ValueError(f"its reader gave {len(answers)} answers to {len(questions)} questions")
        read = self.reading().read_once(answer or "" for answer in answers)
        result: dict[ImageQuestion, Seen | str] = {}
        for question, answer in zip(questions, answers, strict=True):
            findings = read[answer or ""]
            if answer is None and not question.crops:
                result[question] = Seen()
            elif answer is None or not answer.strip():
                result[question] = f"the reader answered {answer!r}"
            elif len(answer) > MOST_CHARACTERS:
                result[question] = f"the reader answered {len(answer)} characters, at most {MOST_CHARACTERS}"
            elif isinstance(findings, LabelError):
                result[question] = f"the reader's answer could not be read: {findings}"
            else:
                result[question] = Seen(affirmed(findings))
        return result

    def _judge(self, claim: _Claim, seen: Mapping[ImageQuestion, Seen | str]) -> Score | Unscored:
        own, controls = dict[int, Seen](), dict[int, list[Seen]]()
        for z, question in claim.own.items():
            answer = seen[question]
            if isinstance(answer, str):
                return Unscored(kind="failed", reason=f"slice {z}: {answer}")
            own[z] = answer - claim.unsure
            answers = [seen[item] for item in claim.controls[z]]
            controls[z] = [item - claim.unsure for item in answers if not isinstance(item, str)]
            if answers and not controls[z]:
                why = next(item for item in answers if isinstance(item, str))
                return Unscored(kind="failed", reason=f"control of slice {z}: {why}")
        if self.bind == "slice":
            sees = Seen().union(*own.values())
            together = (Seen().union(*some) for some in zip(*controls.values(), strict=False))
            others = [self._agreement(claim.gold, some) for some in together]
            what, where = ", ".join(sorted(sees)) or "nothing", ", ".join(map(str, own))
            value, control = self._agreement(claim.gold, sees), fmean(others) if others else 0.0
            return self._score(value, control, f"on slice {where} is seen: {what}")
        visible = claim.gold
        if claim.everywhere:
            result = [seen[question] for question in claim.everywhere]
            if lost := [item for item in result if isinstance(item, str)]:
                return Unscored(kind="failed", reason=f"{len(lost)} of {len(result)} slices: {lost[0]}")
            visible &= Seen().union(*(item for item in result if not isinstance(item, str)))
            if not visible:
                return Unscored(kind="not-applicable", reason="the reader sees its findings on no slice")
        return self._by_finding(claim, visible, own, controls)

    def _by_finding(
        self, claim: _Claim, visible: Seen, own: Mapping[int, Seen], controls: Mapping[int, Sequence[Seen]]
    ) -> Score:
        sees = {name: float(name in own[z]) for name, z in claim.slices.items()}
        taken = {
            name: fmean(name in some for some in controls[z]) if controls[z] else 0.0
            for name, z in claim.slices.items()
        }
        if self.control != "others":
            taken = {name: min(taken[name], sees[name]) for name in taken}
        said = len(claim.affirmed)
        if self.elsewhere == "free":
            said -= len((claim.affirmed & visible) - {name for name, is_seen in sees.items() if is_seen})
        share = 2 / (said + len(visible)) if self.agreement == "whole" else 1 / max(1, said)
        told = [
            f"{name} on slice {z}: {'seen' if sees[name] else 'not seen'}" for name, z in claim.slices.items()
        ]
        false = sorted(claim.affirmed - claim.gold)
        told += [f"false: {', '.join(false)}"] if false else []
        return self._score(share * sum(sees.values()), share * sum(taken.values()), "; ".join(told))

    def _score(self, value: float, control: float, reason: str) -> Score:
        paid = value - control if self.control == "others" else max(0.0, value - control)
        return Score(value=paid, parts={"seen": value, "control": control}, reason=reason)

    def _agreement(self, gold: Set[str], sees: Set[str]) -> float:
        both = len(gold & sees)
        if self.agreement == "local":
            return both / len(sees) if sees else 0.0
        return 2 * both / (len(gold) + len(sees))

    def reading(self) -> Labeler:
        """Return the labeler; its own knows the names of the cases that are trained on."""
        if self._labeler is None:
            self._labeler = NegationRules(findings=self.vocabulary())
        return self._labeler


def _unsure(case: Case) -> Seen:
    return Seen(name for name, state in states(case.findings).items() if state == "uncertain")
