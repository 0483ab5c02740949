"""Tiny cases that are real: a volume and a mask on disk, a labelled report, a question."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import numpy.typing as npt

from evidcore.api import Case, Dataset, Finding, MaskRef, Question, Report, Span, VolumeRef
from evidcore.case import Side, Split
from evidcore.contracts import Grid

FINDINGS = ("lung nodule", "pleural effusion", "cardiomegaly", "emphysema")


def save_nifti(
    path: Path,
    array: npt.NDArray[Any],
    spacing_mm_zyx: tuple[float, float, float] = (3.0, 2.0, 1.0),
    axes: str = "LPS",
) -> Path:
    """Write an array (z, y, x) in body axes as a NIfTI file whose axes run to `axes`; return the path."""
    dz, dy, dx = spacing_mm_zyx
    # our x and y grow to left and posterior, NIfTI's world to right and anterior
    image = nibabel.Nifti1Image(array.transpose(2, 1, 0), np.diag([-dx, -dy, dz, 1.0]))
    stored, wanted = (nibabel.orientations.axcodes2ornt(letters) for letters in ("LPS", axes))
    nibabel.save(image.as_reoriented(nibabel.orientations.ornt_transform(stored, wanted)), path)
    return path


def volume_case(
    folder: Path,
    seed: int = 0,
    *,
    size_zyx: Grid = (12, 16, 16),
    spacing_mm_zyx: tuple[float, float, float] = (5.0, 2.0, 2.0),
) -> Case:
    """Write a small chest into `folder` and return the case.

    Even seeds show a lung nodule and odd ones a pleural effusion, the first two on the patient's right, the
    next two on the left, and so on. Everything else is absent.

    Args:
        folder: where `case-<seed>.nii.gz` and `case-<seed>.npz` (the mask) go; made if missing.
        seed: which case.
        size_zyx: voxels; 12 x 16 x 16 is the least.
        spacing_mm_zyx: voxel size in mm.
    """
    folder.mkdir(parents=True, exist_ok=True)
    side: Side = "right" if seed // 2 % 2 == 0 else "left"
    shown = FINDINGS[seed % 2]
    volume, mask = _chest(size_zyx, shown, side, seed)
    path = save_nifti(folder / f"case-{seed}.nii.gz", volume, spacing_mm_zyx)
    masks: dict[str, Any] = {shown: mask}
    np.savez_compressed(folder / f"case-{seed}.npz", **masks)

    sentences = [(f"There is no {name}.", "normal") for name in FINDINGS if name != shown]
    sentences.append((f"There is a {shown} on the {side} side.", "abnormal"))
    text, spans = "", []
    for sentence, label in sentences:
        start = len(text) + bool(text)
        text = f"{text} {sentence}" if text else sentence
        spans.append(Span(start=start, end=len(text), label=label))
    findings = tuple(
        Finding(
            name=name,
            state="present" if name == shown else "absent",
            side=side if name == shown else None,
            span=next(span for span in spans if name in text[span.start : span.end]),
        )
        for name in FINDINGS
    )
    question = Question(
        id=f"case-{seed}-question-0", text="Which finding is present?", options=FINDINGS,
        answer=FINDINGS.index(shown), true_options=(FINDINGS.index(shown),),
    )  # fmt: skip
    return Case(
        id=f"case-{seed}", patient=f"patient-{seed}", volumes=(VolumeRef(path=str(path)),),
        report=Report(text=text, spans=tuple(spans)), findings=findings,
        masks={shown: MaskRef(path=str(path.with_name(f"case-{seed}.npz")), key=shown)},
        questions=(question,), notes={"impression": sentences[-1][0]},
    )  # fmt: skip


class TinyDataset(Dataset):
    """`volume_case` by split, each case a patient of its own, written into `folder` as it is asked for."""

    findings = FINDINGS

    def __init__(self, folder: Path, *, train: int = 8, validation: int = 2, test: int = 4) -> None:
        self.folder = folder
        self.counts: Mapping[Split, int] = {"train": train, "validation": validation, "test": test}

    def cases(self, split: Split) -> Iterator[Case]:
        splits: tuple[Split, ...] = ("train", "validation", "test")
        first = sum(self.counts[name] for name in splits[: splits.index(split)])
        for seed in range(first, first + self.counts[split]):
            yield volume_case(self.folder, seed)

    def fingerprint(self) -> str:
        """Return a hash of the counts, which is all that the cases depend on."""
        return hashlib.sha256(repr(sorted(self.counts.items())).encode()).hexdigest()[:16]


def _chest(
    size_zyx: Grid, shown: str, side: Side, seed: int
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.bool_]]:
    """Draw a body with two lungs in HU and put `shown` into the lung of `side`."""
    if any(size < least for size, least in zip(size_zyx, (12, 16, 16), strict=True)):
        raise ValueError(f"a chest needs at least 12 x 16 x 16 voxels, got {size_zyx}")
    z, y, x = (
        np.linspace(-1.0, 1.0, size).reshape([-1 if axis == this else 1 for axis in range(3)])
        for this, size in enumerate(size_zyx)
    )
    left = 1.0 if side == "left" else -1.0
    hu = np.full(size_zyx, -1000.0)
    hu[np.broadcast_to(x**2 + y**2 < 0.95, size_zyx)] = 40.0
    for lung in (-1.0, 1.0):
        hu[(z / 0.9) ** 2 + (y / 0.7) ** 2 + ((x - 0.45 * lung) / 0.35) ** 2 < 1.0] = -820.0
    if shown == "lung nodule":
        mask = (z / 0.3) ** 2 + (y / 0.25) ** 2 + ((x - 0.45 * left) / 0.25) ** 2 < 1.0
    else:
        inside = (z / 0.9) ** 2 + (y / 0.7) ** 2 + ((x - 0.45 * left) / 0.35) ** 2 < 1.0
        mask = inside & np.broadcast_to(y > 0.3, size_zyx)
    hu[mask] = 60.0
    hu += np.random.default_rng(seed).normal(0.0, 15.0, size_zyx)
    return hu.round().astype(np.int16), mask
