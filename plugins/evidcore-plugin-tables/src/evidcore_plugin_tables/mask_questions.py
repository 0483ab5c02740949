"""Dataset `mask-questions`: another data set's cases with questions that their masks answer."""

import collections
import dataclasses
import itertools
import logging
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, MinLen

from evidcore.api import Case, DataError, Dataset, Question
from evidcore.cache import key_of
from evidcore.case import Split
from evidcore.errors import did_you_mean
from evidcore.text.tags import LETTERS
from evidcore_plugin_tables.mask_facts import CaseFacts, MaskFacts, case_facts

log = logging.getLogger(__name__)

Kind = Literal["present", "side", "larger"]
KINDS: tuple[Kind, ...] = ("present", "side", "larger")
Asked = tuple[str, tuple[str, ...]]  # the words, and the options with the right one first


@dataclasses.dataclass(eq=False, repr=False)
class MaskQuestions(Dataset):  # letters are balanced over a split; a task sees one case
    """Cases of another data set, asked about what their masks show.

    Three kinds of questions, each with one right option:

    - `present`: which of these is visible? One mask that is not empty among masks that are.
    - `side`: on which side of the body is it? By the mask's centroid in body axes. Names that say a side are
      not asked about.
    - `larger`: which takes up more volume? Two masks, in ml.

    The right option stands under each letter equally often. What the words give away all the same (a liver is
    on the right) shows in the best blind rule beside every accuracy. Splits, reports, findings and masks are
    the source's; questions that came with its cases make room. Ask in training with task `choice`,
    `training_questions = "given"`.

    Args:
        cache_folder: keeps what was measured of masks.
        source: the data set that has the masks.
        kinds: which questions are asked.
        names: masks that are asked about; all of a case if left out.
        questions_per_kind: most questions of a kind about one case.
        options_per_question: most options of a `present` question.
        smallest_ml: a mask with less is neither visible nor absent, and is not asked about.
        midline: what left and right are told by: "body" (the middle of the body's outline; needs HU, and
            nothing is asked where the scan does not show both flanks), "grid" (the middle of the scan),
            or the name of a mask such as "spine" (its centroid).
        off_midline_mm: a centroid nearer to the midline has no side.
        larger_by: how many times as large the larger of two must be.
        seed: decides what is asked and under which letter.
    """

    cache_folder: Path
    _: dataclasses.KW_ONLY
    source: Dataset
    kinds: Annotated[tuple[Kind, ...], MinLen(1)] = KINDS
    names: tuple[str, ...] = ()
    questions_per_kind: Annotated[int, Ge(1)] = 4
    options_per_question: Annotated[int, Ge(2), Le(len(LETTERS))] = 4
    smallest_ml: Annotated[float, Ge(0)] = 0.0
    midline: str = "body"
    off_midline_mm: Annotated[float, Ge(0)] = 10.0
    larger_by: Annotated[float, Gt(1)] = 1.5
    seed: Annotated[int, Ge(0)] = 17

    def __post_init__(self) -> None:
        """Take over what the source says of itself; nothing is read before cases are asked for."""
        self.derived_from, self.findings = self.source, self.source.findings

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the source's cases with their questions; those without any stay, and are asked nothing."""
        yield from self._asked_about(self.source.cases(split), split)
        self.left_out = self.source.left_out

    def listed(self, split: Split) -> Iterator[Case]:
        """Yield every case that the source names with its questions; without where its masks are unusable."""
        yield from self._asked_about(self.source.listed(split), split, stop=False)

    def _asked_about(self, cases: Iterable[Case], split: Split, *, stop: bool = True) -> Iterator[Case]:
        """Attach the questions; a case whose masks cannot be measured stops the walk, or stays as it is."""
        letters = _Letters(f"{self.seed}/{split}")
        counts: collections.Counter[Kind] = collections.Counter()
        known: set[str] = set()
        case = None
        for case in cases:
            known |= case.masks.keys()
            try:
                facts = self._facts(case)
            except DataError:
                if stop:
                    raise
                yield case
                continue
            questions = []
            for kind in self.kinds:
                asked = self._asked(kind, case, facts) if facts is not None else []
                counts[kind] += len(asked)
                questions += [
                    letters.question(f"{kind}-{number}", kind, words, options)
                    for number, (words, options) in enumerate(asked)
                ]
            yield dataclasses.replace(case, questions=tuple(questions))
        if case is None:
            return
        for kind in self.kinds:
            if not counts[kind]:
                log.warning("mask-questions: split %s: no case allows a question of kind %r.", split, kind)
        by_mask = "side" in self.kinds and self.midline not in ("body", "grid")
        for name in (*self.names, *([self.midline] if by_mask else [])):
            if name not in known:
                log.warning(
                    "mask-questions: split %s: no case has a mask %r.%s There are: %s. Correct the option.",
                    split, name, did_you_mean(name, known), ", ".join(sorted(known)) or "none",
                )  # fmt: skip

    def fingerprint(self) -> str:
        names = [field.name for field in dataclasses.fields(self)]
        options = [getattr(self, name) for name in names if name not in ("cache_folder", "source")]
        return key_of([self.source.fingerprint(), *options])

    def _facts(self, case: Case) -> CaseFacts | None:
        """Measure a case's masks; None where it has none that are asked about."""
        names = [name for name in self.names or case.masks if name in case.masks]
        if not names:
            return None
        plane = {self.midline} & case.masks.keys() if "side" in self.kinds else set()
        body = "side" in self.kinds and self.midline == "body" and case.volumes[0].intensity == "hu"
        return case_facts(case, {*names, *plane}, self.cache_folder, body=body)

    def _asked(self, kind: Kind, case: Case, facts: CaseFacts) -> list[Asked]:
        """Return what is asked about a case, in seeded order."""
        names = [name for name in self.names or sorted(case.masks) if name in case.masks]
        possible = {"present": self._present, "side": self._side, "larger": self._larger}[kind]
        rng = random.Random(f"mask-questions/{self.seed}/{kind}/{case.id}")
        result = possible(facts, names, rng)
        return rng.sample(result, min(self.questions_per_kind, len(result)))

    def _visible(self, facts: CaseFacts, names: list[str]) -> dict[str, MaskFacts]:
        masks = ((name, facts.masks[name]) for name in names)
        return {name: mask for name, mask in masks if mask.voxels and mask.volume_ml >= self.smallest_ml}

    def _present(self, facts: CaseFacts, names: list[str], rng: random.Random) -> list[Asked]:
        absent = [name for name in names if not facts.masks[name].voxels]
        if not absent:
            return []
        result: list[Asked] = []
        for name in self._visible(facts, names):
            others = rng.sample(absent, min(self.options_per_question - 1, len(absent)))
            options = tuple(spoken(each) for each in (name, *others))
            result.append(("Which of these is visible in the scan?", options))
        return result

    def _side(self, facts: CaseFacts, names: list[str], rng: random.Random) -> list[Asked]:
        planes_mm = {name: item.x_mm for name, item in facts.masks.items()}
        plane_mm = (planes_mm | {"body": facts.body_mm, "grid": facts.grid_mm}).get(self.midline)
        if plane_mm is None:
            return []
        place = "scan, as the patient has sides," if self.midline == "grid" else "body"
        result: list[Asked] = []
        for name, mask in self._visible(facts, names).items():
            off_mm = float(mask.x_mm or 0) - plane_mm  # x grows to the patient's left
            says_side = re.search(r"\b(left|right|[lr])\b", spoken(name).lower())
            if abs(off_mm) >= max(self.off_midline_mm, 1e-9) and not says_side and name != self.midline:
                sides = ("left", "right") if off_mm > 0 else ("right", "left")
                result.append((f"On which side of the {place} is the {spoken(name)}?", sides))
        return result

    def _larger(self, facts: CaseFacts, names: list[str], rng: random.Random) -> list[Asked]:
        by_size = sorted(self._visible(facts, names).items(), key=lambda item: -item[1].volume_ml)
        return [
            ("Which of these takes up more volume in the scan?", (spoken(larger), spoken(smaller)))
            for (larger, entry), (smaller, other) in itertools.combinations(by_size, 2)
            if entry.volume_ml >= self.larger_by * other.volume_ml
        ]


def spoken(name: str) -> str:
    """Return a mask's name as words."""
    return name.replace("_", " ")


class _Letters:
    """Puts right options under letters: each equally often among the questions of a kind and length."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._drawn: collections.Counter[tuple[str, int]] = collections.Counter()

    def question(self, identity: str, kind: str, words: str, options: tuple[str, ...]) -> Question:
        """Return the question with its right option, given first, at its place."""
        count = len(options)
        block, step = divmod(self._drawn[kind, count], count)
        self._drawn[kind, count] += 1
        rng = random.Random(f"{self.key}/{kind}/{count}/{block}")
        place = rng.sample(range(count), count)[step]
        others = list(options[1:])
        others.insert(place, options[0])
        return Question(
            id=identity, text=words, options=tuple(others), answer=place, true_options=(place,), kind=kind
        )
