"""The settling test of `cross-view`: does a slice that contradicts the report still pay?

Gold answers are paid under each of `CONDITIONS`, by the reward and by the same with perfect eyes, which see
what the masks show: the ceiling. The reader is asked each question once.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

from evidcore_plugin_reports.agreement import affirmed

from evidcore.api import Case, Crop, Reader, Rollout, Score, VolumeRef, paired_interval
from evidcore.contracts import ImageQuestion, LabelError
from evidcore.data import read_geometry
from evidcore.evaluate.bootstrap import LEVEL
from evidcore_plugin_emrl.matched_slices import NOTHING, lacks_mask, patient_of, shown_findings
from evidcore_plugin_emrl.reader_habits import Look, habits
from evidcore_plugin_emrl.report_evidence import best_evidence, shown_slices
from evidcore_plugin_emrl.settled import FALSE, Pay, Settled
from evidcore_plugin_emrl.settling_conditions import CONDITIONS, OMITTED, RETOLD, conditions

if TYPE_CHECKING:
    from evidcore_plugin_emrl.cross_view import CrossView

QUESTIONS_PER_CALL = 256
SCANNED = ("right", "contradicting", "empty")  # conditions that show slices as they were scanned


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


class OracleReader(Reader):
    """Names what the masks show on a slice; nothing on a blank or changed one, and without a picture."""

    deterministic: ClassVar[bool] = True

    def __init__(self, cases: Sequence[Case], cache_folder: Path) -> None:
        self.cases: Mapping[VolumeRef, Case] = {ref: case for case in cases for ref in case.volumes}
        self.cache_folder = cache_folder

    def __call__(self, questions: Sequence[ImageQuestion]) -> Sequence[str | None]:
        seen = [frozenset[str]().union(*map(self.shown, question.crops)) for question in questions]
        return [" ".join(f"There is a {name}." for name in sorted(names)) or NOTHING for names in seen]

    def shown(self, crop: Crop) -> frozenset[str]:
        """Return what a slice shows."""
        return shown_findings(self.cases[crop.volume], crop, self.cache_folder)


def settle(
    reward: CrossView, gold: Sequence[Rollout], cases: Sequence[Case], cache_folder: Path
) -> Settled | None:
    """Pay gold answers under all conditions.

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
    asked = Asked(reward.reader)
    paid, ceiling = _paid(reward, asked, made), _paid(reward, Asked(eyes), made)
    patients = [patient_of(some["right"].prompt.case) for some in made]
    pays = {name: _pay(paid[name], ceiling[name], patients, lowest=reward.bounds[0]) for name in paid}

    def named(reader: Reader, crops: Iterable[Crop]) -> dict[Crop, frozenset[str]]:
        """Return what a reader names on slices, without answers that cannot be read."""
        shown = list(dict.fromkeys(crops))
        answers = reader([ImageQuestion(crops=(crop,), text=reward.question) for crop in shown])
        said = {crop: answer or "" for crop, answer in zip(shown, answers, strict=True)}
        read = reward.reading().read_once(said.values())
        found = {crop: read[text] for crop, text in said.items()}
        return {
            crop: frozenset(affirmed(one)) for crop, one in found.items() if not isinstance(one, LabelError)
        }

    right, blank, noise = (
        named(asked, [crop for some in made for crop in some[name].prompt.crops()])
        for name in ("right", "blank", "noise")
    )
    changed = {"blank": blank.values(), "noise": noise.values()}
    plain = named(asked, _slices(reward, made))
    shows = {crop: eyes.shown(crop) for crop in plain}
    kappa = None
    if reward.second_reader is not None:
        other = named(Asked(reward.second_reader), plain)
        both = [
            (name in plain[crop], name in other[crop])
            for crop in plain
            if crop in other
            for name in vocabulary
        ]
        if len({said for pair in both for said in pair}) > 1:  # else both always say the same one thing
            from sklearn.metrics import cohen_kappa_score

            kappa = float(cohen_kappa_score(*zip(*both, strict=True)))
    return Settled(
        agreement=reward.agreement,
        bind=reward.bind,
        pays={name: pay for name, pay in pays.items() if pay is not None},
        sensitivity=_mean([name in right[crop] for crop in right for name in shows[crop]]),
        specificity=_mean([not plain[crop] for crop in plain if not shows[crop]]),
        named_on={name: _mean([*map(bool, some)]) or 0.0 for name, some in changed.items()},
        habits=habits([_look(eyes.cases[crop.volume], crop, shows[crop], plain[crop]) for crop in plain]),
        looks=len(plain),
        kappa=kappa,
    )


def _slices(reward: CrossView, made: Sequence[Mapping[str, Rollout]]) -> Iterator[Crop]:
    """Yield what tells how well a reader reads: cited slices as scanned, and others' slices like them."""
    for some in made:
        for name in SCANNED:
            if name in some:
                prompt = some[name].prompt
                for z, crop in shown_slices(prompt).items():
                    yield crop
                    yield from reward.matched(prompt.case, crop, z, reward.control_slices)


def _paid(
    reward: CrossView, asked: Asked, made: Sequence[Mapping[str, Rollout]]
) -> dict[str, list[float | None]]:
    """Return what each pair is paid by what a reader answers, by condition; None where it is not scored."""
    reward = copy.copy(reward)
    reward.reader = asked
    found: dict[str, list[float | None]] = {}
    for name in (*CONDITIONS, RETOLD, OMITTED):
        values: list[float | None] = [None] * len(made)
        places = [place for place, some in enumerate(made) if name in some]
        if name == "no image":
            verdicts: list[Any] = []
            for place in places:  # asked about the cited slices, the reader is shown none of them
                blind = ImageQuestion(crops=(), text=reward.question)
                crops = made[place][name].prompt.crops()
                asked.instead = {dataclasses.replace(blind, crops=(crop,)): blind for crop in crops}
                verdicts += reward([made[place][name]], {})
            asked.instead = {}
        else:
            verdicts = [*reward([made[place][name] for place in places], {})]
        for place, verdict in zip(places, verdicts, strict=True):
            values[place] = verdict.value if isinstance(verdict, Score) else None
        found[name] = values
    retold, omitted = found.pop(RETOLD), found.pop(OMITTED)
    if reward.bind == "finding":
        gains = (
            [
                None if one is None or two is None else one - two
                for one, two in zip(found[false], plain, strict=True)
            ]
            for false, plain in (("invented", retold), ("swapped", omitted))
        )
        known = ([gain for gain in some if gain is not None] for some in zip(*gains, strict=True))
        found[FALSE] = [*map(_mean, known)]
    return found


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


def _look(case: Case, crop: Crop, shows: frozenset[str], named: frozenset[str]) -> Look:
    depth = read_geometry(crop.volume).shape_zyx[0]
    height = ((crop.box_zyx[0] if crop.box_zyx else 0) + 0.5) / depth
    return Look(patient=patient_of(case), height=height, shows=shows, named=named)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
