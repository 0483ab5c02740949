"""A crop to the tensor an encoder declares: cut, resample, window; and the cache of what is prepared.

`evid data prepare` fills the cache, `prepare` gets from it.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.nn import functional

from evidcore.cache import Cache, CorruptEntry
from evidcore.case import Change, Crop, VolumeRef
from evidcore.data.cached_volume import PERCENTILES, volume_cache
from evidcore.data.content import content_key, crop_key
from evidcore.data.drawing import photograph, render
from evidcore.data.encoder_input import EncoderInput, Grid
from evidcore.data.grid import Array, Geometry, Volume
from evidcore.data.reading import AIR_HU
from evidcore.errors import DataError

INPUTS = Cache("inputs")
PHOTOGRAPH = (0.0, 255.0)  # black and white


def get_input(key: int) -> Array | None:
    """Return what `prepare` gave for a `content_key`, (channel, z, y, x); None if it is not in the cache."""
    cached = INPUTS.get_array(f"{key:016x}")
    try:
        return None if cached is None else cached.slices(0, cached.shape[0])
    except CorruptEntry:
        return None


def put_input(key: int, pixels: Array, *, keep_newer_than: float = math.inf) -> bool:
    """Put what `prepare` gave into the cache, as `Cache.put` does; the key is that of before and after."""
    return INPUTS.put_array(f"{key:016x}", pixels, {}, keep_newer_than=keep_newer_than)


def prepare(
    crop: Crop, spec: EncoderInput, size_zyx: Grid | None = None, key: int | None = None
) -> Float[Tensor, "channel z y x"]:
    """Return what an encoder is given for `crop`.

    1. The crop's box is cut out of the volume; where it has a `drawing`, pictures are made of it.
    2. With a declared spacing it is resampled to that spacing, then cut or filled with air around its centre;
       without, its whole field of view is resized. Both linear; where voxels are merged, all of them count
       (anti-aliasing), so that a small lesion fades but is never skipped.
    3. Each window becomes a channel, its low end at -1, its high end at 1, clamped.

    Windows are HU, so a volume of arbitrary intensity is refused by an encoder that declares any. An encoder
    that declares none (`windows = ()`) takes both kinds: one channel, -1 at the 0.5th percentile of the whole
    volume and 1 at the 99.5th. A blank crop is air everywhere (-1000 HU; the low end without windows).
    A photograph is resized as PIL does it, bicubic, whatever the declared spacing; 0 is at -1, 255 at 1.

    What `evid data prepare` has made is taken from the cache, the same bits. A box reads its slices alone.

    Args:
        crop: what is shown.
        spec: the encoder's declaration.
        size_zyx: size in voxels if not the encoder's usual one (`View.size_zyx`).
        key: of the content, where it is known already.

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
    if crop.blank:
        is_film = crop.drawing is not None and crop.drawing.kind == "attenuation"  # which shows air black
        if is_film or not spec.windows:
            return torch.full((spec.channels, *size), -1.0)
        return _windowed(torch.full(size, AIR_HU), spec.windows)
    if key is None:
        key = content_key(crop, spec, size)
    cached = None if crop.change else get_input(key)
    if cached is not None:
        return torch.from_numpy(cached.copy())
    photo = photograph(crop, in_colours=spec.colours)
    if photo is not None:
        return _photograph(photo, spec, size, crop.change, key)
    drawn = render(crop, *_region(crop))
    windows = spec.windows or (drawn.window or _percentile_window(crop.volume),)
    if drawn.window is not None:
        windows = (drawn.window,) * len(windows)
    values = torch.from_numpy(drawn.array.astype(np.float32))
    if spec.spacing_mm_zyx is None:
        values = resize(values, size)
    else:
        scale = zip(values.shape, drawn.spacing_mm_zyx, spec.spacing_mm_zyx, strict=True)
        z, y, x = (max(1, round(count * extent / wanted)) for count, extent, wanted in scale)
        pads: list[int] = []
        for extent, wanted in zip((z, y, x), size, strict=True):
            before = (wanted - extent) // 2  # the centre stays the centre
            pads = [before, wanted - extent - before, *pads]  # torch wants the last axis first; negative cuts
        fill = AIR_HU if spec.windows else windows[0][0]
        values = functional.pad(resize(values, (z, y, x)), pads, value=fill)
    if crop.change:
        values = _changed(values, crop.change, windows, torch.Generator().manual_seed(key))
    return _windowed(values, windows).expand(spec.channels, *size)


def show(crop: Crop) -> Volume:
    """Return what `crop` shows on its own grid, for whoever is handed files in place of encoder input.

    HU are whole numbers, so that noise, air and scans of any file have one type; values of arbitrary
    intensity are float32, whole where the file's are. Air is -1000 HU, or the 0.5th percentile of the volume.
    A perturbed volume is moved by one of its own voxels; the noise, that of a noisy one too, is 1 % of the
    range of its own values, 0.5th to 99.5th percentile. What is drawn lies nowhere in the body, and a film
    of attenuation holds sums of it; of a photograph the luminance is shown.
    """
    region, whole = _region(crop)
    drawn = render(crop, region, whole)
    is_hu = crop.volume.intensity == "hu" and drawn.window is None
    window = drawn.window or (0.0, 0.0)
    if drawn.window is None and (crop.change or (crop.blank and not is_hu)):
        window = _percentile_window(crop.volume)
    values = torch.from_numpy(drawn.array.astype(np.float32))
    if crop.blank:
        values = torch.full(values.shape, AIR_HU if is_hu else window[0])
    elif crop.change:
        rng = torch.Generator().manual_seed(int(crop_key(crop)[:15], 16))
        values = _changed(values, crop.change, [window], rng)
    array: Array = values.numpy()
    if is_hu or drawn.array.dtype.kind == "i":
        array = np.rint(array)
    if is_hu:
        limits = np.iinfo(np.int16)
        array = array.clip(limits.min, limits.max).astype(np.int16)
    affine = whole.affine.copy()
    if drawn.array is not region:
        affine = np.diag([*drawn.spacing_mm_zyx, 1.0])
    elif crop.box_zyx is not None:
        affine[:, 3] = affine @ (*crop.box_zyx[::2], 1)
    z, y, x = array.shape
    geometry = Geometry(shape_zyx=(z, y, x), affine=affine)
    return Volume(array=array, geometry=geometry, intensity=crop.volume.intensity)


def _changed(
    values: Float[Tensor, "z y x"],
    change: Change,
    windows: Sequence[tuple[float, float]],
    rng: torch.Generator,
) -> Float[Tensor, "z y x"]:
    """Return the voxels permuted, or with noise of 1 % of the widest window, perturbed ones moved by one."""
    if change == "scrambled":
        return values.flatten()[torch.randperm(values.numel(), generator=rng)].reshape(values.shape)
    moved = values
    for axis, count in enumerate(values.shape):
        if count > 1 and change == "perturbed":
            moved = torch.cat([moved.narrow(axis, 0, 1), moved.narrow(axis, 0, count - 1)], axis)
    return moved + 0.01 * max(high - low for low, high in windows) * torch.randn(values.shape, generator=rng)


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


def _region(crop: Crop) -> tuple[Array, Geometry]:
    if crop.box_zyx is None:
        volume = volume_cache.read(crop.volume)
        return volume.array, volume.geometry
    cached = volume_cache.get_or_put(crop.volume)
    return cached.part(crop.box_zyx), cached.geometry


def _photograph(photo: Array, spec: EncoderInput, size_zyx: Grid, change: Change | None, seed: int) -> Tensor:
    """Return a photograph at a size, (channel, z, y, x), -1 where it is black."""
    resized = Image.fromarray(photo).resize(size_zyx[:0:-1], Image.Resampling.BICUBIC)
    values = torch.from_numpy(np.array(resized, dtype=np.float32)).reshape(*size_zyx[1:], -1).movedim(-1, 0)
    if change:
        planes = [
            _changed(item[None], change, [PHOTOGRAPH], torch.Generator().manual_seed(seed)) for item in values
        ]
        values = torch.cat(planes)
    return _windowed(values[:, None], [PHOTOGRAPH])[0].expand(spec.channels, *size_zyx)


def _windowed(values: Tensor, windows: Sequence[tuple[float, float]]) -> Tensor:
    """Return a channel for each window, -1 at its low end and 1 at its high end."""
    return torch.stack([(2 * (values - low) / (high - low) - 1).clamp(-1, 1) for low, high in windows])


def _percentile_window(ref: VolumeRef) -> tuple[float, float]:
    """Return the ends of a volume's own intensity range, the same for every crop of it."""
    low, high = volume_cache.percentile_ends(ref)
    if not low < high:
        raise DataError(
            f"{ref.path}: {PERCENTILES[1] - PERCENTILES[0]:g} % of the voxels have the value {low!r}, "
            f"so there is no intensity range to scale. Leave the case out."
        )
    return low, high
