"""Scoring of sampled answers: groups share the computation of their prompt where that is exact and pays."""

import logging
from typing import Any

import torch
from torch import Tensor

from evidcore.model.packed_attention import pack, packing_blocker, packing_pays, tokens_saved
from evidcore.model.vlm import VolumeVLM
from evidcore.train.settings import SharePrompts

log = logging.getLogger(__name__)


class PromptSharing:
    """Decides for each batch whether its groups share their prompts, and says so once for each reason."""

    def __init__(self, choice: SharePrompts, answers: int) -> None:
        self.choice, self.answers = choice, answers
        self._said: set[str] = set()

    def applies(
        self,
        model: VolumeVLM,
        input_ids: Tensor,
        attention_mask: Tensor,
        after: int,
        pixel_values: Tensor | None = None,
        num_images: list[int] | None = None,
    ) -> bool:
        """Tell whether to score these rows by groups.

        Each row is a left-padded prompt and a right-padded answer of `after` places.
        """
        before = input_ids.shape[1] - after
        if self.choice == "never":
            return self._because("share_prompts = 'never'", False)
        if self.choice == "auto" and not packing_pays(before, after, self.answers):
            return self._because("their prompts are too short beside the answers for it to pay", False)
        why_not = packing_blocker(model) or _difference(
            model, input_ids, attention_mask, after, self.answers, pixel_values, num_images
        )
        if why_not:
            return self._because(why_not, False)
        saved = tokens_saved(before, after, self.answers)
        why = f"{saved:.1f} times fewer tokens, {self.answers} answers of {after} to prompts of {before}"
        return self._because(why, True, "yes")

    def _because(self, reason: str, decision: bool, key: str = "") -> bool:
        """Say a reason when it first decides."""
        if (key or reason) not in self._said:
            self._said.add(key or reason)
            how = "once for all answers" if decision else "once for each answer"
            log.info("prompts are scored %s (%s)", how, reason)
        return decision


def _difference(
    model: VolumeVLM,
    input_ids: Tensor,
    attention_mask: Tensor,
    after: int,
    answers: int,
    pixel_values: Tensor | None,
    num_images: list[int] | None,
) -> str:
    """Return why rows are no groups of texts behind one prompt each, empty where they are."""
    rows = input_ids.shape[0]
    if rows % answers:
        return f"{rows} rows are no whole groups of {answers}"
    # the last token of a prompt is laid out once for each answer, that of an answer not at all
    if bool((input_ids[:, [-after - 1, -1]] == model.config.image_token_id).any()):
        return "a prompt or an answer ends within an image"
    before = input_ids[:, :-after].reshape(rows // answers, answers, -1)
    seen = attention_mask[:, :-after].reshape(rows // answers, answers, -1)
    if not bool((before == before[:, :1]).all()) or not bool((seen == seen[:, :1]).all()):
        return "the prompts of a group differ"
    if pixel_values is not None and num_images is not None:
        prompts, _ = _images(model, input_ids, after, pixel_values, num_images)
        if not all(torch.equal(image, prompts[row - row % answers]) for row, image in enumerate(prompts)):
            return "the images of a group differ"
    return ""


def _images(
    vlm: VolumeVLM, input_ids: Tensor, after: int, pixel_values: Tensor, num_images: list[int]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return each row's images of its prompt, and those of its answer."""
    in_prompt = (input_ids[:, :-after] == vlm.config.image_token_id).sum(-1).cpu()
    tokens = torch.split(torch.tensor(vlm.model.image_tokens(pixel_values)), num_images)
    counts = [int((row.cumsum(0) <= most).sum()) for row, most in zip(tokens, in_prompt, strict=True)]
    rows = list(zip(torch.split(pixel_values, num_images), counts, strict=True))
    return [row[:count] for row, count in rows], [row[count:] for row, count in rows]


def shared_log_probs(
    model: Any,
    vlm: VolumeVLM,
    input_ids: Tensor,
    attention_mask: Tensor,
    after: int,
    answers: int,
    pixel_values: Tensor | None,
    num_images: list[int] | None,
) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities and entropies (row, after), 0 where there is no token.

    Each row is a left-padded prompt and a right-padded answer of `after` places; rows of a prompt stand
    together, with the images of all in order. What is called is `model` with trl's fused head: `vlm`, or what
    wraps it.
    """
    shape = (-1, answers, after)
    ids, mask = input_ids[::answers, :-after], attention_mask[::answers, :-after]
    pixels = None
    if pixel_values is not None and num_images is not None:
        prompts, answered = _images(vlm, input_ids, after, pixel_values, num_images)
        groups = range(0, len(num_images), answers)
        pixels = torch.cat([one for row in groups for one in (prompts[row], *answered[row : row + answers])])
    positions = vlm.positions(input_ids, attention_mask, pixel_values)
    packed = pack(
        ids, mask, input_ids[:, -after:].reshape(shape), attention_mask[:, -after:].reshape(shape),
        positions[..., ::answers, :-after],
        positions[..., -after - 1 : -1].reshape(*positions.shape[:-2], *shape),
    )  # fmt: skip
    inputs = packed.inputs(vlm)
    del inputs["use_cache"]  # the fused head says it
    if pixels is not None:
        inputs["pixel_values"] = pixels
    output = model(
        **inputs, labels=packed.labels, shift_labels=packed.labels, fused_lm_head=True,
        skip_positions=packed.layout.skip,
    )  # fmt: skip
    by_answer = packed.layout.by_answer
    entropy = None if output.entropy is None else by_answer(output.entropy).flatten(0, 1)
    return by_answer(output.log_probs).flatten(0, 1), entropy


def shared_scores(
    accelerator: Any,
    model: Any,
    vlm: VolumeVLM,
    input_ids: Tensor,
    attention_mask: Tensor,
    after: int,
    answers: int,
    *,
    rows_per_pass: int | None,
    compute_entropy: bool,
    pixel_values: Tensor | None,
    num_images: list[int] | None,
) -> tuple[Tensor, Tensor | None, None]:
    """Return what trl's method does, a few whole groups at a time."""
    rows = input_ids.shape[0]
    step = max((rows_per_pass or rows) // answers, 1) * answers
    ends = [0] if num_images is None else torch.tensor([0, *num_images]).cumsum(0).tolist()
    log_probs, entropies = [], []
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        counts = None if num_images is None else num_images[start:stop]
        images = None if pixel_values is None else pixel_values[ends[start] : ends[stop]]
        with accelerator.autocast():
            values, entropy = shared_log_probs(
                model, vlm, input_ids[start:stop], attention_mask[start:stop], after, answers, images, counts
            )
        log_probs.append(values)
        if compute_entropy and entropy is not None:
            entropies.append(entropy)
    return torch.cat(log_probs), torch.cat(entropies) if entropies else None, None
