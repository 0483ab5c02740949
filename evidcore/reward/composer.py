"""Call the rewards on whole groups, hold them to their contract, and compose what they say.

Composition, per reward: its value where its gate is open, 0 where the gate is closed, and the mean of the
scored answers of the group where there is no verdict (a constant where none is scored), so that a missing
verdict moves no advantage. The weighted sum of these is the total. A line is kept for each judged
group, and the figures of a step.
"""

from __future__ import annotations

import dataclasses
import json
import math
import numbers
import statistics
import threading
import types
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.case import Prompt, Rollout, Score, Turn, Unscored, Verdict, written
from evidcore.compute.clock import Clock
from evidcore.contracts import Reward
from evidcore.errors import ContractError, EvidError, RecipeError, did_you_mean
from evidcore.recipe.shape import RewardKeys

EQUAL = 1e-8  # totals closer than this give no advantage


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedReward:
    """A reward as the recipe composes it."""

    name: str
    reward: Reward
    weight: float = RewardKeys.weight
    gate: str = RewardKeys.gate  # counted only where the reward of this name scored above 0
    package: str = ""  # "package version", named when the reward breaks its contract


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What the rewards said about rollouts."""

    verdicts: Mapping[str, Sequence[Verdict]]
    counted: Mapping[str, Sequence[float]]  # after gates and filling

    def totals(self, rewards: Sequence[NamedReward]) -> list[float]:
        """Return the weighted sum for each rollout."""
        columns = [[item.weight * value for value in self.counted[item.name]] for item in rewards]
        return [sum(row) for row in zip(*columns, strict=True)]


class RewardComposer:
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
                    f"stage.grpo.reward {item.name!r}: gate = {item.gate!r} is no reward before "
                    f"it.{did_you_mean(item.gate, seen)} Rewards before it: {', '.join(seen) or 'none'}."
                )
            seen.append(item.name)

    def __call__(self, rollouts: Sequence[Rollout], clock: Clock | None = None) -> Judgement:
        """Judge whole groups.

        Args:
            rollouts: in order, group by group.
            clock: counts each reward as the part `reward/<name>`.

        Raises:
            ContractError: if a reward raises, hangs, writes into a prompt's reference, or returns what its
                contract does not allow; names reward, package, value and prompt.
        """
        rollouts = tuple(rollouts)  # what a reward is given must not be what is recorded
        prompts = list({id(rollout.prompt): rollout.prompt for rollout in rollouts}.values())
        references = _references(prompts)
        verdicts: dict[str, Sequence[Verdict]] = {}
        clock = clock or Clock()
        for item in self.rewards:
            with clock.part(f"reward/{item.name}"):
                verdicts[item.name] = self._checked(item, rollouts, self._ask(item, rollouts, dict(verdicts)))
            if (now := _references(prompts)) != references:
                place = next(place for place, one in enumerate(now) if one != references[place])
                raise ContractError(
                    f"{_who(item)} wrote into the reference of prompt {prompts[place].id!r}, by which others "
                    "judge. Let it work on a copy."
                )
        counted = {item.name: _fill(_gated(item, verdicts), rollouts) for item in self.rewards}
        return Judgement(verdicts, counted)

    def nothing(self, rollouts: Sequence[Rollout]) -> Judgement:
        """Return a judgement that says nothing, without asking."""
        silent = Unscored(kind="not-applicable", reason="")
        names = [item.name for item in self.rewards]
        return Judgement(
            {name: (silent,) * len(rollouts) for name in names},
            {name: [0.0] * len(rollouts) for name in names},
        )

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
        waited_s = 0.0  # in pieces, so that a process that was paused loses no more than one
        while worker.is_alive() and waited_s < self.time_limit_s:
            piece_s = min(1.0, self.time_limit_s - waited_s)
            worker.join(piece_s)
            waited_s += piece_s
        if worker.is_alive():
            raise ContractError(
                f"{_who(item)} has not answered for {self.time_limit_s:g} s over {len(rollouts)} rollouts, "
                f"the first of prompt {rollouts[0].prompt.id!r}. Raise `reward_time_limit_s` if it needs "
                "longer."
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
                f"{_who(item)} failed over {len(rollouts)} rollouts, the first of prompt "
                f"{rollouts[0].prompt.id!r}: {type(cause).__name__}: {cause}. Report this to the reward's "
                "authors; the traceback is below."
            ) from cause

    def _checked(self, item: NamedReward, rollouts: Sequence[Rollout], answer: Any) -> tuple[Verdict, ...]:
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
            if not _is_number(value):
                raise ContractError(f"{where}: the value must be a finite number, got {value!r}.")
            if not low <= value <= high:
                raise ContractError(
                    f"{where}: the value {value!r} lies outside the declared bounds {low:g} to {high:g}."
                )
            for name, part in score.parts.items():
                if not _is_number(part):
                    raise ContractError(f"{where}: part {name!r} must be a finite number, got {part!r}.")
            checked.append(dataclasses.replace(score, parts=types.MappingProxyType(dict(score.parts))))
        return tuple(checked)


def _references(prompts: Sequence[Prompt]) -> list[str]:
    """Return what the prompts are judged by, as the rollout file holds it."""
    return [json.dumps(dict(prompt.reference), default=repr) for prompt in prompts]


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


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


def record(
    judgement: Judgement,
    rewards: Sequence[NamedReward],
    rollouts: Sequence[Rollout],
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
            "prompt": prompt.written(),
            "images": [crop.uri() for crop in prompt.crops()],
            "reference": dict(prompt.reference),
            "rollouts": [
                {
                    "text": rollouts[index].text,
                    "total": totals[index],
                    "malformed": rollouts[index].answer.malformed,
                    "turns": [_turn(turn) for turn in rollouts[index].turns],
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
    found: dict[str, float] = {}
    answers = [answer for line in lines for answer in line["rollouts"]]
    for name in answers[0]["rewards"]:
        verdicts = [answer["rewards"][name] for answer in answers]
        values = [one["value"] for one in verdicts if one["value"] is not None]
        if values:
            found[f"reward/{name}"] = statistics.fmean(values)
            found[f"reward_spread/{name}"] = statistics.pstdev(values)
        groups = [[answer["rewards"][name]["counted"] for answer in line["rollouts"]] for line in lines]
        found[f"dead_groups/{name}"] = _dead(groups)
        found[f"unscored/{name}"] = float(len(verdicts) - len(values))
    found["reward"] = statistics.fmean(answer["total"] for answer in answers)
    found["dead_groups"] = _dead([[answer["total"] for answer in line["rollouts"]] for line in lines])
    if "tokens" in answers[0]:
        found["completion_tokens"] = statistics.fmean(answer["tokens"] for answer in answers)
        found["cut_off"] = statistics.fmean(not answer["ended"] for answer in answers)
    return found


def _dead(groups: Sequence[Sequence[float]]) -> float:
    """Return the share of groups whose members all have one value."""
    return sum(max(group) - min(group) < EQUAL for group in groups) / len(groups)


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "text": turn.text,
        "actions": [dataclasses.asdict(action) for action in turn.actions],
        "reply": written(turn.reply),
        "crops": [crop.uri() for crop in turn.crops],
    }


def _line(verdict: Verdict, counted: float) -> dict[str, Any]:
    if isinstance(verdict, Unscored):
        return {
            "value": None,
            "parts": {},
            "reason": verdict.reason,
            "unscored": verdict.kind,
            "counted": counted,
        }
    return {
        "value": float(verdict.value),
        "parts": {name: float(value) for name, value in verdict.parts.items()},
        "reason": verdict.reason,
        "unscored": None,
        "counted": counted,
    }
