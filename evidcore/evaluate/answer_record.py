"""What every evaluated answer has, whatever it is scored as."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from evidcore.case import Answer, Prompt, Turn
from evidcore.contracts import Task
from evidcore.evaluate.reference_lines import cluster
from evidcore.registry import blame
from evidcore.registry.factory import offer_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerRecord:
    """One prompt answered: a line of `answers/<stage>.jsonl`."""

    prompt_id: str
    case_id: str
    patient: str | None
    task: str
    condition: str
    prompt: str  # what was asked, as text
    text: str  # what was answered
    malformed: str | None
    images: tuple[str, ...]
    turns: tuple[Turn, ...] = ()  # before the last

    def line(self) -> dict[str, Any]:
        """Return the JSON form; without turns where there are none."""
        line = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        turns = [turn.to_json() for turn in line.pop("turns")]
        return line | ({"turns": turns} if turns else {})

    @property
    def cluster(self) -> str:
        """Return the patient, or the case where no patient is known."""
        return cluster(self.patient, self.case_id)


def question_of(prompt: Prompt, condition: str = "own") -> dict[str, Any]:
    """Return what is kept of a prompt beside its answer: the fields that `AnswerRecord` has of it."""
    case = {"case_id": prompt.case.id, "patient": prompt.case.patient}
    asked = {"task": prompt.task, "condition": condition, "prompt": prompt.written()}
    images = tuple(crop.uri() for crop in prompt.crops())
    return {"prompt_id": prompt.id, **case, **asked, "images": images}


def unknown_patients(answers: Iterable[AnswerRecord]) -> str:
    """Return the note that a table needs where intervals take cases for patients, else nothing."""
    count = sum(answer.patient is None for answer in answers)
    return f"{count} questions on cases without a known patient, each case taken for one" if count else ""


def gold_answer(prompt: Prompt, task: Task) -> Answer:
    """Return the gold answer as its task reads it; a task that fails at that is named."""
    with blame(offer_of(task), f"writing and reading the gold answer of prompt {prompt.id!r}"):
        return task.parse(prompt, task.gold(prompt)[0])
