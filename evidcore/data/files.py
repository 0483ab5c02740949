"""Which installed format reads a path, and which files stand behind it."""

import dataclasses
import functools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from evidcore.cache import plain_file
from evidcore.case import VolumeRef
from evidcore.data.format import Format
from evidcore.data.grid import Array
from evidcore.data.stored import AGAIN, Stored, memory_named, refuse_substitute, unreadable
from evidcore.errors import DataError, EvidError, PluginError
from evidcore.registry import Offer, blame, known_elsewhere, offers
from evidcore.registry.factory import build, offer_of

State = tuple[tuple[str, int, int], ...]

ALLOWED = {
    "axes": "axes {!r} cannot be given for a {}, which states its own. Leave axes out.",
    "key": "key {!r} picks nothing of a {}, which names no part of itself. Leave the key out.",
}


def format_of(path: str) -> Format:
    """Return the format of an existing file by its ending, of a folder or another file by its content."""
    try:
        facts = os.stat(plain_file(path, is_text=False))
    except (OSError, ValueError) as cause:  # a name may hold a null byte
        raise unreadable(path, cause) from cause
    is_folder = stat.S_ISDIR(facts.st_mode)
    if not is_folder and facts.st_size == 0:
        raise DataError(f"{path}: the file is empty, 0 bytes. {AGAIN}")
    if not is_folder and (named := _by_ending(path)) is not None:
        return named
    result: dict[type, Format] = {}
    broken = []
    for offer in offers("format"):
        try:
            candidate = _built(offer)
        except PluginError as fault:
            broken.append(f" {fault}")
            continue
        with blame(offer, f"looking at {path}"):
            if type(candidate) not in result and candidate.recognises(path):
                result[type(candidate)] = candidate
    if len(result) > 1:
        raise _several(path, [offer_of(item) for item in result.values()])
    if not result:
        raise _not_read(path, is_folder, "".join(broken))
    return next(iter(result.values()))


def endings_of(path: str) -> Iterator[str]:
    """Yield what a file's name may end in, the longest first: `seg.nrrd`, then `nrrd`."""
    parts = os.path.basename(path).lower().split(".")
    return (".".join(parts[start:]) for start in range(1, len(parts)))


def stem(path: str) -> str:
    """Return the name of a file without the ending that its format has; of another, the whole name."""
    known = {offer.name for offer in offers("format")}
    name = os.path.basename(path)
    ending = next((ending for ending in endings_of(path) if ending in known), None)
    return name if ending is None else name[: -len(ending) - 1]


def _by_ending(path: str) -> Format | None:
    installed = offers("format")
    for ending in endings_of(path):
        # a format `sparse-npz` reads those files of ending `npz` that it recognises
        special = [offer for offer in installed if offer.name.endswith(f"-{ending}")]
        hits = [offer for offer in special if _built(offer).recognises(path)]
        hits = hits or [offer for offer in installed if offer.name == ending]
        if len(hits) > 1:
            raise _several(path, hits)
        if hits:
            return _built(hits[0])
    return None


def _several(path: str, hits: list[Offer]) -> PluginError:
    listed = " and ".join(f"{offer.package} {offer.version} (format {offer.name!r})" for offer in hits)
    return PluginError(f"{path}: is read by {len(hits)} installed formats: {listed}. Uninstall one of them.")


def _not_read(path: str, is_folder: bool, broken: str) -> EvidError:
    elsewhere = known_elsewhere("format")
    for ending in endings_of(path):
        if ending in elsewhere and not is_folder:
            return PluginError(
                f"{path}: no installed package reads .{ending} files. It comes with "
                f"`pip install {elsewhere[ending]}`."
            )
    installed = {offer.name for offer in offers("format")}
    listed = ", ".join(sorted(f".{name}" for name in installed))
    if is_folder:
        with os.scandir(path) as entries:
            inside = sorted(entry.name for entry in entries if entry.is_dir())
        hint = f" It holds the folders {', '.join(inside[:5])}." if inside else ""
        text = f"{path}: is a folder that no format recognises.{hint} Name the file or folder of one volume."
    else:
        ending = "".join(Path(path).suffixes[-2:]) or "none"
        why = f"is no format that is read, its ending is {ending!r} and no format knows its content"
        text = f"{path}: {why}. Convert it with SimpleITK."
    text += f" Read are {listed}."
    for package in sorted({elsewhere[name] for name in elsewhere.keys() - installed}):
        names = ", ".join(f".{name}" for name in sorted(elsewhere) if elsewhere[name] == package)
        text += f" `pip install {package}` reads {names}."
    return DataError(text + broken)


@functools.cache
def _built(offer: Offer) -> Format:
    offer.load()  # says what is wrong with the package; `build` would say it of a recipe
    where = f"format {offer.name}"
    built: Format = build("format", {"use": f"{offer.package}/{offer.name}"}, given={}, where=where)
    return built


def open_volume(ref: VolumeRef) -> Stored:
    """Read the header of the file or files behind a reference."""
    reader = format_of(ref.path)
    refuse_substitute(ref.path)
    offer = offer_of(reader)
    for name, text in ALLOWED.items():
        given = getattr(ref, name)
        if given is not None and name not in reader.takes:
            raise DataError(f"{ref.path}: {text.format(given, f'.{offer.name} file')}")
    with blame(offer, f"opening {ref.path}"), memory_named(ref.path):
        stored = reader.open(ref)
    load = stored.load

    def blamed() -> Array:
        with blame(offer, f"loading {ref.path}"), memory_named(ref.path):
            return load()

    return dataclasses.replace(stored, load=blamed)


def files_of(path: str, reader: Format | None = None) -> list[Path]:
    """Return every file whose bytes may matter to the volume or mask at `path`, in order of name.

    That is the file itself, and what its format adds: the voxels beside a header, the images of a series.
    """
    reader = reader or format_of(path)
    with blame(offer_of(reader), f"listing the files of {path}"):
        return reader.files(path)


def reader_mark(path: str, reader: Format | None = None) -> list[str]:
    """Return the package that reads a path, for keys of what was read; nothing where it is the core."""
    offer = offer_of(reader or format_of(path))
    is_ours = offer.package == __name__.partition(".")[0]  # `READING` counts the changes of those
    return [] if is_ours else [f"{offer.package} {offer.version}"]  # a corrected reader reads anew


def file_state(path: str) -> State | None:
    """Return name, time and size of every file of `files_of`; None where they cannot be listed.

    What was remembered for a state holds while the state is the same.
    """
    try:
        states = ((os.path.realpath(file), file.stat()) for file in files_of(path))
        return tuple((name, facts.st_mtime_ns, facts.st_size) for name, facts in states)
    except (EvidError, OSError):
        return None
