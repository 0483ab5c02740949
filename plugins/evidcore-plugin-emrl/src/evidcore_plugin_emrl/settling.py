"""The settling test of `cross-view`: does a slice that contradicts the report still pay?

Gold answers are paid under each of `CONDITIONS`, with all options of the reward, and by readers with perfect
eyes, who see what the masks show: the ceiling. The reader is asked each question once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

from evidcore_plugin_reports.agreement import affirmed

from evidcore.api import Case, Finding, Labeler, Reader, Rollout, Score, VolumeRef, paired_interval
from evidcore.contracts import ImageQuestion, LabelError
from evidcore.data import read_geometry
from evidcore.evaluate.bootstrap import LEVEL
from evidcore_plugin_emrl.matched_slices import NOTHING, lacks_mask, patient_of, shown_findings
from evidcore_plugin_emrl.reader_habits import Look, habits
from evidcore_plugin_emrl.report_evidence import best_evidence
from evidcore_plugin_emrl.settled import CELLS, FALSE, Cell, Pay, Settled
from evidcore_plugin_emrl.settling_conditions import CONDITIONS, OMITTED, RETOLD, conditions, own_crops

if TYPE_CHECKING:
    from evidcore_plugin_emrl.cross_view import CrossView

QUESTIONS_PER_CALL = 256


class Asked(Reader):
    """Asks a reader each question once. `instead` stands in for some questions."""

    deterministic: ClassVar[bool] = True

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.answers: dict[ImageQuestion, str | None] = {}
        self.instead: Mapping[ImageQuestion, ImageQuestion] = {}

    def __call__(self, questions: Sequence[ImageQuestion]) -> Sequence[str | None]:
        """Answer from memory where it was asked before."""
        asked = [self.instead.get(one, one) for one in questions]
        new = [one for one in dict.fromkeys(asked) if one not in self.answers]
        for start in range(0, len(new), QUESTIONS_PER_CALL):
            some = new[start : start + QUESTIONS_PER_CALL]
            self.answers.update(zip(some, self.reader(some), strict=True))
        told = [self.answers[one] for one in asked]
        return [
            NOTHING if answer is None and question in self.instead else answer
            for question, answer in zip(questions, told, strict=True)
        ]


class Read(Labeler):
    """Reads each text once."""

    def __init__(self, labeler: Labeler) -> None:
        self.labeler = labeler
        self.found: dict[str, tuple[Finding, ...] | LabelError] = {}

    def __call__(self, text: str) -> tuple[Finding, ...]:
        """Return what was read of a text before, or read it."""
        if text not in self.found:
            (self.found[text],) = self.labeler.read([text])
        found = self.found[text]
        if isinstance(found, LabelError):
            raise found
        return found


class OracleReader(Reader):
    """Names what the masks show on a slice; nothing on a blank or changed one, and without a picture."""

    deterministic: ClassVar[bool] = True

    def __init__(self, cases: Sequence[Case], cache_folder: Path) -> None:
        self.cases: Mapping[VolumeRef, Case] = {ref: case for case in cases for ref in case.volumes}
        self.cache_folder = cache_folder

    def __call__(self, questions: Sequence[ImageQuestion]) -> Sequence[str | None]:
        """Answer from the masks."""
        return [" ".join(f"There is a {one}." for one in sorted(self.shown(q))) or NOTHING for q in questions]

    def shown(self, question: ImageQuestion) -> frozenset[str]:
        """Return what the crops of a question show."""
        each = [shown_findings(self.cases[one.volume], one, self.cache_folder) for one in question.crops]
        return frozenset[str]().union(*each)


def settle(
    reward: CrossView,
    gold: Sequence[Rollout],
    cases: Sequence[Case],
    cache_folder: Path,
    second: Reader | None = None,
) -> Settled | None:
    """Pay gold answers under all conditions and options.

    Those about scans without a finding, or with one that has no mask, are left out; None where none is left.
    """
    sick = [
        dataclasses.replace(one, answer=dataclasses.replace(one.answer, evidence=best_evidence(one.prompt)))
        for one in gold
        if one.prompt.case.present() and lacks_mask(one.prompt.case) is None
    ]
    vocabulary = reward.vocabulary()
    made = [conditions(one, reward.matched, vocabulary, cache_folder) for one in sick]
    made = [some for some in made if "contradicting" in some]
    if not made:
        return None
    eyes = OracleReader([*cases, *(one.prompt.case for one in gold)], cache_folder)
    labeler, asked = Read(reward.reading()), Asked(reward.reader)
    paid = _paid(reward, asked, labeler, made)
    ceiling = _paid(reward, Asked(eyes), labeler, made)
    patients = [patient_of(some["right"].prompt.case) for some in made]
    pays: dict[str, dict[Cell, Pay]] = {}
    for (name, cell), values in paid.items():
        pay = _pay(values, ceiling[name, cell], patients, lowest=-1.0 if cell.control == "others" else 0.0)
        if pay is not None:
            pays.setdefault(name, {})[cell] = pay
    named, shown = _named(asked.answers, labeler), {one: eyes.shown(one) for one in asked.answers}
    plain = [q for q in named if q.crops and not q.crops[0].blank and not q.crops[0].change]
    looks = [_look(question, eyes.cases, shown[question], named[question]) for question in plain]
    cited = [crop for some in made for crop in own_crops(some["right"])]
    right = {ImageQuestion(crops=(crop,), text=reward.question) for crop in cited}
    seen = [name in named[q] for q in plain if q in right for name in shown[q]]
    changed = {
        "blank": [bool(named[q]) for q in named if q.crops and q.crops[0].blank],
        "noise": [bool(named[q]) for q in named if q.crops and q.crops[0].change],
    }
    agreed = None
    if second is not None:
        again = Asked(second)
        again(plain)
        other = _named(again.answers, labeler)
        both = [(name in named[q], name in other[q]) for q in plain if q in other for name in vocabulary]
        if len({said for pair in both for said in pair}) > 1:  # else both always say the same one thing
            from sklearn.metrics import cohen_kappa_score

            agreed = float(cohen_kappa_score(*zip(*both, strict=True)))
    return Settled(
        own=Cell(reward.agreement, reward.control, reward.bind, reward.mask_gate),
        pays=pays,
        sensitivity=fmean(seen) if seen else None,
        specificity=_mean([not named[q] for q in plain if not shown[q]]),
        named_on={name: _mean(values) or 0.0 for name, values in changed.items()},
        habits=habits(looks),
        looks=len(looks),
        kappa=agreed,
    )


Paid = dict[tuple[str, Cell], list[float | None]]


def _paid(reward: CrossView, asked: Asked, labeler: Labeler, made: Sequence[Mapping[str, Rollout]]) -> Paid:
    """Return what each pair is paid, by condition and options; None where it is not scored."""
    found: Paid = {}
    for cell in CELLS:
        varied = reward.varied(asked, labeler, cell)
        for name in (*CONDITIONS, RETOLD, OMITTED):
            values: list[float | None] = [None] * len(made)
            places = [place for place, some in enumerate(made) if name in some]
            if name == "no image":
                verdicts: list[Any] = []
                for place in places:  # asked about the cited slices, the reader is shown none of them
                    blind = ImageQuestion(crops=(), text=varied.question)
                    crops = own_crops(made[place][name])
                    asked.instead = {dataclasses.replace(blind, crops=(crop,)): blind for crop in crops}
                    verdicts += varied([made[place][name]], {})
                asked.instead = {}
            else:
                verdicts = [*varied([made[place][name] for place in places], {})]
            for place, verdict in zip(places, verdicts, strict=True):
                values[place] = verdict.value if isinstance(verdict, Score) else None
            found[name, cell] = values
        if cell.bind == "finding":
            pairs = {"invented": RETOLD, "swapped": OMITTED}
            gains = [
                [
                    None if one is None or two is None else one - two
                    for one, two in zip(found[false, cell], found[plain, cell], strict=True)
                ]
                for false, plain in pairs.items()
            ]
            known = ([gain for gain in some if gain is not None] for some in zip(*gains, strict=True))
            found[FALSE, cell] = [*map(_mean, known)]
    return {key: values for key, values in found.items() if key[0] not in (RETOLD, OMITTED)}


def _pay(
    values: Sequence[float | None], eyes: Sequence[float | None], patients: Sequence[str], *, lowest: float
) -> Pay | None:
    """Return a mean with its bounds; None where nothing was scored."""
    known = [(value, who) for value, who in zip(values, patients, strict=True) if value is not None]
    if not known:
        return None
    numbers, whose = [value for value, _ in known], [who for _, who in known]
    interval = paired_interval(numbers, [0.0] * len(numbers), whose)
    low, high = interval.low, interval.high
    if interval.is_tied:  # all pairs are paid the same: at most this share of others are paid otherwise
        share = 1 - ((1 - LEVEL) / 2) ** (1 / interval.patients)
        low = interval.value - share * (interval.value - lowest)
        high = interval.value + share * (1 - interval.value)
    ceiling = _mean([value for value in eyes if value is not None])
    return Pay(value=interval.value, low=low, high=high, pairs=len(numbers), eyes=ceiling)


def _named(answers: Mapping[ImageQuestion, str | None], labeler: Read) -> dict[ImageQuestion, frozenset[str]]:
    """Return the findings that answers affirm, without answers that cannot be read."""
    found = {}
    for question, answer in answers.items():
        (read,) = labeler.read([answer or ""])
        if not isinstance(read, LabelError):
            found[question] = frozenset(affirmed(read))
    return found


def _look(
    question: ImageQuestion, cases: Mapping[VolumeRef, Case], shows: frozenset[str], named: frozenset[str]
) -> Look:
    crop = question.crops[0]
    depth = read_geometry(crop.volume).shape_zyx[0]
    height = ((crop.box_zyx[0] if crop.box_zyx else 0) + 0.5) / depth
    case = cases[crop.volume]
    return Look(patient=patient_of(case), height=height, shows=shows, named=named)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
