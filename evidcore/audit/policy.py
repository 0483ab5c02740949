"""The evidence ladder: what a policy scores over its own volumes beside what each other showing is worth.

The claim is *own minus the best that does not look*: the headline over the cases' own volumes against the
best blind rule, against rules that know where the body lies and never look at what is asked (an atlas),
against every showing in which what is asked cannot be seen (air, scrambled voxels) and, where one was
trained, against a *blind arm*: the same steps from the same start over blank volumes. It holds where the
policy beats each of them: choosing the best on the same questions helps nobody. Where the same patients can
be shown without what is asked, the score must fall (*own minus twin*): what is left above the best that does
not look is read elsewhere in the scan. Where nothing that matters has changed, it must stay. What is lost
over another patient's volumes, the *grounding margin*, says how far a wrong scan misleads, and is no proof of
sight: a weak policy may be misled and gain nothing.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from scipy import stats

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
from evidcore.contracts.evaluating import Interval
from evidcore.errors import ContractError, DataError
from evidcore.evaluate.answer_record import question_of
from evidcore.evaluate.bootstrap import detectable, holm, mean_interval, paired_interval
from evidcore.evaluate.eval_stage import AnonymizedPolicy
from evidcore.registry.factory import offer_of

OWN = "own"
OTHER = "other-patient"
SAME_PATIENT = ("twin", "occluded")  # conditions that change nothing but what is asked, the best first
BLIND_ARM = "blind-arm"
LEVEL = 0.05
LEAST_SHARE = 0.5  # of the gain; more lost where nothing asked has changed, and the gain is not sight of it


class BlindArm(Blank):
    """Asks a policy that was trained alike over blank volumes: what training teaches without a look."""

    says = "a policy trained alike over blank volumes"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConditionResult:
    """One showing, or the best blind rule, and what own volumes score above it on the same questions."""

    name: str
    says: str
    role: str
    above: Interval  # own minus this
    indices: tuple[int, ...]  # of the questions asked both ways
    differences: tuple[float, ...]  # of each of them
    clusters: tuple[str, ...]
    findings: tuple[str, ...]  # empty where they are not known


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyAuditResult(AuditResult):
    """What a policy scores over its own volumes and on every other rung."""

    name: str
    evaluation: Evaluation[Any]
    results: Mapping[str, tuple[EvalResult, ...]]  # by condition; one for each repeat
    conditions: Mapping[str, Condition]
    rungs: tuple[ConditionResult, ...]
    blind: BlindRule | None  # the best rule that does not look, where the evaluation has one
    over_blind: Interval | None  # another patient's volumes minus the best blind rule
    prompts: Sequence[Prompt]

    @property
    def clusters(self) -> tuple[str, ...]:
        return self.results[OWN][0].clusters

    @property
    def gain(self) -> ConditionResult | None:
        """Return the rung of those that do not look which own volumes beat least; None without any."""
        return min(self._of("blind"), key=lambda rung: rung.above.value, default=None)

    @property
    def margin(self) -> Interval | None:
        """Return own minus another patient's volumes, where that was asked."""
        return next((rung.above for rung in self.rungs if rung.name == OTHER), None)

    def score(self, condition: str, metric: str = "") -> Interval:
        """Return a metric under a condition, the headline if none is named, averaged over repeats."""
        some = self.results[condition]
        return mean_interval(_mean(some, metric or self.evaluation.headline), some[0].clusters)

    def _of(self, role: str) -> list[ConditionResult]:
        return [rung for rung in self.rungs if rung.role == role]

    def verdict(self) -> str:
        what = self.evaluation.points
        gain = self.gain
        if gain is None:
            return "Undecided: nothing that does not look was measured."
        text = f"{_points(gain.above)} {what} over {gain.says}, {_spread(gain.above)}"
        for rung in (gain, *self._of("blind")):
            if _ends(rung.above) is None:
                over = f"{_points(rung.above)} {what} over {rung.says}, {_spread(rung.above)}"
                return f"Undecided: {over}."
        if any(not _is_above(rung.above) for rung in self._of("blind")):
            high = (_ends(gain.above) or (0.0, 0.0))[1]
            if high < 0:
                return f"It scores below the best that does not look: {text}. {self._misled()}".strip()
            least = detectable(gain.above)
            missed = "" if least is None else f" A gain under {100 * least:.1f} would be missed."
            return f"No sign that looking helps: {text}.{missed} {self._misled()}".strip()
        return f"{self._seen(gain, text)} {self._misled()}".strip()

    def _seen(self, gain: ConditionResult, text: str) -> str:
        """Say what a policy that beats all that do not look rests on."""
        what = self.evaluation.points
        for rung in self._of("kept"):
            if _is_above(rung.above) and rung.above.value > LEAST_SHARE * gain.above.value:
                lost = f"{100 * rung.above.value:.1f} {what} are lost over {rung.says}"
                return f"Not told: {text}, but {lost}, where the answers should stay."
        removed = self._of("removed")
        if not removed:
            weaker = (
                "No showing without what is asked could be made, so what in the scan is seen is not known."
            )
            return f"The volume is used: {text}. {weaker}{self._untrained()}"
        by_name = {rung.name: rung for rung in removed}
        last = next((by_name[name] for name in SAME_PATIENT if name in by_name), removed[0])
        fell = f"{_points(last.above)} over {last.says}, {_spread(last.above)}"
        known = [rung for rung in removed if _ends(rung.above) is not None]
        if unseen := next((rung for rung in known if not _is_above(rung.above)), None):
            fell = f"{_points(unseen.above)} over {unseen.says}, {_spread(unseen.above)}"
            used = "The volume is used, but no sign that what is asked is seen"
            return f"{used}: {text}; {fell}.{self._untrained()}"
        if last not in known:
            return f"The volume is used, and undecided is what in it: {text}; {fell}.{self._untrained()}"
        weaker = (
            "" if last.name in SAME_PATIENT else " No twins could be made: patients differ in more than that."
        )
        apart = [_apart(last, rung) for rung in self._of("blind")]
        elsewhere = min((gap for gap in apart if gap is not None), key=lambda gap: gap.value, default=None)
        if elsewhere is None or not all(gap is not None and _is_above(gap) for gap in apart):
            return f"What is asked is seen: {text}; {fell}.{weaker}{self._untrained()}"
        over = f"{_points(elsewhere)}, {_spread(elsewhere)}"
        rest = f"Over {last.says} it still beats the best that does not look ({over})"
        part = (
            f"What is asked is seen in part: {text}; {fell}. {rest}: the rest of the gain is something else"
        )
        return f"{part} in the scan.{weaker}{self._untrained()}"

    def _untrained(self) -> str:
        """Name the weaker claim where no blind arm was asked."""
        unknown = "" if self.blind is not None else ", and no blind rule is known"
        weaker = f" The weaker claim: no blind arm was trained beside it{unknown}."
        return "" if BLIND_ARM in self.results else weaker

    def _misled(self) -> str:
        """Say what another patient's volumes do, where they were shown."""
        if self.over_blind is not None and _is_above(self.over_blind):
            over = f"{_points(self.over_blind)}, {_spread(self.over_blind)}"
            gives = "something else gives answers away"
            return f"Over another patient's volumes it still beats the best blind rule ({over}): {gives}."
        if self.margin is None:
            return ""
        return f"Over another patient's volumes it loses {100 * self.margin.value:.1f}."

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
        rows += self._by_finding()
        return rows if self.blind is None else [*rows, *self.blind.rows]

    def _difference(self, metric: str, rung: ConditionResult, note: str, summary: str) -> Row:
        extra = {"of": self.evaluation.headline, "against": rung.name}
        return Row.of(self.name, metric, rung.above, note=note, summary=summary, extra=extra)

    def _by_finding(self) -> list[Row]:
        """Return own minus the best that does not look for each finding, marked where Holm's test says so."""
        gain = self.gain
        if gain is None or not gain.findings:
            return []
        of_finding = {
            finding: [index for index, item in enumerate(gain.findings) if item == finding]
            for finding in sorted(set(gain.findings))
        }
        chances = [_chance(gain, indices) for indices in of_finding.values()]
        rows = []
        for (finding, indices), p in zip(of_finding.items(), holm(chances), strict=True):
            values = [gain.differences[index] for index in indices]
            interval = paired_interval(
                values, [0.0] * len(values), [gain.clusters[index] for index in indices]
            )
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
        measured = dict(zip(map(id, whole), scored, strict=True))
        results: dict[str, tuple[EvalResult, ...]] = {}
        places: dict[str, list[tuple[int, ...]]] = {}
        for indices, answers in given:
            result = measured.get(id(answers)) or evaluation.score([answers], task, name)[0]
            results[answers.condition] = (*results.get(answers.condition, ()), result)
            places.setdefault(answers.condition, []).append(indices)
        own, headline = results[OWN][0], evaluation.headline
        rungs = []
        for name_, some in results.items():
            if (condition := conditions.get(name_)) is not None:
                asked_of, theirs = places[name_][0], _mean(some, headline)
                rungs.append(_rung(name_, condition.says, condition.role, own, headline, theirs, asked_of))
        for place, rule in enumerate(_rules(blind)):
            called = "the best blind rule" if rule is blind else rule.name
            says, whose = f"{called} ({rule.rule})", range(len(prompts))
            rungs.insert(place, _rung(rule.name, says, "blind", own, headline, rule.values, whose))
        over_blind = None
        if blind is not None and OTHER in results:
            over_blind = paired_interval(_mean(results[OTHER], headline), blind.values, own.clusters)
        return PolicyAuditResult(
            name=name, evaluation=evaluation, results=results, conditions=conditions, rungs=tuple(rungs),
            blind=blind, over_blind=over_blind, prompts=prompts,
        )  # fmt: skip

    def showings(
        self, prompts: Sequence[Prompt], asking: EvalOptions
    ) -> Iterator[tuple[str, tuple[int, ...], tuple[Prompt, ...]]]:
        """Yield what is asked, own volumes first: a condition, its questions' indices, and the questions."""
        for condition, repeats in {OWN: [[*enumerate(prompts)]], **self.shown(prompts, asking)}.items():
            for repeat in filter(None, repeats):
                indices, some = zip(*repeat, strict=True)
                yield condition, indices, some

    def shown(
        self, prompts: Sequence[Prompt], asking: EvalOptions
    ) -> dict[str, list[list[tuple[int, Prompt]]]]:
        """Return the questions that each condition can show, with their indices, once for each repeat."""
        variants: dict[str, list[list[tuple[int, Prompt]]]] = {}
        for condition in self.conditions:
            name = offer_of(condition).name
            for number in range(condition.repeats):
                some = condition.show(prompts, seed=asking.seed + number, dataset=asking.dataset)
                if len(some) != len(prompts):
                    raise DataError(f"{offer_of(condition)}: {len(some)} questions shown of {len(prompts)}.")
                there = [(index, item) for index, item in enumerate(some) if item is not None]
                variants.setdefault(name, []).append(there)
            if len({tuple(index for index, _ in repeat) for repeat in variants[name]}) > 1:
                raise DataError(f"{offer_of(condition)}: leaves out other questions when it is repeated.")
        return variants


def _rules(blind: BlindRule | None) -> tuple[BlindRule, ...]:
    """Return the best blind rule, and those beside it that never look at what is asked."""
    return () if blind is None else (blind, *blind.also)


def _rung(
    name: str, says: str, role: str, own: EvalResult, headline: str, theirs: Sequence[float],
    indices: Sequence[int],
) -> ConditionResult:  # fmt: skip
    """Compare own volumes with a showing or a rule, on the questions that it could answer."""
    values, owners, about = _mean([own], headline), own.clusters, own.asked_about
    mine, clusters = [values[index] for index in indices], tuple(owners[index] for index in indices)
    return ConditionResult(
        name=name, says=says, role=role, above=paired_interval(mine, theirs, clusters), indices=(*indices,),
        differences=tuple(mean - other for mean, other in zip(mine, theirs, strict=True)), clusters=clusters,
        findings=tuple(about[index] for index in indices) if about else (),
    )  # fmt: skip


def _apart(rung: ConditionResult, other: ConditionResult) -> Interval | None:
    """Return a showing minus another, on the questions that both could answer; None without any."""
    theirs = dict(zip(other.indices, other.differences, strict=True))
    both = [place for place, index in enumerate(rung.indices) if index in theirs]
    if not both:
        return None
    return paired_interval(
        [theirs[rung.indices[place]] for place in both],
        [rung.differences[place] for place in both],
        [rung.clusters[place] for place in both],
    )


def _mean(results: Sequence[EvalResult], metric: str) -> tuple[float, ...]:
    """Return a metric of each question, averaged over results."""
    each = zip(*(item.values(metric) for item in results), strict=True)
    means = tuple(sum(some) / len(some) for some in each)
    if lost := [index for index, value in enumerate(means) if not math.isfinite(value)]:
        raise ContractError(
            f"{metric}: {len(lost)} of {len(means)} answers have no finite value, the first {means[lost[0]]} "
            f"(answer {lost[0] + 1}). An evaluation counts what it cannot measure as 0."
        )
    return means


def _chance(rung: ConditionResult, indices: Sequence[int]) -> float:
    """Return the two-sided p value of no difference on some questions: t over patients, or a sign test's."""
    values = [rung.differences[index] for index in indices]
    mean = sum(values) / len(values)
    apart: dict[str, float] = {}
    for value, index in zip(values, indices, strict=True):
        apart[rung.clusters[index]] = apart.get(rung.clusters[index], 0.0) + value - mean
    count = len(apart)
    if count < 2 or not mean:
        return 1.0
    spread = sum(total * total for total in apart.values()) * count / (count - 1)
    error = float(spread**0.5 / len(values))  # of a mean of clustered values
    p = 2 * stats.t.sf(abs(mean) / error, count - 1) if error else 0.0
    return max(float(p), 2.0 ** (1 - count))  # few that agree tell no more than a sign test


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
