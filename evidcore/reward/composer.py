"""Call the rewards on whole groups, hold them to their contract, and compose what they say.

Composition, per reward: its value where its gate is open, 0 where the gate is closed, and the mean of the
scored answers of the group where there is no verdict (a constant where none is scored), so that a missing
verdict moves no advantage. The weighted sum of these is the total. A line is kept for each judged
group, and the figures of a step.

A call of a reward fails where it raises. Where some calls may fail, all its rows are unscored and
the run goes on. What breaks the contract ends the run in any case: an exit, a number that is not finite or
out of bounds, another number of verdicts. A call that takes long is waited for, and standard error shows at
which line it is: a thread cannot be ended from outside. `isolated = true` sets a limit, in a process.
"""

import contextlib
import dataclasses
import faulthandler
import logging
import numbers
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.case import Rollout, Score, Unscored, Verdict
from evidcore.compute.clock import Clock
from evidcore.contracts import Reward
from evidcore.contracts.judging import Checked, Outcome
from evidcore.errors import ContractError, DataError, EvidError, RecipeError, did_you_mean
from evidcore.registry import is_code_fault
from evidcore.registry.signature import RewardKeys
from evidcore.reward.process_state import changed, content, killed_forks, preserved_process_state

log = logging.getLogger(__name__)

EQUAL = 1e-8  # totals closer than this give no advantage
MOST_DEAD = 0.9  # share of groups, or of answers, that teaches nothing
LAST_STEPS = 20  # over which failed calls are counted
MOST_REASON = 100_000  # characters, of each rollout kept
HANG_S = 600.0  # after so long a call's stack is shown, and again
QUOTED_ROWS, MOST_LETTERS = 3, 200  # of a call that failed, of each of its rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedReward:
    """A reward as the recipe composes it."""

    name: str
    reward: Reward
    weight: float = RewardKeys.weight
    gate: str = RewardKeys.gate  # counted only where the reward of this name scored above 0
    package: str = ""  # "package version", named when the reward breaks its contract
    asks_policy: bool = False  # or a service that it names does: the model that is trained


class FailedCall(ContractError):
    """A call of a reward that raised. Names the reward, why, and some of its rows."""

    def __init__(self, message: str, quoting: str, reason: str) -> None:
        super().__init__(message, quoting)
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What the rewards said about rollouts."""

    verdicts: Mapping[str, Sequence[Verdict]]
    counted: Mapping[str, Sequence[float]]  # after gates and filling
    failed: Mapping[str, str] = dataclasses.field(default_factory=dict)  # reward -> how its call failed

    def totals(self, rewards: Sequence[NamedReward]) -> list[float]:
        """Return the weighted sum for each rollout."""
        columns = [[item.weight * value for value in self.counted[item.name]] for item in rewards]
        return [sum(row) for row in zip(*columns, strict=True)]


class RewardComposer:
    """Asks each reward once per batch of whole groups, in the recipe's order."""

    def __init__(self, rewards: Sequence[NamedReward], *, max_failure_rate: float = 0.0) -> None:
        """Check the composition.

        With `max_failure_rate` 0, the first call that fails raises.
        """
        if not rewards:
            raise RecipeError("stage.grpo.reward: a grpo stage needs at least one reward.")
        self.rewards = list(rewards)
        self.max_failure_rate = max_failure_rate
        self._warned: set[str] = set()
        seen: list[str] = []
        for item in rewards:
            if item.name in seen:
                raise RecipeError(
                    f"stage.grpo.reward: two rewards are called {item.name!r}; give one another `name`."
                )
            if item.gate and item.gate not in seen:
                raise RecipeError(
                    f"stage.grpo.reward {item.name!r}: gate = {item.gate!r} is no reward before "
                    f"it.{did_you_mean(item.gate, seen)} Rewards before it: {', '.join(seen) or 'none'}."
                )
            seen.append(item.name)

    def __call__(self, rollouts: Sequence[Rollout], clock: Clock | None = None) -> Judgement:
        """Judge whole groups.

        Raises:
            ContractError: if a reward changes what it is shown, exits, or returns what its contract does not
                allow; names reward, package, value and prompt.
            FailedCall: if one raises, and no call may fail.
        """
        rollouts = tuple(rollouts)  # what a reward is given must not be what is recorded
        verdicts: dict[str, Sequence[Verdict]] = {}
        failed: dict[str, str] = {}
        clock = clock or Clock()
        quoted = content(rollouts, verdicts)
        for item in self.rewards:
            with clock.part(f"reward/{item.name}"):
                try:
                    with preserved_process_state(), contextlib.ExitStack() as call:
                        faulthandler.dump_traceback_later(HANG_S, repeat=True, file=2)
                        call.callback(faulthandler.cancel_dump_traceback_later)
                        answer = self._call(item, rollouts, dict(verdicts))
                except FailedCall as failure:
                    if not self.max_failure_rate:
                        raise
                    if item.name not in self._warned:
                        self._warned.add(item.name)
                        text = "%s Its rows are unscored; the run goes on while at most %s of its calls fail."
                        share = f"max_failure_rate = {self.max_failure_rate:g}"
                        log.warning(text, failure, share, exc_info=failure.__cause__)
                    failed[item.name] = str(failure)
                    answer = [Unscored(kind="failed", reason=failure.reason)] * len(rollouts)
                left = content(rollouts, verdicts)
                if what := changed(quoted, left):
                    raise ContractError(
                        f"{_who(item)} changed {what}, by which others judge. Let it work on a copy."
                    )
                verdicts[item.name] = self._checked(item, rollouts, answer)
                quoted = left + content((), {item.name: verdicts[item.name]})
        counted = {item.name: _fill(_gated(item, verdicts), rollouts) for item in self.rewards}
        return Judgement(verdicts, counted, failed)

    def check_failed(
        self, counts: Mapping[str, Sequence[float]], calls_per_step: int, failed: Mapping[str, str]
    ) -> None:
        """Hold the rewards to the share of their calls that may fail; steps before the first count as fine.

        `counts` are, for each reward, the calls that failed at each step, the last one last.
        """
        calls = LAST_STEPS * calls_per_step  # else a run's first failure would be all of its calls
        for item in self.rewards:
            count = sum(counts[item.name][-LAST_STEPS:])
            if item.name in failed and count / calls > self.max_failure_rate:
                raise ContractError(
                    f"{_who(item)}: {count:g} of its {calls} calls in the last {LAST_STEPS} steps failed "
                    f"({100 * count / calls:.0f} %), and max_failure_rate is {self.max_failure_rate:g}. "
                    "Mend what fails and go on with `evid resume`, or run with a higher max_failure_rate. "
                    f"The last: {failed[item.name]}"
                )

    def nothing(self, rollouts: Sequence[Rollout]) -> Judgement:
        """Return a judgement that says nothing, without asking."""
        silent = Unscored(kind="not-applicable", reason="")
        names = [item.name for item in self.rewards]
        return Judgement(
            {name: (silent,) * len(rollouts) for name in names},
            {name: [0.0] * len(rollouts) for name in names},
        )

    def _call(
        self, item: NamedReward, rollouts: Sequence[Rollout], earlier: dict[str, Sequence[Verdict]]
    ) -> Any:
        try:
            with killed_forks():
                return item.reward(rollouts, earlier)
        except Exception as cause:
            # the run can go on where data could not be used, or a component that the reward asked raised
            may_fail = isinstance(cause, DataError) or (
                isinstance(cause, ContractError) and cause.__cause__ is not None
            )
            if isinstance(cause, EvidError) and not (self.max_failure_rate and may_fail):
                raise
            why = f"{type(cause).__name__}: {cause}"
            message = f"{_who(item)} failed with {type(cause).__name__}"
            quoting = f": {cause}, over {_shown(rollouts)} Report this to its authors."
            raise FailedCall(message, quoting, why[:MOST_LETTERS]) from cause
        except BaseException as cause:
            if not is_code_fault(cause):
                raise
            raise ContractError(
                f"{_who(item)} tried to end the process with {type(cause).__name__}",
                f": {cause}, over {_shown(rollouts)} Let it raise an exception, or return Unscored.",
            ) from cause

    def _checked(self, item: NamedReward, rollouts: Sequence[Rollout], answer: Any) -> tuple[Verdict, ...]:
        if not isinstance(answer, Sequence) or isinstance(answer, str):
            raise ContractError(
                f"{_who(item)} must return a list of scores, got {type(answer).__name__}", f" {answer!r}."
            )
        if len(answer) != len(rollouts):
            raise ContractError(f"{_who(item)} returned {len(answer)} scores for {len(rollouts)} rollouts.")
        low, high = item.reward.bounds
        checked: list[Verdict] = []
        for rollout, score in zip(rollouts, answer, strict=True):
            score = Unscored(kind="not-applicable", reason="") if score is None else score
            where = f"{_who(item)}, prompt {rollout.prompt.id!r}"
            if not isinstance(score, Score | Unscored):
                what = f"{where}: must give a Score, an Unscored or None, got {type(score).__name__}"
                raise ContractError(what, f" {score!r}.")
            if not isinstance(score.reason, str) or len(score.reason) > MOST_REASON:
                text = f"{where}: the reason must be a text of at most {MOST_REASON} characters"
                raise ContractError(text, f", got {score.reason!r:.99}.")
            checked.append(score)
            if isinstance(score, Unscored):
                continue
            value = score.value
            if not _is_number(value):
                raise ContractError(f"{where}: the value must be a number below 1e15", f", got {value!r}.")
            if not low <= value <= high:
                raise ContractError(
                    f"{where}: the value {value!r} lies outside the declared bounds {low:g} to {high:g}."
                )
            for name, part in score.parts.items():
                if not _is_number(part):
                    raise ContractError(f"{where}: part {name!r} must be below 1e15", f", got {part!r}.")
        return tuple(checked)


def _is_number(value: Any) -> bool:
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_real and -1e15 < value < 1e15  # trainers square it in float32


def _who(item: NamedReward) -> str:
    return f"{item.package}: reward {item.name!r}" if item.package else f"reward {item.name!r}"


def _shown(rollouts: Sequence[Rollout]) -> str:
    """Tell of rollouts how many there are, and show some with their prompts."""
    some = rollouts[:: max(len(rollouts) // QUOTED_ROWS, 1)][:QUOTED_ROWS]
    rows = "; ".join(f"prompt {item.prompt.id!r}: {item.text[:MOST_LETTERS]!r}" for item in some)
    return f"{len(rollouts)} rollouts, among them {rows}."


def _gated(item: NamedReward, verdicts: Mapping[str, Sequence[Verdict]]) -> list[float | None]:
    """Return a reward's values: 0 where its gate is closed, None where there is no verdict."""
    values = [float(score.value) if isinstance(score, Score) else None for score in verdicts[item.name]]
    if not item.gate:
        return values
    return [
        None if isinstance(gate, Unscored) else value if gate.value > 0 else 0.0
        for value, gate in zip(values, verdicts[item.gate], strict=True)
    ]


def _fill(values: Sequence[float | None], rollouts: Sequence[Rollout]) -> list[float]:
    """Put the mean of the scored answers of a group in the place of missing verdicts."""
    scored: dict[int, list[float]] = {}
    for value, rollout in zip(values, rollouts, strict=True):
        rows = scored.setdefault(rollout.group, [])
        if value is not None:
            rows.append(value)
    means = {group: sum(rows) / len(rows) if rows else 0.0 for group, rows in scored.items()}
    return [
        means[rollout.group] if value is None else value
        for value, rollout in zip(values, rollouts, strict=True)
    ]


def record(
    judgement: Judgement, rewards: Sequence[NamedReward], rollouts: Sequence[Rollout], answers_per_prompt: int
) -> list[dict[str, Any]]:
    """Return the lines of the rollout file: one for each group."""
    totals = judgement.totals(rewards)
    lines = []
    for start in range(0, len(rollouts), answers_per_prompt):
        prompt = rollouts[start].prompt
        lines.append({
            "prompt_id": prompt.id,
            "case_id": prompt.case.id,
            "task": prompt.task,
            "prompt": prompt.written(),
            "images": [crop.uri() for crop in prompt.crops()],
            "reference": dict(prompt.reference),
            "rollouts": [
                {
                    "text": rollouts[index].text,
                    "total": totals[index],
                    "malformed": rollouts[index].answer.malformed,
                    "evidence": (cited := rollouts[index].answer.evidence) and dataclasses.asdict(cited),
                    "turns": [turn.to_json() for turn in rollouts[index].turns],
                    "parent": rollouts[index].parent,
                    "rewards": {
                        name: _line(judgement.verdicts[name][index], judgement.counted[name][index])
                        for name in judgement.verdicts
                    },
                }
                for index in range(start, min(start + answers_per_prompt, len(rollouts)))
            ],
        })  # fmt: skip
    return lines


def figures(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return what is told of the rewards at a step, from its record.

    Per reward: mean and spread of its scores, the share of groups in which it counts the same for all, and
    how many answers it left unscored. Of all together: the mean total, the share of groups of equal totals,
    the mean number of tokens the model wrote and the share of answers that were cut off.
    """
    result: dict[str, float] = {}
    answers = [answer for line in lines for answer in line["rollouts"]]
    for name in answers[0]["rewards"]:
        verdicts = [answer["rewards"][name] for answer in answers]
        values = [item["value"] for item in verdicts if item["value"] is not None]
        if values:
            result[f"reward/{name}"] = statistics.fmean(values)
            result[f"reward_spread/{name}"] = statistics.pstdev(values)
        groups = [[answer["rewards"][name]["counted"] for answer in line["rollouts"]] for line in lines]
        result[f"dead_groups/{name}"] = _dead(groups)
        result[f"unscored/{name}"] = float(len(verdicts) - len(values))
    result["reward"] = statistics.fmean(answer["total"] for answer in answers)
    result["dead_groups"] = _dead([[answer["total"] for answer in line["rollouts"]] for line in lines])
    if "tokens" in answers[0]:
        result["completion_tokens"] = statistics.fmean(answer["tokens"] for answer in answers)
        result["cut_off"] = statistics.fmean(not answer["ended"] for answer in answers)
    return result


def _dead(groups: Sequence[Sequence[float]]) -> float:
    return sum(max(group) - min(group) < EQUAL for group in groups) / len(groups)


def _line(verdict: Verdict, counted: float) -> dict[str, Any]:
    score = verdict if isinstance(verdict, Score) else None
    return {
        "value": None if score is None else float(score.value),
        "parts": {} if score is None else {name: float(value) for name, value in score.parts.items()},
        "reason": verdict.reason,
        "unscored": verdict.kind if isinstance(verdict, Unscored) else None,
        "counted": counted,
    }


def check_start(groups: Sequence[Sequence[float]], most: float) -> Checked:
    """Say whether the start policy's answers, by group, differ in what they earn: else nothing is taught.

    `groups` are totals of the answers to each prompt; `most` may be infinite.
    """
    totals = [value for group in groups for value in group]
    dead = _dead(groups)
    full = sum(value > most - EQUAL for value in totals) / len(totals)
    outcome: Outcome = "alarm" if max(dead, full) >= MOST_DEAD else "note" if dead >= 0.5 else "fine"
    says = (
        f"in {100 * dead:.0f} % of the groups all answers of the start policy earn the same, and "
        f"{100 * full:.0f} % of the answers earn all there is to earn"
    )
    figures = {"dead_groups": dead, "saturated": full}
    return Checked(check="start", outcome=outcome, says=says, figures=figures)


def cancelling(figures: Mapping[str, float]) -> str:
    """Say why groups have equal totals at a step, by its `figures`: answers are cut off, rewards cancel."""
    if figures["dead_groups"] < MOST_DEAD:
        return ""
    shares = {key: share for key, share in figures.items() if key.startswith("dead_groups/")}
    differ = [repr(key.partition("/")[2]) for key, share in shares.items() if share < MOST_DEAD]
    cut = figures.get("cut_off", 0.0)
    says = f"; rewards {' and '.join(differ)} differ and cancel each other" if len(differ) > 1 else ""
    return says + (f"; {100 * cut:.0f} % of the answers are cut off" if cut >= MOST_DEAD else "")


def most_of(rewards: Sequence[NamedReward]) -> float:
    """Return the most that an answer can earn."""
    return sum(item.weight * item.reward.bounds[1] for item in rewards if item.weight)
