"""The evidence ladder: what a policy scores over its own volumes beside what each other showing is worth.

The claim is *own minus the best that does not look*: the headline over the cases' own volumes against the
best blind rule, against rules that know where the body lies and never look at what is asked (an atlas),
against every showing in which what is asked cannot be seen (air, scrambled voxels) and, where one was
trained, against a *blind arm*: the same steps from the same start over blank volumes. It holds where the
policy beats each of them: choosing the best on the same questions helps nobody. Where the same patients can
be shown without what is asked, the score must fall (*own minus twin*): what is left above the best that does
not look is read elsewhere in the scan. Where nothing that matters has changed, it must stay. Over another
patient's volumes it must fall, unless it did without what is asked: who does as well there has only noticed
blank or noisy ones. What is lost there, the *grounding margin*, is no proof of sight: a weak policy may be
misled and gain nothing.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evidcore.audit.conditions import Blank
from evidcore.case import Prompt
from evidcore.contracts import (
    Answers,
    Audit,
    AuditResult,
    BlindRule,
    Condition,
    EvalOptions,
    EvalResult,
    Evaluation,
    Policy,
    Row,
    Task,
)
from evidcore.contracts.evaluating import Claims, Interval
from evidcore.errors import ContractError, DataError
from evidcore.evaluate.answer_record import question_of
from evidcore.evaluate.bootstrap import detectable, difference_p, holm, mean_interval, paired_interval
from evidcore.evaluate.eval_stage import AnonymizedPolicy
from evidcore.registry.factory import offer_of

OWN = "own"
OTHER = "other-patient"
# conditions that change nothing but what is asked, the best first
SAME_PATIENT = ("twin", "replaced", "occluded")
MOVED = ("moved", "moved-beside")  # what is asked lies elsewhere: how finely its place is seen
ELSEWHERE = ("sham", "occluded-elsewhere")  # the same changes where nothing is asked
BLIND_ARM = "blind-arm"
LEVEL = 0.05
LEAST_SHARE = 0.5  # of the gain: more lost where nothing asked has changed, or left without it, is no sight


class BlindArm(Blank):
    """Asks a policy that was trained alike over blank volumes: what training teaches without a look."""

    says = "a policy trained alike over blank volumes"


Values = Mapping[int, float]  # by a question's index
Showing = tuple[str, tuple[int, ...], tuple[Prompt, ...]]  # a condition, its questions' indices, and these


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConditionResult:
    """One showing, or the best blind rule, and what own volumes score above it on the same questions."""

    name: str
    says: str
    role: str
    above: Interval  # own minus this
    differences: Mapping[int, float]  # the same of each question asked both ways, by its index


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyAuditResult(AuditResult):
    """What a policy scores over its own volumes and on every other rung."""

    name: str
    evaluation: Evaluation[Any]
    results: Mapping[str, tuple[EvalResult, ...]]  # by condition; one for each repeat
    places: Mapping[str, tuple[tuple[int, ...], ...]]  # of each the indices of its questions
    conditions: Mapping[str, Condition]
    rungs: tuple[ConditionResult, ...]
    blind: BlindRule | None  # the best rule that does not look, where the evaluation has one
    prompts: Sequence[Prompt]

    @functools.cached_property
    def clusters(self) -> tuple[str, ...]:
        return self.results[OWN][0].clusters

    @property
    def gain(self) -> ConditionResult | None:
        """Return the rung of those that do not look which own volumes beat least; None without any."""
        return min(self._of("blind"), key=lambda rung: rung.above.value, default=None)

    @property
    def other(self) -> ConditionResult | None:
        """Return the rung of another patient's volumes, where that was asked; `above` is the margin."""
        return next((rung for rung in self.rungs if rung.name == OTHER), None)

    @property
    def over_blind(self) -> Interval | None:
        """Return another patient's volumes minus the best blind rule, where there are both."""
        rule = next((rung for rung in self.rungs if self.blind and rung.name == self.blind.name), None)
        return self._apart(self.other, rule) if rule and self.other else None

    def score(self, condition: str, metric: str = "") -> Interval:
        """Return a metric under a condition, the headline if none is named, averaged over repeats."""
        some, places = self.results[condition], self.places[condition]
        means = _mean(some, places, metric or self.evaluation.headline)
        return mean_interval([*means.values()], [self.clusters[index] for index in means])

    def _of(self, role: str) -> list[ConditionResult]:
        return [rung for rung in self.rungs if rung.role == role]

    def _apart(self, rung: ConditionResult, other: ConditionResult) -> Interval | None:
        """Return a showing minus another, on the questions that both could answer; None without any."""
        both = {index: lost for index, lost in rung.differences.items() if index in other.differences}
        return _minus(other.differences, both, self.clusters) if both else None

    def verdict(self) -> str:
        gain = self.gain
        if gain is None:
            return "Undecided: nothing that does not look was measured."
        text = self._margin(gain)
        for rung in (gain, *self._of("blind")):
            if _ends(rung.above) is None:
                return f"Undecided: {self._margin(rung)}."
        if any(not _is_above(rung.above) for rung in self._of("blind")):
            high = (_ends(gain.above) or (0.0, 0.0))[1]
            if high < 0:
                return f"It scores below the best that does not look: {text}. {self._misled()}".strip()
            least = detectable(gain.above)
            missed = "" if least is None else f" A gain under {100 * least:.1f} would be missed."
            return f"No sign that looking helps: {text}.{missed} {self._misled()}".strip()
        seen = self._seen(gain, text)
        if BLIND_ARM not in self.results:
            unknown = "" if self.blind is not None else ", and no blind rule is known"
            seen += f" The weaker claim: no blind arm was trained beside it{unknown}."
        return f"{seen} {self._misled()}".strip()

    @functools.cached_property
    def _claims(self) -> Claims | None:
        """Return what can be claimed of each finding, where answers speak of all."""
        showings: dict[str, dict[str, Sequence[EvalResult]]] = {}
        for name, condition in self.conditions.items():
            if name in self.results:
                showings.setdefault(condition.role, {})[name] = self.results[name]
        return self.results[OWN][0].claims(showings, self.blind)

    def _margin(self, rung: ConditionResult) -> str:
        """Say by how much own volumes beat a rung."""
        return f"{_points(rung.above)} {self.evaluation.points} over {rung.says}, {_spread(rung.above)}"

    def _seen(self, gain: ConditionResult, text: str) -> str:
        """Say what a policy that beats all that do not look rests on."""
        for rung in self._of("kept"):
            if _is_above(rung.above) and rung.above.value > LEAST_SHARE * gain.above.value:
                lost = f"{100 * rung.above.value:.1f} {self.evaluation.points} are lost over {rung.says}"
                return f"Not told: {text}, but {lost}, where the answers should stay."
        if self._claims is not None:
            return f"{self._claims.verdict} Of all findings together: {text}."
        removed = {rung.name: rung for rung in self._of("removed")}
        if not any(_is_above(rung.above) for rung in removed.values()):
            if self.other is None:
                return f"Not told: {text}, but nothing was asked over another patient's volumes."
            if not _is_above(self.other.above):
                return f"No sign that looking helps: {text}, but {self._margin(self.other)}."
        for rung in removed.values():
            if (ends := _ends(rung.above)) is not None and ends[0] <= 0:
                used = "The volume is used, but no sign that what is asked is seen"
                return f"{used}: {text}; {self._margin(rung)}."
        twin = next((removed[name] for name in SAME_PATIENT if name in removed), None)
        which = [rung for name, rung in removed.items() if twin in (None, rung) or name in MOVED]
        text = "; ".join([text, *map(self._margin, which)])
        if twin is None:
            cues = "Cues that come with what is asked are not excluded: no scan was shown without it"
            return f"The volume is used: {text}. {cues}."
        apart = [gap for gap in (self._apart(twin, rung) for rung in self._of("blind")) if gap is not None]
        elsewhere = min(apart, key=lambda gap: gap.value, default=None)
        if _ends(twin.above) is None or elsewhere is None or (ends := _ends(elsewhere)) is None:
            return f"The volume is used, and undecided is what in it: {text}."
        beside = f"{_points(elsewhere)} over the best that does not look, {_spread(elsewhere)}"
        rest = f"without what is asked {beside}"
        heeds_no_change = any(rung.name in ELSEWHERE for rung in self._of("kept"))
        if ends[1] < 0 and len(removed) == 1 and not heeds_no_change:
            remedy = "so it may notice the change. Ask over like patients too (condition `matched`)"
            return f"Not told: {text}, but {rest}, {remedy}."
        if all(map(_is_above, apart)):
            return f"What is asked is seen in part: {text}. The rest is something else in the scan: {rest}."
        if ends[1] > LEAST_SHARE * gain.above.value:
            part = "What is asked is seen, in whole or in part"
            return f"{part}: {text}. The rest may be something else in the scan: {rest}."
        return f"What is asked is seen: {text}."

    def _misled(self) -> str:
        """Say what another patient's volumes do, where they were shown."""
        if self.over_blind is not None and _is_above(self.over_blind):
            over = f"{_points(self.over_blind)}, {_spread(self.over_blind)}"
            gives = "something else gives answers away"
            return f"Over another patient's volumes it still beats the best blind rule ({over}): {gives}."
        if self.other is None:
            return ""
        return f"Over another patient's volumes it loses {100 * self.other.above.value:.1f}."

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of every condition, and what the rules that do not look score on each question."""
        lines = [line for some in self.results.values() for result in some for line in result.lines()]
        for rule in _rules(self.blind):
            for prompt, value in zip(self.prompts, rule.values, strict=True):
                figures = {self.evaluation.headline: value}
                entry = {"text": "", "malformed": None, "figures": figures, "images": ()}  # it looks at none
                lines.append({**question_of(prompt, rule.name), **entry})
        return lines

    def reference_lines(self) -> Mapping[str, float | None]:
        return {} if self.blind is None else self.blind.figures

    def rows(self) -> list[Row]:
        """Return the results rows: each rung, the differences, those by finding, then the blind rules."""
        headline, rows = self.evaluation.headline, []
        for condition, some in self.results.items():
            says = "own volumes" if condition == OWN else self.conditions[condition].says
            repeats = f"mean over {len(some)} exchanges of volumes" if len(some) > 1 else ""
            for metric in (headline, *self.evaluation.beside):
                rows.append(
                    Row.of(
                        says, metric, self.score(condition, metric),
                        note=repeats if metric == headline else "", unit=some[0].unit(metric),
                        task=self.name, condition=condition, is_headline=metric == headline,
                    )
                )  # fmt: skip
        what = self.evaluation.points.removeprefix("points").removeprefix(" of ")
        what = f"{what}, " if what else ""
        if (gain := self.gain) is not None:
            note = f"{what}own minus the best that does not look: {gain.says}"
            summary = "own minus the best that does not look"
            rows.append(self._difference("own_minus_blind", gain, note, summary))
        beside = {rule.name: f"own minus {rule.name}" for rule in _rules(self.blind)[1:]}
        notes = {**beside, "twin": "own minus twins"}
        for rung in self.rungs:
            metric = "grounding_margin" if rung.name == OTHER else f"own_minus_{rung.name.replace('-', '_')}"
            note, summary = f"{what}own minus {rung.says}", notes.get(rung.name, "")
            rows.append(self._difference(metric, rung, note, summary))
        if self.blind is not None and self.over_blind is not None:
            note = f"{what}another patient's minus the best blind rule ({self.blind.rule})"
            rows.append(
                Row.of(self.name, f"other_patient_minus_{self.blind.label}", self.over_blind, note=note)
            )
        rows += self._by_finding() if self._claims is None else self._claims.rows
        return rows if self.blind is None else [*rows, *self.blind.rows]

    def _difference(self, metric: str, rung: ConditionResult, note: str, summary: str) -> Row:
        extra = {"of": self.evaluation.headline, "against": rung.name}
        return Row.of(self.name, metric, rung.above, note=note, summary=summary, extra=extra)

    def _by_finding(self) -> list[Row]:
        """Return own minus the best that does not look for each finding, marked where Holm's test says so."""
        gain, about = self.gain, self.results[OWN][0].asked_about
        if gain is None or not about:
            return []
        findings = sorted({about[index] for index in gain.differences})
        differences = {finding: (list[float](), list[str]()) for finding in findings}
        for index, value in gain.differences.items():
            differences[about[index]][0].append(value)
            differences[about[index]][1].append(self.clusters[index])
        chances = [difference_p(*pair) for pair in differences.values()]
        rows = []
        for (finding, (values, owners)), p in zip(differences.items(), holm(chances), strict=True):
            interval = paired_interval(values, [0.0] * len(values), owners)
            sign = "" if interval.value > 0 and p < LEVEL else "no sign of looking"
            extra = {"of": self.evaluation.headline, "against": gain.name, "p_holm": round(p, 6)}
            rows.append(Row.of(self.name, f"own_minus_blind/{finding}", interval, note=sign, extra=extra))
        return rows


class PolicyAudit(Audit):
    """Ask the same questions over own volumes and under conditions; compare with the best that does not look.

    Args:
        conditions: other showings, each a component; one that no question can be shown under is left out.
    """

    def __init__(
        self,
        *,
        conditions: tuple[Condition, ...] = (
            {"use": "blank"}, {"use": "scrambled"}, {"use": "other-patient"}, {"use": "perturbed"},
            {"use": "twin"}, {"use": "sham"}, {"use": "matched"}, {"use": "same-answer"},
        ),  # type: ignore[assignment]  # tables of a recipe
    ) -> None:  # fmt: skip
        self.conditions = conditions

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        task: Task,
        evaluation: Evaluation[Any],
        training: Callable[[], Sequence[Prompt]],
        asking: EvalOptions,
        name: str,
        blind_arm: Policy | None = None,
    ) -> PolicyAuditResult:
        """Audit a policy on `prompts`, from at least two patients."""
        asking = dataclasses.replace(asking, headline_only=True)
        sealed, conditions = AnonymizedPolicy(policy), {offer_of(item).name: item for item in self.conditions}
        given = [
            (indices, Answers(some, evaluation.answer(sealed, some, task, asking), condition))
            for condition, indices, some in self.showings(prompts, asking)
        ]
        if blind_arm is not None:
            conditions[BLIND_ARM] = BlindArm()
            dark = [prompt.with_blank_volumes() for prompt in prompts]
            replies = evaluation.answer(AnonymizedPolicy(blind_arm), dark, task, asking)
            given.append((tuple(range(len(prompts))), Answers(dark, replies, BLIND_ARM)))
        whole = [answers for indices, answers in given if len(indices) == len(prompts)]
        scored, blind = evaluation.score_beside_blind(whole, prompts, training, task, name)
        if blind is not None and policy.answers_alone:
            blind = dataclasses.replace(blind, also=tuple(rule for rule in blind.also if not rule.is_joint))
        measured = dict(zip(map(id, whole), scored, strict=True))
        results: dict[str, tuple[EvalResult, ...]] = {}
        places: dict[str, tuple[tuple[int, ...], ...]] = {}
        for indices, answers in given:
            result = measured.get(id(answers)) or evaluation.score([answers], task, name)[0]
            results[answers.condition] = (*results.get(answers.condition, ()), result)
            places[answers.condition] = (*places.get(answers.condition, ()), indices)
        clusters, headline = results[OWN][0].clusters, evaluation.headline
        means = {name_: _mean(some, places[name_], headline) for name_, some in results.items()}
        rungs = [
            _rung(name_, conditions[name_].says, conditions[name_].role, means[OWN], theirs, clusters)
            for name_, theirs in means.items() if name_ in conditions
        ]  # fmt: skip
        for place, rule in enumerate(_rules(blind)):
            called = "the best blind rule" if rule is blind else rule.name
            values, says = dict(enumerate(rule.values)), f"{called} ({rule.rule})"
            rungs.insert(place, _rung(rule.name, says, "blind", means[OWN], values, clusters))
        return PolicyAuditResult(
            name=name, evaluation=evaluation, results=results, places=places, conditions=conditions,
            rungs=tuple(rungs), blind=blind, prompts=prompts,
        )  # fmt: skip

    def showings(self, prompts: Sequence[Prompt], asking: EvalOptions) -> list[Showing]:
        """Return what is asked, own volumes first, then under each condition as often as it repeats."""
        whole = [*enumerate(prompts)]
        single = [(index, one) for index, prompt in whole for one in _of_each_finding(prompt)]
        result: list[Showing] = [(OWN, tuple(range(len(prompts))), tuple(prompts))]
        for condition in self.conditions:
            indices, asked = zip(*(single if condition.role == "removed" else whole), strict=True)
            for number in range(condition.repeats):
                some = condition.show(asked, seed=asking.seed + number, dataset=asking.dataset)
                if len(some) != len(asked):
                    raise DataError(f"{offer_of(condition)}: {len(some)} questions shown of {len(asked)}.")
                there = [(index, item) for index, item in zip(indices, some, strict=True) if item is not None]
                if there:
                    places, shown = zip(*there, strict=True)
                    result.append((offer_of(condition).name, places, shown))
        return result


def _of_each_finding(prompt: Prompt) -> list[Prompt]:
    """Return a question about all findings of a case once for each, `removed`; another one as it is."""
    present = prompt.reference.get("present")
    if not present or "masks" in prompt.reference:
        return [prompt]
    facts = [{**prompt.reference, "present": [finding], "removed": finding} for finding in present]
    return [dataclasses.replace(prompt, reference=item) for item in facts]


def _rules(blind: BlindRule | None) -> tuple[BlindRule, ...]:
    """Return the best blind rule, and those beside it that never look at what is asked."""
    return () if blind is None else (blind, *blind.also)


def _rung(
    name: str, says: str, role: str, own: Values, theirs: Values, clusters: Sequence[str]
) -> ConditionResult:
    """Compare own volumes with a showing or a rule, on the questions that it could answer."""
    above = _minus(own, theirs, clusters)
    differences = {index: own[index] - other for index, other in theirs.items()}
    return ConditionResult(name=name, says=says, role=role, above=above, differences=differences)


def _minus(values: Values, others: Values, clusters: Sequence[str]) -> Interval:
    """Return the mean of values minus others, over the questions of the others."""
    first, owners = [values[index] for index in others], [clusters[index] for index in others]
    return paired_interval(first, [*others.values()], owners)


def _mean(results: Sequence[EvalResult], places: Sequence[Sequence[int]], metric: str) -> dict[int, float]:
    """Return a metric of each question by its index, averaged over the results that have it."""
    each: dict[int, list[float]] = {}
    for result, indices in zip(results, places, strict=True):
        for index, value in zip(indices, result.values(metric), strict=True):
            each.setdefault(index, []).append(value)
    means = {index: statistics.fmean(each[index]) for index in sorted(each)}
    if lost := [index for index, value in means.items() if not math.isfinite(value)]:
        raise ContractError(
            f"{metric}: {len(lost)} of {len(means)} answers have no finite value, the first "
            f"{means[lost[0]]} (answer {lost[0] + 1}). An evaluation counts what it cannot measure as 0."
        )
    return means


def _is_above(interval: Interval) -> bool:
    ends = _ends(interval)
    return ends is not None and ends[0] > 0


def _points(interval: Interval) -> str:
    return f"{100 * interval.value:+.1f}"


def _ends(interval: Interval) -> tuple[float, float] | None:
    """Return between which values the draws lie; None where there are none."""
    if interval.is_tied:
        return interval.value, interval.value
    return None if interval.low is None or interval.high is None else (interval.low, interval.high)


def _spread(interval: Interval) -> str:
    if interval.is_tied:
        return "the same in every draw of patients"
    if interval.low is None or interval.high is None:
        return interval.note
    return f"95 % interval {100 * interval.low:+.1f} to {100 * interval.high:+.1f}"
