"""What must hold before the first step, or the run would train on something else than it says."""

import logging
import os
import time
from collections.abc import Iterable

import torch

from evidcore.case import TextPart
from evidcore.contracts import RolloutStrategy
from evidcore.data.stored import unreadable
from evidcore.errors import ContractError, DataError
from evidcore.model.processor import VolumeProcessor, refuse_too_long
from evidcore.model.vlm import VolumeVLM
from evidcore.prompts.rows import PromptSource, Row
from evidcore.prompts.targets import lengths
from evidcore.registry import blame
from evidcore.registry.factory import offer_of

LOOKED_AT = 8  # prompts of the stream whose images are encoded; one of each set is among the first few
_log = logging.getLogger(__name__)


def check_start(
    model: VolumeVLM,
    processor: VolumeProcessor,
    source: PromptSource,
    *,
    max_new_tokens: int,
    strategy: RolloutStrategy | None = None,
    where: str,
) -> None:
    """Look at the images of a stage's first prompts, and at what can be known of every row without them.

    An answer may add `max_new_tokens`; 0 stands for the gold answer's.

    Raises:
        ContractError: if encoder or bridge give numbers that are not finite, or another number of tokens than
            they announce, or a task cannot read its own gold answer.
        DataError: if a volume or mask of a row is not there, or its gold answer is empty.
        RecipeError: if a prompt and its answer do not fit the language model's context.
    """
    images = processor.image_processor
    for prompt in (source[position].prompt for position in range(LOOKED_AT)):
        if not (crops := prompt.crops()):
            continue
        handles = torch.tensor([images.handle(crop) for crop in crops], device=model.device).reshape(-1, 1)
        with torch.no_grad():
            shown = model.get_image_features(handles).pooler_output
        for crop, embeddings in zip(crops, shown, strict=True):
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
    opening = processor.opening_of(strategy)
    check_rows(source.every_row(), processor, opening, max_new_tokens=max_new_tokens, where=where)


def check_rows(
    rows: Iterable[Row],
    processor: VolumeProcessor | None,
    opening: str,
    *,
    max_new_tokens: int,
    where: str,
    seconds: float = 60.0,
) -> None:
    """Look at each row for so many seconds, without a processor at all but tokens.

    It raises what `check_start` does of rows. Of those that are left, what does not fit is refused when it is
    read.
    """
    ends = time.monotonic() + seconds
    for count, row in enumerate(rows):
        if time.monotonic() > ends:
            told = "%s: %s rows were looked at in %.0f s; the others are when they are read."
            _log.warning(told, where, f"{count:,}", seconds)
            return
        prompt, crops = row.prompt, row.prompt.crops()
        with blame(offer_of(row.task), f"writing and reading the gold answer of prompt {prompt.id!r}"):
            text, _ = row.task.gold(prompt)
            reason = row.task.parse(prompt, text).malformed
        if reason is not None:
            raise ContractError(
                f"{offer_of(row.task)}: task {prompt.task!r} finds its own gold answer {text[:60]!r} to "
                f"prompt {prompt.id!r} malformed ({reason}); no answer could be right."
            )
        if not text.strip():
            raise DataError(
                f"prompt {prompt.id!r}: its gold answer is empty. Give the case a text, or leave it out."
            )
        paths = [crop.volume.path for crop in crops] + [ref.path for ref in prompt.case.regions.values()]
        if (gone := next((path for path in paths if not os.path.exists(path)), None)) is not None:
            remedy = "Restore it, or drop the case."
            raise DataError(f"prompt {prompt.id!r}: {unreadable(gone, remedy=remedy)}")
        if processor is None:
            continue
        processor.refuse_control_token(text, f"prompt {prompt.id!r}: its gold answer", is_answer=True)
        if (holds := processor.context_tokens) is None:
            continue
        texts = [part.text for part in prompt.parts if isinstance(part, TextPart)]
        texts += [opening or processor.turns.before_question, processor.turns.before_answer, text]
        most = sum(len(item.encode()) for item in texts) + len(processor.end_ids) + max_new_tokens
        most += sum(processor.image_processor.tokens(crop) + 2 for crop in crops)
        if most > holds or row.task.gold_turns(prompt):  # a token is a byte or more: few are counted
            asked, answer = lengths(row, processor, opening)
            refuse_too_long(holds, prompt.id, asked, max_new_tokens or answer)
