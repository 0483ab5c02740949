"""Dataset `table`: question sets over pictures or volumes, one question a record, with mapped columns."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from evidcore.api import Case, DataError, InlineOptions
from evidcore.case import Intensity, Split
from evidcore.data import read_geometry
from evidcore.errors import RecipeError
from evidcore_plugin_tables.box_masks import CaseBoxes
from evidcore_plugin_tables.case_reading import CaseTable
from evidcore_plugin_tables.csv_rows import shown
from evidcore_plugin_tables.table_cases import CaseColumns, Gathered, Splitting
from evidcore_plugin_tables.table_questions import QuestionColumns, open_question, question_of, written
from evidcore_plugin_tables.table_records import read_records

log = logging.getLogger(__name__)
MOST_MISTAKES = 20  # shown at once


@dataclasses.dataclass(frozen=True)
class _Read:
    """A table as far as it can be read, and what is wrong with the rest of it."""

    cases: list[tuple[Case, Split]]  # without the masks that their boxes become
    boxes: Mapping[str, CaseBoxes]  # by case
    unusable: list[str]  # records that say nothing: a message each
    wrong: list[str]  # these, and patients that are in two splits


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class Table(CaseTable):
    """Multiple-choice questions from a `.csv`, `.json` or `.jsonl` table, one question a record.

    All questions about one image make one case, named by its image. The columns and what they hold:

    | column | holds |
    |---|---|
    | `id` | the question's name, unique; may be left out (`id_column = ""`): the place in the table |
    | `image` or `volume` | a picture or volume in the folder; several of one case with `;` between |
    | `patient` | whose it is; `patient_column = ""` where that is not known |
    | `split` | `train`, `validation` or `test`; `split_column = ""` shares the patients out instead |
    | `question` | its words |
    | `A`, `B`, `C`, `D` | the options, as many as there are; or one column for all (`options_column`) |
    | `answer` | the letter, the index or the text of the right option (`answer_is`) |
    | `report` | a report or caption of the image, the same in each of its records; may be absent |
    | `masks` | `name=file`, `;` between, as in dataset `folder`; may be absent |
    | `boxes` | `name=x0 y0 x1 y1`, `;` between: boxes on the case's one picture; may be absent |
    | each of `findings` | as in dataset `folder` |
    | `kind_column` | what kind of question it is; results are told by it |

    Boxes are in pixels of the picture as it is stored, x to the right and y down. `x1` and `y1` are
    exclusive; fractions are rounded outward. The boxes of one name together become a mask of the case. In
    JSON the value may be an object: `{"lesion": [x0, y0, x1, y1]}`, or a list of such lists for each name.

    Args:
        cache_folder: keeps which files were found usable, and the masks that boxes become.
        path: the folder.
        table: the table in it.
        findings: columns that hold findings of the image, in the order of the vocabulary.
        intensity: "hu" where the volumes are CT in Hounsfield units; pictures are arbitrary in any case.
        free_text: what to do about a question without options, whose answer is free text and cannot be
            judged by a letter: "stop" raises, "skip" leaves it out and logs how many there are, "keep"
            gives it in `case.notes["open_questions"]`, for task `free-text` and others that read it.
            Under "stop" and "skip" one that is answered yes or no has these two as options.
        missing: what to do about a case with a missing file or a broken volume: see dataset `folder`.
    """

    table: str = "questions.csv"
    intensity: Intensity = "arbitrary"
    free_text: Literal["stop", "skip", "keep"] = "stop"
    columns: Annotated[CaseColumns, InlineOptions]
    asked: Annotated[QuestionColumns, InlineOptions]
    splitting: Annotated[Splitting, InlineOptions]

    def __post_init__(self) -> None:
        """Refuse options that contradict each other."""
        super().__post_init__()
        shared_out = self.splitting.validation_share + self.splitting.test_share
        if shared_out > 1:
            why = f"validation_share and test_share add up to {shared_out:g}"
            raise RecipeError(f"table: {why}, at most 1 can be shared out.")
        if not self.asked.options_column and len(self.asked.option_columns) < 2:
            why = f"option_columns must name at least 2 columns, got {list(self.asked.option_columns)!r}"
            raise RecipeError(f"table: {why}. Name options_column instead if one column holds all options.")
        if not self.asked.separator:
            raise RecipeError("table: separator must be a text, got ''. Name what stands between options.")

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the cases of `split` in the order in which the table names their images."""
        self.left_out[split] = {}
        if wrong := self._read.wrong:
            more = f"\n… and {len(wrong) - MOST_MISTAKES} more" if len(wrong) > MOST_MISTAKES else ""
            raise DataError("\n".join(wrong[:MOST_MISTAKES]) + more)
        yield from map(self._with_boxes, self._usable(self._of(split), split))

    def listed(self, split: Split) -> Iterator[Case]:
        """Yield every case of `split` that the table names, with its questions and boxes that can be read."""
        for case in self._of(split):
            boxed = case
            with contextlib.suppress(DataError):
                boxed = self._with_boxes(case)
            yield boxed

    def unlisted(self) -> Iterator[str]:
        """Say of every record that cannot be read, and of every box outside its picture, what is wrong."""
        yield from self._read.unusable
        for case, _ in self._read.cases:
            boxes = self._read.boxes[case.id]
            if boxes.by_name:
                with contextlib.suppress(DataError):  # a picture that cannot be read is a listed case
                    yield from boxes.outside(*_size(case))

    def _every(self) -> Iterator[Case]:
        return (case for case, _ in self._read.cases)

    @functools.cached_property
    def _read(self) -> _Read:
        """Read the whole table; a mistake in one record does not hide those of others."""
        records, unusable = read_records(
            self.file,
            lambda names: [
                *self.columns.among(names).wanted(),
                *self.asked.among(names).wanted(),
                *self.findings,
            ],
        )
        names = set().union(*(record for _, record in records))
        columns, asked = self.columns.among(names), self.asked.among(names)
        asked = asked.counted((record.get(asked.answer_column) for _, record in records), self.file)
        gathered = Gathered(self.file, self.folder, self.intensity, columns, self.splitting, self.findings)
        skipped = 0
        for place, record in records:
            image = ""
            try:
                identity, image, where = gathered.take(record, place)
                question = question_of(record, asked, identity, where, yes_or_no=self.free_text != "keep")
                if question is not None:
                    gathered.questions[image].append(question)
                elif self.free_text == "skip":
                    skipped += 1
                elif self.free_text == "keep":
                    gathered.questions.setdefault(image, [])
                    gathered.open_questions[image].append(open_question(record, asked, identity, where))
                else:
                    answer = shown(written(record[asked.answer_column]))
                    why = f"has no options, so its answer is free text, got {answer}; no letter judges it"
                    how = 'free_text = "skip" on the dataset, or "keep" for a task that asks open questions'
                    raise DataError(f"{where}: {why}. Give it options, or set {how}.")
            except DataError as mistake:
                unusable.append(str(mistake))
                if image:
                    gathered.questions.setdefault(image, [])  # its scan can be looked at
        if skipped:
            log.warning("%s: left out, free text without options: %d of the questions.", self.file, skipped)
        cases = gathered.with_questions()
        return _Read(cases, gathered.boxes, unusable, [*unusable, *gathered.clashes])

    def _of(self, split: Split) -> Iterator[Case]:
        return (case for case, home in self._read.cases if home == split)

    def _with_boxes(self, case: Case) -> Case:
        """Return a case with the masks that its boxes become."""
        boxes = self._read.boxes[case.id]
        if not boxes.by_name:
            return case
        masks = boxes.masks(*_size(case), self.cache_folder)
        return dataclasses.replace(case, masks={**case.masks, **masks})


def _size(case: Case) -> tuple[int, int]:
    """Return height and width of a case's picture, in pixels."""
    try:
        _, height, width = read_geometry(case.volumes[0]).shape_zyx
    except DataError as cause:
        raise DataError(f"{cause} (case {case.id!r})") from cause
    return height, width
