"""A volume as three planes in grey with the outlines of its masks, drawn while the volume is in memory.

Runs in worker processes; imports no torch.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from evidcore_plugin_pages.gallery import AXES, WINDOWS_HU, cut, grey, outline, png_uri, window_of
from evidcore_plugin_tables.mask_facts import read_masks
from nibabel.orientations import ornt2axcodes

from evidcore.api import DataError, MaskRef, read_mask
from evidcore.data import Array, Mask, Volume
from evidcore.data.placement import Placement
from evidcore_plugin_doctor.coarse import block_means

MOST_PICTURES = 4  # volumes of a case
MOST_MASKS = 24  # of a volume; more outlines cannot be told apart
_PIXELS = (256, 192, 128, 96)  # the longest edge of a plane, the first that is small enough
_SAMPLES = 1_000_000  # voxels that intensities are told from
_AERATED_SHARE = 0.15  # of the surroundings of what is shown; an abdomen has less
_AROUND = 0.2  # of each axis, on both sides of what is shown

Triple = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rendering:
    """How volumes are drawn."""

    most_bytes: int  # what the planes of a volume may take on the page; they become coarser to fit
    finding: str | None = None  # planes go through its mask where a case has it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plane:
    """One slice, as it is looked at: rows down, head up."""

    name: str  # of AXES
    index: int
    count: int
    source: str  # data URI of a grey PNG
    width_px: int
    height_px: int
    width_mm: float
    height_mm: float
    outlines: Mapping[str, str]  # mask name -> SVG path in pixels


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """What a page shows of a volume."""

    intensity: str
    shape_zyx: Triple
    spacing_mm_zyx: tuple[float, float, float]
    axes: str  # where the file's axes run to, for instance "LPS"
    window: str  # its name
    window_values: tuple[float, float]  # black and white
    centre: str  # the mask that the planes go through, "" for the middle of the volume
    masks: tuple[str, ...]  # that are outlined where a plane cuts them
    empty: tuple[str, ...]  # masks without a voxel
    left_out: tuple[str, ...]  # masks beyond MOST_MASKS
    planes: tuple[Plane, ...]
    values: Mapping[str, float]  # quantiles of the voxels

    def extent_mm_zyx(self) -> list[float]:
        """Return how far the volume reaches."""
        return [count * step for count, step in zip(self.shape_zyx, self.spacing_mm_zyx, strict=True)]


def axes_of(placement: Placement) -> str:
    """Return where the axes of a file run to, in its own order; the nearest letters for oblique ones."""
    return "".join(ornt2axcodes(placement.turn.orientation, ("IS", "AP", "RL")))


def render(
    volume: Volume,
    axes: str,
    masks: Mapping[str, MaskRef],
    voxels: Mapping[str, int],
    present: frozenset[str],
    rendering: Rendering,
) -> Picture:
    """Draw three planes of a volume, through the mask of a finding in `present` if there is any.

    `voxels` says how many each mask holds; those that cannot be read are not in it.
    """
    filled = [name for name in masks if voxels.get(name)]
    ranked = sorted(filled, key=lambda name: (name != rendering.finding, name not in present))
    shown, centre = ranked[:MOST_MASKS], ""
    at: Triple = tuple(count // 2 for count in volume.shape_zyx)  # type: ignore[assignment]  # of three
    if shown:
        centre = shown[0]
        places = np.argwhere(read_mask(masks[centre], volume))
        distances = (((places - places.mean(axis=0)) * np.asarray(volume.spacing_mm_zyx)) ** 2).sum(axis=1)
        z, y, x = places[distances.argmin()].tolist()  # its voxel nearest to the centre of mass, in mm
        at = z, y, x
    samples = volume.array.reshape(-1)[:: max(1, volume.array.size // _SAMPLES)]
    window, edges = _window(volume, at, samples)
    # planes that are more than a line: a photograph has one
    cuts: dict[str, dict[str, Mask]] = {
        name: {} for name, axis in AXES.items() if min(np.delete(volume.shape_zyx, axis)) > 1
    }
    for name, _, mask in read_masks({name: masks[name] for name in shown}, volume):
        if not isinstance(mask, DataError):
            for plane in cuts:
                cuts[plane][name] = cut(mask, plane, at[AXES[plane]])
    planes: tuple[Plane, ...] = ()
    for most_px in _PIXELS:
        planes = tuple(_plane(volume, name, at[AXES[name]], edges, cuts[name], most_px) for name in cuts)
        sizes = [len(text) for plane in planes for text in (plane.source, *plane.outlines.values())]
        if sum(sizes) <= rendering.most_bytes:
            break
    return Picture(
        intensity=volume.intensity, shape_zyx=volume.shape_zyx, spacing_mm_zyx=volume.spacing_mm_zyx,
        axes=axes, window=window, window_values=edges, centre=centre, masks=tuple(shown),
        empty=tuple(name for name, count in voxels.items() if not count),
        left_out=tuple(ranked[MOST_MASKS:]), planes=planes,
        values={f"{q} %": float(np.percentile(samples, q)) for q in (0, 1, 50, 99, 100)},
    )  # fmt: skip


def _window(volume: Volume, at: Triple, samples: Array) -> tuple[str, tuple[float, float]]:
    """Return the window that fits what lies around a voxel of a CT; the range of values for others."""
    if volume.intensity != "hu":
        low, high = (float(edge) for edge in np.percentile(samples, (1, 99)))
        return "1st to 99th percentile", (low, max(high, low + 1e-6))
    reach = [max(1, round(_AROUND * count)) for count in volume.shape_zyx]
    box = tuple(slice(max(0, place - far), place + far) for place, far in zip(at, reach, strict=True))
    name = window_of(volume.array[box], _AERATED_SHARE)
    return name, WINDOWS_HU[name]


def _plane(
    volume: Volume, name: str, index: int, edges: tuple[float, float], cuts: Mapping[str, Mask], most_px: int
) -> Plane:
    values = cut(volume.array, name, index).astype(np.float32)
    # each axis has a factor of its own: what has few voxels is not made coarser
    merged = [-(-count // most_px) for count in values.shape]
    picture = grey(block_means(values, merged), *edges)
    rows, columns = (axis for axis in range(3) if axis != AXES[name])
    shape, spacing = volume.shape_zyx, volume.spacing_mm_zyx
    return Plane(
        name=name, index=index, count=shape[AXES[name]], source=png_uri(picture),
        width_px=picture.shape[1], height_px=picture.shape[0],
        width_mm=shape[columns] * spacing[columns], height_mm=shape[rows] * spacing[rows],
        outlines={
            mask: outline(block_means(piece, merged) > 0) for mask, piece in cuts.items() if piece.any()
        },
    )  # fmt: skip
