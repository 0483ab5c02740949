"""Keys and values of prompts and of what rows have written behind them, which later calls need not compute.

Each new token attends to its prompt's keys, which its siblings read in the same multiplication, and to the
keys of its own row. What a row has written since its prompt, tools' turns among it, runs as one block.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from evidcore.contracts import Prefix
from evidcore.model.packed_attention import unsupported_feature
from evidcore.model.vlm import VolumeVLM

NAME = "evidcore_shared_prefix"
Layers = list[tuple[Tensor, Tensor]]  # keys and values of each layer, (…, kept, place, size)


class SharedPrefix:
    """Keys and values of prompts, and of what each row has written behind its own."""

    def __init__(
        self, prompts: Layers, mask: Bool[Tensor, "prompt before"], prompt_of: Sequence[int], length: int
    ) -> None:
        """Make room for `length` tokens of each row; `prompt_of` tells the prompt of each."""
        keys = prompts[0][0]
        self.prompts, self.mask = prompts, mask
        self._lay_out(prompt_of)
        self.own = keys.new_zeros(len(prompts), 2, len(prompt_of), keys.shape[1], length, keys.shape[3])
        self.seen = mask.new_ones(len(prompt_of), length)
        self.own_hidden: Tensor | None = None  # added to scores, where some of `seen` is not
        self.block: Bool[Tensor, "row one place other"] | None = None
        self.window: Window | None = None
        self.step = 0

    def _lay_out(self, prompt_of: Sequence[int]) -> None:
        """Say where rows lie among equally many of each prompt."""
        counts: Counter[int] = Counter()
        self.answers = max(Counter(prompt_of).values())
        slots = []
        for prompt in prompt_of:
            slots.append(prompt * self.answers + counts[prompt])
            counts[prompt] += 1
        self.prompt_of = torch.tensor(prompt_of, device=self.mask.device)
        is_even = slots == list(range(len(self.mask) * self.answers))  # then they lie there already
        self.slots = None if is_even else torch.tensor(slots, device=self.mask.device)
        # laid out once for all tokens: one of a small batch waits for the number of its operations
        self.flat = [(keys.flatten(0, 1).mT, values.flatten(0, 1)) for keys, values in self.prompts]
        self.hidden = _hiding(self.mask, self.prompts[0][0])

    def keep(self, rows: Int[Tensor, " row"]) -> None:
        """Hold these rows alone, and the prompts that they go on from."""
        prompts, prompt_of = torch.unique(self.prompt_of[rows], return_inverse=True)
        if len(prompts) < len(self.mask):
            self.prompts = [(keys[prompts], values[prompts]) for keys, values in self.prompts]
            self.mask = self.mask[prompts]
        self._lay_out(prompt_of.tolist())
        self.own, self.seen = self.own[:, :, rows], self.seen[rows]
        self.window = None
        if self.own_hidden is not None:
            self.own_hidden = _hiding(self.seen, self.own)

    def begin(self, seen: Bool[Tensor, "row place"], count: int) -> None:
        """Take which of the first places hold tokens; the last `count` of these run at once."""
        length = seen.shape[1]
        self.seen[:, :length] = seen
        self.own_hidden = _hiding(self.seen, self.own)
        causal = seen.new_ones(length, length).tril()[-count:]
        per_answer = causal & seen[:, None, None]
        prompt = self.mask[self.prompt_of][:, None, None].expand(-1, -1, count, -1)
        self.block, self.step = torch.cat([prompt, per_answer], dim=-1), length - count

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Keep the next places of each row; return all so far, and what is added to scores of them."""
        per_answer = self.own[layer]
        if self.window is not None:
            for cached, new in zip(per_answer, (keys, values), strict=True):
                cached.index_copy_(2, self.window.place, new.to(cached.dtype))
            return per_answer[..., : self.window.stop, :], self.window.hidden
        stop = self.step + keys.shape[2]
        per_answer[0, :, :, self.step : stop], per_answer[1, :, :, self.step : stop] = keys, values
        return per_answer[..., :stop, :], None if self.own_hidden is None else self.own_hidden[..., :stop]


class Window:
    """The first places of rows, those behind the next one hidden: all in tensors that stay where they are."""

    def __init__(self, shared: SharedPrefix, stop: int) -> None:
        self.stop = stop
        self.places = torch.arange(stop, device=shared.own.device)
        self.place = self.places.new_zeros(1)  # of the next token
        self.hidden: Tensor  # by `hide`

    def hide(self, shared: SharedPrefix) -> None:
        """Hide what lies behind the next place; rows are not held, a cycle would outlive their call."""
        hidden, already = _added(self.places <= self.place, shared.own.dtype), shared.own_hidden
        self.hidden = hidden if already is None else torch.minimum(hidden, already[..., : self.stop])


def _hiding(
    seen: Bool[Tensor, "row place"], keys: Float[Tensor, "*before kept place size"]
) -> Float[Tensor, "row_and_kept one place"]:
    """Return what is added to scores of `keys` so that nothing else is seen."""
    return _added(seen, keys.dtype).repeat_interleave(keys.shape[-3], dim=0)[:, None]


def _added(seen: Bool[Tensor, "*place"], dtype: torch.dtype) -> Float[Tensor, "*place"]:
    """Return nothing where a place is seen, and what makes it vanish where it is not."""
    return torch.finfo(dtype).min * (~seen).to(dtype)


def fits(model: VolumeVLM) -> bool:
    """Tell whether the language model's attention is one that this module computes."""
    return not unsupported_feature(model.get_decoder().config)


def next_logits(
    model: VolumeVLM, shared: SharedPrefix, positions: Tensor, **given: Tensor | None
) -> Float[Tensor, "row vocabulary"]:
    """Compute the next places of shared rows, `given` as ids or embeddings; return logits behind the last."""
    config = model.model.language_model.config
    was = config._attn_implementation
    config._attn_implementation_internal = NAME  # it attends by this module
    try:
        output = model(
            attention_mask=None, position_ids=positions, use_cache=False, shared=shared, logits_to_keep=1,
            **given,
        )  # fmt: skip
    finally:
        config._attn_implementation_internal = was
    logits: Tensor = output.logits[:, -1]
    return logits


def attend(
    module: Any,
    query: Float[Tensor, "row head place size"],
    key: Float[Tensor, "row kept place size"],
    value: Float[Tensor, "row kept place size"],
    attention_mask: Tensor | None,
    *,
    scaling: float,
    shared: SharedPrefix,
    **kwargs: Any,
) -> tuple[Float[Tensor, "row place head size"], None]:
    """Attend from the next places of each row, and keep their keys and values."""
    rows, heads, _, size = key.shape
    per_answer, hidden = shared.append(module.layer_idx, key, value)
    stop = per_answer.shape[3]
    if shared.block is not None:
        whole = (
            torch.cat([before[shared.prompt_of], item], dim=2)
            for before, item in zip(shared.prompts[module.layer_idx], per_answer, strict=True)
        )
        query = query.to(per_answer.dtype)
        return sdpa_attention_forward(module, query, *whole, shared.block, scaling=scaling)[0], None
    answers, repeats = shared.answers, query.shape[1] // heads  # query heads per key head
    groups = len(shared.mask) * heads
    keys, values = per_answer.flatten(1, 2)
    query = (query * scaling).to(per_answer.dtype).view(rows, heads, repeats, size)

    def by_prompt(per_row: Tensor) -> Tensor:
        """Bring (row, kept, repeat, x) to (prompt and kept, answer and repeat, x)."""
        if shared.slots is not None:
            slots = per_row.new_zeros(len(shared.mask) * answers, *per_row.shape[1:])
            per_row = slots.index_copy(0, shared.slots, per_row)
        return (
            per_row
            .view(-1, answers, heads, repeats, per_row.shape[-1])
            .transpose(1, 2)
            .reshape(groups, answers * repeats, -1)
        )

    def by_row(per_prompt: Tensor) -> Tensor:
        """Bring it to (row and kept, repeat, x)."""
        width = per_prompt.shape[-1]
        by_slot = per_prompt.view(-1, heads, answers, repeats, width).transpose(1, 2)
        if shared.slots is not None:
            by_slot = by_slot.reshape(-1, heads, repeats, width)[shared.slots]
        return by_slot.reshape(rows * heads, repeats, width)

    before_keys, before_values = shared.flat[module.layer_idx]
    to_prompt = torch.baddbmm(shared.hidden, by_prompt(query), before_keys)
    scores = torch.bmm(query.view(rows * heads, repeats, size), keys.mT)
    if hidden is not None:
        scores = scores + hidden
    to_answer = by_prompt(scores.view(rows, heads, repeats, stop))
    weights = torch.cat([to_prompt, to_answer], dim=-1).softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    of_prompt, of_answer = weights[..., :-stop], weights[..., -stop:]
    output = torch.baddbmm(by_row(torch.bmm(of_prompt, before_values)), by_row(of_answer), values)
    return output.view(rows, 1, heads * repeats, size), None


AttentionInterface.register(NAME, attend)


@dataclasses.dataclass(frozen=True)
class DecodedRows:
    """What a row has written since its prompt."""

    content: tuple[int, ...]  # tokens; those of an image are -1 - its handle
    handles: tuple[int, ...]
    stops: tuple[int, ...]  # behind the last token of each image, counted in image tokens

    @classmethod
    def of(cls, model: VolumeVLM, prefix: Prefix) -> DecodedRows:
        """Tell images apart by their handles."""
        if prefix.prompt is None:
            return cls((), (), ())
        ids = prefix.ids[len(prefix.prompt.ids) :]
        handles = prefix.handles[len(prefix.prompt.handles) :]
        counts = model.model.image_tokens(torch.tensor(handles)) if handles else []
        images = iter([-1 - item for item, count in zip(handles, counts, strict=True) for _ in range(count)])
        image = model.config.image_token_id
        content = tuple(next(images, image) if token == image else token for token in ids)
        return cls(content, handles, tuple(itertools.accumulate(counts)))

    def shown_from(self, start: int) -> tuple[int, ...]:
        """Return the handles of images behind the first `start` tokens."""
        past = sum(token < 0 for token in self.content[:start])
        return self.handles[sum(stop <= past for stop in self.stops) :]


@dataclasses.dataclass
class _CachedPrompt:
    """What is kept of a prompt, and the keys and values of rows behind it."""

    layers: Layers
    logits: Float[Tensor, " vocabulary"]
    rows: list[tuple[tuple[int, ...], Float[Tensor, "layer two kept place size"]]]


class PrefixCache:
    """Keys and values that one call of `continue_rows` leaves for the next, while weights stay as they are.

    A row goes on from the longest beginning that any row of its prompt has had, so a fork from its parent's.
    """

    def __init__(self, most_rows: int) -> None:
        """Start empty; beyond so many rows, or a call's, the prompt used longest ago leaves with its own."""
        self.most_rows = most_rows
        self._kept: dict[Prefix, _CachedPrompt] = {}

    def prompts(
        self, model: VolumeVLM, wanted: list[Prefix], pad_id: int
    ) -> tuple[Layers, Bool[Tensor, "prompt before"], Float[Tensor, "prompt vocabulary"]]:
        """Return keys and values of prompts, which of their places hold tokens, and logits behind them."""
        new = [item for item in wanted if item not in self._kept]
        if new:
            logits, cache, mask, _ = prefill(model, new, pad_id)
            layers = [(layer.keys, layer.values) for layer in cache.layers]
            for number, item in enumerate(new):
                per_answer = [
                    (keys[number, :, -len(item.ids) :], values[number, :, -len(item.ids) :])
                    for keys, values in layers
                ]
                self._kept[item] = _CachedPrompt(per_answer, logits[number], [])
            if new == wanted:
                return layers, mask.bool(), logits
        result = []
        for item in wanted:
            result.append(self._kept.pop(item))
            self._kept[item] = result[-1]
        longest = max(len(item.ids) for item in wanted)
        short = torch.tensor([longest - len(item.ids) for item in wanted], device=model.device)

        def padded(layer: int, kind: int) -> Tensor:
            each = (item.layers[layer][kind] for item in result)
            return torch.stack([functional.pad(item, (0, 0, longest - item.shape[1], 0)) for item in each])

        layers = [(padded(layer, 0), padded(layer, 1)) for layer in range(len(result[0].layers))]
        mask = torch.arange(longest, device=model.device) >= short[:, None]
        return layers, mask, torch.stack([item.logits for item in result])

    def longest(
        self, prompt: Prefix, content: tuple[int, ...]
    ) -> tuple[int, Float[Tensor, "layer two kept place size"] | None]:
        """Return how many tokens of `content` are known, but its last, and the keys and values of a row."""
        best: tuple[int, Tensor | None] = (0, None)
        for other, keys in self._kept[prompt].rows:
            most = min(len(content) - 1, len(other))
            same = next((place for place in range(most) if content[place] != other[place]), most)
            if same > best[0]:
                best = same, keys
        return best

    def put(self, prompt: Prefix, content: tuple[int, ...], keys: Tensor) -> None:
        """Keep a row, in the place of those that it continues."""
        cached = self._kept.get(prompt)
        if cached is None:
            return
        cached.rows = [item for item in cached.rows if item[0] != content[: len(item[0])]] + [(content, keys)]
        while sum(len(item.rows) for item in self._kept.values()) > self.most_rows:
            del self._kept[next(iter(self._kept))]


class _AsMultiplied(DynamicCache):  # type: ignore[misc]
    """Keeps keys and values in the type of products: under autocast each token would cast them anew."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Round them where products would."""
        kind = key_states.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else key_states.dtype
        return super().update(key_states.to(dtype), value_states.to(dtype), *args, **kwargs)


def prefill(
    model: VolumeVLM, prefixes: Sequence[Prefix], pad_id: int
) -> tuple[Float[Tensor, "row vocabulary"], DynamicCache, Tensor, Tensor]:
    """Compute the prefixes; return the logits after them, the cache, the mask and the positions."""
    ids, mask, pixels = padded_rows(prefixes, pad_id, model.device)
    positions = model.model.positions(ids, mask, pixels)
    cache = _AsMultiplied(config=model.config.get_text_config())
    output = model(
        input_ids=ids, attention_mask=mask, position_ids=positions, pixel_values=pixels,
        past_key_values=cache, use_cache=True, logits_to_keep=1,
    )  # fmt: skip
    return output.logits[:, -1], cache, mask, positions


def padded_rows(
    prefixes: Sequence[Prefix], pad_id: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return left-padded ids, their mask, and the images."""
    longest = max(len(prefix.ids) for prefix in prefixes)
    short = [longest - len(prefix.ids) for prefix in prefixes]
    ids = [[pad_id] * gap + list(prefix.ids) for gap, prefix in zip(short, prefixes, strict=True)]
    mask = torch.tensor([[0] * gap + [1] * (longest - gap) for gap in short], device=device)
    handles = [handle for prefix in prefixes for handle in prefix.handles]
    return torch.tensor(ids, device=device), mask, pixels_of(handles, device)


def pixels_of(handles: Sequence[int], device: torch.device) -> Tensor | None:
    """Return handles as the model takes them."""
    return torch.tensor(handles, device=device).reshape(-1, 1) if handles else None
