"""Sampling that computes each prompt once, whatever the number of its answers, with a seed for each row.

A row's tokens depend on its prompt, the weights and its own seed: not on the other rows of the batch, the
number of processes, or what was drawn before. So a resumed run draws what the uninterrupted one drew.

Prompts, and what rows have written behind them, are computed once: see `shared_prefix`. Rows that are over
leave, so answers of unequal lengths cost what is written.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.generation import LogitsProcessorList, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from evidcore.contracts import Continuation, Prefix, Sampling
from evidcore.model.shared_prefix import (
    DecodedRows,
    PrefixCache,
    SharedPrefix,
    fits,
    next_logits,
    padded_rows,
    pixels_of,
    prefill,
)
from evidcore.model.step_graph import StepGraph, can_capture
from evidcore.model.vlm import VolumeVLM

LEAST_LEAVING = 0.25  # of the rows that are held must be over before these leave: what stays is copied


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
    memory: PrefixCache | None = None,
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
    decoder = _Decoder(model, prefixes, sampling.pad_id, limit, memory or PrefixCache(0))
    chooser = _TokenSampler(sampling, seeds, limit, model.device)
    ends = torch.tensor(sampling.end_ids, device=model.device)
    if forced is not None:
        forced_counts = torch.tensor([len(item) for item in forced], device=model.device)
        each = [torch.tensor(item, device=model.device) for item in forced]
        forced_ids = pad_sequence(each, batch_first=True, padding_value=sampling.pad_id)
    places = torch.arange(len(prefixes), device=model.device)  # of the rows that are held
    counts = torch.zeros_like(places)  # of their tokens, where they are over
    columns: list[list[Tensor]] = []  # by step: their tokens, chances and, where asked for, entropies
    written: list[list[int]] = [[] for _ in prefixes]  # where `stops` is asked
    result: dict[int, Continuation] = {}

    def leave(some: Tensor) -> None:
        """Take what rows have written, by their order among those that are held."""
        kinds = [torch.stack(item, dim=1)[some].tolist() for item in zip(*columns, strict=True)]
        lengths = counts[some].tolist()
        for place, length, ids, *more in zip(places[some].tolist(), lengths, *kinds, strict=True):
            ids = tuple(ids[:length])
            chances, *spread = (tuple(item[:length]) for item in more)
            result[place] = Continuation(ids, chances, ids[-1] in sampling.end_ids, *spread)
        if memory is not None:
            memory.most_rows = max(memory.most_rows, len(prefixes))
            decoder.leave(some.tolist(), [result[place].ids for place in places[some].tolist()], memory)

    for step in range(limit):
        required = None if forced is None else forced_ids[places, step]
        token, log_probs = chooser(decoder.logits.float(), step, places, required)
        live = counts == 0
        token = token.masked_fill(~live, sampling.pad_id)
        columns.append([token, log_probs.gather(-1, token[:, None]).squeeze(-1)])
        if entropies:
            columns[-1].append(torch.special.entr(log_probs.exp()).sum(-1))
        stopped = torch.isin(token, ends)
        if forced is not None:
            stopped = step + 1 >= forced_counts[places]
        if stops is not None:
            stopped |= _ask(stops, places, token, live & ~stopped, written)
        counts = counts.masked_fill(live & (stopped | (step + 1 == limit)), step + 1)
        over = counts > 0
        count = int(over.sum())
        if count == len(over):
            break
        if count >= LEAST_LEAVING * len(over):
            leave(over.nonzero()[:, 0])
            going = (~over).nonzero()[:, 0]
            places, counts = places[going], counts[going]
            columns = [[values[going] for values in column] for column in columns]
            decoder.keep(going)
        decoder.advance(columns[-1][0])
    leave(torch.arange(len(places), device=model.device))
    return [result[place] for place in range(len(prefixes))]


class _Decoder:
    """Holds what each row's last token says of the next, and appends tokens.

    It calls the model as a whole: under FSDP the parts have no weights of their own.
    """

    def __init__(
        self, model: VolumeVLM, prefixes: Sequence[Prefix], pad_id: int, limit: int, memory: PrefixCache
    ) -> None:
        """Compute distinct prefixes once, and stand ready for `limit` tokens of each row."""
        self.model = model
        self.shared: SharedPrefix | None = None
        self.graph: StepGraph | None = None
        if fits(model):
            self._share(prefixes, pad_id, limit, memory)
            return
        unique = list(dict.fromkeys(prefixes))
        place = {prefix: number for number, prefix in enumerate(unique)}
        logits, self.cache, mask, positions = prefill(model, unique, pad_id)
        index = torch.tensor([place[prefix] for prefix in prefixes], device=model.device)
        self.cache.reorder_cache(index)
        self.logits, self.mask = logits[index], mask[index]
        self.position = positions[..., index, -1:] + 1

    def _share(self, prefixes: Sequence[Prefix], pad_id: int, limit: int, memory: PrefixCache) -> None:
        """Compute each prompt once, and what rows have written behind it in one block."""
        device = self.model.device
        self.prompts = [prefix.prompt or prefix for prefix in prefixes]
        unique = list(dict.fromkeys(self.prompts))
        place = {prompt: number for number, prompt in enumerate(unique)}
        layers, valid, logits = memory.prompts(self.model, unique, pad_id)
        self.written = [DecodedRows.of(self.model, prefix) for prefix in prefixes]
        pairs = zip(self.prompts, self.written, strict=True)
        known = [memory.longest(prompt, item.content) for prompt, item in pairs]
        starts = [start for start, _ in known]
        left = [len(item.content) - start for item, start in zip(self.written, starts, strict=True)]
        past, count = max(starts), max(left)
        shared = SharedPrefix(layers, valid, [place[item] for item in self.prompts], past + count + limit)
        ids, mask, pixels = padded_rows(prefixes, pad_id, device)
        positions = self.model.model.positions(ids, mask, pixels)
        self.shared, self.position = shared, positions[..., -1:] + 1
        self.logits = logits[shared.prompt_of]
        if can_capture(self.model):
            self.graph = StepGraph(self.model, shared)
        if not count:
            return
        for row, (start, keys) in enumerate(known):
            if keys is not None:
                shared.own[:, :, row, :, past - start : past] = keys[..., :start, :]
        places = torch.arange(past + count, device=device)
        begin, stop = (torch.tensor(item, device=device)[:, None] for item in (starts, left))
        seen = torch.where(places < past, places >= past - begin, places >= past + count - stop)
        shared.begin(seen, count)
        new = zip(self.written, starts, strict=True)
        handles = [handle for item, start in new for handle in item.shown_from(start)]
        block = ids[:, -count:].masked_fill(~seen[:, past:], pad_id)
        last = self._next(block, positions[..., -count:], pixels_of(handles, device))
        shared.block = None
        self.logits = torch.where(stop > 0, last, self.logits)

    def _next(self, ids: Tensor, positions: Tensor, pixels: Tensor | None) -> Float[Tensor, "row vocabulary"]:
        """Append places to shared rows; return the logits behind the last one."""
        assert self.shared is not None
        logits = next_logits(self.model, self.shared, positions, input_ids=ids, pixel_values=pixels)
        self.shared.step += ids.shape[1]
        return logits

    def leave(self, rows: Sequence[int], tokens: Sequence[tuple[int, ...]], memory: PrefixCache) -> None:
        """Leave rows, with the tokens that they went on with, to the next call."""
        if self.shared is None:
            return
        for row, new in zip(rows, tokens, strict=True):
            prompt, content = self.prompts[row], self.written[row].content + new
            places = self.shared.seen[row, : self.shared.step].nonzero()[: len(content), 0]
            keys = self.shared.own[:, :, row].index_select(3, places)
            memory.put(prompt, content[: len(places)], keys)

    def keep(self, rows: Int[Tensor, " row"]) -> None:
        """Go on with these rows alone."""
        self.logits, self.position = self.logits[rows], self.position[..., rows, :]
        if self.shared is not None:
            self.prompts = [self.prompts[row] for row in rows.tolist()]
            self.written = [self.written[row] for row in rows.tolist()]
            self.shared.keep(rows)
        else:
            self.mask = self.mask[rows]
            self.cache.reorder_cache(rows)

    def advance(self, token: Tensor) -> None:
        """Append one token to each row."""
        if self.graph is not None:
            self.logits = self.graph(token, self.position)
        elif self.shared is not None:
            self.logits = self._next(token[:, None], self.position, None)
        else:
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(token), 1)], dim=1)
            output = self.model(
                input_ids=token[:, None], attention_mask=self.mask, position_ids=self.position,
                past_key_values=self.cache, use_cache=True,
            )  # fmt: skip
            self.logits = output.logits[:, -1]
        self.position = self.position + 1


class _TokenSampler:
    """Chooses the next token of each row by its own uniform numbers."""

    def __init__(
        self, sampling: Sampling, seeds: Sequence[int] | None, limit: int, device: torch.device
    ) -> None:
        self.sampling = sampling
        self.warpers = LogitsProcessorList()  # what cuts the tail of the distribution
        if sampling.top_k:
            self.warpers.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1.0:
            self.warpers.append(TopPLogitsWarper(sampling.top_p))
        if sampling.min_p:
            self.warpers.append(MinPLogitsWarper(sampling.min_p))
        self.forbidden = torch.tensor(sampling.forbidden_ids, dtype=torch.long, device=device)
        self.uniform: Tensor | None = None
        if sampling.temperature > 0 and seeds is not None:
            rng = torch.Generator()
            drawn = [torch.rand(limit, generator=rng.manual_seed(seed), dtype=torch.double) for seed in seeds]
            self.uniform = torch.stack(drawn).to(device)

    def __call__(
        self, logits: Float[Tensor, "row vocabulary"], step: int, rows: Tensor, required: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if self.sampling.temperature > 0:
            logits = logits / self.sampling.temperature
        log_probs = logits.log_softmax(-1)
        allowed = log_probs.index_fill(-1, self.forbidden, -torch.inf) if len(self.forbidden) else log_probs
        if required is not None:
            token = required
        elif self.uniform is None:
            token = allowed.argmax(-1)
        else:
            filtered = self.warpers(None, allowed) if len(self.warpers) else allowed
            heap = filtered.exp().to(self.uniform.dtype).cumsum(-1)
            height = self.uniform[rows, step, None] * heap[:, -1:]
            token = torch.searchsorted(heap, height, right=True).squeeze(-1).clamp(max=heap.shape[1] - 1)
        return token, log_probs


def _ask(
    stops: Callable[[int, list[int]], bool], places: Tensor, token: Tensor, live: Tensor, ids: list[list[int]]
) -> Tensor:
    answers = []
    for place, item, is_live in zip(places.tolist(), token.tolist(), live.tolist(), strict=True):
        if is_live:
            ids[place].append(item)
        answers.append(is_live and stops(place, ids[place]))
    return torch.tensor(answers, device=token.device)
