"""Rows `[prompt | answer 1 | … | answer G]`: the prompt is computed once, an answer sees it and itself alone.

The prompts' positions come from `VolumeVLMModel.positions`: where they are multimodal they have axes.
Under "sdpa" a row is taken apart: the prompt attends to itself, and all answers, as a batch, to the prompt's
keys and their own. So no answer is multiplied with another one only for a mask to throw the product away.
Under "flex_attention" the same is said by a block mask. Answers end where they end: only attention pads them
to the longest. When it pays at all is a rule from what `benchmarks/break_even.py` measured.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

LEAST_SAVED = 1.2  # docs/results/break_even.json; below, laying answers out costs what it saves


@dataclasses.dataclass(frozen=True)
class Packed:
    """Rows `[prompt but its last token | last, answer 1 but its last | last, answer 2 but its last | …]`.

    So each place after the prompt predicts one token; `labels` has those, -100 where there is none, as behind
    the last answer of a row that is shorter than others. The first `layout.skip` predict nothing.
    """

    input_ids: Int[Tensor, "prompt place"]
    position_ids: Int[Tensor, "*axis prompt place"]
    labels: Int[Tensor, "prompt scored"]
    layout: Layout

    def inputs(self, model: Any) -> dict[str, Any]:
        """Return what `model` takes, but for what it is shown.

        A model under "sdpa" is left with an implementation that also knows packed rows: gradient
        checkpointing attends again during the backward pass.
        """
        given = {"input_ids": self.input_ids, "position_ids": self.position_ids, "use_cache": False}
        decoder = model.get_decoder()
        if decoder.config._attn_implementation == "flex_attention":
            return {**given, "attention_mask": self.layout.block_mask()}
        if decoder.config._attn_implementation != NAME:
            decoder.set_attn_implementation(NAME)  # never put back: a backward pass would differ
        # transformers makes no mask of its own where it is given one of four dimensions
        return {**given, "attention_mask": self.layout.answer_mask, "packed": self.layout}


def pack(
    prompt_ids: Int[Tensor, "prompt before"],
    prompt_mask: Int[Tensor, "prompt before"],
    answer_ids: Int[Tensor, "prompt answer after"],
    answer_mask: Int[Tensor, "prompt answer after"],
    positions: Int[Tensor, "*axis prompt before"],
    answer_positions: Int[Tensor, "*axis prompt answer after"] | None = None,
) -> Packed:
    """Lay prompts and their answers out in rows.

    Args:
        prompt_ids: left-padded.
        prompt_mask: 1 on tokens.
        answer_ids: right-padded.
        answer_mask: 1 on tokens.
        positions: of the prompts' tokens.
        answer_positions: of the prompt's last token, then of each answer's but its last; None: they count on
            from the first of these. Behind an image among multimodal positions they do not.
    """
    answers, length = answer_ids.shape[1:]
    # an answer's first place holds the prompt's last token
    last = prompt_ids[:, None, -1:].expand(-1, answers, -1)
    shifted = torch.cat([last, answer_ids[:, :, :-1]], dim=2)
    steps = torch.arange(length, device=positions.device)
    if answer_positions is None:
        answer_positions = positions[..., -1:, None] + steps.expand(answers, -1)
    lengths = (answer_mask * (steps + 1)).amax(2, keepdim=True)
    # where trl masks a whole answer, its places stay: images may lie among them
    layout = Layout(prompt_mask[:, :-1].bool(), steps < lengths.masked_fill(lengths == 0, length))
    return Packed(
        torch.cat([prompt_ids[:, :-1], layout.in_rows(shifted)], dim=1),
        torch.cat([positions[..., :-1], layout.in_rows(answer_positions)], dim=-1),
        layout.in_rows(answer_ids.masked_fill(answer_mask == 0, -100)),
        layout,
    )


def pack_rows(
    rows: Mapping[str, Tensor], positions: Int[Tensor, "*axis row place"], many: int
) -> tuple[Packed, Float[Tensor, "group scored"]]:
    """Lay right-padded rows out, groups of `many` behind the tokens that they begin with alike.

    Args:
        rows: `input_ids`, `attention_mask`, `labels` (-100 where nothing is predicted) and `weights`, each
            (row, place).
        positions: of the tokens.
        many: rows of a group.

    Returns:
        The groups, with the labels that are given, and the weight of each scored place.
    """
    ids, mask, labels = rows["input_ids"], rows["attention_mask"], rows["labels"]
    (count, length), device = ids.shape, ids.device
    unlabelled = ids.masked_fill(labels >= 0, -1).reshape(-1, many, length)
    is_alike = (unlabelled == unlabelled[:, :1]).all(1) & (unlabelled[:, 0] >= 0)
    alike = is_alike.cumprod(1).sum(1)  # tokens of each group
    row, steps = torch.arange(count, device=device).reshape(-1, many, 1), torch.arange(length, device=device)
    before = steps[: int(alike.max())] - (alike.max() - alike)[:, None]
    left = mask.sum(1).reshape(row.shape) - alike[:, None, None]
    behind = alike[:, None, None] + steps[: int(left.max())]

    def first(values: Tensor) -> Tensor:
        """Bring (…, row, place) to (…, group, place), left-padded."""
        return values[..., row[:, 0], before.clamp(min=0)]

    def each(values: Tensor, back: int = 0) -> Tensor:
        """Bring (…, row, place) to (…, group, row of it, place), right-padded."""
        return values[..., row, (behind - back).clamp(max=length - 1)]

    is_there = each(mask) * (behind < length)
    prompt_mask = first(mask) * (before >= 0)
    packed = pack(
        first(ids), prompt_mask, each(ids), is_there, first(positions), answer_positions=each(positions, 1)
    )
    given = packed.layout.in_rows(each(labels).masked_fill(is_there == 0, -100))
    weights = packed.layout.in_rows(each(rows["weights"]) * is_there)
    return dataclasses.replace(packed, labels=given), weights


def answer_log_probs(
    model: Any, packed: Packed, pixel_values: Tensor | None = None, **shown: Tensor
) -> Float[Tensor, "prompt answer after"]:
    """Return the log-probability in nats of each answer token, 0 where there is none.

    Args:
        model: a `VolumeVLM`, or another causal language model of transformers that can be packed.
        packed: rows.
        pixel_values: what the prompts show, each prompt's once, in order.
        shown: further inputs of that kind, such as `image_grid_thw`.
    """
    if pixel_values is not None:
        shown["pixel_values"] = pixel_values
    length = packed.labels.shape[1]
    logits = model(**packed.inputs(model), logits_to_keep=length, **shown).logits.float()
    chosen = packed.labels.clamp(min=0).unsqueeze(-1)
    log_probs = logits.gather(-1, chosen).squeeze(-1) - logits.logsumexp(-1)
    return packed.layout.by_answer(log_probs.masked_fill(packed.labels < 0, 0.0))


NAME = "evidcore_packed"
# by model_type of the language model: rotary positions that are given, no soft cap, no sinks
PLAIN = ("llama", "mistral", "qwen2", "qwen2_5_vl_text", "qwen3", "qwen3_vl_text")


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where prompt and answers lie in a batch of packed rows."""

    prompt_valid: Bool[Tensor, "prompt skip"]  # tokens among the places before the answers
    answer_valid: Bool[Tensor, "prompt answer length"]  # places of answers that have one in the row

    @property
    def skip(self) -> int:
        """Return the number of places before the answers."""
        return self.prompt_valid.shape[1]

    @property
    def answers(self) -> int:
        """Return the number of answers to each prompt."""
        return self.answer_valid.shape[1]

    @property
    def length(self) -> int:
        """Return the number of places of the longest answer."""
        return self.answer_valid.shape[2]

    @functools.cached_property
    def is_ragged(self) -> bool:
        """Tell whether some answers are shorter than others."""
        return not bool(self.answer_valid.all())

    @functools.cached_property
    def order(self) -> Int[Tensor, " prompt_and_scored"]:
        """Return which place each one behind a prompt is, where answers to `length` follow each other."""
        valid = self.answer_valid.flatten(1)
        order = (~valid).byte().argsort(dim=1, stable=True)[:, : int(valid.sum(1).max())]
        starts = valid.shape[1] * torch.arange(len(valid), device=valid.device)
        return (starts[:, None] + order).flatten()

    @functools.cached_property
    def places(self) -> Int[Tensor, " prompt_and_answers_and_length"]:
        """Return the inverse, where whole rows follow each other; what an answer lacks is the row's first."""
        valid = self.answer_valid.flatten(1)
        width = self.skip + len(self.order) // len(valid)
        starts = self.skip + width * torch.arange(len(valid), device=valid.device)
        return (starts[:, None] + (valid.cumsum(1) - 1).masked_fill(~valid, 0)).flatten()

    def in_rows(self, values: Tensor) -> Tensor:
        """Bring (…, prompt, answer, length) to (…, prompt, scored)."""
        flat = values.flatten(-3)
        flat = flat[..., self.order] if self.is_ragged else flat
        return flat.reshape(*flat.shape[:-1], len(self.answer_valid), -1)

    def by_answer(self, values: Float[Tensor, "prompt scored"]) -> Float[Tensor, "prompt answer length"]:
        """Bring what is said of places to answers, 0 where they have none."""
        if self.is_ragged:
            values = functional.pad(values, (self.skip, 0)).flatten()[self.places]
        return values.reshape(self.answer_valid.shape).masked_fill(~self.answer_valid, 0.0)

    @functools.cached_property
    def is_padded(self) -> bool:
        """Tell whether prompts of different lengths stand together."""
        return not bool(self.prompt_valid.all())

    @functools.cached_property
    def prompt_mask(self) -> Bool[Tensor, "prompt one skip skip"] | None:
        """Return which place of a prompt sees which; None: all that came before."""
        if not self.is_padded:
            return None
        before = torch.ones(self.skip, self.skip, dtype=torch.bool, device=self.prompt_valid.device).tril()
        seen = before & self.prompt_valid[:, None, None]
        return seen | torch.eye(self.skip, dtype=torch.bool, device=seen.device)  # padding sees itself

    @functools.cached_property
    def answer_mask(self) -> Bool[Tensor, "row one length place"]:
        """Return which places of the prompt, then of its own, each place of an answer sees.

        One row for all answers where nothing is padded, else one for each.
        """
        own = torch.ones(self.length, self.length, dtype=torch.bool, device=self.prompt_valid.device).tril()
        whole = functional.pad(own, (self.skip, 0), value=True)[None, None]
        if not self.is_padded:
            return whole
        valid = functional.pad(self.prompt_valid, (0, self.length), value=True)
        return whole & valid.repeat_interleave(self.answers, 0)[:, None, None]

    def block_mask(self) -> BlockMask:
        """Return the whole of it for flex attention."""
        device = self.prompt_valid.device
        segment = (self.order // self.length % self.answers + 1).reshape(len(self.answer_valid), -1)
        valid = functional.pad(self.prompt_valid, (0, segment.shape[1]), value=True)
        segment = functional.pad(segment, (self.skip, 0))
        size = segment.shape[1]
        return create_block_mask(
            lambda row, head, place, other: (
                ((segment[row, other] == 0) | (segment[row, other] == segment[row, place]))
                & (other <= place)
                & valid[row, other]
            )
            | (other == place),
            len(valid), None, size, size, device=str(device),
        )  # fmt: skip


def unsupported_feature(config: Any) -> str:
    """Return in what a language model does not attend plainly to all that came before; empty if it does."""
    if config.model_type not in PLAIN:
        return f"language models of type {config.model_type!r} are not among {', '.join(PLAIN)}"
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and set(kinds) != {"full_attention"}:
        return f"its layers attend by {', '.join(sorted(set(kinds)))}"
    if kinds is None and getattr(config, "sliding_window", None) is not None:
        return f"its layers attend within a window of {config.sliding_window} tokens"
    return ""


def packing_blocker(model: Any) -> str:
    """Return why rows cannot be packed for a transformers model, empty where they can."""
    config = model.get_decoder().config
    why_not = unsupported_feature(config)
    if not why_not and config._attn_implementation not in ("sdpa", "flex_attention", NAME):
        return f"its attention is {config._attn_implementation!r}, neither 'sdpa' nor 'flex_attention'"
    return why_not


def attend(
    module: Any,
    query: Float[Tensor, "row head place size"],
    key: Float[Tensor, "row kept place size"],
    value: Float[Tensor, "row kept place size"],
    attention_mask: Tensor | None,
    *,
    packed: Layout | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "row place head size"], None]:
    """Attend as "sdpa" does; in packed rows where `packed` says how they are laid out."""
    if packed is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output, None
    skip, answers = packed.skip, packed.answers

    def own(states: Tensor) -> Tensor:
        """Bring (prompt, head, place, size) to (prompt and answer, head, place of the answer, size)."""
        prompts, heads, _, size = states.shape
        if not packed.is_ragged:
            by_answer = states[:, :, skip:].reshape(prompts, heads, answers, packed.length, size)
            return by_answer.transpose(1, 2).flatten(0, 1)
        flat = states.transpose(1, 2).reshape(-1, heads * size)
        by_answer = flat.index_select(0, packed.places)
        return by_answer.reshape(prompts * answers, packed.length, heads, size).transpose(1, 2)

    def with_prompt(states: Tensor) -> Tensor:
        """Put the prompt's keys or values before those of each answer."""
        prompt = states[:, None, :, :skip].expand(-1, answers, -1, -1, -1).flatten(0, 1)
        return torch.cat([prompt, own(states)], dim=2)

    of_answers, _ = sdpa_attention_forward(
        module, own(query), with_prompt(key), with_prompt(value), packed.answer_mask, **kwargs
    )
    of_answers = of_answers.reshape(len(query), answers * packed.length, *of_answers.shape[2:])
    if packed.is_ragged:
        flat = of_answers.flatten(2).flatten(0, 1).index_select(0, packed.order)
        of_answers = flat.reshape(len(query), -1, *of_answers.shape[2:])
    outputs = [of_answers]
    if skip:
        of_prompt, _ = sdpa_attention_forward(
            module, *(states[:, :, :skip] for states in (query, key, value)), packed.prompt_mask, **kwargs
        )
        outputs.insert(0, of_prompt)
    return torch.cat(outputs, dim=1), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


def tokens_saved(prompt_tokens: int, answer_tokens: int, answers: int) -> float:
    """Return how many times fewer tokens the layers see where answers stand in one row with their prompt."""
    apart = answers * (prompt_tokens + answer_tokens)
    return apart / (prompt_tokens - 1 + answers * answer_tokens)


def packing_pays(prompt_tokens: int, answer_tokens: int, answers: int) -> bool:
    """Tell whether one row is faster than a row for each answer."""
    return tokens_saved(prompt_tokens, answer_tokens, answers) >= LEAST_SAVED
