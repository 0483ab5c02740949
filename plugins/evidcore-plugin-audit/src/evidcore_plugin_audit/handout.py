"""An audit's questions as files for a model that is asked elsewhere, and its answers read back as a policy.

What is handed over is a folder of its own: `questions.jsonl` and `volumes/`. A line has an opaque id, the
words with `<image>` where a volume is shown, the volumes' files in that order, and the most new tokens.
Ids, names and order follow from a hash of all questions, so they tell no condition, patient or case; every
volume is written with the same header, type and time. The same words over the same voxels, as where two
conditions take one patient's volume, are asked once. The key stays behind.

Answers are looked up by words and voxels, as the audit asks again. So they are scored by the same code as a
policy in this process, and a key that another recipe, seed or data set made is refused.
"""

import collections
import dataclasses
import functools
import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.api import Crop, DataError, Policy, Prompt, StageContext
from evidcore.audit.policy import PolicyAudit
from evidcore.audit.stage import POLICY, AuditStage
from evidcore.cache import key_of, plain_file
from evidcore.data import read_geometry, save_volume
from evidcore.data.content import crop_key
from evidcore.data.preparation import show
from evidcore.errors import RecipeError, RunError
from evidcore.evaluate.eval_stage import AnonymizedPolicy
from evidcore.registry.factory import offer_of

WRITTEN_S = 315_532_800  # 1980-01-01: the time of every volume's file, so that none tells when it was made
BYTES = {"hu": 2, "arbitrary": 4}  # a voxel, before compression
MOST_NAMED = 3  # in a message


class TextPolicy(Policy):
    """A policy that writes texts and tells no likelihoods."""

    source = "a file of answers"
    remedy = "Name an evaluation that reads what was written, or audit a model at hand: --model."

    def log_likelihoods(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        what = f"the evaluation asks how likely a completion is, and {self.source} does not say"
        raise RunError(f"{what}. {self.remedy}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """A question of an audit."""

    prompt: Prompt
    max_new_tokens: int
    serves: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # condition and prompt id


class Recorder(TextPolicy):
    """Answers nothing, and records what it is asked."""

    def __init__(self) -> None:
        self.asked: dict[str, Asked] = {}  # by `content`

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[str]:
        for prompt in prompts:
            if "<image>" in prompt.words():
                why = f"prompt {prompt.id!r}: its text holds '<image>', which stands where a volume is shown"
                raise DataError(f"{why}. Take it out of the data.")
            self.asked.setdefault(content(prompt), Asked(prompt=prompt, max_new_tokens=max_new_tokens))
        return [""] * len(prompts)


class RecordedAnswers(TextPolicy):
    """Answers that were written elsewhere, looked up by the words and voxels that they answer."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self.answers = answers

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[str]:
        if lacking := [prompt for prompt in prompts if content(prompt) not in self.answers]:
            why = f"questions were not handed over, the first: {lacking[0].words()[:80]!r}"
            remedy = "An evaluation that asks on after an answer needs a model at hand: --model."
            raise RunError(f"{len(lacking)} {why}. {remedy}")
        return [self.answers[content(prompt)] for prompt in prompts]


def content(prompt: Prompt) -> str:
    """Return a hash of the words and voxels of a question, whoever it is about and wherever its files lie."""
    return key_of([prompt.written(), [crop_key(crop) for crop in prompt.crops()]])


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptExport:
    """Everything that an audit asks."""

    asked: Mapping[str, Asked]  # by `content`
    seed: int  # of the order

    @functools.cached_property
    def preparation(self) -> str:
        """Return a hash of all questions and the seed; ids and names of files hang on it."""
        return key_of([self.seed, sorted(self.asked)])

    @functools.cached_property
    def ids(self) -> dict[str, str]:
        """Return the `content` of each opaque id, in the order of the file."""
        order = sorted(self.asked)
        random.Random(f"handout/{self.seed}/{self.preparation}").shuffle(order)
        return {key_of([self.preparation, key])[:16]: key for key in order}

    @functools.cached_property
    def volumes(self) -> dict[str, Crop]:
        """Return what is shown, by the name of its file."""
        crops = {crop for question in self.asked.values() for crop in question.prompt.crops()}
        named = {self._name(crop): crop for crop in crops}
        return dict(sorted(named.items()))

    @functools.cached_property
    def most_bytes(self) -> int:
        """Return the size of all volumes before compression."""
        return sum(_voxels(crop) * BYTES[crop.volume.intensity] for crop in self.volumes.values())

    def key(self) -> dict[str, Any]:
        """Return what stays behind: which id is which question."""
        questions = {name: {"hash": key, "serves": self.asked[key].serves} for name, key in self.ids.items()}
        return {"preparation": self.preparation, "seed": self.seed, "questions": questions}

    def write(self, folder: Path, follow: Callable[[int, int], None]) -> None:
        """Write `questions.jsonl` and `volumes/` into the folder that is handed over.

        `follow` is told how many volumes of how many are written.
        """
        (folder / "volumes").mkdir(parents=True)
        for number, (name, crop) in enumerate(self.volumes.items(), start=1):
            path = folder / "volumes" / name
            save_volume(show(crop), path)
            os.utime(path, (WRITTEN_S, WRITTEN_S))
            follow(number, len(self.volumes))
        with (folder / "questions.jsonl").open("w", encoding="utf-8") as file:
            for opaque, key in self.ids.items():
                question = self.asked[key]
                line = {
                    "id": opaque, "text": question.prompt.written(),
                    "volumes": [f"volumes/{self._name(crop)}" for crop in question.prompt.crops()],
                    "max_new_tokens": question.max_new_tokens,
                }  # fmt: skip
                file.write(json.dumps(line) + "\n")  # in ASCII: any reader splits the lines alike

    def _name(self, crop: Crop) -> str:
        return f"{key_of([self.preparation, 'volume', crop_key(crop)])[:16]}.nii.gz"

    def refuse_other_key(self, key: Mapping[str, Any], path: Path) -> None:
        """Refuse a key that was not made of these questions."""
        if key["preparation"] == self.preparation:
            return
        theirs = {question["hash"] for question in key["questions"].values()}
        gone, new = len(theirs - self.asked.keys()), len(self.asked.keys() - theirs)
        raise DataError(
            f"{path}: not the preparation that the recipe gives now: of its {len(theirs)} questions {gone} "
            f"are no longer asked, and {new} are new. Recipe, seed, data or conditions have changed. Give "
            "the recipe as it was, or prepare again."
        )


def questions_of(stage: AuditStage, context: StageContext) -> PromptExport:
    """Return every question that an audit asks, for a model that is asked elsewhere."""
    audit = context.component("audit", stage.table("audit", stage.audit), "audit")
    if not isinstance(audit, PolicyAudit):
        why = f"{offer_of(audit)} asks in a way of its own, so its questions cannot be prepared"
        raise RecipeError(f"{context.where}.audit: {why}. Those of {POLICY!r} can.")
    recorder = Recorder()
    for use in stage.data:
        dataset = context.dataset(use.dataset)
        asking = dataclasses.replace(stage.asking(context), dataset=dataset, headline_only=True)
        evaluation, task = stage.evaluation(use, context), context.tasks[use.task]
        for condition, _, some in audit.showings(stage.prompts(use, context), asking):
            evaluation.answer(AnonymizedPolicy(recorder), some, task, asking)
            for prompt in some:
                if question := recorder.asked.get(content(prompt)):
                    question.serves.append((condition, prompt.id))
    return PromptExport(asked=recorder.asked, seed=context.recipe.seed)


def read_key(path: Path) -> dict[str, Any]:
    """Read a key."""
    try:
        result = json.loads(plain_file(path).read_text(encoding="utf-8"))
        if not isinstance(result["preparation"], str) or not isinstance(result["stage"], str):
            raise TypeError("preparation and stage must be text")
        _ = [hash(question["hash"]) for question in result["questions"].values()]
        _ = [item.partition("=") for item in result["overrides"]], int(result["limit"])
    except FileNotFoundError as cause:
        raise DataError(f"{path}: no such file. Give the key that `evid audit prepare` wrote.") from cause
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as cause:
        raise DataError(f"{path}: no key ({cause!r}). Give what `evid audit prepare` wrote.") from cause
    return dict(result)


def read_answers(path: Path, key: Mapping[str, Any]) -> RecordedAnswers:
    """Read a file of answers, one for every question of a key."""
    try:
        lines = (
            plain_file(path).read_text(encoding="utf-8-sig").split("\n")
        )  # answers may hold other line ends
    except FileNotFoundError as cause:
        raise DataError(f"{path}: no such file. Give lines of {{'id': …, 'text': …}}.") from cause
    except (OSError, UnicodeDecodeError) as cause:
        raise DataError(f"{path}: cannot be read as UTF-8 text ({cause}).") from cause
    given: list[tuple[str, str]] = []
    broken = []
    for number, line in enumerate(lines, start=1):
        if answer := _answer(line):
            given.append(answer)
        elif line.strip():
            broken.append(f"line {number}")
    known, counts = key["questions"], collections.Counter(opaque for opaque, _ in given)
    mistakes = {
        "are no answer: an object with an id and a text, both strings": broken,
        "are answered more than once": [item for item, count in counts.items() if count > 1],
        "have no answer": [item for item in known if item not in counts],
        "are not in the key: answers of another preparation": [item for item in counts if item not in known],
    }
    listing = ""
    for what, some in mistakes.items():
        more = ", …" if len(some) > MOST_NAMED else ""
        listing += f"\n  {len(some)} {what} ({', '.join(some[:MOST_NAMED])}{more})" if some else ""
    if listing:
        raise DataError(f"{path}: {len(known)} questions were handed over, and of the answers{listing}")
    return RecordedAnswers({known[opaque]["hash"]: text for opaque, text in given})


def _answer(line: str) -> tuple[str, str] | None:
    """Return id and text of a line, None where it has none."""
    try:
        opaque, text = (json.loads(line)[name] for name in ("id", "text"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(opaque, str) or not isinstance(text, str):
        return None
    return opaque, text.encode(errors="replace").decode()  # half a surrogate pair cannot be written


def _voxels(crop: Crop) -> int:
    z0, z1, y0, y1, x0, x1 = read_geometry(crop.volume).box_of(crop)
    return (z1 - z0) * (y1 - y0) * (x1 - x0)
