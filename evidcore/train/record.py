"""What is kept of judged answers: a line for each group, and the figures of a step."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.case import Rollout, Unscored, Verdict
from evidcore.train.judging import Judgement
from evidcore.train.settings import NamedReward

EQUAL = 1e-8  # totals closer than this give no advantage


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
                    "text": rollouts[place].text,
                    "total": totals[place],
                    "malformed": rollouts[place].answer.malformed,
                    "actions": [dataclasses.asdict(action) for action in rollouts[place].actions],
                    "rewards": {
                        name: _line(judgement.verdicts[name][place], judgement.counted[name][place])
                        for name in judgement.verdicts
                    },
                }
                for place in range(start, min(start + answers_per_prompt, len(rollouts)))
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
