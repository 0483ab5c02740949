"""Data set `phantom-chest`: generated chest CTs with the 18 findings of CT-RATE.

Who it is, how it looks, what is said of it, what is asked about it: each is drawn from streams of its own. In
the questions text alone is no help: findings, letters and distractors are balanced.
"""

import dataclasses
import functools
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS

from evidcore.api import Finding, InlineOptions, MaskRef, Question
from evidcore.case import Side
from evidcore_plugin_phantoms.anatomy import LEFT, RIGHT, SPACING_MM_ZYX, Body, Choices, draw_table, healthy
from evidcore_plugin_phantoms.cues import NO_CUES, Cues
from evidcore_plugin_phantoms.phantoms import BALANCING, Count, Described, Drawn, Phantoms, chances, noisy
from evidcore_plugin_phantoms.signs import SIGNS, index_of, is_visible
from evidcore_plugin_phantoms.wording import ABSENT, Sentence, naming, on_the, one_of

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
INDICATIONS: dict[str, list[str]] = TABLES["indications"]
LETTERS = 4
# streams of a phantom; each sign's is SIGN with its index, each cue's CUE with its own
PATIENT, ANATOMY, SIGN, NOISE, WORDS, CUE = range(6)


@dataclasses.dataclass(kw_only=True, eq=False)
class PhantomChest(Phantoms):
    """Chest phantoms whose signs, words and priors are known and adjustable.

    Volumes are 32 x 64 x 64 voxels of 10 x 5.5 x 5.5 mm in HU. Every finding that a case is labelled with can
    be seen: a sign that others hide is not labelled. The patients of the splits are drawn from separate
    random streams, so they are disjoint.

    Args:
        prior_strength: how well text alone predicts the findings. At 0 they are independent of each other
            and of every text. Above 0 each patient has an indication ("smoker"), which stands in the
            questions and in the case's notes; at 1 a finding is five times as likely, at most 90 %, under
            its own indication, which makes it up to 15 times as likely there as elsewhere.
        subtlety: multiplies the noise (12 to 22 HU); the contrast-to-noise ratio of every sign falls.
        prevalence: probability of each finding.
        questions_per_finding: size of the test split's balanced question set, in questions per finding;
            the other splits have as many per case. Each finding is right as often as any other, under
            each letter as often, and a distractor three times as often as it is right.
        names_absent: reports have a sentence for each absent finding, as structured ones do. Without,
            they praise what is healthy in general terms, and what they say of the findings stands in
            their last sentences alone.
    """

    train_cases: Count = 3000
    validation_cases: Count = 300
    test_cases: Count = 600
    prior_strength: Annotated[float, Ge(0), Le(1)] = 0.0
    subtlety: Annotated[float, Gt(0), Le(20)] = 1.0
    prevalence: Annotated[float, Gt(0), Le(0.8)] = 0.2
    questions_per_finding: Count = 72
    names_absent: bool = True
    cues: Annotated[Cues, InlineOptions] = NO_CUES

    findings = CT_RATE_FINDINGS
    folder_name = "phantom-chest"
    asked = ("questions_per_finding",)
    known_as = Described

    def __post_init__(self) -> None:
        """Refuse cues that mean nothing; nothing is drawn before cases are asked for."""
        self.cues.check(self.folder_name, CT_RATE_FINDINGS, self.prior_strength)

    def draw(self, split: str, number: int, *, without: str | None = None) -> Drawn:
        """Draw one phantom, each sign from a stream of its own.

        A sign that others hide is not drawn, so what is drawn is what is labelled. A twin, without a finding
        that the phantom shows, differs in that finding's voxels; without a large heart also in what lies on
        it. It has the phantom's cues.
        """
        stream = functools.partial(self.stream, split, number)
        strength = self.cues.company or self.prior_strength
        wanted, sides, indication = draw_patient(
            stream(PATIENT), prevalence=self.prevalence, prior_strength=strength
        )
        choices: Choices = {}
        body, sizes = painted(stream, sides, wanted, choices)
        while hidden := [name for name in wanted if not is_visible(body, name)]:
            wanted = [name for name in wanted if name not in hidden]
            body, sizes = painted(stream, sides, wanted, choices)
        types = tuple(INDICATIONS)
        scanned = self.cues.scanner(functools.partial(stream, CUE), types, indication, wanted)
        if without in wanted:
            wanted.remove(without)
            body, sizes = painted(stream, sides, wanted, choices)
        shown = [Finding(name=name, side=sides.get(name), size_mm=sizes.get(name)) for name in wanted]
        if scanned.table is not None:
            draw_table(body, scanned.table)
        noise = stream(NOISE)
        findings = {name: Finding(name=name, state="absent") for name in CT_RATE_FINDINGS}
        return Drawn(
            hu=noisy(body.hu, scanned.noise_hu(noise) * self.subtlety, noise),
            spacing_mm_zyx=scanned.spacing_mm(SPACING_MM_ZYX),
            arrays={name: body.visible(index_of(name)) for name in wanted},
            known=Described.of(
                sentences(stream(WORDS), shown, names_absent=self.names_absent),
                (findings | {item.name: item for item in shown}).values(),
                impression=impression(shown),
                indication=indication,
            ),
        )

    def parts(self, split: str, known: Sequence[Described], paths: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield report, findings, masks and balanced questions of each case."""
        per_finding = round(self.questions_per_finding * len(known) / (self.test_cases or len(known)))
        rng, indicated = self.stream(split, *BALANCING), self.prior_strength > 0
        present = [[item.name for item in each.findings if item.state == "present"] for each in known]
        asked: list[list[Question]] = [[] for _ in known]
        for case, options, answer in balanced_items(present, CT_RATE_FINDINGS, per_finding, rng):
            text = question(rng, known[case].indication if indicated else None)
            id, right = f"{split}-{case:05d}-{len(asked[case])}", (answer,)
            asked[case].append(Question(id=id, text=text, options=options, answer=answer, true_options=right))
        for each, names, questions, path in zip(known, present, asked, paths, strict=True):
            masks = {name: MaskRef(path=path, key=name) for name in names}
            yield {**each.fields(indicated=indicated), "masks": masks, "questions": tuple(questions)}


def painted(
    stream: Callable[..., np.random.Generator], sides: Mapping[str, str], names: list[str], choices: Choices
) -> tuple[Body, dict[str, float | None]]:
    """Draw the chest with its signs; return it with the sizes of the signs, in mm."""
    large_heart, airways = (
        index_of(name) if name in names else None for name in ("cardiomegaly", "peribronchial thickening")
    )
    body = healthy(stream(ANATOMY), large_heart=large_heart, thick_airways=airways)
    body.choices = choices
    sizes: dict[str, float | None] = {}
    for name, sign in SIGNS.items():
        if name in names:
            side, index = LEFT if sides.get(name) == "left" else RIGHT, index_of(name)
            sizes[name] = sign(body, index, stream(SIGN, index), side)
    return body, sizes


def draw_patient(
    rng: np.random.Generator, *, prevalence: float, prior_strength: float
) -> tuple[list[str], dict[str, Side], str]:
    """Draw a patient's type, then the findings given the type, then sides.

    Returns:
        The findings; the side of each that has one, whether present or not; the type.
    """
    kind = int(rng.integers(len(INDICATIONS)))
    table = chances(CT_RATE_FINDINGS, INDICATIONS, prevalence=prevalence, prior_strength=prior_strength)
    present = rng.random(len(CT_RATE_FINDINGS)) < table[kind]
    sides = rng.integers(RIGHT, LEFT + 1, len(CT_RATE_FINDINGS))
    return (
        [name for name, flag in zip(CT_RATE_FINDINGS, present, strict=True) if flag],
        {name: "left" if sides[index_of(name)] == LEFT else "right" for name in TABLES["sided"]},
        tuple(INDICATIONS)[kind],
    )


def sentences(
    rng: np.random.Generator, shown: Sequence[Finding], *, names_absent: bool = True
) -> list[Sentence]:
    """Return a report's sentences: what is normal first, then what is not.

    Of a large heart nothing else is said.
    """
    present = {item.name for item in shown}
    known, share = TABLES["healthy"], 0.4
    if not names_absent:
        known, share = known + TABLES["healthy_beside"], 0.9
    told = [text for text in known if rng.random() < share]
    if "cardiomegaly" in present:
        told = [text for text in told if "heart" not in text]
    lines = [Sentence(text=text, label="normal") for text in told]
    if names_absent:
        absent = [name for name in CT_RATE_FINDINGS if name not in present]
        lines += [naming(one_of(rng, ABSENT), name, "normal", a_name=name) for name in absent]
    for item in shown:
        slots = {
            "a_name": "a " * (item.name in TABLES["counted"]) + item.name,
            "size": "" if item.size_mm is None else f" of {item.size_mm:.0f} mm",
            "place": on_the(item.side),
        }
        lines.append(naming(one_of(rng, TABLES["present"]), item.name, "abnormal", **slots))
    return lines


def impression(shown: Sequence[Finding]) -> str:
    """Return the abnormal findings alone, one short sentence each."""
    return " ".join(f"{item.name.capitalize()}{on_the(item.side)}." for item in shown) or "No abnormality."


def question(rng: np.random.Generator, indication: str | None) -> str:
    """Return the words of a question, with the clinical indication in front where there is one."""
    stem = one_of(rng, TABLES["stems"])
    return stem if indication is None else f"Indication: {indication}. {stem}"


def balanced_items(
    present: Sequence[Sequence[str]], vocabulary: Sequence[str], per_finding: int, rng: np.random.Generator
) -> list[tuple[int, tuple[str, ...], int]]:
    """Draw questions about one present finding among three absent ones.

    Each finding that occurs in the split is right `per_finding` times and as often under each letter (one
    more or less where the number is not a multiple of four), and a distractor three times as often, or as
    nearly so as the cases allow. A finding that occurs in no case is neither asked about nor offered.

    Returns:
        Of each question the case, the options and the number of the right one; by case.
    """
    numbered = list(enumerate(present))
    cases_with = {name: [number for number, names in numbered if name in names] for name in vocabulary}
    asked = [name for name in vocabulary if cases_with[name]]
    if len(asked) < LETTERS:
        return []
    owed = Counter({name: (LETTERS - 1) * per_finding for name in asked})
    pairs: list[tuple[int, str]] = []
    for name in asked:
        order = rng.permutation(cases_with[name])
        pairs += [(int(order[number % len(order)]), name) for number in range(per_finding)]
    slots: dict[str, list[int]] = {}
    for index, name in enumerate(asked):
        slots[name] = [(index + number) % LETTERS for number in range(per_finding)]
        rng.shuffle(slots[name])
    items = []
    # the most constrained cases choose their distractors first, while every finding is still owed
    tight = sorted(rng.permutation(len(pairs)), key=lambda number: -len(present[pairs[number][0]]))
    for number in tight:
        case, name = pairs[number]
        free = [other for other in asked if other not in present[case]]
        if len(free) < LETTERS - 1:
            continue
        ranked = sorted(rng.permutation(free), key=lambda other: -owed[other])
        wrong = [str(other) for other in rng.permutation(ranked[: LETTERS - 1])]
        owed.subtract(wrong)
        answer = slots[name].pop()
        items.append((case, (*wrong[:answer], name, *wrong[answer:]), answer))
    return sorted(items, key=lambda item: item[0])
