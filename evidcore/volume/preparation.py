"""A crop to the tensor an encoder declares: cut, resample, window."""

from __future__ import annotations

import functools

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from evidcore.case import Crop, VolumeRef
from evidcore.contracts import EncoderInput, Grid
from evidcore.errors import DataError
from evidcore.volume.formats import State, file_state
from evidcore.volume.geometry import Volume
from evidcore.volume.reading import AIR_HU, read

PERCENTILES = (0.5, 99.5)
PERCENTILE_SAMPLE = 1_000_000  # voxels; enough for the 0.5 % tails, and quick on a whole-body scan


def prepare(crop: Crop, spec: EncoderInput, size_zyx: Grid | None = None) -> Float[Tensor, "channel z y x"]:
    """Return what an encoder is given for `crop`.

    1. The crop's box is cut out of the volume.
    2. With a declared spacing it is resampled to that spacing, then cut or filled with air around its centre;
       without, its whole field of view is resized. Both linear; where voxels are merged, all of them count
       (anti-aliasing), so that a small lesion fades but is never skipped.
    3. Each window becomes a channel, its low end at -1, its high end at 1, clamped.

    Windows are HU, so a volume of arbitrary intensity is refused by an encoder that declares any. An encoder
    that declares none (`windows = ()`) takes both kinds: one channel, -1 at the 0.5th percentile of the whole
    volume and 1 at the 99.5th. A blank crop is air everywhere (-1000 HU; the low end without windows).

    Args:
        crop: what is shown.
        spec: the encoder's declaration.
        size_zyx: size in voxels if not the encoder's usual one (`View.size_zyx`).

    Raises:
        DataError: if the file cannot be used, the box lies outside it, or the intensity does not fit.
    """
    size = size_zyx or spec.size_zyx
    if crop.volume.intensity == "arbitrary" and spec.windows:
        raise DataError(
            f"{crop.volume.path}: the volume's intensity is 'arbitrary', the encoder declares HU windows "
            f"{list(spec.windows)}. Set windows = [] on the encoder (scales by percentiles), "
            f"or intensity = 'hu' on the dataset if the values are HU."
        )
    windows = spec.windows
    if crop.blank:
        values = torch.full(size, AIR_HU if windows else -1.0)
        windows = windows or ((-1.0, 1.0),)
    else:
        volume = _recent(crop.volume)
        windows = windows or (_percentile_window(crop.volume),)
        values = _cut(volume, crop)
        if spec.spacing_mm_zyx is None:
            values = resize(values, size)
        else:
            scale = zip(values.shape, volume.spacing_mm_zyx, spec.spacing_mm_zyx, strict=True)
            z, y, x = (max(1, round(count * held / wanted)) for count, held, wanted in scale)
            values = _centred(resize(values, (z, y, x)), size, fill=AIR_HU if spec.windows else windows[0][0])
    channels = [(2 * (values - low) / (high - low) - 1).clamp(-1, 1) for low, high in windows]
    return torch.stack(channels)


def resize(values: Float[Tensor, "z y x"], size_zyx: Grid) -> Float[Tensor, "z2 y2 x2"]:
    """Resample the whole field of view linearly, with anti-aliasing where it shrinks."""
    z, y, x = size_zyx
    if tuple(values.shape) == size_zyx:
        return values
    plane = functional.interpolate(
        values[:, None], (y, x), mode="bilinear", align_corners=False, antialias=True
    )
    column = plane.reshape(1, 1, values.shape[0], y * x)
    column = functional.interpolate(column, (z, y * x), mode="bilinear", align_corners=False, antialias=True)
    return column.reshape(z, y, x)


def _cut(volume: Volume, crop: Crop) -> Tensor:
    """Return the crop's voxels as float32."""
    region = volume.array
    if crop.box_zyx is not None:
        z0, z1, y0, y1, x0, x1 = crop.box_zyx
        edges = zip(((z0, z1), (y0, y1), (x0, x1)), volume.shape_zyx, strict=True)
        if any(not 0 <= start < stop <= count for (start, stop), count in edges):
            raise DataError(
                f"{crop.volume.path}: the box {crop.box_zyx} (z0, z1, y0, y1, x0, x1) must hold voxels of "
                f"the volume, whose shape is {volume.shape_zyx}. Boxes run from start to stop, stop excluded."
            )
        region = region[z0:z1, y0:y1, x0:x1]
    return torch.from_numpy(region.astype(np.float32))


def _centred(values: Tensor, size_zyx: Grid, fill: float) -> Tensor:
    """Cut or fill every axis so that the centre stays the centre."""
    pads: list[int] = []
    for held, wanted in zip(values.shape, size_zyx, strict=True):
        before = (wanted - held) // 2
        pads = [before, wanted - held - before, *pads]  # torch wants the last axis first; negative cuts
    return functional.pad(values, pads, value=fill)


def _recent(ref: VolumeRef) -> Volume:
    """Read a volume, keeping the last two: slices and zooms of one volume come one after another."""
    state = file_state(ref.path)
    return read(ref) if state is None else _read_state(ref, state)  # without state: says what is wrong


@functools.lru_cache(maxsize=2)
def _read_state(ref: VolumeRef, state: State) -> Volume:
    return read(ref)


def _percentile_window(ref: VolumeRef) -> tuple[float, float]:
    """Return the ends of a volume's own intensity range, the same for every crop of it."""
    flat = _recent(ref).array.reshape(-1)
    stride = flat.size // PERCENTILE_SAMPLE | 1  # odd: does not keep to a few columns
    low, high = np.percentile(flat[::stride], PERCENTILES)
    if not low < high:
        raise DataError(
            f"{ref.path}: {PERCENTILES[1] - PERCENTILES[0]:g} % of the voxels have the value {float(low)!r}, "
            f"so there is no intensity range to scale. Leave the case out."
        )
    return float(low), float(high)
