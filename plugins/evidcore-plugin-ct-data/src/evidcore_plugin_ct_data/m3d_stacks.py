"""Where a stack that a list of the M3D family names lies: as one array, or as a folder of slices."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from evidcore.api import Cache, DataError, VolumeRef
from evidcore_plugin_ct_data.files import Files
from evidcore_plugin_ct_data.m3d_images import array_ref, axes_of, same_text, stack, stack_key

RAW, PREPARED = (
    "M3D_Cap",
    "M3D_Cap_npy",
)  # folders of slices as published; arrays made by the publisher's program
_ROOT = re.compile(r"ct_(case|quizze)\w*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack:
    """A stack of the set."""

    id: str  # such as `ct_case/006708/Axial_lung_window`
    patient: str  # its Radiopaedia case, such as `ct_case/006708`
    volume: VolumeRef
    names: tuple[str, ...]  # what of the set it needs
    prepare: Callable[[], None] | None  # makes the array of a folder of slices


def tail(path: str) -> str | None:
    """Return a path from `ct_case` or `ct_quizze` on, None where neither is in it."""
    parts = path.split("/")
    for index, part in enumerate(parts):
        if found := _ROOT.fullmatch(part):
            return "/".join((f"ct_{found[1]}", *parts[index + 1 :]))
    return None


def inside(member: str) -> str | None:
    """Return what an archive's member is called in the set; accents go, since the lists have none."""
    name = tail(member)
    return None if name is None else f"{RAW}/{same_text(name)}"


def locate(image: str, files: Files, cache_folder: Path, axes: Mapping[str, str], where: str) -> Stack:
    """Find a stack by the path that a list gives, which ends in .npy also where slices were not stacked.

    Args:
        image: the path in the list.
        files: of the set.
        cache_folder: keeps arrays made of slices.
        axes: by plane, in place of the usual.
        where: the list and the entry, for messages.
    """
    name = tail(image)
    if name is None or name.count("/") < 2:
        raise DataError(
            f"{where}: an image lies below ct_case or ct_quizze in the folder of its case, got {image!r}. "
            f"Fetch the list again."
        )
    bare = name.removesuffix(".npy")
    patient, _, stem = bare.rpartition("/")
    run_to = axes_of(stem, axes)
    for array in (f"{PREPARED}/{bare}.npy", f"{RAW}/{bare}.npy", f"{bare}.npy"):
        if files.path(array).is_file():
            ref = array_ref(files.path(array), run_to)
            return Stack(id=bare, patient=patient, volume=ref, names=(array,), prepare=None)
    slices = next((found for root in (RAW, ".") if (found := _folder(files, root, patient, stem))), None)
    slices = slices or f"{RAW}/{bare}/"
    folder = files.path(slices)

    cache, key = Cache("m3d-stacks", cache_folder), stack_key(folder)

    def prepare() -> None:
        cache.file(key, ".npy", functools.partial(stack, folder))

    ref = array_ref(cache.path(key, ".npy"), run_to)
    return Stack(id=bare, patient=patient, volume=ref, names=(slices,), prepare=prepare)


def _folder(files: Files, root: str, patient: str, stem: str) -> str | None:
    """Return the folder of slices whose name without accents is `stem`."""
    above = files.path(f"{root}/{patient}")
    if not above.is_dir():
        return None
    for path in sorted(above.iterdir()):
        if path.is_dir() and same_text(path.name) == same_text(stem):
            return f"{root}/{patient}/{path.name}/"
    return None
