"""Rollout `verify`: the slice that an answer names is shown again, and the answer is given once more."""

import dataclasses
import json
from collections.abc import Sequence

from evidcore.api import Episode, Prompt, RolloutStrategy, TextPart, VisualPart
from evidcore.case import Action, Part
from evidcore.contracts import Sampler
from evidcore.text.tags import inside
from evidcore_plugin_emrl.report_evidence import shown_slices

CLOSE = "</evidence>"
INSTRUCTION = "Look at it again, and write the answer once more with what holds."


class Verify(RolloutStrategy):
    """Show the slices that an answer names once more, and let the model confirm or correct the answer.

    Behind `</evidence>` the named slices follow as a turn of their own, each behind its tag; the model then
    writes the whole answer again, and this last turn is what its task reads. It is asked once. An answer with
    evidence `null`, or that names no slice that was shown, is not asked again and goes on as it was.
    `max_new_tokens` is for both turns together.

    Args:
        trained: the second answer's tokens are trained too; else the first answer alone is, by what the
            second earns.
        instruction: what the model is told behind the slices.

    Source:
        E-MRL, arXiv:2606.23888, tells a process of diagnosis, localization and verification. The form is
        ours: nothing else of it is published.
    """

    stop_texts = (CLOSE,)

    def __init__(self, *, trained: bool = True, instruction: str = INSTRUCTION) -> None:
        self.trained, self.instruction = trained, instruction

    def __call__(self, sampler: Sampler, prompts: Sequence[Prompt], answers_per_prompt: int) -> list[Episode]:
        begun = [Episode(prompt=prompt) for prompt in prompts for _ in range(answers_per_prompt)]
        first = sampler.sample(begun)
        second = sampler.sample([self._shown_again(sampler, episode) for episode in first])
        return [self._kept(episode) for episode in sampler.sample(second)]  # what follows the second answer

    def _shown_again(self, sampler: Sampler, episode: Episode) -> Episode:
        turn = sampler.text(episode)
        if episode.finished or not turn.rstrip().endswith(CLOSE):
            return episode
        shown = shown_slices(episode.prompt)
        named = {z: shown[z] for z in _named(turn) if z in shown}
        if not named:
            return episode
        parts: list[Part] = []
        for z, crop in named.items():
            parts += [TextPart(text=f"slice {z}:"), VisualPart(crop=crop)]
        parts.append(TextPart(text=self.instruction))
        return sampler.extend(episode, parts, [Action(tool="verify", arguments={"slices": [*named]})])

    def _kept(self, episode: Episode) -> Episode:
        if self.trained or not episode.replies:
            return episode
        first = episode.replies[0].start
        mask = episode.loss_mask[:first] + (0,) * (len(episode.ids) - first)
        return dataclasses.replace(episode, loss_mask=mask)


def _named(turn: str) -> list[int]:
    """Return the slices that the evidence of an answer names; none where it cannot be read."""
    try:
        value = json.loads(inside(turn, "evidence") or "")
    except (ValueError, RecursionError):
        return []
    return [z for z in value.values() if type(z) is int] if isinstance(value, dict) else []
