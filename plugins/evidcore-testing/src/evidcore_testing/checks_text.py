"""Checks of the kinds that read text or images: labeler, scorer, reweighter, reader."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from evidcore.case import Crop, Finding, Span, State
from evidcore.contracts import ImageQuestion, Labeler, LabelError, Reader, Reweighter, Scorer
from evidcore_testing.clauses import broken, close, raises_nothing, require


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
    declared = getattr(reader, "deterministic", None)
    result = f"got {declared!r}"
    require(isinstance(declared, bool), reader, "it declares whether it is deterministic", result)
    with raises_nothing(reader, "it has what it needs", "ready()"):
        reader.ready()
    answers = list(reader(questions))
    told = f"got {len(answers)} answers to {len(questions)} questions"
    require(len(answers) == len(questions), reader, "an answer per question", told)
    for answer in answers:
        sound = answer is None or (isinstance(answer, str) and bool(answer.strip()))
        require(sound, reader, "an answer is a text that is not empty, or None", f"got {answer!r}")
    if not declared:
        return
    again = list(reader(questions))
    told = f"{answers!r}, then {again!r}"
    require(answers == again, reader, "a deterministic reader answers twice the same", told)
    alone = [answer for question in questions for answer in reader([question])]
    told = f"{answers!r}, then {alone!r}"
    require(answers == alone, reader, "a question is answered alone as among others", told)
    moved = [
        dataclasses.replace(question, crops=_moved(question.crops, folder / str(number)))
        for number, question in enumerate(questions)
    ]
    clause = "it goes by pixels, not by what lies beside them"
    with raises_nothing(reader, clause, "a volume that lies alone"):
        apart = list(reader(moved))
    require(apart == answers, reader, clause, f"{answers!r} became {apart!r} where the volume lies alone")


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
    every = [*texts, *(expected or {})]
    with raises_nothing(labeler, "any text is read or said to be unread", f"{len(every)} texts at once"):
        at_once = list(labeler.read(every))
    require(len(at_once) == len(every), labeler, "a reading per text", f"got {len(at_once)} for {len(every)}")
    for text, read in zip(every, at_once, strict=True):
        findings: tuple[Finding, ...] | LabelError
        with raises_nothing(labeler, "any text is read or said to be unread", f"{text[:60]!r}"):
            try:
                findings = labeler(text)
            except LabelError as reason:
                findings = reason
        if isinstance(findings, LabelError):
            said = f"got {str(findings)!r} for {text[:60]!r}"
            require(len(text) < 8 or text not in str(findings), labeler, "an unread text is not quoted", said)
            require(
                isinstance(read, LabelError), labeler, "equal texts get equal findings", f"{read}, unread"
            )
            require(bool(text.strip()), labeler, "an empty text has no findings", said)
            continue
        for finding in findings:
            clause = "a finding has a name, a known state and side, and a size above 0 mm"
            require(bool(finding.name), labeler, clause, f"got {finding} in {text[:60]!r}")
            require(finding.state in {"present", "absent", "uncertain"}, labeler, clause, f"got {finding}")
            require(finding.side in {None, "left", "right", "both"}, labeler, clause, f"got {finding}")
            size_is_sound = finding.size_mm is None or 0 < finding.size_mm < math.inf
            require(size_is_sound, labeler, clause, f"got {finding}")
            if finding.span is not None:
                result = f"got {finding.span.start}..{finding.span.end} in a text of {len(text)} characters"
                require(finding.span.end <= len(text), labeler, "each span lies inside the text", result)
        if not text.strip():
            require(not findings, labeler, "an empty text has no findings", f"got {findings}")
        for again in (labeler(text), read):
            require(again == findings, labeler, "equal texts get equal findings", f"{findings}, then {again}")
    for text, states in (expected or {}).items():
        got = {finding.name: finding.state for finding in labeler(text)}
        for name, state in states.items():
            result = f"{name!r} is {state} in {text!r}, got {got.get(name)!r}"
            require(got.get(name) == state, labeler, "what a text says is found", result)


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
    left = [item for item in texts for _ in texts]
    right = [other for _ in texts for other in texts]
    asked = [QUESTIONS[index % len(QUESTIONS)] for index in range(len(left))]
    with raises_nothing(scorer, "questions may be told", f"{len(left)} pairs with a question each"):
        scores = list(scorer(left, right, asked))
    told = f"got {len(scores)} scores for {len(left)} pairs"
    require(len(scores) == len(left), scorer, "a score or None per pair", told)
    for score, item, other, question in zip(scores, left, right, asked, strict=True):
        pair = f"{item[:40]!r} against {other[:40]!r}"
        in_range = score is None or 0.0 <= score <= 1.0
        require(in_range, scorer, "each score is in 0..1", f"got {score!r} for {pair}")
        if item == other and scorer.is_exact:
            equal = score is not None and math.isclose(score, 1.0, abs_tol=1e-6)
            require(equal, scorer, "equal texts score 1", f"got {score!r} for {pair}")
        (alone,) = scorer([item], [other], [question])
        same = close(score, alone)
        told = f"{alone!r}, then {score!r} for {pair}"
        require(same, scorer, "a pair is scored alone as among others", told)
    again = list(scorer(left, right, asked))
    same = all(close(item, other) for item, other in zip(scores, again, strict=True))
    require(same, scorer, "equal calls give equal scores", f"{scores}, then {again}")
    with raises_nothing(scorer, "an empty text does not raise", "'' against ''"):
        for score in scorer(["", texts[0], ""], [texts[0], "", ""], [*QUESTIONS, ""]):
            in_range = score is None or 0.0 <= score <= 1.0
            require(in_range, scorer, "each score is in 0..1", f"got {score!r} for an empty text")


def check_reweighter(reweighter: Reweighter, *, text: str = REPORT, spans: Sequence[Span] = SPANS) -> None:
    """Assert the contract of a re-weighter.

    - one weight per token;
    - each finite and not below 0;
    - not all 0;
    - tokens without characters and texts without labels are weighed too;
    - no tokens, no weights;
    - equal calls give equal weights.

    Args:
        reweighter: the component under test.
        text: a target text, tokenised here at its words.
        spans: its labelled sentences.
    """
    words = [(match.start(), match.end()) for match in re.finditer(r"\s*\S+", text)]
    pieces = [(edge, edge + 2) for edge in range(0, len(text) - 1, 2)]
    end_of_turn = (len(text), len(text))
    for offsets in ([*words, end_of_turn], pieces, []):
        for labels in (spans, ()):
            given = f"{len(offsets)} tokens under {len(labels)} spans"
            with raises_nothing(reweighter, "any target can be weighed", given):
                weights = [float(weight) for weight in reweighter(text, labels, offsets)]
            if len(weights) != len(offsets):
                broken(reweighter, "one weight per token", f"got {len(weights)} weights for {given}")
            clause = "each weight is finite and not below 0"
            for index, weight in enumerate(weights):
                sound = math.isfinite(weight) and weight >= 0
                require(sound, reweighter, clause, f"got {weight!r} for token {index} of {given}")
            if offsets:
                told = f"got only zeros for {given}"
                require(any(weights), reweighter, "some token weighs more than 0", told)
            again = [float(weight) for weight in reweighter(text, labels, offsets)]
            same = again == weights
            require(same, reweighter, "equal calls give equal weights", f"{weights}, then {again}")
