"""Call the rewards on whole groups, hold them to their contract, and compose what they say.

Composition, per reward: its value where its gate is open, 0 where the gate is closed, and the mean of the scored
answers of the group where there is no verdict (a constant where none is scored), so that a missing verdict moves no
advantage. The weighted sum of these is the total.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.case import Rollout, Score, Unscored, Verdict
from evidcore.errors import ContractError, EvidError, RecipeError, did_you_mean
from evidcore.train.settings import NamedReward


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What the rewards said about rollouts."""

    verdicts: Mapping[str, Sequence[Verdict]]
    counted: Mapping[str, Sequence[float]]  # after gates and filling
    seconds: Mapping[str, float]

    def totals(self, rewards: Sequence[NamedReward]) -> list[float]:
        """Return the weighted sum for each rollout."""
        columns = [[item.weight * value for value in self.counted[item.name]] for item in rewards]
        return [sum(row) for row in zip(*columns, strict=True)]


class Judge:
    """Asks each reward once per batch of whole groups, in the recipe's order."""

    def __init__(self, rewards: Sequence[NamedReward], *, time_limit_s: float = 0.0) -> None:
        """Check the composition.

        Args:
            rewards: in the order in which they are asked.
            time_limit_s: how long one call of a reward may take; 0: as long as it likes.

        Raises:
            RecipeError: without rewards, with two of one name, or with a gate that is no earlier reward.
        """
        if not rewards:
            raise RecipeError("stage.grpo.reward: a grpo stage needs at least one reward.")
        self.rewards = list(rewards)
        self.time_limit_s = time_limit_s
        seen: list[str] = []
        for item in rewards:
            if item.name in seen:
                raise RecipeError(
                    f"stage.grpo.reward: two rewards are called {item.name!r}; give one another `name`."
                )
            if item.gate and item.gate not in seen:
                raise RecipeError(
                    f"stage.grpo.reward {item.name!r}: gate = {item.gate!r} is no reward before it."
                    f"{did_you_mean(item.gate, seen)} Rewards before it: {', '.join(seen) or 'none'}."
                )
            seen.append(item.name)

    def __call__(self, rollouts: Sequence[Rollout]) -> Judgement:
        """Judge whole groups.

        Raises:
            ContractError: if a reward raises, hangs, or returns what its contract does not allow; names reward,
                package, value and prompt.
        """
        verdicts: dict[str, Sequence[Verdict]] = {}
        seconds = {}
        for item in self.rewards:
            start = time.perf_counter()
            verdicts[item.name] = self._checked(item, rollouts, self._ask(item, rollouts, dict(verdicts)))
            seconds[item.name] = time.perf_counter() - start
        counted = {item.name: _fill(_gated(item, verdicts), rollouts) for item in self.rewards}
        return Judgement(verdicts, counted, seconds)

    def _ask(
        self, item: NamedReward, rollouts: Sequence[Rollout], earlier: dict[str, Sequence[Verdict]]
    ) -> Any:
        """Return what the reward says, within the time limit."""
        if not self.time_limit_s:
            return self._call(item, rollouts, earlier)
        found: list[Any] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                found.append(self._call(item, rollouts, earlier))
            except BaseException as cause:  # handed to the caller's thread below
                failed.append(cause)

        worker = threading.Thread(target=work, name=f"reward {item.name}", daemon=True)
        worker.start()
        worker.join(self.time_limit_s)
        if worker.is_alive():
            raise ContractError(
                f"{_who(item)} has not answered for {self.time_limit_s:g} s over {len(rollouts)} rollouts, the first "
                f"of prompt {rollouts[0].prompt.id!r}. Raise `reward_time_limit_s` if it needs longer."
            )
        if failed:
            raise failed[0]
        return found[0]

    def _call(
        self, item: NamedReward, rollouts: Sequence[Rollout], earlier: dict[str, Sequence[Verdict]]
    ) -> Any:
        try:
            return item.reward(rollouts, earlier)
        except EvidError:
            raise
        except Exception as cause:
            raise ContractError(
                f"{_who(item)} failed over {len(rollouts)} rollouts, the first of prompt {rollouts[0].prompt.id!r}: "
                f"{type(cause).__name__}: {cause}. Report this to the reward's authors; the traceback is below."
            ) from cause

    def _checked(self, item: NamedReward, rollouts: Sequence[Rollout], answer: Any) -> list[Verdict]:
        """Hold an answer to the contract."""
        if not isinstance(answer, Sequence) or isinstance(answer, str):
            raise ContractError(
                f"{_who(item)} must return a list of scores, got {type(answer).__name__} {answer!r}."
            )
        if len(answer) != len(rollouts):
            raise ContractError(f"{_who(item)} returned {len(answer)} scores for {len(rollouts)} rollouts.")
        low, high = item.reward.bounds
        checked: list[Verdict] = []
        for rollout, score in zip(rollouts, answer, strict=True):
            if score is None:
                checked.append(Unscored(kind="not-applicable", reason=""))
                continue
            if isinstance(score, Unscored):
                checked.append(score)
                continue
            where = f"{_who(item)}, prompt {rollout.prompt.id!r}"
            if not isinstance(score, Score):
                raise ContractError(
                    f"{where}: must give a Score, an Unscored or None, got {type(score).__name__} {score!r}."
                )
            value = score.value
            if not isinstance(value, numbers.Real) or isinstance(value, bool) or not math.isfinite(value):
                raise ContractError(f"{where}: the value must be a finite number, got {value!r}.")
            if not low <= value <= high:
                raise ContractError(
                    f"{where}: the value {value!r} lies outside the declared bounds {low:g} to {high:g}."
                )
            checked.append(score)
        return checked


def _who(item: NamedReward) -> str:
    """Name a reward and whom to write to."""
    return f"{item.package}: reward {item.name!r}" if item.package else f"reward {item.name!r}"


def _gated(item: NamedReward, verdicts: Mapping[str, Sequence[Verdict]]) -> list[float | None]:
    """Return a reward's values: 0 where its gate is closed, None where there is no verdict."""
    own = [score.value if isinstance(score, Score) else None for score in verdicts[item.name]]
    if not item.gate:
        return [None if value is None else float(value) for value in own]
    values: list[float | None] = []
    for value, gate in zip(own, verdicts[item.gate], strict=True):
        if isinstance(gate, Unscored):
            values.append(None)
        elif gate.value <= 0:
            values.append(0.0)
        else:
            values.append(None if value is None else float(value))
    return values


def _fill(values: Sequence[float | None], rollouts: Sequence[Rollout]) -> list[float]:
    """Put the mean of the scored answers of a group in the place of missing verdicts."""
    scored: dict[int, list[float]] = {}
    for value, rollout in zip(values, rollouts, strict=True):
        held = scored.setdefault(rollout.group, [])
        if value is not None:
            held.append(value)
    means = {group: sum(held) / len(held) if held else 0.0 for group, held in scored.items()}
    return [
        means[rollout.group] if value is None else value
        for value, rollout in zip(values, rollouts, strict=True)
    ]


def figures(
    judgement: Judgement, rewards: Sequence[NamedReward], answers_per_prompt: int
) -> dict[str, float]:
    """Return per reward: mean and spread of its scores, the share of groups in which it says one thing, and how
    many rollouts it left unscored; and the mean total.
    """
    found: dict[str, float] = {}
    for item in rewards:
        values = [score.value for score in judgement.verdicts[item.name] if isinstance(score, Score)]
        if values:
            mean = sum(values) / len(values)
            found[f"reward/{item.name}"] = mean
            spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
            found[f"reward_spread/{item.name}"] = spread
        found[f"dead_groups/{item.name}"] = _dead(judgement.counted[item.name], answers_per_prompt)
        found[f"unscored/{item.name}"] = float(len(judgement.verdicts[item.name]) - len(values))
    totals = judgement.totals(rewards)
    found["reward"] = sum(totals) / len(totals)
    found["dead_groups"] = _dead(totals, answers_per_prompt)
    return found


def _dead(values: Sequence[float], answers_per_prompt: int) -> float:
    """Return the share of groups whose members all have one value."""
    groups = [
        values[start : start + answers_per_prompt] for start in range(0, len(values), answers_per_prompt)
    ]
    return sum(max(group) - min(group) < 1e-8 for group in groups) / len(groups)


def record(
    judgement: Judgement,
    rewards: Sequence[NamedReward],
    rollouts: Sequence[Rollout],
    advantages: Sequence[float],
    answers_per_prompt: int,
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
            "prompt": "".join(getattr(part, "text", "<image>") for part in prompt.parts),
            "images": [crop.uri() for crop in prompt.crops()],
            "reference": dict(prompt.reference),
            "rollouts": [
                {
                    "text": rollouts[place].text,
                    "total": totals[place],
                    "advantage": advantages[place],
                    "malformed": rollouts[place].answer.malformed,
                    "actions": [dataclasses.asdict(action) for action in rollouts[place].actions],
                    "rewards": {
                        item.name: _line(judgement.verdicts[item.name][place]) for item in rewards
                    },
                }
                for place in range(start, min(start + answers_per_prompt, len(rollouts)))
            ],
        })  # fmt: skip
    return lines


def _line(verdict: Verdict) -> dict[str, Any]:
    if isinstance(verdict, Unscored):
        return {"value": None, "parts": {}, "reason": verdict.reason, "unscored": verdict.kind}
    return {
        "value": float(verdict.value),
        "parts": {name: float(value) for name, value in verdict.parts.items()},
        "reason": verdict.reason,
        "unscored": None,
    }
