"""A question from the cells of a table: its options however they are written, and which one is right."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from evidcore.api import DataError, Question
from evidcore.text.tags import LETTERS
from evidcore_plugin_tables.csv_rows import shown
from evidcore_plugin_tables.table_records import Record

AnswerForm = Literal["letter", "index", "text"]
USUAL_OPTIONS = ("A", "B", "C", "D")
# for a picture in the words of LLaVA, M3D, Qwen-VL and Gemma, or for a turn of a chat
_TAG = re.compile(r"</?(\w+_of_)?(image|img|im_|video)[\w ]{0,20}>|<\|\w+\|>", re.IGNORECASE)
_YES, _NO = ("yes", "true"), ("no", "false")  # a spreadsheet may write the second


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionColumns:
    """Which columns hold a question and how they are to be read.

    Args:
        answer_is: how the answer is written: "letter" (A is the first option), "index" or "text". Where the
            options are yes and no, these words are read too. Left out, it is "letter", and one that is the
            text of another option is refused.
        first_index: what the first option is called where answers are indices: 0 or 1. Left out, it is 0 if
            an answer is 0.
        option_columns: one column an option, in the order of the letters; empty cells at the end are
            options that a question does not have. Of A to D those that are there are read; after D, E to H.
        options_column: one column for all options in place of these: a list, or texts with `separator`
            between.
        separator: stands between the options of one cell.
        question_column: column name.
        answer_column: column name.
        kind_column: column name; "" where there is none.
    """

    answer_is: AnswerForm | None = None
    first_index: Annotated[int, Ge(0), Le(1)] | None = None
    option_columns: tuple[str, ...] = USUAL_OPTIONS
    options_column: str = ""
    separator: str = "|"
    question_column: str = "question"
    answer_column: str = "answer"
    kind_column: str = ""

    def among(self, names: Collection[str]) -> QuestionColumns:
        """Return the columns that are read of a table with these names."""
        if self.options_column or self.option_columns != USUAL_OPTIONS:
            return self
        usual = tuple(name for name in USUAL_OPTIONS if name in names)
        more = itertools.takewhile(names.__contains__, LETTERS[4:] if usual == USUAL_OPTIONS else "")
        return dataclasses.replace(self, option_columns=(*usual, *more))

    def counted(self, answers: Iterable[Any], table: object) -> QuestionColumns:
        """Return what indices count from too; a table in which none is 0 is refused unless that is given."""
        if self.answer_is != "index" or self.first_index is not None:
            return self
        places = {_by_index(answer, (), 0) for answer in answers} - {None}
        if places and 0 not in places:
            why = f"{table}: column {self.answer_column!r}: no answer is 0, so they may be counted from 1"
            raise DataError(f"{why}. Write first_index = 1, or first_index = 0.")
        return dataclasses.replace(self, first_index=0)

    def wanted(self) -> tuple[str, ...]:
        """Return the columns that must be there."""
        options = (self.options_column,) if self.options_column else self.option_columns
        named = (self.question_column, self.answer_column, *options, self.kind_column)
        return tuple(name for name in named if name)


def question_of(
    record: Record, columns: QuestionColumns, identity: str, where: str, *, yes_or_no: bool = False
) -> Question | None:
    """Read the question of a record; None where it has no options, so that its answer is free text.

    With `yes_or_no`, a question without options that is answered yes or no has these two.

    Raises:
        DataError: if a cell cannot be read; names `where`, the value and what would be right.
    """
    text = _filled(record, columns.question_column, "question", where)
    options = _options(record, columns, where)
    if not options:
        if not yes_or_no or not is_yes_or_no(record[columns.answer_column]):
            return None
        options = ("yes", "no")
    if not 2 <= len(options) <= len(LETTERS):
        why = f"a question has 2 to {len(LETTERS)} options, got {len(options)}: {_all_shown(options)}"
        raise DataError(f"{where}: {why}. Correct the options, or drop the row.")
    _refuse_tag((text, *options), where)
    same = next((option for index, option in enumerate(options) if option in options[:index]), None)
    if same is not None:
        raise DataError(f"{where}: option {shown(same)} stands twice. Correct one, or drop the row.")
    answer = _answer(record[columns.answer_column], options, columns, where)
    kind = written(record[columns.kind_column]) if columns.kind_column else ""
    return Question(id=identity, text=text, options=options, answer=answer, kind=kind or None)


def is_yes_or_no(value: Any) -> bool:
    """Tell whether a cell says yes or no."""
    return written(value).casefold() in (*_YES, *_NO)


def open_question(record: Record, columns: QuestionColumns, identity: str, where: str) -> dict[str, Any]:
    """Return the question of a record without options, as `case.notes["open_questions"]` holds it.

    Raises:
        DataError: if it has no answer.
    """
    answer = _filled(record, columns.answer_column, "answer", where)
    text = written(record[columns.question_column])
    _refuse_tag((text, answer), where)
    return {"id": identity, "text": text, "answers": [answer]}


def _refuse_tag(texts: Sequence[str], where: str) -> None:
    if tag := next(filter(None, map(_TAG.search, texts)), None):
        why = f"{where}: a text holds {tag[0]!r}, which models take for a picture or a turn"
        raise DataError(f"{why}. Take it out: the view puts the scan before the question.")


def written(value: Any) -> str:
    """Return a cell as text; JSON's null is an empty one, and so is the NaN that pandas writes."""
    return "" if value is None or value != value else str(value).strip()


def _filled(record: Record, column: str, what: str, where: str) -> str:
    """Return a cell as text, which must not be empty."""
    if text := written(record[column]):
        return text
    raise DataError(f"{where}: column {column!r} is empty. Write the {what}, or drop the row.")


def _all_shown(options: Sequence[str]) -> str:
    return f"[{', '.join(map(shown, options))}]"


def _options(record: Record, columns: QuestionColumns, where: str) -> tuple[str, ...]:
    """Return the options without the letters before them; empty cells at the end do not count."""
    if columns.options_column:
        options = _listed(record[columns.options_column], columns, where)
    else:
        options = [written(record[name]) for name in columns.option_columns]
    while options and not options[-1]:
        options.pop()
    if "" in options:
        why = f"option {LETTERS[options.index('') % len(LETTERS)]} is empty, but a later one is not"
        raise DataError(f"{where}: {why}: {_all_shown(options)}. Fill it, or move the others up.")
    return tuple(_without_letters(options))


def _listed(value: Any, columns: QuestionColumns, where: str) -> list[str]:
    """Read options from one cell: a JSON list, or texts with the separator between."""
    if isinstance(value, str) and value.startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as cause:
            raise DataError(
                f"{where}, column {columns.options_column!r}: begins like a JSON list but is none "
                f'({getattr(cause, "msg", cause)}), got {shown(value)}. Write ["first", "second"].'
            ) from cause
    if isinstance(value, list):
        return [written(item) for item in value]
    text = written(value)
    if text and columns.separator not in text:
        why = f"expected a JSON list or options with {columns.separator!r} between, got {shown(text)}"
        remedy = "Name the separator in the dataset's options."
        raise DataError(f"{where}, column {columns.options_column!r}: {why}. {remedy}")
    return [part.strip() for part in text.split(columns.separator)] if text else []


def _without_letters(options: list[str]) -> list[str]:
    """Drop "A." or "(A)" before the options where every one has its own: the task writes letters itself."""
    lettered = [
        re.fullmatch(rf"\(?{letter}[.):]\s*(.+)", option, re.DOTALL)
        for letter, option in zip(LETTERS, options, strict=False)
    ]
    if len(lettered) == len(options) and all(lettered):
        return [result[1].strip() for result in lettered if result]
    return options


def _answer(value: Any, options: tuple[str, ...], columns: QuestionColumns, where: str) -> int:
    """Return which option is right, counted from 0."""
    first, form = columns.first_index or 0, columns.answer_is or "letter"
    place = _READERS[form](value, options, first)
    if place is None:
        place = _by_yes_or_no(value, options)
    where = f"{where}, column {columns.answer_column!r}"
    if place is not None and 0 <= place < len(options):
        if columns.answer_is is None and _by_text(value, options, first) not in (None, place):
            why = f"{shown(value)} is the letter of {shown(options[place])} and the text of another option"
            remedy = 'Write answer_is = "letter" or "text" on the dataset, or longer options, as "grade A".'
            raise DataError(f"{where}: {why}. {remedy}")
        return place
    expected = {
        "letter": f"a letter from A to {LETTERS[len(options) - 1]}",
        "index": f"a whole number from {first} to {first + len(options) - 1}",
        "text": f"the text of one of {_all_shown(options)}",
    }[form]
    remedy = "Correct the cell"
    for other, reader in _READERS.items():
        if (place := reader(value, options, first)) is not None and 0 <= place < len(options):
            remedy += f', or set answer_is = "{other}" on the dataset if all are written so'
            break
    raise DataError(f"{where}: expected {expected}, got {shown(value)}. {remedy}.")


def _by_letter(value: Any, options: tuple[str, ...], first: int) -> int | None:
    result = re.fullmatch(rf"\(?([{LETTERS}{LETTERS.lower()}])[.):]?", written(value))
    return LETTERS.index(result[1].upper()) if result else None


def _by_index(value: Any, options: tuple[str, ...], first: int) -> int | None:
    result = re.fullmatch(r"(\d{1,9})([.,]0)?", written(value))
    return int(result[1]) - first if result else None


def _by_text(value: Any, options: tuple[str, ...], first: int) -> int | None:
    texts = [option.casefold() for option in options]
    text = written(value).casefold()
    return texts.index(text) if texts.count(text) == 1 else None


_READERS: Mapping[str, Callable[[Any, tuple[str, ...], int], int | None]] = {
    "letter": _by_letter, "text": _by_text, "index": _by_index,
}  # fmt: skip


def _by_yes_or_no(value: Any, options: tuple[str, ...]) -> int | None:
    """Read yes or no where these are the options."""
    texts = [option.casefold() for option in options]
    if sorted(texts) != ["no", "yes"]:
        return None
    said = written(value).casefold()
    return texts.index("yes") if said in _YES else texts.index("no") if said in _NO else None
