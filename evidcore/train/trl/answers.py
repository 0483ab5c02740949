"""From a rollout strategy to rollouts that rewards can judge."""

from __future__ import annotations

from collections.abc import Sequence

from evidcore.case import Episode, Prompt, Rollout
from evidcore.contracts import RolloutStrategy, Sampler
from evidcore.errors import ContractError
from evidcore.train.rows import Row


def run_strategy(
    strategy: RolloutStrategy, sampler: Sampler, prompts: Sequence[Prompt], answers_per_prompt: int
) -> list[Episode]:
    """Run a strategy and hold it to its contract: whole groups, in order.

    Raises:
        ContractError: naming the strategy and the answer that is not where it belongs.
    """
    episodes = strategy(sampler, prompts, answers_per_prompt)
    name = type(strategy).__name__
    wanted = len(prompts) * answers_per_prompt
    if len(episodes) != wanted:
        raise ContractError(
            f"rollout {name}: must give {answers_per_prompt} answers to each of {len(prompts)} prompts, got "
            f"{len(episodes)} in place of {wanted}."
        )
    for place, episode in enumerate(episodes):
        prompt = prompts[place // answers_per_prompt]
        if episode.prompt is not prompt or not episode.ids:
            raise ContractError(
                f"rollout {name}: answer {place} must be one to prompt {prompt.id!r} and hold a token, got "
                f"{len(episode.ids)} tokens to prompt {episode.prompt.id!r}."
            )
    return episodes


def read_answers(
    sampler: Sampler, episodes: Sequence[Episode], rows: Sequence[Row], answers_per_prompt: int
) -> list[Rollout]:
    """Have each task read the answers to its prompts."""
    rollouts = []
    for place, episode in enumerate(episodes):
        group = place // answers_per_prompt
        row, text = rows[group], sampler.text(episode)
        answer = row.task.parse(row.prompt, text)
        rollouts.append(
            Rollout(prompt=row.prompt, group=group, text=text, answer=answer, actions=episode.actions)
        )
    return rollouts
