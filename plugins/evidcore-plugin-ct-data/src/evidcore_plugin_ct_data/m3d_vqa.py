"""Data set `m3d-vqa`: multiple-choice questions about the stacks of M3D-Cap.

Hub data set GoodBaiBai88/M3D-VQA. The questions are CSV tables, one row a question: Image Path, Question,
Choice A to D, Answer, Answer Choice, Question Type. Those of one image become one case. The images are those
of M3D-Cap, in either of its forms; see `m3d_cap`. Questions and answers were written by a language model
from the texts, and partly checked by another.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from evidcore.api import InlineOptions, Question
from evidcore.case import Split
from evidcore_plugin_ct_data.files import Origin
from evidcore_plugin_ct_data.letters import Unanswerable, question
from evidcore_plugin_ct_data.m3d_stacks import homes, locate, tail
from evidcore_plugin_ct_data.published import Entry, FolderAndHub, PublishedSet
from evidcore_plugin_ct_data.tables import Row, read_rows

TABLES: Mapping[Split, str] = {
    "train": "M3D_VQA_train.csv",
    "validation": "M3D_VQA_val.csv",
    "test": "M3D_VQA_test.csv",
}
CHOICES = ("Choice A", "Choice B", "Choice C", "Choice D")
COLUMNS = ("Image Path", "Question", *CHOICES, "Answer", "Answer Choice")


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class M3dVqa(PublishedSet):
    """M3D-VQA: 509,755 questions about 96,170 stacks of M3D-Cap. The splits are the published tables.

    Args:
        path: the folder with the images (`M3D_Cap` or `M3D_Cap_npy`) and the tables, which may lie in
            `M3D-VQA` there.
        revision: full commit hash of the Hub repository: tables that are not there are fetched from it.
            It holds no images; those come with `m3d-cap`.
        question_types: only questions of these types, as the column has them; empty = all.
        axes: by plane, where slice, row and column run to; see `m3d-cap`.
        ids: only these patients (`ct_case/006708`) or stacks, or a text file with one a line.
        missing: what is done about a case without its image, or with a question whose answer is none of
            its options: "stop", or "skip" and count.
    """

    repository = "GoodBaiBai88/M3D-VQA"
    page = "https://huggingface.co/datasets/GoodBaiBai88/M3D-Cap"

    source: Annotated[FolderAndHub, InlineOptions]
    question_types: tuple[str, ...] = ()
    axes: dict[str, str] | None = None

    def origins(self, name: str) -> Sequence[Origin]:
        """Return a table's place; the images are in another repository."""
        return (Origin(name=name),) if name.endswith(".csv") else ()

    def _tables(self) -> list[str]:
        return [self._table_name(split) for split in TABLES]

    def _entries(self, split: Split) -> Iterator[Entry]:
        for image, rows in self._by_image(split).items():
            where = f"{rows[0][0]}, image {image!r}"
            stack = locate(image, self._files, self.cache_folder, self.axes or {}, where)
            questions: list[Question] = []
            fault = None
            for place, row in rows:
                name = place.rpartition("/")[2].replace(": line ", ":")
                choices = {column[-1]: row[column] for column in CHOICES}
                answer = {"letter": row["Answer Choice"], "answer": row["Answer"]}
                try:
                    questions.append(question(name, row["Question"], choices, **answer))
                except Unanswerable as cause:
                    fault = fault or f"{place}: {cause}. Correct or drop the row."
            entry = stack.entry(split, self._homes, where, questions=tuple(questions))
            yield dataclasses.replace(entry, fault=fault)

    def _by_image(self, split: Split) -> dict[str, list[tuple[str, Row]]]:
        """Return the rows of each image, each with the line it stands in; of a row what a question needs."""
        file = self._files.table(self._table_name(split))
        wanted = (*COLUMNS, "Question Type") if self.question_types else COLUMNS
        result: dict[str, list[tuple[str, Row]]] = {}
        for line, row in read_rows(file, wanted):
            if not self.question_types or row["Question Type"].strip() in self.question_types:
                cells = {column: row[column] for column in COLUMNS}  # a row repeats the whole report too
                result.setdefault(_image(row), []).append((f"{file}: line {line}", cells))
        return result

    def _table_name(self, split: Split) -> str:
        places = (f"M3D-VQA/{TABLES[split]}", f"M3D_VQA/{TABLES[split]}")
        return next((place for place in places if self._files.path(place).is_file()), TABLES[split])

    @functools.cached_property
    def _homes(self) -> dict[str, Split]:
        tables = {split: self._files.table(self._table_name(split)) for split in TABLES}
        return homes({
            split: [_image(row) for _, row in read_rows(file, ["Image Path"])]
            for split, file in tables.items()
        })


def _image(row: Row) -> str:
    """Return the image of a row from `ct_case` or `ct_quizze` on: tables write what is before it or not."""
    path = row["Image Path"].strip()
    return tail(path) or path
