"""A `VolumeVLM` as a `Policy`: what evaluation, audits and re-querying rewards see of it."""

import contextlib
import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from evidcore.case import Prompt
from evidcore.contracts import Completion, Policy, Prefix, RolloutStrategy, Sampling
from evidcore.model.generation import continue_rows
from evidcore.model.packed_attention import answer_log_probs, pack, packing_blocker
from evidcore.model.parts import evaluating
from evidcore.model.processor import VolumeProcessor, refuse_too_long
from evidcore.model.shared_prefix import padded_rows
from evidcore.model.vlm import VolumeVLM


class VLMPolicy(Policy):
    """Answers in batches, with the model's weights as they are at the time of the call."""

    opening = ""  # of its prompts, as `VolumeProcessor.write` takes it
    answers_alone = True  # `prove_answers` looks

    def __init__(
        self,
        model: VolumeVLM,
        processor: VolumeProcessor,
        *,
        prompts_per_pass: int = 64,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Take model and processor; `seed` is of sampling above temperature 0, `dtype` of matrix products."""
        self.model, self.processor = model, processor
        self.prompts_per_pass, self.seed, self.dtype = prompts_per_pass, seed, dtype

    @property
    def caveat(self) -> str:  # type: ignore[override]  # one that is asked, not kept
        """Return its encoder's."""
        return self.model.model.encoder.caveat

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Hold the model in evaluation mode, without gradients, with products in the policy's type."""
        with evaluating(self.model), torch.no_grad(), contextlib.ExitStack() as stack:
            if self.dtype != torch.float32:
                stack.enter_context(torch.autocast(self.model.device.type, self.dtype))
            yield

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[str]:
        """Return the texts of the completions."""
        written = self.complete(prompts, max_new_tokens=max_new_tokens, temperature=temperature)
        return [item.text for item in written]

    def complete(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[Completion]:
        """Return one completion per prompt."""
        prefixes = [self.prefix(prompt) for prompt in prompts]
        for prompt, prefix in zip(prompts, prefixes, strict=True):
            refuse_too_long(self.processor.context_tokens, prompt.id, len(prefix.ids), max_new_tokens)
        sampling = sampling_of(
            self.model, self.processor, max_new_tokens=max_new_tokens, temperature=temperature
        )
        written: dict[int, Completion] = {}
        for batch in self._batches([len(prefix.ids) for prefix in prefixes]):
            with self.asking():
                seeds = [draw_seed(self.seed, prompts[place].id) for place in batch]
                some = [prefixes[place] for place in batch]
                result = continue_rows(self.model, some, sampling, seeds=seeds)
            for place, item in zip(batch, result, strict=True):
                text = self.processor.tokenizer.decode(item.ids, skip_special_tokens=True)
                written[place] = Completion(text=text, is_cut_off=not item.ended)
        return [written[place] for place in range(len(prompts))]

    def log_likelihoods(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """Return the log-probability in nats of each candidate completion, summed over its tokens."""
        prefixes = [self.prefix(prompt) for prompt in prompts]
        tokenizer = self.processor.tokenizer
        result: dict[int, list[float]] = {}
        for batch in self._batches([len(prefix.ids) for prefix in prefixes]):
            candidates = [
                [tokenizer(text, add_special_tokens=False)["input_ids"] for text in completions[place]]
                for place in batch
            ]
            with self.asking():
                scores = self._score([prefixes[place] for place in batch], candidates)
            result.update(zip(batch, scores, strict=True))
        return [result[place] for place in range(len(prompts))]

    def prefix(self, prompt: Prompt) -> Prefix:
        """Return the prompt as the model reads it."""
        encoded = self.processor.encode(prompt, self.opening)
        handles = map(self.processor.image_processor.handle, encoded.crops)
        return Prefix(encoded.ids, tuple(handles))

    def _score(
        self, prefixes: Sequence[Prefix], candidates: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[float]]:
        pad = self.processor.tokenizer.pad_token_id
        if packing_blocker(self.model):
            sampling = sampling_of(self.model, self.processor, max_new_tokens=1, temperature=0.0)
            rows = [(prefix, ids) for prefix, some in zip(prefixes, candidates, strict=True) for ids in some]
            result = iter(
                continue_rows(self.model, [row[0] for row in rows], sampling, forced=[row[1] for row in rows])
            )
            return [[sum(next(result).log_probs) for _ in some] for some in candidates]
        device = self.model.device
        prompt_ids, prompt_mask, pixels = padded_rows(prefixes, pad, device)
        most = max(map(len, candidates))
        filled = [ids for some in candidates for ids in (*some, *[()] * (most - len(some)))]
        each = [torch.tensor(ids, dtype=torch.long, device=device) for ids in filled]
        ids = pad_sequence(each, batch_first=True, padding_value=pad).reshape(len(prefixes), most, -1)
        mask = pad_sequence([torch.ones_like(item) for item in each], batch_first=True).view_as(ids)
        positions = self.model.model.positions(prompt_ids, prompt_mask, pixels)
        packed = pack(prompt_ids, prompt_mask, ids, mask, positions)
        scores = answer_log_probs(self.model, packed, pixels).sum(-1).tolist()
        return [score[: len(some)] for score, some in zip(scores, candidates, strict=True)]

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        for start in range(0, len(order), self.prompts_per_pass):
            yield order[start : start + self.prompts_per_pass]


def sampling_of(
    model: VolumeVLM,
    processor: VolumeProcessor,
    *,
    max_new_tokens: int,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    strategy: RolloutStrategy | None = None,
) -> Sampling:
    """Return sampling settings with the end tokens of the chat template, the tokenizer and the model."""
    declared = model.generation_config.eos_token_id
    ends = {
        processor.end_ids[-1],
        processor.tokenizer.eos_token_id,
        *(declared if isinstance(declared, list) else [declared]),
    } - {None}
    return Sampling(
        max_new_tokens=max_new_tokens, end_ids=tuple(sorted(ends)), pad_id=processor.tokenizer.pad_token_id,
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        forbidden_ids=processor.forbidden_ids(ends, model.config.get_text_config().vocab_size, strategy),
    )  # fmt: skip


def draw_seed(seed: int, name: str) -> int:
    """Return the seed of an answer, of the stage's and of what the answer is called."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest(), "big")
