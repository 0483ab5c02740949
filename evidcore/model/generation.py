"""Sampling that computes each prompt once, whatever the number of its answers, with a seed for each row.

A row's tokens depend on its prompt, the weights and its own seed: not on the other rows of the batch, the
number of processes, or what was drawn before. So a resumed run draws what the uninterrupted one drew.

Prompts, and what rows have written behind them, are computed once: see `shared_prefix`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from evidcore.model.shared_prefix import (
    KeyMemory,
    Prefix,
    SharedPrefix,
    Written,
    fits,
    padded_rows,
    pixels_of,
    prefill,
    using,
)
from evidcore.model.vlm import VolumeVLM


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
    memory: KeyMemory | None = None,
) -> list[Continuation]:
    """Continue each prefix to an end token or `max_new_tokens`.

    Args:
        model: in evaluation mode.
        prefixes: equal ones, and prompts of several, are computed once.
        sampling: how tokens are chosen.
        seeds: one per row; may be left out where temperature is 0.
        forced: write these tokens instead of choosing, to see what the model gives them; they end the row.
        stops: asked (row, its tokens so far) after each token whether the row stops there.
        entropies: also return them.
        memory: what earlier calls with these weights have computed; this one leaves its own there.
    """
    limit = max(map(len, forced)) if forced else sampling.max_new_tokens
    decoder = _Decoder(model, prefixes, sampling.pad_id, limit, memory or KeyMemory(0))
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
    found = [
        Continuation(tuple(ids[:length]), tuple(values[:length]), ended, tuple(spread[:length]))
        for length, ended, ids, values, spread in zip(lengths, done.tolist(), *columns, strict=True)
    ]
    if memory is not None:
        decoder.leave([one.ids for one in found], memory)
    return found


class _Decoder:
    """Holds what each row's last token says of the next, and appends tokens.

    It calls the model as a whole: under FSDP the parts have no weights of their own.
    """

    def __init__(
        self, model: VolumeVLM, prefixes: Sequence[Prefix], pad_id: int, limit: int, memory: KeyMemory
    ) -> None:
        """Compute distinct prefixes once, and stand ready for `limit` tokens of each row."""
        self.model = model
        self.shared: SharedPrefix | None = None
        if fits(model):
            self._share(prefixes, pad_id, limit, memory)
            return
        unique = list(dict.fromkeys(prefixes))
        place = {prefix: number for number, prefix in enumerate(unique)}
        logits, self.cache, mask, positions = prefill(model, unique, pad_id)
        index = torch.tensor([place[prefix] for prefix in prefixes], device=model.device)
        self.cache.batch_select_indices(index)
        self.logits, self.mask = logits[index], mask[index]
        self.position = positions[..., index, -1:] + 1

    def _share(self, prefixes: Sequence[Prefix], pad_id: int, limit: int, memory: KeyMemory) -> None:
        """Compute each prompt once, and what rows have written behind it in one block."""
        device = self.model.device
        self.prompts = [prefix.prompt or prefix for prefix in prefixes]
        unique = list(dict.fromkeys(self.prompts))
        place = {prompt: number for number, prompt in enumerate(unique)}
        layers, valid, logits = memory.prompts(self.model, unique, pad_id)
        self.written = [Written.of(self.model, prefix) for prefix in prefixes]
        pairs = zip(self.prompts, self.written, strict=True)
        known = [memory.longest(prompt, one.content) for prompt, one in pairs]
        starts = [start for start, _ in known]
        left = [len(one.content) - start for one, start in zip(self.written, starts, strict=True)]
        past, count = max(starts), max(left)
        shared = SharedPrefix(layers, valid, [place[one] for one in self.prompts], past + count + limit)
        ids, mask, pixels = padded_rows(prefixes, pad_id, device)
        positions = self.model.positions(ids, mask, pixels)
        self.shared, self.position = shared, positions[..., -1:] + 1
        self.logits = logits[shared.prompt_of]
        if not count:
            return
        for row, (start, keys) in enumerate(known):
            if keys is not None:
                shared.own[:, :, row, :, past - start : past] = keys[..., :start, :]
        places = torch.arange(past + count, device=device)
        begin, stop = (torch.tensor(one, device=device)[:, None] for one in (starts, left))
        seen = torch.where(places < past, places >= past - begin, places >= past + count - stop)
        shared.begin(seen, count)
        new = zip(self.written, starts, strict=True)
        handles = [handle for one, start in new for handle in one.shown_from(start)]
        block = ids[:, -count:].masked_fill(~seen[:, past:], pad_id)
        last = self._next(block, positions[..., -count:], pixels_of(handles, device))
        shared.block = None
        self.logits = torch.where(stop > 0, last, self.logits)

    def _next(self, ids: Tensor, positions: Tensor, pixels: Tensor | None) -> Float[Tensor, "row vocabulary"]:
        """Append places to shared rows; return the logits behind the last one."""
        assert self.shared is not None
        with using(self.model):
            output = self.model(
                input_ids=ids,
                attention_mask=None,
                position_ids=positions,
                pixel_values=pixels,
                use_cache=False,
                shared=self.shared,
                logits_to_keep=1,
            )
        self.shared.step += ids.shape[1]
        logits: Tensor = output.logits[:, -1]
        return logits

    def leave(self, tokens: Sequence[tuple[int, ...]], memory: KeyMemory) -> None:
        """Leave rows, with the tokens that they went on with, to the next call."""
        if self.shared is None:
            return
        for row, (prompt, one, new) in enumerate(zip(self.prompts, self.written, tokens, strict=True)):
            content = one.content + new
            places = self.shared.seen[row, : self.shared.step].nonzero()[: len(content), 0]
            keys = self.shared.own[:, :, row].index_select(3, places)
            memory.put(prompt, content[: len(places)], keys)

    def advance(self, token: Tensor) -> None:
        """Append one token to each row."""
        if self.shared is not None:
            self.logits = self._next(token[:, None], self.position, None)
        else:
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(token), 1)], dim=1)
            output = self.model(
                input_ids=token[:, None],
                attention_mask=self.mask,
                position_ids=self.position,
                past_key_values=self.cache,
                use_cache=True,
            )
            self.logits = output.logits[:, -1]
        self.position = self.position + 1


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
