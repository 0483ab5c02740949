"""Scoring of sampled answers: groups share the computation of their prompt where that is exact and pays."""

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from evidcore.model.packed_attention import pack, packing_blocker, packing_pays, tokens_saved
from evidcore.model.vlm import VolumeVLM
from evidcore.train.settings import SharePrompts

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups:
    """Rows of left-padded prompts and right-padded answers; those of a prompt stand together."""

    input_ids: Tensor  # (row, before + after)
    attention_mask: Tensor  # (row, before + after)
    after: int  # places of an answer
    answers: int  # to each prompt
    pixel_values: Tensor | None = None  # of all rows, in order
    num_images: list[int] | None = None  # of each row

    def fault(self, model: VolumeVLM) -> str:
        """Return why rows are no groups of texts behind one prompt each, empty where they are."""
        rows = self.input_ids.shape[0]
        if rows % self.answers:
            return f"{rows} rows are no whole groups of {self.answers}"
        # the last token of a prompt is laid out once for each answer, that of an answer not at all
        if bool((self.input_ids[:, [-self.after - 1, -1]] == model.config.image_token_id).any()):
            return "a prompt or an answer ends within an image"
        for values in (self.input_ids, self.attention_mask):
            before = values[:, : -self.after].reshape(rows // self.answers, self.answers, -1)
            if not bool((before == before[:, :1]).all()):
                return "the prompts of a group differ"
        prompts, _ = self.images(model)
        if not all(
            torch.equal(image, prompts[row - row % self.answers]) for row, image in enumerate(prompts)
        ):
            return "the images of a group differ"
        return ""

    def images(self, vlm: VolumeVLM) -> tuple[list[Tensor], list[Tensor]]:
        """Return each row's images of its prompt, and those of its answer; none where nothing is shown."""
        if self.pixel_values is None or self.num_images is None:
            return [], []
        in_prompt = (self.input_ids[:, : -self.after] == vlm.config.image_token_id).sum(-1).cpu()
        tokens = torch.split(torch.tensor(vlm.model.image_tokens(self.pixel_values)), self.num_images)
        counts = [int((row.cumsum(0) <= most).sum()) for row, most in zip(tokens, in_prompt, strict=True)]
        rows = list(zip(torch.split(self.pixel_values, self.num_images), counts, strict=True))
        return [row[:count] for row, count in rows], [row[count:] for row, count in rows]

    def parts(self, most_rows: int) -> Iterator["Groups"]:
        """Yield a few whole groups at a time."""
        step, counts = max(most_rows // self.answers, 1) * self.answers, self.num_images
        ends = [0] if counts is None else torch.tensor([0, *counts]).cumsum(0).tolist()
        for start in range(0, self.input_ids.shape[0], step):
            rows = slice(start, start + step)
            part = dataclasses.replace(
                self, input_ids=self.input_ids[rows], attention_mask=self.attention_mask[rows]
            )
            if counts is not None and self.pixel_values is not None:
                images = self.pixel_values[ends[start] : ends[min(start + step, len(counts))]]
                part = dataclasses.replace(part, pixel_values=images, num_images=counts[rows])
            yield part

    def log_probs(self, model: Any, vlm: VolumeVLM) -> tuple[Tensor, Tensor | None]:
        """Return log-probabilities and entropies (row, after), 0 where there is no token.

        What is called is `model` with trl's fused head: `vlm`, or what wraps it.
        """
        after, answers = self.after, self.answers
        shape = (-1, answers, after)
        positions = vlm.model.positions(self.input_ids, self.attention_mask, self.pixel_values)
        packed = pack(
            self.input_ids[::answers, :-after], self.attention_mask[::answers, :-after],
            self.input_ids[:, -after:].reshape(shape), self.attention_mask[:, -after:].reshape(shape),
            positions[..., ::answers, :-after],
            positions[..., -after - 1 : -1].reshape(*positions.shape[:-2], *shape),
        )  # fmt: skip
        inputs = packed.inputs(vlm)
        del inputs["use_cache"]  # the fused head says it
        prompts, answered = self.images(vlm)
        if groups := range(0, len(prompts), answers):
            inputs["pixel_values"] = torch.cat([
                one for row in groups for one in (prompts[row], *answered[row : row + answers])
            ])
        output = model(
            **inputs, labels=packed.labels, shift_labels=packed.labels, fused_lm_head=True,
            skip_positions=packed.layout.skip,
        )  # fmt: skip
        by_answer = packed.layout.by_answer
        entropy = None if output.entropy is None else by_answer(output.entropy).flatten(0, 1)
        return by_answer(output.log_probs).flatten(0, 1), entropy


class PromptSharing:
    """Decides for each batch whether its groups share their prompts, and says so once for each reason."""

    def __init__(self, choice: SharePrompts, answers: int) -> None:
        self.choice, self.answers = choice, answers
        self._said: set[str] = set()

    def applies(self, model: VolumeVLM, groups: Groups) -> bool:
        """Tell whether to score these rows by groups."""
        after, before = groups.after, groups.input_ids.shape[1] - groups.after
        if self.choice == "never":
            why_not = "share_prompts = 'never'"
        elif self.choice == "auto" and not packing_pays(before, after, self.answers):
            why_not = "their prompts are too short beside the answers for it to pay"
        else:
            why_not = packing_blocker(model) or groups.fault(model)
        if why_not not in self._said:
            self._said.add(why_not)
            fewer = f"{tokens_saved(before, after, self.answers):.1f} times fewer tokens"
            why = f"{fewer}, {self.answers} answers of {after} to prompts of {before}"
            how = "once for each answer" if why_not else "once for all answers"
            log.info("prompts are scored %s (%s)", how, why_not or why)
        return not why_not


def shared_scores(
    accelerator: Any,
    model: Any,
    vlm: VolumeVLM,
    groups: Groups,
    *,
    rows_per_pass: int | None,
    compute_entropy: bool,
) -> tuple[Tensor, Tensor | None, None]:
    """Return what trl's method does, a few whole groups at a time."""
    log_probs, entropies = [], []
    for part in groups.parts(rows_per_pass or len(groups.input_ids)):
        with accelerator.autocast():
            values, entropy = part.log_probs(model, vlm)
        log_probs.append(values)
        if compute_entropy and entropy is not None:
            entropies.append(entropy)
    return torch.cat(log_probs), torch.cat(entropies) if entropies else None, None
