"""Data set `abdomen-atlas-3-mini`: 9,262 abdominal CTs with organ and lesion masks and reports.

Hub data set AbdomenAtlas/AbdomenAtlas3.0Mini. What the published files need, and what is done about it:

1. Images and masks come in archives of 232 cases, about 14 GB each:
   `image_only/…_BDMAP_00000001_BDMAP_00000232.tar.gz`. Only those that hold a wanted case are fetched, and
   only wanted cases are unpacked.
2. A mask is a file, `segmentations/liver_lesion.nii.gz`; a lesion's file is there, empty, where there is
   none.
3. The CSV has four reports a case: "structured" and "narrative" are made from the masks, the two "fusion"
   ones also from a radiologist's note, where there was one.
4. Train and test are lists of ids: IID at random, OOD by hospital. `validation` is drawn from the training
   list.
5. Patients are not named. The set joins 17 public ones, so that two ids may be one patient.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from annotated_types import Ge, Lt

from evidcore.api import Case, DataError, Finding, InlineOptions, MaskRef, Report, VolumeRef
from evidcore.case import Side, Split
from evidcore_plugin_ct_data.files import Origin
from evidcore_plugin_ct_data.published import Entry, HubSource, PublishedSet, drawn_split
from evidcore_plugin_ct_data.tables import Row, number, read_rows

TABLE = "AbdomenAtlas3.0MiniWithMeta.csv"
CASES_PER_ARCHIVE = 232
LAST_CASE = 9262
LESIONS = ("liver lesion", "kidney lesion", "pancreatic lesion")  # as columns and findings are called
SIDES: Mapping[str, Side] = {"left": "left", "right": "right"}
_ID = re.compile(r"BDMAP_(\d{8})")


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class AbdomenAtlas(PublishedSet):
    """AbdomenAtlas 3.0 Mini: abdominal CT with a report, organ masks and lesion masks.

    Masks have the names of their files with spaces: `liver`, `kidney left`, `liver lesion`.

    Args:
        path: the folder with the CSV, `image_only`, `mask_only` and `TrainTestIDS`.
        report: which of the four reports; a fusion report exists for some cases only.
        id_lists: which lists divide the set: "IID" at random, "OOD" by hospital.
        validation_share: share of the training list in `validation`.
        ids: only these cases (`BDMAP_00000001`), or a text file with one a line. With archives of 232
            cases each, neighbours are far less to fetch than a `limit` of as many.
        max_gb: more than this is never fetched for a split; 40 archives of images have about 14 GB each.
    """

    findings = LESIONS
    repository = "AbdomenAtlas/AbdomenAtlas3.0Mini"

    source: Annotated[HubSource, InlineOptions]
    report: Literal["structured", "narrative", "fusion structured", "fusion narrative"] = "structured"
    id_lists: Literal["IID", "OOD"] = "IID"
    validation_share: Annotated[float, Ge(0), Lt(1)] = 0.05

    def _tables(self) -> list[str]:
        return [TABLE, *(f"TrainTestIDS/{self.id_lists}_{part}.csv" for part in ("train", "test"))]

    def _entries(self, split: Split) -> Iterator[Entry]:
        chosen = self._listed_ids("test" if split == "test" else "train")
        table = self._files.table(TABLE)
        columns = [column for name in LESIONS for column in _columns(name)]
        for line, row in read_rows(table, ["BDMAP ID", f"{self.report} report", *columns]):
            name = row["BDMAP ID"].strip()
            if name not in chosen:
                continue
            if split != "test" and split != drawn_split(name, validation_share=self.validation_share):
                continue
            where = f"{table}: line {line}, case {name!r}"
            image, masks = f"image_only/{name}/ct.nii.gz", f"mask_only/{name}/segmentations/"
            if _ID.fullmatch(name) is None:
                raise DataError(f"{where}: an id is written like BDMAP_00000001. Fetch the table again.")
            yield Entry(case=self._case(name, row, where, image, masks), names=(image, masks))

    def _case(self, name: str, row: Row, where: str, image: str, masks: str) -> Case:
        text = row[f"{self.report} report"].strip()
        folder = self._files.path(masks)
        hits = sorted(folder.glob("*.nii.gz")) if folder.is_dir() else []
        return Case(
            id=name,
            patient=None,
            volumes=(VolumeRef(path=str(self._files.path(image)), intensity="hu"),),
            report=Report(text=text) if text else None,
            findings=tuple(_finding(name, row, where) for name in LESIONS),
            masks={
                hit.name.removesuffix(".nii.gz").replace("_", " "): MaskRef(path=str(hit)) for hit in hits
            },
        )

    def origins(self, name: str) -> Sequence[Origin]:
        """Return the archive of a case's file; tables lie in the repository as they are."""
        kind = name.partition("/")[0]
        hits = _ID.search(name)
        if kind not in ("image_only", "mask_only") or hits is None:
            return (Origin(name=name),)
        first = (int(hits[1]) - 1) // CASES_PER_ARCHIVE * CASES_PER_ARCHIVE + 1
        last = min(first + CASES_PER_ARCHIVE - 1, LAST_CASE)
        what = "images" if kind == "image_only" else "masks"
        archive = f"{kind}/AbdomenAtlas3_{what}_BDMAP_BDMAP_{first:08d}_BDMAP_{last:08d}.tar.gz"
        return (Origin(name=archive, is_archive=True),)

    def inside(self, member: str) -> str | None:
        """Return where a member belongs: archives begin with the case, the set with images or masks."""
        hits = _ID.search(member)
        if hits is None:
            return None
        kind = "mask_only" if "/segmentations/" in member else "image_only"
        return f"{kind}/{member[hits.start() :]}"

    def _listed_ids(self, part: str) -> set[str]:
        file = self._files.table(f"TrainTestIDS/{self.id_lists}_{part}.csv")
        ids = {next(iter(row.values())).strip() for _, row in read_rows(file)}
        if not ids:
            raise DataError(f"{file}: lists no ids. Fetch it again.")
        return ids


def _columns(lesion: str) -> tuple[str, str]:
    return f"number of {lesion} instances", f"largest {lesion} diameter (cm)"


def _finding(name: str, row: Row, where: str) -> Finding:
    count, diameter = _columns(name)
    state: Literal["present", "absent"] = "absent"
    size_mm = None
    if row[count].strip():
        state = "present" if number(row[count], f"{where}, column {count!r}") > 0 else "absent"
    if state == "present" and row[diameter].strip():
        size_mm = number(row[diameter], f"{where}, column {diameter!r}") * 10
    place = row.get(f"largest {name} location (left, right)", "").strip().lower()
    side = SIDES.get(place) if state == "present" else None
    return Finding(name=name, state=state, size_mm=size_mm, side=side)
