"""Miniature of OmniMedVQA."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from evidcore_plugin_ct_data.miniatures.voxels import document

SETS = {"Chest CT Scan": 14, "ACRIMA": 6}  # pictures of each


def omni_med_vqa(folder: Path) -> None:
    """Write OmniMedVQA as it is after unpacking, with answers written a little unlike their options."""
    root = folder / "OmniMedVQA"
    for name, count in SETS.items():
        rows = []
        for number in range(count):
            picture = f"Images/{name}/{number:03d}.png"
            place = root / picture
            place.parent.mkdir(parents=True, exist_ok=True)
            y, x = np.indices((6, 8))
            Image.fromarray((y * 20 + x * 3 + number).astype(np.uint8)).save(place)
            rows += [_asked(name, picture, number, which) for which in range(2)]
        document(root / "QA_information" / "Open-access" / f"{name}.json", rows)
    restricted = _asked("AIDA", "Images/AIDA/000.png", 0, 0)  # whose pictures are not in the archive
    document(root / "QA_information" / "Restricted-access" / "AIDA.json", [restricted])


def _asked(name: str, picture: str, number: int, which: int) -> dict[str, str]:
    kind = "modality" if number == 0 and which == 0 else "modality_type"  # one entry is written so
    modality = "CT(Computed Tomography)" if name.startswith("Chest") else "Fundus Photography"
    options = ("CT", "MRI", "X-ray", "Fundus imaging.") if which == 0 else ("No, It's normal.", "Yes")
    return {
        "dataset": name,
        "question_id": f"{name}_{number:04d}_{which}",
        "question_type": "Modality Recognition" if which == 0 else "Disease Diagnosis",
        "question": "What modality is it?" if which == 0 else "Is it abnormal?",
        "gt_answer": ("CT." if name.startswith("Chest") else "fundus imaging")
        if which == 0
        else "no, it's normal",
        "image_path": picture,
        **{f"option_{letter}": option for letter, option in zip("ABCD", options, strict=False)},
        kind: modality,
    }
