"""Checks of the kinds that read text or images: labeler, scorer, reweighter, reader."""

import dataclasses
import itertools
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from evidcore.api import Crop, Finding, Labeler, Reader, Reweighter, Scorer, Span
from evidcore.case import Side, State
from evidcore.contracts import ImageQuestion, LabelError
from evidcore_testing.clauses import Clauses, close


def check_reader(reader: Reader, questions: Sequence[ImageQuestion], folder: Path) -> None:
    """Assert the contract of a reader.

    - it declares whether it is deterministic;
    - an answer per question;
    - an answer is a text that is not empty, or None;
    - a deterministic reader answers twice the same, and alone as among others;
    - it answers the same where nothing lies beside the volume: it has pixels to go by, no report.

    Args:
        reader: the component under test, with its weights.
        questions: what it is shown and asked; at least two tell whether it answers each by itself.
        folder: an empty one; the volumes are copied there under other names.
    """
    check = Clauses(reader)
    declared = getattr(reader, "deterministic", None)
    check(isinstance(declared, bool), "it declares whether it is deterministic", f"got {declared!r}")
    with check.raises_nothing("it has what it needs", "ready()"):
        reader.ready()
    answers = list(reader(questions))
    got = f"got {len(answers)} answers to {len(questions)} questions"
    check(len(answers) == len(questions), "an answer per question", got)
    for answer in answers:
        sound = answer is None or (isinstance(answer, str) and answer.strip())
        check(sound, "an answer is a text that is not empty, or None", f"got {answer!r}")
    if not declared:
        return
    again = list(reader(questions))
    check(answers == again, "a deterministic reader answers twice the same", f"{answers!r}, then {again!r}")
    alone = [answer for question in questions for answer in reader([question])]
    check(answers == alone, "a question is answered alone as among others", f"{answers!r}, then {alone!r}")
    moved = [
        dataclasses.replace(question, crops=_moved(question.crops, folder / str(number)))
        for number, question in enumerate(questions)
    ]
    clause = "it goes by pixels, not by what lies beside them"
    with check.raises_nothing(clause, "a volume that lies alone"):
        apart = list(reader(moved))
    check(apart == answers, clause, f"{answers!r} became {apart!r} where the volume lies alone")


def _moved(crops: Sequence[Crop], folder: Path) -> tuple[Crop, ...]:
    """Return the crops of copies that lie alone, under other names."""
    result = []
    for number, crop in enumerate(crops):
        source = Path(crop.volume.path)
        target = folder / str(number) / f"volume{''.join(source.suffixes)}"
        target.parent.mkdir(parents=True)
        shutil.copyfile(source, target)
        ref = dataclasses.replace(crop.volume, path=str(target))
        result.append(dataclasses.replace(crop, volume=ref))
    return tuple(result)


REPORT = (
    "The heart size is normal. There is a 7 mm nodule in the left upper lobe. "
    "No pleural effusion is seen. Small consolidation on the right cannot be excluded."
)
SPANS = (
    Span(start=0, end=25, label="normal"),
    Span(start=26, end=72, label="abnormal"),
    Span(start=73, end=101, label="normal"),
    Span(start=102, end=154, label="abnormal"),
)
TEXTS = (REPORT, "No lung nodule.", "", "   \n", "größer als 7 mm — “Rundherd”", "...", "nodule " * 200)

QUESTIONS = ("Which finding is present?", "Write the report.")


def check_labeler(
    labeler: Labeler,
    *,
    texts: Sequence[str] = TEXTS,
    expected: Mapping[str, Mapping[str, State]] | None = None,
) -> None:
    """Assert the contract of a labeler.

    - it reads any text, or says of it that it is unread, without quoting it;
    - each finding has a name, a known state and side and a size above 0 mm;
    - each span lies inside the text;
    - an empty text has no findings;
    - equal texts get equal findings, one by one and all at once;
    - what is expected is found.

    Args:
        labeler: the component under test.
        texts: what to read, anything a model might write.
        expected: for some texts, the state of the findings that they speak of, by name.
    """
    check = Clauses(labeler)
    every = [*texts, *(expected or {})]
    with check.raises_nothing("any text is read or said to be unread", f"{len(every)} texts at once"):
        at_once = list(labeler.read(every))
    check(len(at_once) == len(every), "a reading per text", f"got {len(at_once)} for {len(every)}")
    for text, read in zip(every, at_once, strict=True):
        where = f"{text[:60]!r}"
        findings: tuple[Finding, ...] | LabelError
        with check.raises_nothing("any text is read or said to be unread", where):
            try:
                findings = labeler(text)
            except LabelError as reason:
                findings = reason
        if isinstance(findings, LabelError):
            got = f"got {str(findings)!r} for {where}"
            check(len(text) < 8 or text not in str(findings), "an unread text is not quoted", got)
            check(isinstance(read, LabelError), "equal texts get equal findings", f"{read}, unread")
            check(text.strip(), "an empty text has no findings", got)
            continue
        for finding in findings:
            clause = "a finding has a name, a known state and side, and a size above 0 mm"
            check(finding.name, clause, f"got {finding} in {where}")
            check(finding.state in get_args(State), clause, f"got {finding}")
            check(finding.side in (None, *get_args(Side)), clause, f"got {finding}")
            check(finding.size_mm is None or 0 < finding.size_mm < math.inf, clause, f"got {finding}")
            if finding.span is not None:
                got = f"got {finding.span.start}..{finding.span.end} in a text of {len(text)} characters"
                check(finding.span.end <= len(text), "each span lies inside the text", got)
        check(text.strip() or not findings, "an empty text has no findings", f"got {findings}")
        for again in (labeler(text), read):
            check(again == findings, "equal texts get equal findings", f"{findings}, then {again}")
    for text, states in (expected or {}).items():
        known = {finding.name: finding.state for finding in labeler(text)}
        for name, state in states.items():
            got = f"{name!r} is {state} in {text!r}, got {known.get(name)!r}"
            check(known.get(name) == state, "what a text says is found", got)


def check_scorer(
    scorer: Scorer, *, texts: Sequence[str] = (REPORT, "There is a large pleural effusion.")
) -> None:
    """Assert the contract of a scorer.

    - questions may be told;
    - a score or None per pair;
    - each in 0..1;
    - equal texts score 1, if it says that it is exact;
    - a pair is scored alone as among others;
    - equal calls give equal scores;
    - an empty text does not raise.

    Args:
        scorer: the component under test.
        texts: at least two that differ and that the scorer can compare.
    """
    check = Clauses(scorer)
    left, right = zip(*itertools.product(texts, texts), strict=True)
    asked = [QUESTIONS[index % len(QUESTIONS)] for index in range(len(left))]
    with check.raises_nothing("questions may be told", f"{len(left)} pairs with a question each"):
        scores = list(scorer(left, right, asked))
    got = f"got {len(scores)} scores for {len(left)} pairs"
    check(len(scores) == len(left), "a score or None per pair", got)
    for score, item, other, question in zip(scores, left, right, asked, strict=True):
        pair = f"for {item[:40]!r} against {other[:40]!r}"
        check(score is None or 0.0 <= score <= 1.0, "each score is in 0..1", f"got {score!r} {pair}")
        if item == other and scorer.is_exact:
            equal = score is not None and math.isclose(score, 1.0, abs_tol=1e-6)
            check(equal, "equal texts score 1", f"got {score!r} {pair}")
        (alone,) = scorer([item], [other], [question])
        got = f"{alone!r}, then {score!r} {pair}"
        check(close(score, alone), "a pair is scored alone as among others", got)
    again = list(scorer(left, right, asked))
    same = len(again) == len(scores) and all(map(close, scores, again))
    check(same, "equal calls give equal scores", f"{scores}, then {again}")
    with check.raises_nothing("an empty text does not raise", "'' against ''"):
        empty = scorer(["", texts[0], ""], [texts[0], "", ""], [*QUESTIONS, ""])
    for score in empty:
        sound = score is None or 0.0 <= score <= 1.0
        check(sound, "each score is in 0..1", f"got {score!r} for an empty text")


def check_reweighter(reweighter: Reweighter) -> None:
    """Assert the contract of a re-weighter.

    - one weight per token;
    - each finite and not below 0;
    - not all 0;
    - tokens without characters and texts without labels are weighed too;
    - no tokens, no weights;
    - equal calls give equal weights.
    """
    check = Clauses(reweighter)
    words = [match.span() for match in re.finditer(r"\s*\S+", REPORT)]
    pieces = [(edge, edge + 2) for edge in range(0, len(REPORT) - 1, 2)]
    end_of_turn = (len(REPORT), len(REPORT))
    for offsets, labels in itertools.product(([*words, end_of_turn], pieces, []), (SPANS, ())):
        given = f"{len(offsets)} tokens under {len(labels)} spans"
        with check.raises_nothing("any target can be weighed", given):
            weights, again = (list(map(float, reweighter(REPORT, labels, offsets))) for _ in range(2))
        check(len(weights) == len(offsets), "one weight per token", f"got {len(weights)} weights for {given}")
        for index, weight in enumerate(weights):
            sound = math.isfinite(weight) and weight >= 0
            got = f"got {weight!r} for token {index} of {given}"
            check(sound, "each weight is finite and not below 0", got)
        check(any(weights) or not offsets, "some token weighs more than 0", f"got only zeros for {given}")
        check(again == weights, "equal calls give equal weights", f"{weights}, then {again}")
