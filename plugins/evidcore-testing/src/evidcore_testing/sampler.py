"""A sampler over the tiny language model, without a trainer: what rollout strategies are tried on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from evidcore.api import Crop, Episode, Prompt, TextPart, VisualPart
from evidcore.case import Action, Part
from evidcore.contracts import Continuation, Sampler


class TinySampler(Sampler):
    """Sample from a `tiny_language` folder, or write `turns` in its place.

    Text comes from a real model through a real tokenizer; no pixels are shown, only that there are some.
    """

    def __init__(
        self,
        folder: Path,
        *,
        turns: Sequence[str] = (),
        stop_texts: Sequence[str] = (),
        reads_entropies: bool = False,
        budget_tokens: int = 64,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Load the model.

        Args:
            folder: as written by `tiny_language`.
            turns: what is written in an episode instead of sampled tokens: the first at the start, the next
                after each answer of a tool; the last one ends the episode.
            stop_texts: the strategy's; what is written pauses behind one.
            reads_entropies: the strategy does: episodes carry them.
            budget_tokens: the most that the model writes in one episode.
            temperature: of sampling.
            seed: of sampling.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer  # slow, and no other check needs them

        self.model: Any = AutoModelForCausalLM.from_pretrained(folder)
        self.model.eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.turns, self.stop_texts = turns, tuple(stop_texts)
        self.reads_entropies, self.vocabulary = reads_entropies, self.model.config.vocab_size
        self.budget_tokens = budget_tokens
        self.temperature = temperature
        self.generator = torch.Generator().manual_seed(seed)

    def sample(self, episodes: Sequence[Episode]) -> list[Episode]:
        return [episode if episode.finished else self._continued(episode) for episode in episodes]

    def extend(self, episode: Episode, parts: Sequence[Part], actions: Sequence[Action] = ()) -> Episode:
        start = len(episode.ids)
        ids: list[int] = []
        crops: list[tuple[int, Crop]] = []
        for part in parts:
            if isinstance(part, VisualPart):
                crops.append((start + len(ids) + 1, part.crop))
            text = part.text if isinstance(part, TextPart) else "<|vision_start|><|image_pad|><|vision_end|>"
            ids += map(int, self.tokenizer(text)["input_ids"])
        return self.replied(episode, ids, crops, parts, actions)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _continued(self, episode: Episode) -> Episode:
        left = self.budget_tokens - episode.written
        if self.turns:
            turn = min(len(episode.replies), len(self.turns) - 1)
            ids = self.tokenizer(self.turns[turn])["input_ids"]
            if turn == len(self.turns) - 1:
                ids = [*ids, self.tokenizer.eos_token_id]
            past = episode.ids[episode.replies[-1].stop if episode.replies else 0 :]
            written = len(past) if self._pauses(past) else 0
            paused = (count for count in range(written + 1, len(ids)) if self._pauses(ids[:count]))
            ids = ids[written : min(written + left, next(paused, len(ids)))] or [self.tokenizer.eos_token_id]
        else:
            ids = []
            while len(ids) < left and self.tokenizer.eos_token_id not in ids and not self._pauses(ids):
                logits = self._log_probs(episode.prompt, (*episode.ids, *ids))[-1] / self.temperature
                ids.append(int(torch.multinomial(logits.softmax(dim=-1), 1, generator=self.generator)))
        ended = ids[-1] == self.tokenizer.eos_token_id
        return self.wrote(episode, Continuation(tuple(ids), (), ended, self._entropies(episode, ids)), left)

    def _entropies(self, episode: Episode, ids: Sequence[int]) -> tuple[float, ...]:
        if not self.reads_entropies:
            return ()
        log_probs = self._log_probs(episode.prompt, (*episode.ids, *ids))[-len(ids) - 1 : -1]
        scaled = (log_probs / self.temperature).log_softmax(dim=-1)
        return tuple(torch.special.entr(scaled.exp()).sum(dim=-1).tolist())

    def _pauses(self, ids: Sequence[int]) -> bool:
        return bool(self.stop_texts) and self.decode(ids).rstrip().endswith(self.stop_texts)

    @torch.no_grad()
    def _log_probs(self, prompt: Prompt, written: Sequence[int]) -> torch.Tensor:
        content: Any = [
            {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
            for part in prompt.parts
        ]
        chat = [{"role": "user", "content": content}]
        asked = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)
        ids = torch.tensor([[*map(int, asked["input_ids"]), *written]])
        return torch.as_tensor(self.model(ids).logits[0].log_softmax(dim=-1))
