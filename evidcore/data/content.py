"""Names for pixels by content: equal keys mean equal encoder input."""

import contextlib
import dataclasses
import hashlib
import json
import os
from pathlib import Path

from evidcore.cache import Cache, cache_folder, key_of, plain_file
from evidcore.case import Crop, VolumeRef
from evidcore.data.encoder_input import EncoderInput, Grid
from evidcore.data.files import files_of, format_of, reader_mark
from evidcore.data.format import Format
from evidcore.data.stored import unreadable

PREPARATION = 1  # raise whenever `prepare` gives other numbers for the same settings
READING = 6  # raise whenever `read` or a format of the core gives other numbers or refuses other files
REMEMBERED_BYTES = 1 << 20  # smaller files are hashed within a millisecond

_known: dict[tuple[str, int, int], str] = {}


def file_hash(path: str | os.PathLike[str]) -> str:
    """Return a hash of a file's bytes; remembered by path, time and size, on disk where the file is large."""
    try:
        place = os.path.realpath(path)
        facts = os.stat(plain_file(place, is_text=False))
        # whoever writes into a file may keep its time, not that of its inode; the cache's are touched alone
        is_entry = place.startswith(f"{os.path.realpath(cache_folder())}{os.sep}")
        identity = (place, facts.st_mtime_ns if is_entry else facts.st_ctime_ns, facts.st_size)
        if identity not in _known:
            is_small = facts.st_size < REMEMBERED_BYTES
            cache = Cache("hashes")
            _known[identity] = _hash(place) if is_small else cache.get_or_make(identity, lambda: _hash(place))
    except OSError as cause:
        raise unreadable(path, cause) from cause
    return _known[identity]


def content_hash(path: str, reader: Format | None = None) -> str:
    """Return a hash of the bytes behind a volume or mask.

    For a file that is whole by itself it is the file's, for a DICOM folder that of all files in it, whatever
    their names. One image stands for its series, of several that its folder may hold: its own hash counts
    too.
    """
    listed = sorted(file_hash(file) for file in files_of(path, reader))
    if len(listed) == 1:
        return listed[0]
    if not Path(path).is_dir():
        listed.append(file_hash(path))
    return hashlib.blake2b("".join(listed).encode(), digest_size=16).hexdigest()


def excerpt(path: str) -> bytes:
    """Return what lies in the middle of a file, where scans of equal size differ; of a folder nothing."""
    with contextlib.suppress(OSError), plain_file(path, is_text=False).open("rb") as file:
        file.seek(os.path.getsize(path) // 2)
        return file.read(1 << 12)
    return b""


def content_key(crop: Crop, spec: EncoderInput, size_zyx: Grid | None = None) -> int:
    """Return the key of what `prepare` gives for the same arguments: 63 bits, to fit an int64 tensor.

    A blank crop looks the same whatever volume it stands for, and has the same key if it is drawn alike.
    """
    reader = None if crop.blank else format_of(crop.volume.path)  # looking for it takes longer than the rest
    declared = dataclasses.asdict(spec) | {"size_zyx": size_zyx or spec.size_zyx, "any_depth": None}
    del declared["multiple_px"]  # it says which sizes may be asked for, as any_depth does
    if not spec.colours:
        del declared["colours"]
    settings = {
        "preparation": PREPARATION,
        "reading": READING,
        "spec": declared,
        "blank": crop.blank,
        **({"change": crop.change} if crop.change else {}),
        **({"drawing": crop.drawing.mark()} if crop.drawing else {}),  # no cache takes a montage for a volume
        "volume": {"intensity": crop.volume.intensity} if crop.blank else crop.volume.to_params(),
        "box_zyx": None if crop.blank else crop.box_zyx,
        "file": None if crop.blank else content_hash(crop.volume.path, reader),
    }
    mark = [] if crop.blank else reader_mark(crop.volume.path, reader)
    text = json.dumps(settings | ({"reader": mark} if mark else {}), sort_keys=True).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def volume_key(ref: VolumeRef) -> str:
    """Return the key of what `read` gives for `ref`, wherever the file lies."""
    reader = format_of(ref.path)
    return key_of([READING, content_hash(ref.path, reader), ref.to_params(), *reader_mark(ref.path, reader)])


def crop_key(crop: Crop) -> str:
    """Return the key of what a crop shows, whatever encoder sees it and wherever the file lies."""
    drawn = [crop.drawing.mark()] if crop.drawing else []
    return key_of([volume_key(crop.volume), crop.box_zyx, crop.blank, crop.change, *drawn])


def _hash(path: str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
