"""A few voxels in each published layout, with its quirks: to try a recipe before the download, and for tests.

`python -m evidcore_plugin_ct_data.miniatures ct-rate FOLDER` writes one. Nothing in them is of a patient.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from evidcore_plugin_ct_data.miniatures import abdomen, chest, m3d

WRITERS: Mapping[str, Callable[[Path], None]] = {
    "ct-rate": chest.ct_rate,
    "rad-chestct": chest.rad_chestct,
    "m3d-seg": m3d.seg,
    "m3d-cap": m3d.cap,
    "m3d-vqa": m3d.vqa,
    "kits23": abdomen.kits23,
    "ct-org": abdomen.ct_org,
    "abdomen-atlas-3-mini": abdomen.atlas,
    "omni-med-vqa": m3d.omni_med_vqa,
}


def write(name: str, folder: Path) -> None:
    """Write the miniature of the data set `name` into `folder`."""
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder}: is not empty. Name a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    WRITERS[name](folder)
