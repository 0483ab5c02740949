"""Documents for fitting a language model on text: a prompt in which an impression stands for the volume.

Where slices are shown, each sentence of the impression stands on the slice that shows most of its finding.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.case import Case, Crop, MaskRef, Prompt, Span, VisualPart, VolumeRef
from evidcore.contracts import Task, View
from evidcore.data import read, read_mask
from evidcore.errors import DataError
from evidcore.model.processor import IMAGE_TOKEN
from evidcore.model.template import Turns, read_turns
from evidcore.prompts.rows import texts_of

_FILLER = "."
_EASY_TOKENS = 16  # the fewest that stand for a visual part in the first steps


@dataclasses.dataclass(frozen=True)
class Document:
    """A prompt and its gold answer as tokens."""

    prompt_ids: Sequence[int]
    shows: Sequence[bool]  # for each prompt token: does it stand for the volume?
    answer_ids: Sequence[int]
    is_abnormal: Sequence[bool]  # for each answer token: does it stand in a sentence on something abnormal?

    @property
    def ids(self) -> list[int]:
        """Return all tokens."""
        return [*self.prompt_ids, *self.answer_ids]


class DocumentDrawer:
    """Draw documents: a prompt in which text stands for the volume, and its gold answer."""

    def __init__(
        self,
        tokenizer: Any,
        tasks: Mapping[str, Task],
        view: View,
        image_tokens: int,
        cases: Sequence[Case],
        shares: Mapping[str, float],
        omitted: float = 0.0,
    ) -> None:
        """Keep what is drawn from.

        Raises:
            DataError: if there is no case with a finding, or a share names no task.
        """
        if not cases:
            raise DataError(
                "fit of model.language: no training case has a present finding; check the data set's labels."
            )
        if unknown := sorted(set(shares) - set(tasks)):
            raise DataError(f"fit of model.language: shares names {unknown[0]!r}; tasks: {', '.join(tasks)}.")
        self._tokenizer, self._tasks, self._view, self._tokens = tokenizer, tasks, view, image_tokens
        self._turns = read_turns(tokenizer, where="fit of model.language")
        self._names = list(tasks)
        self._shares = [shares.get(name, 1.0) for name in tasks]
        self._cases = cases
        self._omitted = omitted
        few = sorted(cases, key=lambda case: len(case.present()))
        self._easy = few[: max(1, len(few) // 2)]

    def draw(self, rng: random.Random, ease: float) -> Document:
        """Return a document; `ease` in 0..1 favours short prefixes that say little."""
        for _ in range(100):
            easy = rng.random() < ease
            case = rng.choice(self._easy if easy else self._cases)
            task = self._tasks[rng.choices(self._names, self._shares)[0]]
            prompts = task.prompts(case, self._view, rng.randrange(1, 2**31))
            if not prompts:
                continue
            prompt = rng.choice(prompts)
            shortest = min(_EASY_TOKENS, self._tokens) if ease else self._tokens
            each = shortest if easy else rng.randint(shortest, self._tokens)
            shown = shown_ids(self._tokenizer, prompt, each, rng, 0.0 if easy else self._omitted)
            return self._document(prompt_ids(self._tokenizer, self._turns, prompt, shown), *task.gold(prompt))
        raise DataError(
            f"fit of model.language: 100 draws in a row asked nothing; tasks: {', '.join(self._names)}."
        )

    def _document(self, prompt: Sequence[int], text: str, spans: Sequence[Span]) -> Document:
        answer = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        abnormal = [span for span in spans if span.label == "abnormal"]
        told = [
            any(span.start < stop and start < span.end for span in abnormal)
            for start, stop in answer.offset_mapping
        ]
        start, stop = self._tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>"])
        depth = itertools.accumulate((token == start) - (token == stop) for token in prompt)
        shows = [bool(inside) and token != start for inside, token in zip(depth, prompt, strict=True)]
        return Document(prompt, shows, [*answer.input_ids, self._tokenizer.eos_token_id], [*told, False])


def shown_ids(
    tokenizer: Any, prompt: Prompt, each: int, rng: random.Random, omitted: float = 0.0
) -> list[list[int]]:
    """Return `each` token ids for every visual part; together they say the impression of the prompt's case.

    A sentence stands on the part that shows most of the finding that it names, by its mask; where no part
    shows it, it is left out, and where no mask tells, it stands on any. Sentences of a part come in random
    order at random places among full stops; those that do not fit are left out, and a share of `omitted`
    besides.

    Raises:
        DataError: if the case has no impression, or a mask cannot be read.
    """
    case = prompt.case
    text = case.notes.get("impression")
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"case {case.id!r}: notes['impression'] is {text!r}; the language model is fitted on "
            "impressions, so every case needs one. Or start from a pretrained model with { id = … }."
        )
    sentences = re.split(r"(?<=\.)\s+", text.strip())
    rng.shuffle(sentences)
    if omitted:
        sentences = [sentence for sentence in sentences if rng.random() >= omitted]
    crops = prompt.crops()
    dealt: list[list[str]] = [[] for _ in crops]
    for sentence in sentences if crops else ():
        place = _place(sentence, case, crops, rng)
        if place is not None:
            dealt[place].append(sentence)
    return [_filled(tokenizer, some, each, rng) for some in dealt]


def _place(sentence: str, case: Case, crops: Sequence[Crop], rng: random.Random) -> int | None:
    """Return the number of the crop on which a sentence stands; None where no crop shows what it names."""
    if len(crops) == 1 and crops[0].box_zyx is None:
        return 0
    names = sorted({*case.present(), *case.masks}, key=len, reverse=True)  # "renal cyst" before "cyst"
    name = next((name for name in names if name.lower() in sentence.lower()), "")
    if name in case.masks:
        areas = _areas(case.masks[name], case.volumes[0])
        seen = [sum(areas[crop.box_zyx[0] : crop.box_zyx[1]] if crop.box_zyx else areas) for crop in crops]
        return seen.index(max(seen)) if any(seen) else None
    return rng.randrange(len(crops))


@functools.lru_cache(maxsize=20_000)
def _areas(mask: MaskRef, volume: VolumeRef) -> tuple[int, ...]:
    """Return the voxels of a mask, slice by slice."""
    return tuple(read_mask(mask, like=read(volume)).sum(axis=(1, 2)).tolist())


def _filled(tokenizer: Any, sentences: Sequence[str], tokens: int, rng: random.Random) -> list[int]:
    """Return `tokens` ids that say the sentences, as far as they fit, among full stops."""
    pieces = [
        tokenizer((" " if number else "") + sentence, add_special_tokens=False).input_ids
        for number, sentence in enumerate(sentences)
    ]
    while sum(map(len, pieces)) > tokens:
        pieces.pop()
    filler = tokenizer(_FILLER, add_special_tokens=False).input_ids[:1]
    for _ in range(tokens - sum(map(len, pieces))):
        pieces.insert(rng.randint(0, len(pieces)), filler)
    return [token for piece in pieces for token in piece]


def prompt_ids(tokenizer: Any, turns: Turns, prompt: Prompt, shown: Sequence[Sequence[int]]) -> list[int]:
    """Return the chat's token ids up to the answer, with `shown` in the place of its visual parts."""
    image = f"<|vision_start|>{IMAGE_TOKEN}<|vision_end|>"
    asked = "".join(image if isinstance(part, VisualPart) else part.text for part in prompt.parts)
    text = f"{turns.before_question}{asked}{turns.before_answer}"
    image_id = tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
    dealt = iter(shown)
    ids = tokenizer(text, add_special_tokens=False).input_ids
    return [each for token in ids for each in (next(dealt) if token == image_id else [token])]


def vocabulary_texts(cases: Sequence[Case], tasks: Mapping[str, Task], view: View) -> list[str]:
    """Return texts that hold every word of prompts, answers and impressions."""
    texts = [str(case.notes.get("impression", "")) for case in cases]
    for case in cases:
        for task in tasks.values():
            for prompt in task.prompts(case, view, 1):
                texts += texts_of(prompt, task)
    return [*texts, "user\n", "assistant\n"]
