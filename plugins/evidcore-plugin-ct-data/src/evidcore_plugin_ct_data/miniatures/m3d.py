"""Miniatures of M3D-Seg, M3D-Cap, M3D-VQA and OmniMedVQA."""

from pathlib import Path

import numpy as np
from PIL import Image
from scipy import sparse

from evidcore_plugin_ct_data.miniatures.voxels import PUBLISHED, Array, document, mask, table, turned, volume

CODES = {"0004": ("IPL", ("kidney", "kidney tumor", "kidney cyst")), "0012": ("LPS", ("liver", "bladder"))}
CASES = 5  # of each code: four to train on, one to test on
STACKS = PUBLISHED["m3d"]["stacks"]  # list -> stacks
ARRAY = "ct_case/000001/Axial_lung_window"  # the one that is there as the publisher's program makes it


def seg(folder: Path) -> None:
    """Write M3D-Seg: one set in the newer layout, one in the older."""
    for code, (axes, names) in CODES.items():
        pairs = []
        for number in range(CASES):
            values = turned(volume(number), axes).astype(np.float32)
            scored = (values - values.mean()) / values.std()
            masks = [turned(mask(number + row), axes) for row in range(len(names))]
            masks[-1][:] = number == 0 and masks[-1]  # the last label is in the first case alone
            stacked = np.stack(masks).astype(np.int32)
            matrix = sparse.csr_matrix(stacked.reshape(len(names), -1))
            image, label = _names(code, number, stacked.shape)
            for name in (image, label):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
            np.save(folder / image, scored[None])
            sparse.save_npz(folder / label, matrix)
            pairs.append({"image": image, "label": label})
        labels = {"0": "background"} | {str(row + 1): name for row, name in enumerate(names)}
        known = {"name": f"{code} Dataset", "tensorImageSize": "4D", "modality": {"0": "CT"}}
        parts = {"numTrain": CASES - 1, "numTest": 1, "train": pairs[:-1], "test": pairs[-1:]}
        document(folder / code / f"{code}.json", {**known, "labels": labels, **parts})


def _names(code: str, number: int, shape: tuple[int, ...]) -> tuple[str, str]:
    if code == "0012":  # as an earlier revision of the set had it
        return f"{code}/ct/case_{number}.npy", f"{code}/gt/case_{number}.{shape}.npz"
    return f"{code}/case_{number:05d}/image.npy", f"{code}/case_{number:05d}/mask_{shape}.npz"


def grey(number: int) -> Array:
    """Return a stack (slice, row, column) of greys, every row and column unlike its mirror image."""
    z, y, x = np.indices((4, 6, 5))
    result: Array = (z * 50 + y * 8 + x + number).astype(np.uint8)
    return result


def cap(folder: Path) -> None:
    """Write M3D-Cap: folders of slices, one array, texts, and the list."""
    known: dict[str, list[dict[str, str]]] = {}
    number = 0
    for part, names in STACKS.items():
        for name in names:
            number += 1
            patient, _, stem = name.rpartition("/")
            if name == ARRAY:
                array = folder / "M3D_Cap_npy" / f"{name}.npy"
                array.parent.mkdir(parents=True, exist_ok=True)
                np.save(array, grey(number)[None].astype(np.float32) / 255)
            else:
                slices = folder / "M3D_Cap" / patient / stem.replace("o", "ö" if "Poschl" in stem else "o")
                slices.mkdir(parents=True, exist_ok=True)
                for index, picture in enumerate(grey(number)):  # 0, 5, 10, 15: not in the order of names
                    Image.fromarray(picture).save(slices / f"{index * 5}.png")
                Image.fromarray(grey(number)[0][:2]).save(slices / "99.png")  # a scout
            text = folder / "M3D_Cap" / patient / "text.txt"
            text.parent.mkdir(parents=True, exist_ok=True)
            text.write_text(_text(number), encoding="utf-8")
            known.setdefault(part, []).append({"image": f"{name}.npy", "text": f"{patient}/text.txt"})
    document(folder / "M3D_Cap.json", known)


def _text(number: int) -> str:
    findings = "" if number == 2 else f"Generated findings,\nnumber {number}."
    return f"title: generated\ndiscussion: Generated discussion.\nstudy_findings: {findings}\n"


def vqa(folder: Path) -> None:
    """Write M3D-VQA beside M3D-Cap: two questions a stack."""
    cap(folder)
    for part, names in STACKS.items():
        rows = [_row(name, number) for name in names for number in range(2)]
        table(folder / "M3D-VQA" / f"M3D_VQA_{part.removesuffix('idation')}.csv", rows)


def _row(name: str, number: int) -> dict[str, str]:
    choices = ("CT", "MRI", "X-ray", "Ultrasound") if number else ("Axial", "Coronal", "Sagittal", "None")
    answer = next((index for index, choice in enumerate(choices) if number == 0 and choice in name), 0)
    return {
        "Image Path": f"M3D_Cap_npy/{name}.npy",
        "Text": "Generated.",
        "Question Type": str(number + 1),
        "Question": "Which plane is it?" if number == 0 else "Which modality is it?",
        **{f"Choice {letter}": choice for letter, choice in zip("ABCD", choices, strict=True)},
        "Answer": choices[answer],
        "Answer Choice": "ABCD"[answer],
    }


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
    imaged = "CT." if name.startswith("Chest") else "fundus imaging"
    return {
        "dataset": name,
        "question_id": f"{name}_{number:04d}_{which}",
        "question_type": "Modality Recognition" if which == 0 else "Disease Diagnosis",
        "question": "What modality is it?" if which == 0 else "Is it abnormal?",
        "gt_answer": imaged if which == 0 else "no, it's normal",
        "image_path": picture,
        **{f"option_{letter}": option for letter, option in zip("ABCD", options, strict=False)},
        kind: modality,
    }
