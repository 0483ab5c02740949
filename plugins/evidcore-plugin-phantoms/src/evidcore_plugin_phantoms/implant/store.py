"""Planted scans on disk: each in a folder named by all that it depends on, whole or not at all."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from evidcore.cache import Cache
from evidcore.data import Volume, save_volume
from evidcore_plugin_phantoms.implant.planting import Lesion, Planted

VOLUME, MASKS, BEFORE, FACTS = "volume.nii.gz", "masks.npz", "before.npz", "lesions.json"
VERSION = 1  # raised where the same options plant something else, as tests/test_golden.py finds out


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A planted scan on disk."""

    volume: Path | None  # None: nothing was planted, the source's own scan stands
    masks: Path | None
    lesions: tuple[Lesion, ...]
    no_place: Mapping[str, str]


def ensure(cache: Cache, asked: Mapping[str, Any], make: Callable[[], tuple[Volume, Planted]]) -> Entry:
    """Return the entry for what is asked; make it if it is not there.

    Args:
        cache: of all entries.
        asked: all that the entry depends on, in JSON's types.
        make: reads the source and plants.
    """
    done = cache.folder({**asked, "version": VERSION}, lambda partial: _write(partial, *make()))
    known = json.loads((done / FACTS).read_text(encoding="utf-8"))
    lesions = tuple(
        Lesion(**{**facts, "centre_zyx": tuple(facts["centre_zyx"])}) for facts in known["lesions"]
    )
    return Entry(
        volume=done / VOLUME if lesions else None,
        masks=done / MASKS if lesions else None,
        lesions=lesions,
        no_place=known["no_place"],
    )


def _write(folder: Path, volume: Volume, planted: Planted) -> None:
    if planted.lesions:
        save_volume(dataclasses.replace(volume, array=planted.array), folder / VOLUME)
        arrays: dict[str, Any] = dict(planted.masks)
        np.savez_compressed(folder / MASKS, **arrays)
        replaced: dict[str, Any] = {}
        for kind, (at, hu) in planted.before.items():
            replaced |= {f"{kind} at": at, f"{kind} hu": hu}
        np.savez_compressed(folder / BEFORE, **replaced)
    facts = {
        "lesions": [dataclasses.asdict(lesion) for lesion in planted.lesions],
        "no_place": dict(planted.no_place),
    }
    (folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")


def without(cache: Cache, volume: Path, kind: str) -> Path:
    """Return a planted scan without one of its lesions; written when it is first asked for.

    Args:
        cache: of all entries.
        volume: the scan of an entry.
        kind: the lesion's.
    """

    def fill(partial: Path) -> None:
        image = nibabel.nifti1.Nifti1Image.from_filename(volume)
        array = np.asanyarray(image.dataobj).transpose(2, 1, 0).copy()
        with np.load(volume.with_name(BEFORE)) as replaced:
            array.reshape(-1)[replaced[f"{kind} at"]] = replaced[f"{kind} hu"]
        nibabel.save(nibabel.Nifti1Image(array.transpose(2, 1, 0), None, image.header), partial)

    return cache.file([volume.parent.name, "without", kind], ".nii.gz", fill)
