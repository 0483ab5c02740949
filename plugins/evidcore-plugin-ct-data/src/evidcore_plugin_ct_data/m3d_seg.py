"""Data set `m3d-seg`: 25 segmentation sets in one layout (Hub data set GoodBaiBai88/M3D-Seg).

What the published files need, and what is done about it:

1. `CODE/CODE.json` lists pairs of image and label by relative path, in the manner of the Decathlon. Both
   layouts are read: `CODE/<case>/image.npy` with `mask_(C, X, Y, Z).npz`, and `CODE/ct/*.npy` with
   `CODE/gt/*.(C, ...).npz`.
2. The masks of a case are one sparse matrix: see `sparse_masks`.
3. Intensities were z-scored after clipping: they are no HU, and windows cannot be applied.
4. Spacing and orientation were not kept. The axes are those of the files that each set was made from. They
   are known here for KiTS23; for other sets the recipe says them. Lengths in mm mean nothing.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Lt

from evidcore.api import Case, DataError, InlineOptions, MaskRef, VolumeRef
from evidcore.case import Split
from evidcore_plugin_ct_data.archives import ENDINGS
from evidcore_plugin_ct_data.files import Origin
from evidcore_plugin_ct_data.published import UNKNOWN_SPACING_MM, Entry, HubSource, PublishedSet, drawn_split
from evidcore_plugin_ct_data.tables import read_json

KNOWN_AXES: Mapping[str, str] = {"0004": "IPL"}  # KiTS23's files run to inferior, posterior, left
_CODE = re.compile(r"\d{4}")


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class M3dSeg(PublishedSet):
    """M3D-Seg: 5,772 volumes with 149,196 masks, 25 public sets under four-digit codes.

    Masks have the names of the set's labels. `test` is the published test list; `validation` is drawn from
    the published training list. Patients are not named: two codes may hold the same scan.

    Args:
        codes: which of the sets, such as `["0004", "0012"]`.
        path: the folder that holds one folder a code.
        axes: by code, where the axes of its arrays run to, such as `{ "0012" = "LPS" }`.
        validation_share: share of the published training list in `validation`.
        ids: only these cases (`0004/case_00000`), or a text file with one a line.
    """

    repository = "GoodBaiBai88/M3D-Seg"

    source: Annotated[HubSource, InlineOptions]
    codes: tuple[str, ...]
    axes: dict[str, str] | None = None
    validation_share: Annotated[float, Ge(0), Lt(1)] = 0.1

    def _tables(self) -> list[str]:
        return [f"{code}/{code}.json" for code in self.codes]

    def _entries(self, split: Split) -> Iterator[Entry]:
        for code in self.codes:
            yield from self._of_code(code, split)

    def _of_code(self, code: str, split: Split) -> Iterator[Entry]:
        file = self._files.table(f"{code}/{code}.json")
        known = read_json(file)
        names = _labels(known, file)
        pairs = known.get("test" if split == "test" else "train", [])
        axes = {**KNOWN_AXES, **(self.axes or {})}.get(code)
        if axes is None:
            why = f"the arrays of set {code!r} do not say where their axes run to"
            remedy = f'set on the dataset what is true, such as axes = {{ {code} = "LPS" }}.'
            raise DataError(f"{file}: {why}, so left and right are unknown. Look at one, then {remedy}")
        for index, pair in enumerate(pairs):
            image, label = _paths(pair, f"{file}: entry {index} of {split!r}")
            parts = image.split("/")  # CODE/case/image.npy, in the older layout CODE/case.npy
            last = parts[-2] if parts[-1] == "image.npy" else parts[-1].removesuffix(".npy")
            case_id = f"{parts[0]}/{last}"
            if split != "test" and split != drawn_split(case_id, validation_share=self.validation_share):
                continue
            path, step_mm = str(self._files.path(image)), UNKNOWN_SPACING_MM
            volume = VolumeRef(path=path, intensity="arbitrary", axes=axes, spacing_mm_zyx=step_mm)
            masks = {
                name: MaskRef(path=str(self._files.path(label)), key=str(row), axes=axes)
                for row, name in enumerate(names)
            }
            case = Case(id=case_id, patient=None, volumes=(volume,), masks=masks)
            yield Entry(case=case, names=(image, label))

    @functools.cached_property
    def _names(self) -> list[str]:
        """The names of the repository's files."""
        return self._files.repository.names() if self._files.repository else []

    def origins(self, name: str) -> Sequence[Origin]:
        """Return the archives that may hold a file; set 0024 comes in three."""
        if name in self._names:
            return (Origin(name=name),)
        code = name.partition("/")[0]
        archives = [file for file in self._names if file.endswith(ENDINGS)]
        result = [file for file in archives if Path(file).name.startswith(code)]
        repository = self._files.repository
        if repository is not None and not result:
            why = f"{repository.page}: commit {repository.revision[:12]} has no archive of set {code!r}"
            raise DataError(f"{why}. It has: {', '.join(archives) or 'none'}. Correct codes on the dataset.")
        return [Origin(name=file, is_archive=True) for file in result]

    def inside(self, member: str) -> str | None:
        """Return a path from its code on: archives and lists put folders of their makers before it."""
        return _from_code(member)


def _from_code(member: str) -> str | None:
    parts = member.split("/")
    start = next((index for index, part in enumerate(parts) if _CODE.fullmatch(part)), None)
    return None if start is None else "/".join(parts[start:])


def _labels(known: Any, file: Path) -> list[str]:
    """Return the mask names in the order of the matrix's rows: labels 1, 2, … without the background."""
    labels = known.get("labels") if isinstance(known, dict) else None
    if not isinstance(labels, dict):
        why = f"must be a table with 'labels', 'train' and 'test', its labels are {labels!r}"
        raise DataError(f"{file}: {why}. Fetch it again.")
    names = {int(value): str(name) for value, name in labels.items() if str(value).isdecimal()}
    if not names:  # the other way round, as newer lists have it
        names = {int(value): str(name) for name, value in labels.items() if str(value).isdecimal()}
    ordered = [names[value] for value in sorted(names) if value > 0]
    if not ordered or sorted(value for value in names if value > 0) != list(range(1, len(ordered) + 1)):
        raise DataError(f"{file}: labels must count from 1 without a gap, got {labels!r}. Fetch it again.")
    return ordered


def _paths(pair: Any, where: str) -> tuple[str, str]:
    if not isinstance(pair, dict) or not pair.get("image") or not pair.get("label"):
        raise DataError(f"{where}: must name an image and a label, got {pair!r}. Fetch the list again.")
    image, label = (_from_code(str(pair[kind])) for kind in ("image", "label"))
    if image is None or label is None:
        why = f"a path holds the set's code, four digits, got {pair!r}"
        raise DataError(f"{where}: {why}. Fetch the list again.")
    return image, label
