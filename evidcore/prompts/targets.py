"""Gold answers as training rows: tokens, labels and a weight for each target token."""

import contextlib
import dataclasses
import math
import numbers
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from evidcore.contracts import LabelError, Reweighter, RolloutStrategy
from evidcore.errors import ContractError, DataError
from evidcore.model.processor import Encoded, VolumeProcessor, refuse_too_long
from evidcore.prompts.rows import PromptSource, Row
from evidcore.registry import Offer, blame

IGNORED = -100  # the label of tokens that are not predicted
NEWEST = 1 << 16  # rows whose images are remembered: more than a step has


class GivenImages:
    """Which images, by handle, came with the tokens of the newest rows."""

    def __init__(self) -> None:
        self._by_row: dict[int, set[tuple[int, ...]]] = {}

    def add(self, ids: Sequence[int], handles: Sequence[int]) -> None:
        """Remember what a row is given; equal tokens may come with several sets of images."""
        row = hash(tuple(ids))
        self._by_row[row] = self._by_row.pop(row, set()) | {tuple(handles)}  # as the newest
        if len(self._by_row) > NEWEST:
            del self._by_row[next(iter(self._by_row))]

    def beside(self, ids: Sequence[int]) -> Collection[tuple[int, ...]]:
        """Return the sets of handles that came with a row's tokens; none of an unknown row."""
        return self._by_row.get(hash(tuple(ids)), ())


@dataclasses.dataclass(frozen=True)
class Target:
    """A prompt with its gold answer."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]  # of all turns, with what tools replied
    loss_mask: tuple[int, ...]  # 1 for each answer token of the model, 0 for a tool's
    weights: tuple[float, ...]  # one per answer token
    handles: tuple[int, ...]


class Targets:
    """Makes rows of positions in the stream, and batches of rows."""

    def __init__(
        self,
        processor: VolumeProcessor,
        source: PromptSource,
        reweighter: Reweighter | None = None,
        offer: Offer | None = None,
        strategy: RolloutStrategy | None = None,
    ) -> None:
        """Take the stream.

        The re-weighter weighs the last turn's tokens; those of the turns before it weigh 1. Its offer is
        named when it breaks its contract. The model is told the functions of the strategy.
        """
        self.processor, self.source = processor, source
        self.opening = processor.opening_of(strategy)
        self.reweighter, self.offer = reweighter, offer
        self.given = GivenImages()

    def row(self, position: int) -> Target:
        """Return the row at `position`.

        Raises:
            RecipeError: if it does not fit the model's context.
            ContractError: if the re-weighter gives the wrong number of weights, or one that is no weight.
            DataError: if the labeler behind the re-weighter cannot read the row's text.
        """
        row = self.source[position]
        text, spans = row.task.gold(row.prompt)
        answer = self.processor.encode_answer(text)
        weights: Sequence[float] = [1.0] * len(answer.ids)
        if self.reweighter is not None:
            weights = self._weights(row, text, spans, list(answer.offsets))
        prompt = self.processor.encode(row.prompt, self.opening)
        ids, mask, crops = list[int](), list[int](), list(prompt.crops)
        for written, reply in _turns(row, self.processor):
            ids += written + reply.ids
            mask += [1] * len(written) + [0] * len(reply.ids)
            crops += reply.crops
        holds, count = self.processor.context_tokens, len(ids) + len(answer.ids)
        refuse_too_long(holds, row.prompt.id, len(prompt.ids), count)
        handles = tuple(self.processor.image_processor.handle(crop) for crop in crops)
        return Target(
            prompt_ids=prompt.ids, answer_ids=(*ids, *answer.ids),
            loss_mask=(*mask, *(1 for _ in answer.ids)), weights=(*map(float, mask), *weights),
            handles=handles,
        )  # fmt: skip

    def batch(self, rows: Sequence[dict[str, str]]) -> dict[str, Tensor]:
        """Return right-padded tensors; padding and prompts carry no label and no weight."""
        targets = [self.row(int(row["prompt"])) for row in rows]
        longest = max(len(item.prompt_ids) + len(item.answer_ids) for item in targets)
        ids = torch.full((len(targets), longest), self.processor.tokenizer.pad_token_id)
        mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
        weights = torch.zeros(ids.shape)
        for number, item in enumerate(targets):
            start, stop = len(item.prompt_ids), len(item.prompt_ids) + len(item.answer_ids)
            self.given.add((*item.prompt_ids, *item.answer_ids), item.handles)
            ids[number, :stop] = torch.tensor(item.prompt_ids + item.answer_ids)
            mask[number, :stop] = 1
            given = torch.tensor(item.loss_mask) == 0
            labels[number, start:stop] = ids[number, start:stop].masked_fill(given, IGNORED)
            weights[number, start:stop] = torch.tensor(item.weights)
        batch = {"input_ids": ids, "attention_mask": mask, "labels": labels, "weights": weights}
        handles = [handle for item in targets for handle in item.handles]
        if handles:
            self.processor.image_processor.prefetch(handles)  # while the batches before are trained on
            batch["pixel_values"] = torch.tensor(handles).reshape(-1, 1)
        return batch

    def _weights(
        self, row: Row, text: str, spans: Sequence[Any], offsets: Sequence[tuple[int, int]]
    ) -> list[float]:
        assert self.reweighter is not None
        doing = f"weighing prompt {row.prompt.id!r}"
        where = f"{self.offer or type(self.reweighter).__name__}, {doing}"
        try:
            with blame(self.offer, doing) if self.offer else contextlib.nullcontext():
                weights = list(self.reweighter(text, spans, offsets))
        except LabelError as cause:
            raise DataError(f"{where}: {cause}") from cause
        if len(weights) != len(offsets):
            raise ContractError(f"{where}: gave {len(weights)} weights for {len(offsets)} tokens.")
        for weight in weights:
            if not isinstance(weight, numbers.Real) or not math.isfinite(weight) or weight < 0:
                raise ContractError(f"{where}: each must be a finite number of 0 or more, got {weight!r}.")
        return [float(weight) for weight in weights]


def lengths(row: Row, processor: VolumeProcessor, opening: str = "") -> tuple[int, int]:
    """Return how many tokens a row's prompt has, and its gold answer with the turns before it."""
    answer = len(processor.encode_answer(row.task.gold(row.prompt)[0]).ids)
    answer += sum(len(written) + len(reply.ids) for written, reply in _turns(row, processor))
    return len(processor.encode(row.prompt, opening).ids), answer


def _turns(row: Row, processor: VolumeProcessor) -> Iterator[tuple[tuple[int, ...], Encoded]]:
    """Yield the tokens of the turns before a row's answer: what the model writes, and what a tool replies."""
    for turn in row.task.gold_turns(row.prompt):
        written = processor.encode_answer(turn.text).ids[: -len(processor.end_ids)]
        yield written, processor.encode_tool_turn(turn.reply)
