"""Miniatures of CT-RATE and RAD-ChestCT."""

from pathlib import Path

import nibabel as nib
import numpy as np
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS

from evidcore_plugin_ct_data.miniatures.voxels import PUBLISHED, document, nifti, table, turned, volume
from evidcore_plugin_ct_data.rad_chestct import FROM_ABNORMALITIES, METADATA, TABLES

CT_RATE = {  # part -> volumes; a scan may have several reconstructions, a patient several scans
    "train": [f"train_{patient}_a_1" for patient in range(1, 13)] + ["train_1_a_2", "train_2_b_1"],
    "valid": ["valid_1_a_1", "valid_1_a_2", "valid_2_a_1"],
}
HEADER, CONVERSATION = PUBLISHED["ct-rate"]["header"], PUBLISHED["ct-rate"]["conversation"]
LOCATIONS = ("lung", "left_upper_lobe", "heart")
SCANS = {"train": ("trn00001", "trn00002"), "validation": ("val00003",), "test": ("tst00004",)}
PRESENT = {
    "trn00001": ("calcification*heart", "nodulegr1cm*lung", "groundglass*lung", "pacemaker_or_defib*heart"),
    "tst00004": ("emphysema*left_upper_lobe",),
}
AXIAL = {"orig_orientation": "1,0,0,0,1,0"}


def ct_rate(folder: Path) -> None:
    """Write CT-RATE: both trees, the tables, and questions."""
    root = folder / "dataset"
    number = 0
    for part, names in CT_RATE.items():
        rows = []
        for name in names:
            number += 1
            place = Path(name.rsplit("_", 2)[0]) / name.rsplit("_", 1)[0] / f"{name}.nii.gz"
            nifti(root / f"{part}_fixed" / place, volume(number), "LPS")
            stored = turned(volume(number), "LPS") - np.int16(HEADER["RescaleIntercept"])  # as on its disk
            plain = root / part / place
            plain.parent.mkdir(parents=True, exist_ok=True)
            nib.save(nib.Nifti1Image(stored, np.eye(4)), plain)  # 1 mm, and axes that it does not have
            rows.append((number, f"{name}.nii.gz"))
        other = "validation" if part == "valid" else part
        labels = [
            {"VolumeName": file}
            | {name.capitalize(): int((at + row) % 5 == 0) for at, name in enumerate(CT_RATE_FINDINGS)}
            for row, file in rows
        ]
        table(root / "multi_abnormality_labels" / f"{part}_predicted_labels.csv", labels)
        table(root / "radiology_text_reports" / f"{other}_reports.csv", (_report(*row) for row in rows))
        headers = [{"VolumeName": file, **HEADER} for _, file in rows]
        table(root / "metadata" / f"{other}_metadata.csv", headers)
        asked = [
            {"id": f"multiple_choice_{file}", "image": file, "conversations": CONVERSATION}
            for _, file in rows
        ]
        document(root / "vqa" / f"{part}_vqa.json", asked)


def _report(number: int, file: str) -> dict[str, str]:
    is_empty = number % 4 == 0
    return {
        "VolumeName": file,
        "ClinicalInformation_EN": "Not given.",
        "Technique_EN": "Generated.",
        "Findings_EN": "Not given." if is_empty else f"Generated findings, number {number}.",
        "Impressions_EN": "Not given." if number % 5 == 0 else f"Generated impression, number {number}.",
    }


def rad_chestct(folder: Path) -> None:
    """Write RAD-ChestCT: arrays from the highest slice down, 84 x 52 labels cut to a few locations."""
    sources = sorted({"groundglass", "mass"}.union(*FROM_ABNORMALITIES.values()))
    number = 0
    whose = []
    for split, scans in SCANS.items():
        rows = []
        for scan in scans:
            number += 1
            np.savez_compressed(folder / f"{scan}.npz", ct=turned(volume(number), "IPL"))
            whose.append({"MRN_DEID": f"patient{number}", "NoteAcc_DEID": scan, **AXIAL})
            labels = {f"{name}*{location}": 0 for name in sources for location in LOCATIONS}
            labels |= dict.fromkeys(PRESENT.get(scan, ()), 1)
            rows.append({"NoteAcc_DEID": scan} | labels)
        table(folder / TABLES[split], rows)  # type: ignore[index]
    whose.append({"MRN_DEID": "patient9", "NoteAcc_DEID": "trn99999", **AXIAL})
    table(folder / METADATA, whose)
