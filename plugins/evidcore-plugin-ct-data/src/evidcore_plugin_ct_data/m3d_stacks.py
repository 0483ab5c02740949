"""Stacks of the M3D family: where one lies, as an array or as slices, and where its axes run to."""

import dataclasses
import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evidcore.api import Cache, Case, DataError, VolumeRef
from evidcore.case import Split
from evidcore_plugin_ct_data.files import Files
from evidcore_plugin_ct_data.published import UNKNOWN_SPACING_MM, Entry

PICTURES = (".png", ".jpg", ".jpeg")
# The slices of a stack are shown as radiologists look at them: rows downwards, columns to the picture's
# right. Axial stacks are taken to begin at the top of the body, coronal ones in front, sagittal ones on the
# right.
PLANES: Mapping[str, str] = {"axial": "IPL", "coronal": "PIL", "sagittal": "LIP"}
_NUMBER = re.compile(r"\d+")
RAW = "M3D_Cap"  # folders of slices as published
PREPARED = "M3D_Cap_npy"  # arrays made by the publisher's program
_ROOT = re.compile(r"ct_(case|quizze)\w*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack:
    """A stack of the set."""

    id: str  # such as `ct_case/006708/Axial_lung_window`
    patient: str  # its Radiopaedia case, such as `ct_case/006708`
    volume: VolumeRef
    names: tuple[str, ...]  # what of the set it needs
    prepare: Callable[[], None] | None  # makes the array of a folder of slices

    def entry(self, split: Split, homes: Mapping[str, Split], where: str, **known: Any) -> Entry:
        """Return its case, with what is known of it; one that has its home in another split says so."""
        home = homes.get(self.patient, split)
        same = f"{where}: patient {self.patient!r} is also in the {home} list and stays there alone."
        case = Case(id=self.id, patient=self.patient, volumes=(self.volume,), **known)
        elsewhere = None if home == split else same
        return Entry(case=case, names=self.names, elsewhere=elsewhere, prepare=self.prepare)


def tail(path: str) -> str | None:
    """Return a path from `ct_case` or `ct_quizze` on, None where neither is in it."""
    parts = path.split("/")
    for index, part in enumerate(parts):
        if result := _ROOT.fullmatch(part):
            return "/".join((f"ct_{result[1]}", *parts[index + 1 :]))
    return None


def homes(images: Mapping[Split, Iterable[str]]) -> dict[str, Split]:
    """Return in which split each patient stays: test before validation before training."""
    order: tuple[Split, ...] = ("train", "validation", "test")
    return {(tail(image) or image).rpartition("/")[0]: split for split in order for image in images[split]}


def locate(image: str, files: Files, cache_folder: Path, axes: Mapping[str, str], where: str) -> Stack:
    """Find a stack by the path that a list gives, which ends in .npy also where slices were not stacked."""
    name = tail(image)
    if name is None or name.count("/") < 2:
        why = f"an image lies below ct_case or ct_quizze in the folder of its case, got {image!r}"
        raise DataError(f"{where}: {why}. Fetch the list again.")
    bare = name.removesuffix(".npy")
    patient, _, stem = bare.rpartition("/")
    fields: dict[str, Any] = {"intensity": "arbitrary", "spacing_mm_zyx": UNKNOWN_SPACING_MM}
    fields["axes"] = axes_of(stem, axes)
    for array in (f"{PREPARED}/{bare}.npy", f"{RAW}/{bare}.npy", f"{bare}.npy"):
        if files.path(array).is_file():
            ref = VolumeRef(path=str(files.path(array)), **fields)
            return Stack(id=bare, patient=patient, volume=ref, names=(array,), prepare=None)
    folders = (path for root in (RAW, ".") for path in sorted(files.path(f"{root}/{patient}").glob("*/")))
    match = next((path for path in folders if same_text(path.name) == same_text(stem)), None)
    slices = f"{RAW}/{bare}/" if match is None else f"{match.relative_to(files.folder).as_posix()}/"
    folder = files.path(slices)
    pictures = sorted(path for path in folder.glob("*") if path.suffix.lower() in PICTURES)
    facts = [(path.name, path.stat().st_size, path.stat().st_ctime_ns) for path in pictures]
    cache, key = Cache("m3d-stacks", cache_folder), [str(folder), facts]  # another array for another state

    def prepare() -> None:
        cache.file(key, ".npy", functools.partial(stack, folder))

    ref = VolumeRef(path=str(cache.path(key, ".npy")), **fields)
    return Stack(id=bare, patient=patient, volume=ref, names=(slices,), prepare=prepare)


def axes_of(name: str, axes: Mapping[str, str]) -> str:
    """Return where the axes (slice, row, column) of a stack run to; its name begins with its plane."""
    plane = next((plane for plane in PLANES if plane in name.lower()), "axial")
    return {**PLANES, **axes}[plane]


def same_text(name: str) -> str:
    """Return a name without accents: the set's lists are written without, its folders with them."""
    decomposed = unicodedata.normalize("NFKD", name)
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))


def stack(folder: Path, to: Path) -> None:
    """Make one array (slice, row, column) of a folder of pictures, in the order of their numbers.

    Slices of another size than most are left out, as the publisher's program leaves them out: they are
    scouts.

    Raises:
        DataError: if there are fewer than two pictures, one has no number or cannot be read.
    """
    from PIL import Image, UnidentifiedImageError

    slices = [path for path in folder.iterdir() if path.suffix.lower() in PICTURES]
    for path in slices:
        if not _NUMBER.fullmatch(path.stem):
            raise DataError(f"{path}: a slice is named by its number, such as 12.jpeg. Rename or remove it.")
    pictures = []
    for path in sorted(slices, key=lambda path: int(path.stem)):
        try:
            with Image.open(path, formats=("PNG", "JPEG")) as picture:
                pictures.append(np.asarray(picture.convert("L")))
        except (UnidentifiedImageError, OSError) as cause:
            why = f"is no readable picture ({cause})"
            raise DataError(f"{path}: {why}. Fetch it again or remove it.") from cause
    usual = Counter(picture.shape for picture in pictures).most_common(1)
    same_size = [picture for picture in pictures if picture.shape == usual[0][0]]
    if len(same_size) < 2:
        why = f"holds {len(same_size)} slices of one size, a volume has at least 2"
        raise DataError(f"{folder}: {why}. Leave it out.")
    np.save(to, np.stack(same_size))
