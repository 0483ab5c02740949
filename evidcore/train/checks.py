"""What must hold before the first step, or the run would train on something else than it says."""

from __future__ import annotations

import torch

from evidcore.case import Prompt
from evidcore.contracts import RolloutStrategy
from evidcore.errors import ContractError, RecipeError
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.prompts.rows import PromptSource
from evidcore.prompts.targets import Targets

LOOKED_AT = 8  # prompts of the stream; one of each set is among the first few


def check_start(
    model: VolumeVLM,
    processor: VolumeProcessor,
    source: PromptSource,
    *,
    max_new_tokens: int,
    strategy: RolloutStrategy | None = None,
    where: str,
) -> None:
    """Look at the first prompts of a stage.

    An answer may add `max_new_tokens`; 0 stands for the gold answer's.

    Raises:
        ContractError: if encoder or bridge give numbers that are not finite, or another number of tokens than
            they announce, or a task cannot read its own gold answer.
        RecipeError: if a prompt and its answer do not fit the language model's context.
    """
    targets = Targets(processor, source, strategy=strategy)
    for position in range(LOOKED_AT):
        row = source[position]
        _check_images(model, processor, row.prompt)
        text, _ = row.task.gold(row.prompt)
        if (reason := row.task.parse(row.prompt, text).malformed) is not None:
            raise ContractError(
                f"task {row.prompt.task!r}: finds its own gold answer to prompt {row.prompt.id!r} malformed "
                f"({reason}); no answer could be right."
            )
        asked = len(processor.encode(row.prompt, targets.opening).ids)
        answer = max_new_tokens or len(targets.row(position).answer_ids)
        holds = getattr(model.config.text_config, "max_position_embeddings", None)
        if problem := too_long(where, f"prompt {row.prompt.id!r}", asked, answer, holds):
            raise RecipeError(problem)


@torch.no_grad()
def _check_images(model: VolumeVLM, processor: VolumeProcessor, prompt: Prompt) -> None:
    """The numbers are finite, and there are as many image tokens as embeddings."""
    images = processor.image_processor
    crops = prompt.crops()
    if not crops:
        return
    handles = torch.tensor([images.handle(crop) for crop in crops], device=model.device).reshape(-1, 1)
    for crop, embeddings in zip(crops, model.get_image_features(handles).pooler_output, strict=True):
        if not bool(embeddings.isfinite().all()):
            raise ContractError(
                f"prompt {prompt.id!r}: encoder {images.encoder['use']!r} and bridge "
                f"{images.bridge['use']!r} give numbers that are not finite for {crop.uri()!r}."
            )
        if len(embeddings) != images.tokens(crop):
            raise ContractError(
                f"prompt {prompt.id!r}: bridge {images.bridge['use']!r} announces {images.tokens(crop)} "
                f"tokens and gives {len(embeddings)} for {crop.uri()!r}."
            )


def too_long(where: str, what: str, prompt: int, answer: int, holds: int | None) -> str:
    """Say that no context of `holds` tokens has room for a prompt and its answer; empty where it has."""
    if holds is None or prompt + answer <= holds:
        return ""
    return (
        f"{where}: {what} has {prompt} tokens and its answer up to {answer}, but the language model's "
        f"context holds {holds}. Shorten max_new_tokens, pool more in the bridge, or show fewer slices."
    )
