"""Documents for fitting a language model on text: a prompt in which an impression stands for the volume.

Where slices are shown, each sentence of the impression stands on the slice that shows most of its finding.
"""

import dataclasses
import functools
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from evidcore.api import Case, DataError, MaskRef, Prompt, Task, View, VisualPart, VolumeRef, read, read_mask
from evidcore.model.processor import IMAGE_TOKEN
from evidcore.model.template import Turns, read_turns
from evidcore.prompts.rows import texts_of

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
        return [*self.prompt_ids, *self.answer_ids]


@dataclasses.dataclass(frozen=True)
class DocumentDrawer:
    """Draw documents: a prompt in which text stands for the volume, and its gold answer."""

    tokenizer: Any
    tasks: Mapping[str, Task]
    view: View
    image_tokens: int
    cases: Sequence[Case]
    shares: Mapping[str, float]  # by task, where it is not 1
    omitted: float = 0.0  # share of an impression's sentences

    def __post_init__(self) -> None:
        if not self.cases:
            why = "no training case has a present finding"
            raise DataError(f"fit of model.language: {why}; check the data set's labels.")

    @functools.cached_property
    def _easy(self) -> list[Case]:
        few = sorted(self.cases, key=lambda case: len(case.present()))
        return few[: max(1, len(few) // 2)]

    @functools.cached_property
    def _turns(self) -> Turns:
        return read_turns(self.tokenizer, where="fit of model.language")

    def draw(self, rng: random.Random, ease: float) -> Document:
        """Return a document; `ease` in 0..1 favours short prefixes that say little."""
        names = list(self.tasks)
        for _ in range(100):
            easy = rng.random() < ease
            case = rng.choice(self._easy if easy else self.cases)
            task = self.tasks[rng.choices(names, [self.shares.get(name, 1.0) for name in names])[0]]
            prompts = task.prompts(case, self.view, rng.randrange(1, 2**31))
            if not prompts:
                continue
            prompt = rng.choice(prompts)
            shortest = min(_EASY_TOKENS, self.image_tokens) if ease else self.image_tokens
            each = shortest if easy else rng.randint(shortest, self.image_tokens)
            shown = shown_ids(self.tokenizer, prompt, each, rng, 0.0 if easy else self.omitted)
            text, spans = task.gold(prompt)
            answer = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            is_abnormal = [
                any(span.label == "abnormal" and span.start < stop and start < span.end for span in spans)
                for start, stop in answer.offset_mapping
            ]
            answer_ids = [*answer.input_ids, self.tokenizer.eos_token_id]
            return Document(*self.prompt_ids(prompt, shown), answer_ids, [*is_abnormal, False])
        why = "100 draws in a row asked nothing"
        raise DataError(f"fit of model.language: {why}; tasks: {', '.join(names)}.")

    def prompt_ids(self, prompt: Prompt, shown: Sequence[Sequence[int]]) -> tuple[list[int], list[bool]]:
        """Return the chat's token ids up to the answer, and which are those `shown` for its visual parts."""
        image = f"<|vision_start|>{IMAGE_TOKEN}<|vision_end|>"
        asked = "".join(image if isinstance(part, VisualPart) else part.text for part in prompt.parts)
        text = f"{self._turns.before_question}{asked}{self._turns.before_answer}"
        image_id = self.tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
        parts, ids, shows = iter(shown), list[int](), list[bool]()
        for token in self.tokenizer(text, add_special_tokens=False).input_ids:
            stands_for = next(parts) if token == image_id else [token]
            ids += stands_for
            shows += [token == image_id] * len(stands_for)
        return ids, shows


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
        why = "the language model is fitted on impressions, so every case needs one"
        remedy = "Or start from a pretrained model with { id = … }."
        raise DataError(f"case {case.id!r}: notes['impression'] is {text!r}; {why}. {remedy}")
    sentences = re.split(r"(?<=\.)\s+", text.strip())
    rng.shuffle(sentences)
    if omitted:
        sentences = [sentence for sentence in sentences if rng.random() >= omitted]
    dealt: list[list[str]] = [[] for _ in prompt.crops()]
    for sentence in sentences if dealt else ():
        place = _place(sentence, prompt, rng)
        if place is not None:
            dealt[place].append(sentence)
    return [_filled(tokenizer, some, each, rng) for some in dealt]


def _place(sentence: str, prompt: Prompt, rng: random.Random) -> int | None:
    """Return the number of the crop on which a sentence stands; None where no crop shows what it names."""
    case, crops = prompt.case, prompt.crops()
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
    filler = tokenizer(".", add_special_tokens=False).input_ids[:1]
    for _ in range(tokens - sum(map(len, pieces))):
        pieces.insert(rng.randint(0, len(pieces)), filler)
    return [token for piece in pieces for token in piece]


def vocabulary_texts(cases: Sequence[Case], tasks: Mapping[str, Task], view: View) -> list[str]:
    """Return texts that hold every word of prompts, answers and impressions."""
    texts = [str(case.notes.get("impression", "")) for case in cases]
    for case in cases:
        for task in tasks.values():
            for prompt in task.prompts(case, view, 1):
                texts += texts_of(prompt, task)
    return [*texts, "user\n", "assistant\n"]
