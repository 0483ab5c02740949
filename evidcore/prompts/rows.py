"""A seeded stream of prompts without end, read by position: a resumed stage reads on where it stopped."""

import dataclasses
import functools
import hashlib
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from evidcore.case import Case, Crop, Prompt, TextPart, VisualPart
from evidcore.contracts import StageContext, Task, View
from evidcore.errors import DataError
from evidcore.recipe.schema import DataUse

Volumes = Literal["own", "other-patient", "blank"]  # what a case shows; all but its own are controls
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptSet:
    """One `data` entry of a stage."""

    name: str  # the task's name in the recipe
    task: Task
    view: View
    cases: Sequence[Case]
    share: float = 1.0


@dataclasses.dataclass(frozen=True)
class Row:
    """A prompt of the stream and the task that asks it."""

    prompt: Prompt
    task: Task


def prompt_sets(context: StageContext, data: Sequence[DataUse]) -> list[PromptSet]:
    """Return what a training stage draws its rows from."""
    return [
        PromptSet(
            name=use.task, task=context.tasks[use.task], view=context.view, cases=context.cases(use),
            share=use.sampling_weight,
        )
        for use in data
    ]  # fmt: skip


class PromptSource:
    """Draw prompts from sets in proportion to their shares.

    Each set runs through its cases in a fresh order every epoch and asks them with a fresh seed.
    """

    def __init__(
        self, sets: Sequence[PromptSet], *, seed: int, volumes: Volumes = "own", in_turn: int = 1
    ) -> None:
        """Keep the sets.

        Shares are relative. `in_turn` prompts of a case follow each other; a case of which less is asked is
        asked again with another seed. As training controls, "other-patient" shows each prompt over the pixels
        of another patient, always the same one, and "blank" over air.
        """
        if not sets or sum(item.share for item in sets) <= 0:
            raise DataError("data: no set has a share above 0; give the stage at least one.")
        self.sets = [item for item in sets if item.share > 0]
        self.seed, self.in_turn = seed, in_turn
        self._order: list[tuple[int, int]] = []  # per case asked: set, how many drawn from it before
        self._drawn = [0] * len(self.sets)
        self._askable = [askable(item, seed) for item in self.sets]
        is_other = volumes == "other-patient"
        self._others = [_other_patients(it.cases, seed, it.name) if is_other else {} for it in self.sets]
        self._is_blank = volumes == "blank"
        for item, cases, others in zip(self.sets, self._askable, self._others, strict=True):
            _check_crops(item, cases, others)
        self._row = functools.lru_cache(maxsize=4096)(self._draw)

    def __getitem__(self, position: int) -> Row:
        turn, question = divmod(position, self.in_turn)
        while len(self._order) <= turn:
            self._advance()
        return self._row(*self._order[turn], question)

    def every_row(self) -> Iterator[Row]:
        """Yield what is asked about each case of each set in its first epoch, over its own volumes."""
        for item, cases in zip(self.sets, self._askable, strict=True):
            first = seed_of(f"{self.seed}/{item.name}/0")
            for case in cases:
                for prompt in item.task.prompts(case, item.view, first):
                    yield Row(dataclasses.replace(prompt, task=item.name), item.task)

    def _advance(self) -> None:
        """Give the next case to the set that is furthest behind its share."""
        total = sum(item.share for item in self.sets)
        done = len(self._order) + 1
        pairs = zip(self.sets, self._drawn, strict=True)
        behind = [done * item.share / total - drawn for item, drawn in pairs]
        chosen = max(range(len(behind)), key=behind.__getitem__)
        self._order.append((chosen, self._drawn[chosen]))
        self._drawn[chosen] += 1

    def _draw(self, chosen: int, number: int, question: int) -> Row:
        item, cases = self.sets[chosen], self._askable[chosen]
        epoch, place = divmod(number, len(cases))
        order = _order(len(cases), f"{self.seed}/{item.name}/{chosen}/{epoch}")
        for step in range(len(cases)):
            case = cases[order[(place + step) % len(cases)]]
            key = f"{self.seed}/{item.name}/{epoch}"
            prompts = item.task.prompts(case, item.view, seed_of(key))
            if prompts:
                again, pick = divmod(question, len(prompts))
                if again:
                    prompts = item.task.prompts(case, item.view, seed_of(f"{key}/{again}"))
                pick = (seed_of(f"{key}/{case.id}") + pick) % len(prompts)
                prompt = dataclasses.replace(prompts[pick], task=item.name)
                other = self._others[chosen].get(case.id)
                if other is not None:
                    prompt = prompt.showing(_crops(item.view, other))
                return Row(prompt.with_blank_volumes() if self._is_blank else prompt, item.task)
        raise DataError(f"task {item.name!r} asks nothing about its {len(cases)} cases in epoch {epoch}.")


def texts_of(prompt: Prompt, task: Task) -> list[str]:
    """Return what a prompt and its gold answer say, turn by turn: vocabularies are counted in it."""
    turns = [turn.text for turn in task.gold_turns(prompt)]
    return [*(part.text for part in prompt.parts if isinstance(part, TextPart)), *turns, task.gold(prompt)[0]]


def seed_of(text: str) -> int:
    """Return a 31-bit seed above 0; 0 is evaluation's."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") // 2 + 1


@functools.lru_cache(maxsize=64)
def _order(count: int, key: str) -> tuple[int, ...]:
    order = list(range(count))
    random.Random(key).shuffle(order)
    return tuple(order)


def askable(item: PromptSet, seed: int) -> list[Case]:
    """Return the cases that a task asks about; warn of those that training does not, refuse if all."""
    cases = [case for case in item.cases if item.task.prompts(case, item.view, 0)]
    first = seed_of(f"{seed}/{item.name}/0")
    silent = sum(not item.task.prompts(case, item.view, first) for case in cases)
    note = f"cases in training. {item.task.training_note}".rstrip()
    if silent == len(cases):
        raise DataError(f"task {item.name!r} asks nothing about any of its {len(item.cases)} {note}")
    if silent:
        log.warning("task %r asks nothing about %d of its %d %s", item.name, silent, len(cases), note)
    return cases


def _crops(view: View, case: Case) -> tuple[Crop, ...]:
    return tuple(part.crop for part in view.render(case) if isinstance(part, VisualPart))


def _check_crops(item: PromptSet, cases: Sequence[Case], others: Mapping[str, Case]) -> None:
    """Refuse pairs of cases of which one cannot be shown in the place of the other."""
    for case in cases if others else ():
        expected = {len(prompt.crops()) for prompt in item.task.prompts(case, item.view, 0)}
        given = len(_crops(item.view, others[case.id]))
        if expected != {given}:
            counts = " or ".join(str(count) for count in sorted(expected))
            raise DataError(
                f"volumes = 'other-patient': task {item.name!r} shows {counts} images of case {case.id!r}, "
                f"but case {others[case.id].id!r}, whose pixels would stand there, has {given}. Use a view "
                "that shows as many of every case, or leave out cases with fewer slices or volumes."
            )


def _other_patients(cases: Sequence[Case], seed: int, name: str) -> dict[str, Case]:
    """Pair each case with one of the next patient in a seeded circle of patients."""
    by_patient: dict[str, list[Case]] = {}
    for case in cases:
        by_patient.setdefault(case.patient or case.id, []).append(case)
    if len(by_patient) < 2:
        raise DataError(
            f"volumes = 'other-patient': task {name!r} has {len(by_patient)} patient, needs at least 2."
        )
    patients = sorted(by_patient)
    random.Random(f"{seed}/{name}/other-patient").shuffle(patients)
    following = dict(zip(patients, patients[1:] + patients[:1], strict=True))
    return {
        case.id: by_patient[following[patient]][index % len(by_patient[following[patient]])]
        for patient, scans in by_patient.items()
        for index, case in enumerate(scans)
    }
