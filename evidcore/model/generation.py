"""Sampling that computes each prompt once, whatever the number of its answers, with a seed for each row.

A row's tokens depend on its prompt, the weights and its own seed: not on the other rows of the batch, the
number of processes, or what was drawn before. So a resumed run draws what the uninterrupted one drew.

The answers of a prompt stand together, equally many for each. Each new token attends to its prompt's keys,
which its siblings read in the same multiplication, and to the keys of its own answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import AttentionInterface, DynamicCache
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from evidcore.model.packed_attention import unusual
from evidcore.model.vlm import VolumeVLM

NAME = "evidcore_shared_prefix"


class SharedPrefix:
    """Keys and values of prompts, and of the answers written so far."""

    def __init__(
        self, cache: DynamicCache, mask: Bool[Tensor, "prompt before"], answers: int, length: int
    ) -> None:
        """Take the prompts' cache; make room for `answers` to each of `length` tokens."""
        self.prompts = [(layer.keys, layer.values) for layer in cache.layers]
        first = self.prompts[0][0]
        self.padding = torch.zeros(mask.shape, dtype=first.dtype, device=first.device)
        self.padding = self.padding.masked_fill(~mask, torch.finfo(first.dtype).min)[:, None, None]
        self.answers, self.step = answers, 0
        rows = len(mask) * answers
        self.own = [
            tuple(kind.new_zeros(rows, kind.shape[1], length, kind.shape[3]) for kind in (keys, values))
            for keys, values in self.prompts
        ]


def fits(model: VolumeVLM) -> bool:
    """Tell whether the language model's attention is one that this module computes."""
    return not unusual(model.get_decoder().config)


@contextlib.contextmanager
def using(model: VolumeVLM) -> Iterator[None]:
    """Let the language model attend by this module."""
    config = model.model.language_model.config
    was = config._attn_implementation
    config._attn_implementation_internal = NAME
    try:
        yield
    finally:
        config._attn_implementation_internal = was


def attend(
    module: Any,
    query: Float[Tensor, "row head one size"],
    key: Float[Tensor, "row kept one size"],
    value: Float[Tensor, "row kept one size"],
    attention_mask: Tensor | None,
    *,
    scaling: float,
    shared: SharedPrefix,
    **kwargs: Any,
) -> tuple[Float[Tensor, "row one head size"], None]:
    """Attend from one new token of each row, and keep its key and value."""
    (before_keys, before_values), (keys, values) = (
        shared.prompts[module.layer_idx],
        shared.own[module.layer_idx],
    )
    keys[:, :, shared.step] = key[:, :, 0]
    values[:, :, shared.step] = value[:, :, 0]
    keys, values = keys[:, :, : shared.step + 1], values[:, :, : shared.step + 1]
    rows, kept, _, size = key.shape
    prompts, answers = rows // shared.answers, shared.answers
    repeats = query.shape[1] // kept  # query heads per key head
    query = query.reshape(rows, kept, repeats, size) * scaling

    def by_prompt(per_row: Tensor) -> Tensor:
        """Bring (row, kept, repeat, x) to (prompt, kept, answer and repeat, x)."""
        width = per_row.shape[-1]
        by_group = per_row.reshape(prompts, answers, kept, repeats, width).transpose(1, 2)
        return by_group.reshape(prompts, kept, answers * repeats, width)

    def by_row(per_prompt: Tensor) -> Tensor:
        """Bring it back."""
        width = per_prompt.shape[-1]
        by_answer = per_prompt.reshape(prompts, kept, answers, repeats, width).transpose(1, 2)
        return by_answer.reshape(rows, kept, repeats, width)

    to_prompt = by_prompt(query) @ before_keys.transpose(2, 3) + shared.padding
    to_own = by_prompt(query @ keys.transpose(2, 3))
    weights = torch.cat([to_prompt, to_own], dim=-1).softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    before = to_prompt.shape[-1]
    of_prompt, of_own = weights[..., :before], weights[..., before:]
    output = by_row(of_prompt @ before_values) + by_row(of_own) @ values
    return output.reshape(rows, 1, kept * repeats, size), None


AttentionInterface.register(NAME, attend)


@dataclasses.dataclass(frozen=True)
class Prefix:
    """What a row continues: tokens, and the handles of the images among them."""

    ids: tuple[int, ...]
    handles: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Continuation:
    """What a row wrote."""

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]  # of each token at the sampling temperature, before top-k and the like
    ended: bool  # with an end token
    entropies: tuple[float, ...] = ()  # in nats before each token, of the same distribution; where asked for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy."""

    max_new_tokens: int
    end_ids: tuple[int, ...]
    pad_id: int
    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    forbidden_ids: tuple[int, ...] = ()  # image tokens: they would stand for images that are not there

    def warpers(self) -> LogitsProcessorList:
        """Return what cuts the tail of the distribution."""
        warpers = LogitsProcessorList()
        if self.top_k:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1.0:
            warpers.append(TopPLogitsWarper(self.top_p))
        if self.min_p:
            warpers.append(MinPLogitsWarper(self.min_p))
        return warpers


@torch.no_grad()
def continue_rows(
    model: VolumeVLM,
    prefixes: Sequence[Prefix],
    sampling: Sampling,
    *,
    seeds: Sequence[int] | None = None,
    forced: Sequence[Sequence[int]] | None = None,
    stops: Callable[[int, list[int]], bool] | None = None,
    entropies: bool = False,
) -> list[Continuation]:
    """Continue each prefix to an end token or `max_new_tokens`.

    Args:
        model: in evaluation mode.
        prefixes: equal ones are computed once.
        sampling: how tokens are chosen.
        seeds: one per row; may be left out where temperature is 0.
        forced: write these tokens instead of choosing, to see what the model gives them; they end the row.
        stops: asked (row, its tokens so far) after each token whether the row stops there.
        entropies: also return them.
    """
    limit = max(map(len, forced)) if forced else sampling.max_new_tokens
    decoder = _Decoder(model, prefixes, sampling.pad_id, limit)
    chooser = _Chooser(sampling, seeds, limit, model.device)
    ends = torch.tensor(sampling.end_ids, device=model.device)
    done = torch.zeros(len(prefixes), dtype=torch.bool, device=model.device)
    stopped = torch.zeros_like(done)
    written: list[list[int]] = [[] for _ in prefixes]
    tokens, chances, spreads = [], [], []
    for step in range(limit):
        required = None if forced is None else _column(forced, step, sampling.pad_id, model.device)
        token, log_probs = chooser(decoder.logits.float(), step, required)
        chances.append(log_probs.gather(-1, token[:, None]).squeeze(-1))
        if entropies:
            spreads.append(torch.special.entr(log_probs.exp()).sum(-1))
        live = ~(done | stopped)
        token = token.masked_fill(~live, sampling.pad_id)
        tokens.append(token)
        done |= live & torch.isin(token, ends)
        if stops is not None:
            stopped |= _ask(stops, token, live & ~done, written)
        if forced is not None:
            stopped |= torch.tensor([step + 1 >= len(one) for one in forced], device=model.device)
        if step + 1 == limit or bool((done | stopped).all()):
            break
        decoder.advance(token)
    lengths = _lengths(torch.stack(tokens, 1), done, sampling, forced, written, stops)
    columns = [
        torch.stack(one, 1).tolist() if one else [()] * len(lengths) for one in (tokens, chances, spreads)
    ]
    return [
        Continuation(tuple(ids[:length]), tuple(values[:length]), ended, tuple(spread[:length]))
        for length, ended, ids, values, spread in zip(lengths, done.tolist(), *columns, strict=True)
    ]


class _Decoder:
    """Holds what each row's last token says of the next, and appends tokens.

    It calls the model as a whole: under FSDP the parts have no weights of their own.
    """

    def __init__(self, model: VolumeVLM, prefixes: Sequence[Prefix], pad_id: int, limit: int) -> None:
        """Compute distinct prefixes once, and stand ready for `limit` tokens of each row."""
        unique = list(dict.fromkeys(prefixes))
        place = {prefix: number for number, prefix in enumerate(unique)}
        rows = [place[prefix] for prefix in prefixes]
        self.model, self.limit = model, limit
        logits, self.cache, mask, positions = _prefill(model, unique, pad_id)
        answers = len(rows) // len(unique)
        self.shared: SharedPrefix | None = None
        index = torch.tensor(rows, device=model.device)
        if fits(model) and rows == [row for row in range(len(unique)) for _ in range(answers)]:
            self.shared = SharedPrefix(self.cache, mask.bool(), answers, limit)
        else:
            self.cache.batch_select_indices(index)
        self.logits, self.mask = logits[index], mask[index]
        self.position = positions[..., index, -1:] + 1

    def advance(self, token: Tensor) -> None:
        """Append one token to each row."""
        if self.shared is not None:
            with using(self.model):
                output = self.model(
                    input_ids=token[:, None],
                    attention_mask=None,
                    position_ids=self.position,
                    use_cache=False,
                    shared=self.shared,
                )
            self.shared.step += 1
        else:
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(token), 1)], dim=1)
            output = self.model(
                input_ids=token[:, None],
                attention_mask=self.mask,
                position_ids=self.position,
                past_key_values=self.cache,
                use_cache=True,
            )
        self.position = self.position + 1
        self.logits = output.logits[:, -1]


def _prefill(
    model: VolumeVLM, prefixes: Sequence[Prefix], pad_id: int
) -> tuple[Float[Tensor, "row vocabulary"], DynamicCache, Tensor, Tensor]:
    """Compute the prefixes; return the logits after them, the cache, the mask and the positions."""
    longest = max(len(prefix.ids) for prefix in prefixes)
    short = [longest - len(prefix.ids) for prefix in prefixes]
    ids = torch.tensor(
        [[pad_id] * gap + list(prefix.ids) for gap, prefix in zip(short, prefixes, strict=True)],
        device=model.device,
    )
    mask = torch.tensor([[0] * gap + [1] * (longest - gap) for gap in short], device=model.device)
    handles = [handle for prefix in prefixes for handle in prefix.handles]
    pixels = torch.tensor(handles, device=model.device).reshape(-1, 1) if handles else None
    positions = model.positions(ids, mask, pixels)
    cache = DynamicCache(config=model.config.get_text_config())
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        pixel_values=pixels,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return output.logits[:, -1], cache, mask, positions


class _Chooser:
    """Chooses the next token of each row by its own uniform numbers."""

    def __init__(
        self, sampling: Sampling, seeds: Sequence[int] | None, limit: int, device: torch.device
    ) -> None:
        self.sampling = sampling
        self.warpers = sampling.warpers()
        self.uniform: Tensor | None = None
        if sampling.temperature > 0 and seeds is not None:
            generator = torch.Generator()
            drawn = [
                torch.rand(limit, generator=generator.manual_seed(seed), dtype=torch.float64)
                for seed in seeds
            ]
            self.uniform = torch.stack(drawn).to(device)

    def __call__(
        self, logits: Float[Tensor, "row vocabulary"], step: int, required: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return each row's token, and the log-probabilities of all."""
        if self.sampling.forbidden_ids:
            logits[:, list(self.sampling.forbidden_ids)] = -torch.inf
        if self.sampling.temperature > 0:
            logits = logits / self.sampling.temperature
        log_probs = logits.log_softmax(-1)
        if required is not None:
            token = required
        elif self.uniform is None:
            token = log_probs.argmax(-1)
        else:
            kept = self.warpers(None, log_probs) if len(self.warpers) else log_probs
            heap = kept.exp().to(self.uniform.dtype).cumsum(-1)
            height = self.uniform[:, step, None] * heap[:, -1:]
            token = torch.searchsorted(heap, height, right=True).squeeze(-1).clamp(max=heap.shape[1] - 1)
        return token, log_probs


def _column(forced: Sequence[Sequence[int]], step: int, pad_id: int, device: torch.device) -> Tensor:
    return torch.tensor([one[step] if step < len(one) else pad_id for one in forced], device=device)


def _ask(
    stops: Callable[[int, list[int]], bool], token: Tensor, live: Tensor, written: list[list[int]]
) -> Tensor:
    """Return which live rows stop after `token`."""
    answers = []
    for row, (one, is_live) in enumerate(zip(token.tolist(), live.tolist(), strict=True)):
        if is_live:
            written[row].append(one)
        answers.append(is_live and stops(row, written[row]))
    return torch.tensor(answers, device=token.device)


def _lengths(
    tokens: Tensor,
    done: Tensor,
    sampling: Sampling,
    forced: Sequence[Sequence[int]] | None,
    written: list[list[int]],
    stops: Callable[[int, list[int]], bool] | None,
) -> list[int]:
    """Return after how many tokens each row ended."""
    if forced is not None:
        return [len(one) for one in forced]
    ends = set(sampling.end_ids)
    found = []
    for row, (ids, ended) in enumerate(zip(tokens.tolist(), done.tolist(), strict=True)):
        if ended:
            found.append(next(index for index, one in enumerate(ids) if one in ends) + 1)
        else:
            found.append(len(written[row]) if stops is not None else len(ids))
    return found
