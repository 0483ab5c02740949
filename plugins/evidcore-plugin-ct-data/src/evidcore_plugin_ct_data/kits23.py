"""Data set `kits23`: 489 CTs with kidneys, tumours and cysts (github.com/neheller/kits23).

What the published files need, and what is done about it:

1. Masks come with the repository, images from elsewhere: `dataset/case_00000/imaging.nii.gz` is fetched by
   the publisher's program, or here, from the Hub data set neheller/KiTS-Challenge-Imaging
   (`images/case_00000.nii.gz`).
2. Labels are 1 kidney, 2 tumour, 3 cyst. The kidney's label leaves out tumours and cysts in it.
3. Every object also has a file of its own, drawn by up to three people:
   `tumor_instance-1_annotation-2.nii.gz`. Files that begin with a dot are drafts.
4. Only the training part is public: `validation` and `test` are drawn from it by a hash of the case, which
   is one patient.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Lt

from evidcore.api import Case, DataError, Finding, InlineOptions, MaskRef, VolumeRef
from evidcore.case import Query, Split
from evidcore.errors import NotDownloadedError, RecipeError
from evidcore_plugin_ct_data.files import Origin
from evidcore_plugin_ct_data.kits23_queries import queries as asked_of
from evidcore_plugin_ct_data.kits23_queries import read_texts, things_of
from evidcore_plugin_ct_data.published import Entry, FolderAndHub, PublishedSet, drawn_split
from evidcore_plugin_ct_data.tables import read_list

IMAGE, LABEL_MAP = "imaging.nii.gz", "segmentation.nii.gz"
CLINICAL = "kits23.json"
LABELS: Mapping[str, int] = {"kidney": 1, "kidney tumor": 2, "kidney cyst": 3}
NOTES = ("age_at_nephrectomy", "gender", "malignant", "tumor_histologic_subtype", "pathology_t_stage")
_INSTANCE = re.compile(r"(kidney|tumor|cyst)_instance-(\d+)_annotation-(\d+)\.nii\.gz")


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class Kits23(PublishedSet):
    """KiTS23: contrast-enhanced CT of 489 patients with a kidney tumour, label maps and single objects.

    Masks are `kidney`, `kidney tumor`, `kidney cyst`, and with `instances` also `tumor 1`, `cyst 2`.
    Findings say whether a tumour and a cyst are there; the tumour's size is the radiographic one of the
    clinical table.

    Args:
        path: the cloned repository, or its folder `dataset`; images are fetched to where the publisher's
            program puts them.
        revision: full commit hash of the Hub repository with the images: those that are not in `path` are
            fetched from there.
        instances: give every object a mask of its own too.
        annotation: whose drawing of the objects; cases from 300 on have the first alone, which is taken
            where the asked one is not there.
        queries: a file of texts that mean an object without naming it, MedVol-R1's `template.json`; cases
            then come with queries (`kits23_queries`), for which every object is read once.
        validation_share: share of the patients in `validation`.
        test_share: share of the patients in `test`.
        ids: only these cases (`case_00000`), or a text file with one a line.
        max_gb: more than this is never fetched for a split; all images have some tens of GB.
    """

    findings = ("kidney tumor", "kidney cyst")
    repository = "neheller/KiTS-Challenge-Imaging"
    others: ClassVar[Mapping[str, str]] = {LABEL_MAP: "a clone of https://github.com/neheller/kits23"}

    source: Annotated[FolderAndHub, InlineOptions]
    instances: bool = True
    annotation: Annotated[int, Ge(1)] = 1
    queries: str = ""
    validation_share: Annotated[float, Ge(0), Lt(1)] = 0.1
    test_share: Annotated[float, Ge(0), Lt(1)] = 0.2

    def __post_init__(self) -> None:
        """Refuse queries about objects that are not given."""
        super().__post_init__()
        if self.queries and not self.instances:
            why = f"queries = {self.queries!r} are about single objects, and instances is false"
            raise RecipeError(f"kits23: {why}. Leave it true.")

    def _settings(self) -> dict[str, Any]:
        """Return the options, with the texts of the queries."""
        return {**super()._settings(), "queries": self._texts}

    def _tables(self) -> list[str]:
        return [f"{self._root}{CLINICAL}"]

    @property
    def _root(self) -> str:
        """The folder with the cases, relative to the one that was given."""
        return "dataset/" if (self._files.folder / "dataset").is_dir() else ""

    def _entries(self, split: Split) -> Iterator[Entry]:
        root = self._files.folder / self._root
        folders = sorted(root.glob("case_*")) if root.is_dir() else []
        if not folders:
            error = DataError if self._files.folder.is_dir() else NotDownloadedError
            remedy = "Clone github.com/neheller/kits23 there, or correct path on the dataset."
            raise error(f"{root}: holds no folders case_00000 and so on. {remedy}")
        for folder in folders:
            name = folder.name
            shares = {"validation_share": self.validation_share, "test_share": self.test_share}
            if drawn_split(name, **shares) != split:
                continue
            image, labels = (f"{self._root}{name}/{file}" for file in (IMAGE, LABEL_MAP))
            objects = self._objects(folder)
            masks = self._label_map(labels, LABELS)
            drawn = objects if self.instances else {}
            masks |= {mask: MaskRef(path=str(path)) for mask, path in drawn.items()}
            asked: tuple[Query, ...] = ()
            if self.queries:
                things = things_of({mask: masks[mask] for mask in objects}, self.cache_folder)
                asked = asked_of(name, things, self._texts)
            facts = self._clinical.get(name, {})
            case = Case(
                id=name,
                patient=name,
                volumes=(VolumeRef(path=str(self._files.path(image)), intensity="hu"),),
                findings=_findings(objects, facts) if objects else (),
                masks=masks,
                queries=asked,
                notes={key: facts[key] for key in NOTES if facts.get(key) is not None},
            )
            files = (path.relative_to(self._files.folder).as_posix() for path in drawn.values())
            yield Entry(case=case, names=(image, labels, *files))

    def _objects(self, folder: Path) -> dict[str, Path]:
        """Return the file of each object: the asked annotation's, the first where that is not there."""
        result: dict[tuple[str, int], dict[int, Path]] = {}
        for path in sorted((folder / "instances").glob("*.nii.gz")):
            if part := _INSTANCE.fullmatch(path.name):
                result.setdefault((part[1], int(part[2])), {})[int(part[3])] = path
        return {
            f"{kind} {number}": drawn.get(self.annotation, drawn[min(drawn)])
            for (kind, number), drawn in sorted(result.items())
        }

    def origins(self, name: str) -> Sequence[Origin]:
        """Return where an image comes from; masks come with the clone."""
        case, _, file = name.removeprefix("dataset/").partition("/")
        return (Origin(name=f"images/{case}.nii.gz"),) if file == IMAGE else ()

    @functools.cached_property
    def _texts(self) -> Mapping[str, tuple[str, ...]]:
        return read_texts(self.recipe_folder / self.queries) if self.queries else {}

    @functools.cached_property
    def _clinical(self) -> Mapping[str, Mapping[str, Any]]:
        """What is known of each patient; empty where the table is not there."""
        file = self._files.folder / f"{self._root}{CLINICAL}"
        if not file.is_file():
            return {}
        return {str(row["case_id"]): row for row in read_list(file, "case_id")}


def _findings(objects: Mapping[str, Path], facts: Mapping[str, Any]) -> tuple[Finding, ...]:
    kinds = {name.partition(" ")[0] for name in objects}
    size_cm = facts.get("radiographic_size")
    size_mm = float(size_cm) * 10 if isinstance(size_cm, int | float) and "tumor" in kinds else None
    return (
        Finding(name="kidney tumor", state="present" if "tumor" in kinds else "absent", size_mm=size_mm),
        Finding(name="kidney cyst", state="present" if "cyst" in kinds else "absent"),
    )
