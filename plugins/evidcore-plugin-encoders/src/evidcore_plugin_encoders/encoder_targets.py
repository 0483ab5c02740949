"""What is known about cases, as tensors that an encoder can be trained against."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn import functional

from evidcore.api import Case, Crop, DataError, Encoder, EncoderInput, View, VisualPart, prepare, read_mask
from evidcore.contracts import Grid
from evidcore.data import Mask, Volume, volume_cache
from evidcore.data.prefetch import thread_count
from evidcore.data.preparation import resize

SEEN_FRACTION = 0.02  # of a patch's voxels, from which on the patch shows a finding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Targets:
    """Cases as tensors, one row each.

    `findings` is 1 present, 0 absent, -1 unknown. `sides` says the same of each finding in the right and in
    the left half of the body. `patches` is the share of a patch's voxels that show the finding, times 255,
    and `voxels` the same of each voxel, of findings and not of structures; both are empty where they were not
    asked for. A finding that is present without a mask is marked in `unmasked`.
    """

    volumes: UInt8[Tensor, "case channel z y x"]  # -1..1 as 0..255
    findings: Int[Tensor, "case finding"]
    sides: Int[Tensor, "case side finding"]
    patches: UInt8[Tensor, "case finding patch"]
    voxels: UInt8[Tensor, "case sign z y x"]
    unmasked: Bool[Tensor, "case finding"]
    reports: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def size_zyx(self) -> Grid:
        """Return the size of a volume in voxels."""
        z, y, x = self.volumes.shape[2:]
        return z, y, x

    def batch(self, rows: Int[Tensor, " case"], device: torch.device) -> Targets:
        """Return some of the cases, on the device that trains."""
        tensors = {key: part[rows].to(device) for key, part in vars(self).items() if isinstance(part, Tensor)}
        return Targets(**tensors, reports=tuple(self.reports[row] for row in rows.tolist()), names=self.names)

    def shifted(self, by_yx: tuple[int, int], grid: Grid) -> Targets:
        """Return the cases moved by whole voxels; what leaves on one side comes in on the other.

        Patches of which no `voxels` are known stay where they are: a shift by a quarter of a patch hardly
        changes which of them show what is larger.
        """
        moved = dataclasses.replace(self, volumes=self.volumes.roll(by_yx, (3, 4)))
        if not self.voxels.numel():
            return moved
        voxels = self.voxels.roll(by_yx, (3, 4))
        patches = _bytes(_by_patch(voxels.float().div(255), grid))
        patches = torch.cat([patches, self.patches[:, voxels.shape[1] :]], dim=1)
        return dataclasses.replace(moved, voxels=voxels, patches=patches)

    def pixels(self) -> Float[Tensor, "case channel z y x"]:
        """Return the volumes as the encoder takes them."""
        return self.volumes.float().mul_(2 / 255).sub_(1)


def finding_names(cases: Sequence[Case]) -> tuple[str, ...]:
    """Return the findings that any case says anything about, in order of appearance."""
    return tuple(dict.fromkeys(finding.name for case in cases for finding in case.findings))


def read_targets(
    cases: Sequence[Case],
    encoder: Encoder,
    names: tuple[str, ...],
    *,
    masks: bool,
    voxels: bool = False,
    structures: tuple[str, ...] = (),
    view: View | None = None,
) -> Targets:
    """Read volumes, labels and, if asked for, masks of `cases`, several at a time.

    Args:
        cases: one row each.
        encoder: says what volumes and patches are like.
        masks: read these too.
        names: the findings, in the order of the columns.
        voxels: keep what those of findings show of each voxel: a byte for each voxel, finding and case.
        structures: masks of what is no finding, as organs; columns after the findings. Of a case without
            such a mask nothing is known.
        view: draws what is read of a case, in place of its whole first volume; goes with no masks.

    Raises:
        DataError: if a file cannot be used (names it and the case), a case has no volume, masks are asked
            for and no case has any, or the view shows a case in several pictures or in another size.
    """
    spec = encoder.input
    size = shown(cases[0], view, spec)[1] if cases else spec.size_zyx
    grid = encoder.grid(size)
    structures_from, names = len(names), (*names, *structures)
    count, patches = len(cases), grid[0] * grid[1] * grid[2]
    if masks and not any(case.masks for case in cases):
        raise DataError(
            f"encoder: supervision by zones or masks needs masks, and none of the {count} cases has any. "
            f'Use supervision = ["contrastive"] or ["labels"].'
        )
    volumes = torch.empty((count, spec.channels, *size), dtype=torch.uint8)
    shares = torch.zeros((count, len(names), patches if masks else 0), dtype=torch.uint8)
    fine = torch.zeros((count, structures_from, *(spec.size_zyx if voxels else (0, 0, 0))), dtype=torch.uint8)
    unmasked = torch.zeros((count, len(names)), dtype=torch.bool)
    findings = torch.full((count, len(names)), -1, dtype=torch.int8)
    sides = torch.full((count, 2, len(names)), -1, dtype=torch.int8)

    def keep(row: int, place: int, mask: Mask, volume: Volume) -> None:
        inside = _as_prepared(mask, volume, spec)
        shares[row, place] = _bytes(_by_patch(inside, grid))
        if voxels and place < structures_from:
            fine[row, place] = _bytes(functional.adaptive_avg_pool3d(inside[None], spec.size_zyx)[0])

    def fill(row: int) -> None:
        try:
            fill_from(cases[row], row)
        except DataError as cause:
            if cases[row].id in str(cause):
                raise
            raise DataError(f"{cause} (case {cases[row].id!r})") from cause

    def fill_from(case: Case, row: int) -> None:
        crop, result = shown(case, view, spec)
        if result != size:
            raise DataError(
                f"case {case.id}: the view shows it in {_by(result)} voxels and case {cases[0].id} in "
                f"{_by(size)}; an encoder is trained on one size. Leave it out, or show fewer slices."
            )
        pixels = prepare(crop, spec, size)
        volumes[row] = pixels.add_(1).mul_(127.5).round_().to(torch.uint8)
        volume = volume_cache.read(case.volumes[0]) if masks and case.masks else None
        if masks:
            for place in range(structures_from, len(names)):
                ref = case.masks.get(names[place])
                unmasked[row, place] = ref is None
                if ref is not None and volume is not None:
                    findings[row, place] = 1
                    keep(row, place, read_mask(ref, volume), volume)
        for finding in case.findings:
            place = names.index(finding.name) if finding.name in names else -1
            if place < 0 or finding.state == "uncertain":
                continue
            present, side = finding.state == "present", finding.side
            findings[row, place] = int(present)
            drawing = crop.drawing  # its halves are no sides among tiles, nor where it is seen from the side
            if drawing is None or (drawing.axis != "x" and drawing.columns <= 1):
                halves = [present and side != "left", present and side != "right"]
                known = [-1, -1] if present and side is None else halves
                sides[row, :, place] = torch.tensor(known, dtype=torch.int8)
            if masks and present:
                if volume is not None and finding.name in case.masks:
                    keep(row, place, read_mask(case.masks[finding.name], volume), volume)
                else:
                    unmasked[row, place] = True

    with ThreadPoolExecutor(thread_count()) as pool:
        list(pool.map(fill, range(count)))  # an error ends those that have not begun
    reports = tuple(case.report.text if case.report else "" for case in cases)
    return Targets(
        volumes=volumes, findings=findings, sides=sides, patches=shares, voxels=fine, unmasked=unmasked,
        reports=reports, names=names,
    )  # fmt: skip


def shown(case: Case, view: View | None, spec: EncoderInput) -> tuple[Crop, Grid]:
    """Return an encoder's view of a case, its first volume or the one picture of a view, and its size.

    Raises:
        DataError: if the case has no volume, or the view shows several pictures.
    """
    if not case.volumes:
        raise DataError(f"case {case.id}: has no volume. Leave it out of the encoder's training.")
    if view is None:
        return Crop(volume=case.volumes[0]), spec.size_zyx
    parts = [part for part in view.render(case) if isinstance(part, VisualPart)]
    if len(parts) != 1:
        raise DataError(
            f"case {case.id}: the view shows {len(parts)} pictures, and what is known of it is of all of "
            "them together. An encoder is trained on one: use 'montage', 'video', or 'drr' in one direction."
        )
    return parts[0].crop, view.size_zyx(parts[0], spec)


def _by(size: Grid) -> str:
    return " x ".join(map(str, size))


def _as_prepared(inside: Mask, volume: Volume, spec: EncoderInput) -> Float[Tensor, "z y x"]:
    """Return a mask on the grid that volumes are prepared to, or on its own where those are resized whole."""
    mask = torch.from_numpy(inside).float()
    if spec.spacing_mm_zyx is None:
        return mask
    scale = zip(mask.shape, volume.spacing_mm_zyx, spec.spacing_mm_zyx, strict=True)
    z, y, x = (max(1, round(count * held / wanted)) for count, held, wanted in scale)
    mask = resize(mask, (z, y, x))
    pads: list[int] = []
    for held, wanted in zip(mask.shape, spec.size_zyx, strict=True):
        pads = [(wanted - held) // 2, wanted - held - (wanted - held) // 2, *pads]
    return functional.pad(mask, pads)


def _by_patch(inside: Float[Tensor, "*batch z y x"], grid: Grid) -> Float[Tensor, "*batch patch"]:
    """Return which share of each patch is inside."""
    pooled = functional.adaptive_avg_pool3d(inside.reshape(-1, 1, *inside.shape[-3:]), grid)
    return pooled.reshape(*inside.shape[:-3], -1)


def _bytes(shares: Tensor) -> Tensor:
    """Return shares in 0..255; one above 0 never becomes 0."""
    return (shares * 255).ceil().to(torch.uint8)
