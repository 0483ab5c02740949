"""Miniatures of KiTS23, CT-ORG and AbdomenAtlas 3.0 Mini."""

from pathlib import Path

import numpy as np

from evidcore_plugin_ct_data.miniatures.voxels import PUBLISHED, document, mask, nifti, table, volume

KITS = tuple(f"case_{number:05d}" for number in (*range(12), 400))
CT_ORG = (0, 20, *range(21, 29))
ATLAS = tuple(f"BDMAP_{number:08d}" for number in (1, 2, 3, 4, 5, 6, 233))
ORGANS = PUBLISHED["abdomen-atlas"]["organs"]


def kits23(folder: Path) -> None:
    """Write KiTS23 as a clone is after the download: axes from the top, drawings, a draft, the table."""
    known = []
    for number, name in enumerate(KITS):
        case = folder / "dataset" / name
        has_cyst = number % 3 == 0
        labels = np.zeros(volume(0).shape, np.uint8)
        labels[:, 1:6] = 1
        labels[mask(number)] = 2
        labels[5, 7, 9] = 3 if has_cyst else 0
        written = {"imaging": volume(number), "segmentation": labels}
        for drawing in range(1, 2 if name >= "case_00300" else 4):
            drawn = mask(number).copy()
            drawn[0, 0, :drawing] = True  # people draw a little differently
            written[f"instances/tumor_instance-1_annotation-{drawing}"] = drawn.astype(np.uint8)
        written["instances/.suppl.tumor_instance-1_annotation-1"] = labels
        written["instances/kidney_instance-1_annotation-1"] = (labels == 1).astype(np.uint8)
        if has_cyst:
            written["instances/cyst_instance-1_annotation-1"] = (labels == 3).astype(np.uint8)
        for file, array in written.items():
            nifti(case / f"{file}.nii.gz", array, "IPL", (0.5, 0.92, 0.92))
        facts = {"gender": "female", "malignant": True, "radiographic_size": 2.4 + number}
        known.append({"case_id": name, **facts})
    document(folder / "dataset" / "kits23.json", known)


def ct_org(folder: Path) -> None:
    """Write CT-ORG: scans of both parts with a label map each; the brain is seen in every second one."""
    for number in CT_ORG:
        labels = np.zeros(volume(0).shape, np.uint8)
        for label in range(1, 7 if number % 2 == 0 else 6):
            labels[1 + number % 3 : 4, label, 2:6] = label
        nifti(folder / f"volume-{number}.nii.gz", volume(number), "LAS")
        nifti(folder / f"labels-{number}.nii.gz", labels, "LAS")


def atlas(folder: Path) -> None:
    """Write AbdomenAtlas as it is after unpacking: images, masks by organ, the table and the id lists."""
    rows = []
    for number, name in enumerate(ATLAS):
        has_lesion = number % 2 == 0
        nifti(folder / "image_only" / name / "ct.nii.gz", volume(number), "RPS")
        for index, organ in enumerate(ORGANS):
            there = has_lesion or not organ.endswith("lesion")
            result = mask(number + index) if there else np.zeros_like(mask(0))
            place = folder / "mask_only" / name / "segmentations" / f"{organ}.nii.gz"
            nifti(place, result.astype(np.uint8), "RPS")
        rows.append(_row(name, number, has_lesion))
    table(folder / "AbdomenAtlas3.0MiniWithMeta.csv", rows)
    for lists, split in (("IID", 5), ("OOD", 3)):
        table(folder / "TrainTestIDS" / f"{lists}_train.csv", ({"BDMAP ID": name} for name in ATLAS[:split]))
        table(folder / "TrainTestIDS" / f"{lists}_test.csv", ({"BDMAP ID": name} for name in ATLAS[split:]))


def _row(name: str, number: int, has_lesion: bool) -> dict[str, str]:
    count = "2" if has_lesion else "0"
    return {
        "BDMAP ID": name,
        "sex": "F",
        "age": "51.0",
        "number of liver lesion instances": count,
        "largest liver lesion diameter (cm)": "3.1" if has_lesion else "",
        "number of kidney lesion instances": count,
        "largest kidney lesion diameter (cm)": "1.25" if has_lesion else "",
        "largest kidney lesion location (left, right)": "left" if has_lesion else "",
        "number of pancreatic lesion instances": "0.0",
        "largest pancreatic lesion diameter (cm)": "",
        "structured report": f"FINDINGS: generated,\nnumber {number}.",
        "narrative report": f"A generated report, number {number}.",
        "fusion structured report": "",
        "fusion narrative report": "",
    }
