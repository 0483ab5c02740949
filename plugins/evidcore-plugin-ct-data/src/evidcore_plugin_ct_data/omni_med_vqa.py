"""Data set `omni-med-vqa`: multiple-choice questions about 2D medical pictures.

Hub data set foreverbeliever/OmniMedVQA. What the published files need, and what is done about it:

1. Everything comes in one archive: `QA_information/Open-access/<set>.json` and `Images/<set>/…`. The
   pictures of `Restricted-access` questions are not in it.
2. A question names its answer by text. Case, spaces and a full stop at the end do not count; options that
   are empty are none; an entry has `modality` in place of `modality_type`.
3. Patients are not named, and splits were not published: they are drawn by a hash of the picture. Pictures
   of one patient can lie in two of them, and intervals are those of single pictures.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt

from evidcore.api import Case, DataError, InlineOptions, Question, VolumeRef
from evidcore.case import Split
from evidcore.errors import did_you_mean
from evidcore_plugin_ct_data.files import Origin
from evidcore_plugin_ct_data.letters import Unanswerable, question
from evidcore_plugin_ct_data.published import Entry, HubSource, PublishedSet, drawn_split
from evidcore_plugin_ct_data.tables import read_list

ARCHIVE = "OmniMedVQA.zip"
QUESTIONS = "QA_information"


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class OmniMedVqa(PublishedSet):
    """OmniMedVQA: 127,995 questions about 118,010 pictures of 12 modalities, from 73 sets.

    A case is a picture with its questions; its volume is one slice of arbitrary intensity.

    Args:
        path: the folder with `Images` and `QA_information`, or the one above it.
        access: "all" reads the questions whose pictures must be had elsewhere, too.
        sets: only these source sets, by the names of their question files; empty = all. Must be given
            with `revision`, since the names stand in the archive.
        modalities: only these, as `modality_type` has them ("CT(Computed Tomography)"); empty = all.
        question_types: only these, as `question_type` has them ("Disease Diagnosis"); empty = all.
        validation_share: share of the pictures in `validation`.
        test_share: share of the pictures in `test`.
        ids: only these pictures (`Images/ACRIMA/Im553.png`), or a text file with one a line.
        missing: what is done about a missing picture or a question whose answer is none of its options:
            "stop", or "skip" and count.
    """

    repository = "foreverbeliever/OmniMedVQA"

    source: Annotated[HubSource, InlineOptions]
    access: Literal["open", "all"] = "open"
    sets: tuple[str, ...] = ()
    modalities: tuple[str, ...] = ()
    question_types: tuple[str, ...] = ()
    validation_share: Annotated[float, Ge(0), Lt(1)] = 0.05
    test_share: Annotated[float, Ge(0), Lt(1)] = 0.2

    def origins(self, name: str) -> Sequence[Origin]:
        """Return the one archive."""
        return (Origin(name=ARCHIVE, is_archive=True),)

    def inside(self, member: str) -> str | None:
        """Return a member's name from Images or QA_information on."""
        parts = PurePosixPath(member).parts
        start = next((index for index, part in enumerate(parts) if part in ("Images", QUESTIONS)), None)
        return None if start is None else "/".join(parts[start:])

    def _tables(self) -> list[str]:
        return [] if self._files.repository is not None else [name for name, _ in self._question_files()]

    @property
    def _folders(self) -> tuple[str, ...]:
        return ("Open-access",) if self.access == "open" else ("Open-access", "Restricted-access")

    @property
    def _root(self) -> str:
        """The folder of the set, relative to the one that was given."""
        is_above = self._files.repository is None and self._files.path(f"OmniMedVQA/{QUESTIONS}").is_dir()
        return "OmniMedVQA/" if is_above else ""

    def _question_files(self) -> list[tuple[str, Path]]:
        """Return the names of the question files and where they lie, unpacked if need be."""
        if self._files.repository is not None:
            return [self._fetched(name) for name in self.sets]
        where = self._files.path(self._root + QUESTIONS)
        result = {
            path.stem: (f"{self._root}{QUESTIONS}/{folder}/{path.name}", path)
            for folder in self._folders
            for path in sorted(self._files.table(f"{self._root}{QUESTIONS}/{folder}").glob("*.json"))
        }
        if not result:
            why = f"holds no {' or '.join(self._folders)} folder with .json files"
            raise DataError(f"{where}: {why}. Unpack {ARCHIVE} there, or correct path on the dataset.")
        for name in self.sets:
            if name not in result:
                why = f"has no set {name!r}.{did_you_mean(name, result)}"
                raise DataError(f"{where}: {why} Correct sets on the dataset.")
        return [result[name] for name in self.sets or sorted(result)]

    def _fetched(self, name: str) -> tuple[str, Path]:
        for folder in self._folders:
            file = f"{QUESTIONS}/{folder}/{name}.json"
            if (place := self._files.table(file)).is_file():
                return file, place
        why = f"{ARCHIVE} has no set {name!r} in {' or '.join(self._folders)}"
        raise DataError(f"{self._files.where_from}: {why}. Correct sets on the dataset.")

    def _entries(self, split: Split) -> Iterator[Entry]:
        if self._files.repository is not None and not self.sets:
            why = 'the source sets that are wanted must be named, such as sets = ["ACRIMA"]'
            raise DataError(f"{self._files.where_from}: {why}; they are listed on that page.")
        shares = {"validation_share": self.validation_share, "test_share": self.test_share}
        seen: set[str] = set()
        for _, file in self._question_files():
            for picture, rows in self._by_picture(file).items():
                if drawn_split(picture, **shares) != split or picture in seen:
                    continue
                seen.add(picture)
                yield self._entry(picture, rows, file)

    def _entry(self, picture: str, rows: Sequence[dict[str, Any]], file: Path) -> Entry:
        asked: list[Question] = []
        fault = None
        for row in rows:
            options = {letter: str(row.get(f"option_{letter}") or "") for letter in "ABCD"}
            name = str(row.get("question_id") or len(asked))
            try:
                text, answer = str(row.get("question", "")), str(row["gt_answer"])
                asked.append(question(name, text, options, answer=answer))
            except Unanswerable as cause:
                fault = fault or f"{file}: picture {picture!r}: {cause}. Correct or drop the entry."
        place = f"{self._root}{picture}"
        case = Case(
            id=picture,
            patient=None,
            volumes=(VolumeRef(path=str(self._files.path(place)), intensity="arbitrary"),),
            questions=tuple(asked),
            notes={"modality": str(rows[0]["modality_type"])},
        )
        return Entry(case=case, names=(place,), fault=fault)

    def _by_picture(self, file: Path) -> dict[str, list[dict[str, Any]]]:
        """Return the questions of each picture that the options leave."""
        chosen = {"modality_type": self.modalities, "question_type": self.question_types}
        result: dict[str, list[dict[str, Any]]] = {}
        for row in read_list(file, "image_path", "gt_answer"):
            facts = {**row, "modality_type": row.get("modality_type") or row.get("modality") or ""}
            if all(not allowed or facts.get(key) in allowed for key, allowed in chosen.items()):
                result.setdefault(str(row["image_path"]), []).append(facts)
        return result
