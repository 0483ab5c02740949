"""How the answers of a group come about: `plain` samples them."""

from collections.abc import Sequence

from evidcore.case import Episode, Prompt
from evidcore.contracts import RolloutStrategy, Sampler


class Plain(RolloutStrategy):
    """Sample each answer from the prompt, independently."""

    def __call__(self, sampler: Sampler, prompts: Sequence[Prompt], answers_per_prompt: int) -> list[Episode]:
        return sampler.sample([
            Episode(prompt=prompt) for prompt in prompts for _ in range(answers_per_prompt)
        ])
