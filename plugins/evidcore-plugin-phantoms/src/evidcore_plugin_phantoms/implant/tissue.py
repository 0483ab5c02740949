"""The tissue around a lesion: where one may lie, how sharp the scan is, and noise like that of a place."""

from typing import Any, Literal

import numpy as np
from scipy import fft, ndimage
from scipy.special import erfinv

from evidcore.data import Volume

Array = np.ndarray[Any, np.dtype[Any]]
Region = np.ndarray[Any, np.dtype[np.bool_]]
Tissue = Literal["lung", "soft"]

AERATED_HU = -400.0  # below: air or lung
LUMEN_HU = -950.0  # below, in means over 2 mm: an airway's lumen, a bulla, bowel gas
LUNG_MEDIAN_HU = (-930.0, -550.0)  # of a whole lung; gas in the bowel lies below
LEAST_LUNG_ML = 30.0
VESSELS_MM = 4.0  # vessels up to about twice this across count as lung
SOFT_HU = (0.0, 120.0)  # smoothed: neither fat nor bone
SMOOTH_MM = 2.0
LEAST_SOFT_ML = 10.0
MASK_HU = {"lung": (-1000.0, -400.0), "soft": (-50.0, 250.0)}

TREND_MM = 6.0  # what changes over longer distances is anatomy, not noise
LONGEST_LAG_MM = 8.0
FEWEST_VOXELS = 200
ASSUMED_FWHM_MM = 1.2  # of a soft-tissue kernel; taken where the scan shows no skin against air
AIR_HU, SKIN_HU = -900.0, -250.0
HALF_STEPS = 3  # voxels on either side of an edge
FEWEST_EDGES = 50
STEEPEST = 0.9  # quantile: edges that a line meets at a right angle are the steepest
FWHM = 2 * np.sqrt(2 * np.log(2))  # of a Gaussian, in standard deviations


def tissue_of(kind: Tissue, blocks: Volume, body: Region) -> Region:
    """Return the blocks (`body.coarse`) of a tissue in a body (`body.outline`), shape (z, y, x)."""
    if kind == "lung":
        return _lung(blocks, body)
    low, high = SOFT_HU
    sigma = [SMOOTH_MM / step for step in blocks.spacing_mm_zyx]
    smooth = ndimage.gaussian_filter(blocks.array, sigma)  # noise alone must not make holes
    labels, _ = ndimage.label(body & (smooth >= low) & (smooth <= high))
    return np.asarray((_sizes_ml(labels, blocks) >= LEAST_SOFT_ML)[labels])


def tissue_in_mask(kind: Tissue, blocks: Volume, filled: Array) -> Region:
    """Return the blocks that a mask fills whole (`filled` near 1) and whose density is that of the tissue."""
    low, high = MASK_HU[kind]
    return np.asarray((filled > 0.999) & (blocks.array > low) & (blocks.array < high))


def _lung(blocks: Volume, body: Region) -> Region:
    """Return what is aerated inside the body, connected and of a lung's density, with the vessels in it."""
    inside = np.stack([ndimage.binary_fill_holes(plane) for plane in body])
    labels, _ = ndimage.label(inside & (blocks.array < AERATED_HU))
    lung = np.zeros(labels.shape, bool)
    for number in np.flatnonzero(_sizes_ml(labels, blocks) >= LEAST_LUNG_ML):
        part = labels == number
        if LUNG_MEDIAN_HU[0] < np.median(blocks.array[part]) < LUNG_MEDIAN_HU[1]:
            lung |= part
    lung &= blocks.array > LUMEN_HU
    if not lung.any():
        return lung
    spacing = blocks.spacing_mm_zyx
    reach = [max(1, round(VESSELS_MM / step)) for step in spacing]
    axes = (np.arange(-each, each + 1) * step for each, step in zip(reach, spacing, strict=True))
    squares = sum(np.square(axis) for axis in np.meshgrid(*axes, indexing="ij"))
    ball = np.asarray(squares <= max(VESSELS_MM, *spacing) ** 2)
    padded = np.pad(ndimage.binary_dilation(lung, ball), [(each, each) for each in reach], mode="edge")
    closed = ndimage.binary_erosion(padded, ball)
    inner = tuple(slice(each, -each) for each in reach)
    return np.asarray(lung | (closed[inner] & (blocks.array > LUMEN_HU)))


def room_mm(region: Region, spacing_mm_zyx: tuple[float, float, float]) -> Array:
    """Return how far each block lies from all that is not of the region; beyond the grid nothing is."""
    distance = ndimage.distance_transform_edt(np.pad(region, 1), sampling=spacing_mm_zyx)
    # the centre of the nearest other block is known, not its edge
    return np.asarray(np.maximum(distance[1:-1, 1:-1, 1:-1] - np.max(spacing_mm_zyx) / 2, 0.0))


def room_beside(
    room: Array, spacing_mm_zyx: tuple[float, float, float], centre_mm: Array, radius_mm: float
) -> Array:
    """Return the room that is left beside a ball; its centre is in mm from the first block's."""
    axes = [np.arange(count) * step for count, step in zip(room.shape, spacing_mm_zyx, strict=True)]
    z, y, x = (np.square(axis - at) for axis, at in zip(axes, centre_mm, strict=True))
    distance = np.sqrt(z[:, None, None] + y[None, :, None] + x[None, None, :]) - radius_mm
    return np.asarray(np.clip(room, 0.0, np.maximum(distance, 0.0)))


def _sizes_ml(labels: Array, blocks: Volume) -> Array:
    """Return the size of each connected piece by its label; 0 of what is no piece."""
    sizes = np.bincount(labels.reshape(-1)) * (float(np.prod(blocks.spacing_mm_zyx)) / 1000)
    sizes[0] = 0
    return np.asarray(sizes)


class NoPlace(ValueError):
    """A lesion cannot lie there, or nowhere; says why."""


def autocovariance(values: Array, tissue: Region, spacing_mm_zyx: tuple[float, float, float]) -> Array:
    """Measure how the noise of a tissue covaries with itself.

    Args:
        values: a piece of a scan, (z, y, x), in HU.
        tissue: which of its voxels count.
        spacing_mm_zyx: of the voxels.

    Returns:
        Covariance in HU² by lag, odd sizes, lag 0 in the middle; it falls to 0 at the longest lags.

    Raises:
        NoPlace: with fewer than 200 voxels.
    """
    if tissue.sum() < FEWEST_VOXELS:
        raise NoPlace(f"{int(tissue.sum())} voxels of tissue, fewer than {FEWEST_VOXELS}")
    spacing = np.array(spacing_mm_zyx)
    sigma = TREND_MM / spacing
    weight = ndimage.gaussian_filter(tissue.astype(np.float64), sigma, mode="constant")
    smooth = ndimage.gaussian_filter(np.where(tissue, values, 0.0), sigma, mode="constant")
    noise = np.where(tissue, values - smooth / np.maximum(weight, 1e-9), 0.0)
    noise = np.where(tissue, noise - noise[tissue].mean(), 0.0)
    lags = np.minimum(
        np.maximum(1, np.round(LONGEST_LAG_MM / spacing)).astype(int), np.array(values.shape) - 1
    )
    products, pairs = _correlate(noise, lags), _correlate(tissue.astype(np.float64), lags)
    result = np.where(pairs > 0.5, products / np.maximum(pairs, 1.0), 0.0)
    for axis, longest in enumerate(lags):
        share = np.abs(np.arange(-longest, longest + 1)) / (longest + 1)
        taper = np.square(np.cos(np.pi * np.clip(share - 0.5, 0, None)))  # 1 up to half of the longest lag
        result *= taper.reshape([-1 if each == axis else 1 for each in range(3)])
    return np.asarray(result)


def noise_like(covariance: Array, shape_zyx: tuple[int, int, int], rng: np.random.Generator) -> Array:
    """Draw Gaussian noise (z, y, x) in HU with the given autocovariance."""
    room = [
        fft.next_fast_len(count + extent, real=True)
        for count, extent in zip(shape_zyx, covariance.shape, strict=True)
    ]
    kernel = np.zeros(room)
    kernel[tuple(slice(0, extent) for extent in covariance.shape)] = covariance
    kernel = np.roll(kernel, [-(extent // 2) for extent in covariance.shape], axis=(0, 1, 2))
    power = np.maximum(fft.fftn(kernel).real, 0.0)  # below 0 where the covariance was measured with error
    if not power.any():
        return np.zeros(shape_zyx)
    power *= covariance[tuple(extent // 2 for extent in covariance.shape)] / power.mean()
    drawn = fft.ifftn(np.sqrt(power) * fft.fftn(rng.standard_normal(room))).real
    return np.asarray(drawn[tuple(slice(0, count) for count in shape_zyx)])


def _correlate(values: Array, lags: Array) -> Array:
    """Return the sums over all voxels of value times value at a lag, for lags up to `lags` each way."""
    room = [
        fft.next_fast_len(count + int(lag), real=True) for count, lag in zip(values.shape, lags, strict=True)
    ]
    spectrum = fft.rfftn(values, room)
    sums = fft.irfftn(np.square(np.abs(spectrum)), room)
    for axis, lag in enumerate(lags):
        sums = np.take(sums, np.arange(-int(lag), int(lag) + 1), axis=axis, mode="wrap")
    return np.asarray(sums)


def point_spread_mm(volume: Volume) -> float:
    """Return the point spread's standard deviation within a slice, measured where skin meets air.

    At an edge of height h, a Gaussian spread of s mm makes the largest step between neighbours d mm apart
    h * erf(d / (2 sqrt(2) s)). The voxel's own width, which the step shows too, is taken off.
    """
    _, dy, dx = volume.spacing_mm_zyx
    stride = max(1, volume.shape_zyx[0] // 40)
    result = []
    for axis, step in ((1, dy), (2, dx)):
        shares = _steepest_shares(np.moveaxis(volume.array[::stride], axis, -1).astype(np.float32))
        if shares.size >= FEWEST_EDGES:
            share = min(float(np.quantile(shares, STEEPEST)), 0.999)
            spread = step / (2 * np.sqrt(2) * float(erfinv(share)))
            result.append(max(0.0, spread**2 - step**2 / 12))
    return float(np.sqrt(np.mean(result))) if result else ASSUMED_FWHM_MM / FWHM


def _steepest_shares(lines: Array) -> Array:
    """Return the largest step of each edge along the last axis, as a share of the edge's height."""
    width = 2 * HALF_STEPS
    if lines.shape[-1] <= width:
        return np.zeros(0)
    shares = []
    for way in (lines, lines[..., ::-1]):
        steps = np.diff(way, axis=-1)
        low, high = way[..., :-width], way[..., width:]
        places = np.stack([steps[..., offset : offset + low.shape[-1]] for offset in range(width)])
        middle = places[HALF_STEPS]
        is_edge = (low < AIR_HU) & (high > SKIN_HU) & (high < 200) & (middle == places.max(axis=0))
        is_edge &= places.min(axis=0) > -0.05 * (high - low)  # rises all the way
        height = (high - low)[is_edge]
        shares.append(middle[is_edge] / height)
    return np.concatenate(shares)
