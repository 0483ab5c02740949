"""Multiple-choice questions about CT-RATE volumes: the set's own, and the rows that Med3D-R1 released."""

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from evidcore.api import DataError, Question
from evidcore_plugin_ct_data.letters import LETTERS, Unanswerable, question
from evidcore_plugin_ct_data.tables import read_list

MULTIPLE_CHOICE = "<multiple_choice>"  # the set marks the kind of a question in its text
_OPTION = re.compile(r"(?<!\w)[(]?([A-Ha-h])[)]\s*")  # "(a) nodule" as in the set, "A) nodule" as in MMVQA
_ANSWER = re.compile(r"\s*[(]?([A-Ha-h])(?:[).:]|\s*$)")
_TAG = re.compile(r"<\w+>")


def read_questions(path: Path) -> Mapping[str, tuple[Question, ...]]:
    """Return the multiple-choice questions by volume name without its ending; the others are passed over.

    Raises:
        DataError: if a row cannot be read, or a question's answer is none of its options.
    """
    result: dict[str, list[Question]] = {}
    for index, row in enumerate(read_list(path)):
        where = f"{path}: entry {index}"
        volume = str(row.get("image") or row.get("VolumeName") or "")
        name = volume.rpartition("/")[2].removesuffix(".nii.gz")
        if not name:
            raise DataError(f"{where}: names no volume, its keys are {', '.join(row)}. Fetch the file again.")
        try:
            asked = list(_asked(row, index))
        except Unanswerable as cause:
            raise DataError(f"{where}, volume {name!r}: {cause}. Correct or drop the entry.") from cause
        result.setdefault(name, []).extend(asked)
    return {name: tuple(asked) for name, asked in result.items() if asked}


def _asked(row: Mapping[str, Any], place: int) -> Iterator[Question]:
    """Yield the multiple-choice questions of an entry: a conversation, or one question with its options."""
    turns = row.get("conversations")
    if turns is None:
        text, inline = _parts(str(row.get("question", "")))
        given = row.get("options")
        options = (
            {str(key): str(value) for key, value in given.items()} if isinstance(given, dict) else inline
        )
        yield question(str(place), text, options, letter=str(row.get("answer", "")))
        return
    exchanges = [(str(turn.get("from")), str(turn.get("value", ""))) for turn in turns]
    for number, ((asker, text), (_, answer)) in enumerate(pairwise(exchanges)):
        if asker == "human" and MULTIPLE_CHOICE in text:
            stem, options = _parts(_TAG.sub(" ", text))
            result = _ANSWER.match(answer)
            letter, answer_text = (result[1], "") if result else ("", answer)
            yield question(f"{place}-{number}", stem, options, letter=letter, answer=answer_text)


def _parts(text: str) -> tuple[str, dict[str, str]]:
    """Split a question from the options that follow it in the same text, "(a) … (b) …"."""
    marks = list(_OPTION.finditer(text))
    first = next((index for index, mark in enumerate(marks) if mark[1].upper() == "A"), None)
    if first is None:
        return text.strip(), {}
    marks = marks[first:]
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    options = {
        mark[1].upper(): text[mark.end() : end].strip(" \n,;")
        for mark, end, letter in zip(marks, ends, LETTERS, strict=False)
        if mark[1].upper() == letter
    }
    return text[: marks[0].start()].strip(), options
