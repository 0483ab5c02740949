"""Data set `m3d-vqa`: multiple-choice questions about the stacks of M3D-Cap.

Hub data set GoodBaiBai88/M3D-VQA. The questions are CSV tables, one row a question: Image Path, Question,
Choice A to D, Answer, Answer Choice, Question Type. Those of one image become one case. The images are those
of M3D-Cap, in either of its forms; see `m3d_cap`. Questions and answers were written by a language model
from the texts, and partly checked by another.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from evidcore.api import Case, InlineOptions, Question
from evidcore.case import Split
from evidcore_plugin_ct_data.files import Files, Origin
from evidcore_plugin_ct_data.hub import Repository, Revision
from evidcore_plugin_ct_data.letters import Unanswerable, question
from evidcore_plugin_ct_data.m3d_cap import PROTECTED
from evidcore_plugin_ct_data.m3d_stacks import locate, tail
from evidcore_plugin_ct_data.published import Entry, PublishedSet, Selection
from evidcore_plugin_ct_data.tables import Row, read_rows

REPOSITORY = "GoodBaiBai88/M3D-VQA"
TABLES: Mapping[Split, str] = {
    "train": "M3D_VQA_train.csv",
    "validation": "M3D_VQA_val.csv",
    "test": "M3D_VQA_test.csv",
}
YES_NO = "M3D_VQA_yn_train.csv"
COLUMNS = (
    "Image Path",
    "Question",
    "Choice A",
    "Choice B",
    "Choice C",
    "Choice D",
    "Answer",
    "Answer Choice",
)


class M3dVqa(PublishedSet):
    """M3D-VQA: 509,755 questions about 96,170 stacks of M3D-Cap. The splits are the published tables."""

    def __init__(
        self,
        recipe_folder: Path,
        cache_folder: Path,
        *,
        path: str,
        revision: Revision | None = None,
        question_types: tuple[str, ...] = (),
        yes_no: bool = False,
        axes: dict[str, str] | None = None,
        selection: Annotated[Selection, InlineOptions],
    ) -> None:
        """Say where the set lies and which part of it is wanted.

        Args:
            recipe_folder: where a relative `path` starts.
            cache_folder: keeps arrays made of slices.
            path: the folder with the images (`M3D_Cap` or `M3D_Cap_npy`) and the tables, which may lie in
                `M3D-VQA` there.
            revision: full commit hash of the Hub repository: tables that are not there are fetched from it.
                It holds no images; those come with `m3d-cap`.
            question_types: only questions of these types, as the column has them; empty = all.
            yes_no: add the table of yes-or-no questions to the training split.
            axes: by plane, where slice, row and column run to; see `m3d-cap`.
            ids: only these patients (`ct_case/006708`) or stacks, or a text file with one a line.
            missing: what is done about a case without its image, or with a question whose answer is none of
                its
                options: "stop", or "skip" and count.
            selection: see `Selection`.
        """
        files = Files(
            folder=recipe_folder / path,
            repository=Repository(id=REPOSITORY, revision=revision) if revision else None,
            origins=lambda name: (Origin(name=name),) if name.endswith(".csv") else (),
            where_from="https://huggingface.co/datasets/GoodBaiBai88/M3D-Cap",
        )
        settings = {"types": question_types, "yes_no": yes_no, "axes": dict(axes or {})}
        super().__init__(files, selection, recipe_folder=recipe_folder, path=path, settings=settings)
        self._cache_folder = cache_folder
        self._question_types = question_types
        self._yes_no = yes_no
        self._axes = dict(axes or {})

    def _tables(self) -> list[str]:
        return [self._table_name(name) for name in (*TABLES.values(), YES_NO)]

    def _entries(self, split: Split) -> Iterator[Entry]:
        for image, rows in self._by_image(split).items():
            where = f"{rows[0][0]}, image {image!r}"
            found = locate(image, self._files, self._cache_folder, self._axes, where)
            asked: list[Question] = []
            fault = elsewhere = None
            for place, row in rows:
                try:
                    asked.append(_question(place, row))
                except Unanswerable as cause:
                    fault = fault or f"{place}: {cause}. Correct or drop the row."
            home = self._homes.get(found.patient, split)
            if home != split:
                elsewhere = (
                    f"{where}: patient {found.patient!r} is also in the {home} table and stays there alone."
                )
            case = Case(id=found.id, patient=found.patient, volumes=(found.volume,), questions=tuple(asked))
            yield Entry(case=case, names=found.names, fault=fault, elsewhere=elsewhere, prepare=found.prepare)

    def _by_image(self, split: Split) -> dict[str, list[tuple[str, Row]]]:
        """Return the rows of each image, each with the line it stands in; of a row what a question needs."""
        tables: list[tuple[str, tuple[str, ...]]] = [(TABLES[split], COLUMNS)]
        if self._yes_no and split == "train":
            tables.append((YES_NO, ("Image Path", "Question", "Answer")))
        found: dict[str, list[tuple[str, Row]]] = {}
        for name, columns in tables:
            file = self._files.table(self._table_name(name))
            wanted = (*columns, "Question Type") if self._question_types else columns
            for line, row in read_rows(file, wanted):
                if not self._question_types or row["Question Type"].strip() in self._question_types:
                    kept = {column: row[column] for column in columns}  # a row repeats the whole report too
                    found.setdefault(_image(row), []).append((f"{file}: line {line}", kept))
        return found

    def _table_name(self, name: str) -> str:
        places = (f"M3D-VQA/{name}", f"M3D_VQA/{name}")
        return next((place for place in places if self._files.path(place).is_file()), name)

    @functools.cached_property
    def _homes(self) -> dict[str, Split]:
        """In which split each patient stays: test before validation before training."""
        homes: dict[str, Split] = {}
        for split in reversed(PROTECTED):
            for _, row in read_rows(self._files.table(self._table_name(TABLES[split])), ["Image Path"]):
                homes[_image(row).rpartition("/")[0]] = split
        return homes


def _image(row: Row) -> str:
    """Return the image of a row from `ct_case` or `ct_quizze` on: tables write what is before it or not."""
    path = row["Image Path"].strip()
    return tail(path) or path


def _question(place: str, row: Row) -> Question:
    """Return the question of a row; a row without choices is answered with yes or no."""
    choices = {letter: row.get(f"Choice {letter}") or "" for letter in "ABCD"}
    name = place.rpartition("/")[2].replace(": line ", ":")
    if not any(choices.values()):
        return question(name, row["Question"], {"A": "Yes", "B": "No"}, answer=row["Answer"])
    return question(name, row["Question"], choices, letter=row["Answer Choice"], answer=row["Answer"])
