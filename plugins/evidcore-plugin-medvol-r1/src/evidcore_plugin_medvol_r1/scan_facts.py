"""What is known of a scan without a look at what is asked: its header, and the outline of the body in it."""

import dataclasses
import functools
from pathlib import Path

import numpy as np

from evidcore.api import Cache, VolumeRef, read
from evidcore.data import Geometry, body, content_hash, file_hash, read_geometry

HEIGHTS = 20  # equal stretches of the body, of which each has a profile
FAT_HU, BONE_HU, MOST_HU = (-150.0, -30.0), 200.0, 1000.0
Frame = tuple[tuple[float, float], ...]  # first and last voxel, stop excluded, along z, y and x


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scan:
    """A box in a scan that places are told by, and numbers that may tell how far a patient is off it."""

    shape_zyx: tuple[int, int, int]
    spacing_mm_zyx: tuple[float, float, float]
    frame: Frame
    facts: tuple[float, ...]


@functools.lru_cache(maxsize=50_000)
def stated(ref: VolumeRef) -> Scan:
    """Return what the header states: size, spacing, extent and position; the frame is the field of view."""
    geometry = read_geometry(ref)
    return _scan(geometry, tuple((0.0, float(count)) for count in geometry.shape_zyx), ())


def outlined(ref: VolumeRef, cache_folder: Path) -> Scan:
    """Return what a look at the outline of the body tells, which is the frame; measured once a volume.

    Facts are the header's, the outline's box in mm, and for each of 20 heights of the body five numbers of
    its slices: mean and spread of HU, and how much of the box is air, fat and bone. Nothing tells where in a
    slice anything lies. The scan must be a CT in HU.

    Raises:
        DataError: if the volume cannot be used.
    """
    code = [file_hash(__file__), file_hash(body.__file__)]
    asked = [code, content_hash(ref.path), ref.to_params()]
    frame, profile = Cache("body-outlines", cache_folder).get_or_make(asked, lambda: _measure(ref))
    return _scan(read_geometry(ref), tuple((start, stop) for start, stop in frame), tuple(profile))


def _scan(geometry: Geometry, frame: Frame, profile: tuple[float, ...]) -> Scan:
    spacing = geometry.spacing_mm_zyx
    extent = [count * step for count, step in zip(geometry.shape_zyx, spacing, strict=True)]
    box_mm = [edge * step for edges, step in zip(frame, spacing, strict=True) for edge in edges]
    position = [float(place) for place in geometry.affine[:3, 3]]
    facts = (*geometry.shape_zyx, *spacing, *extent, *position, *box_mm, *profile)
    return Scan(shape_zyx=geometry.shape_zyx, spacing_mm_zyx=spacing, frame=frame, facts=facts)


def _measure(ref: VolumeRef) -> tuple[Frame, list[float]]:
    """Return the outline's box in voxels, and its profile from the lowest height to the highest."""
    volume = read(ref)
    blocks = body.coarse(volume)
    inside = body.outline(blocks)
    edges = []
    for axis in range(3):
        held = np.flatnonzero(inside.any(axis=tuple({0, 1, 2} - {axis})))
        edges.append((int(held[0]), int(held[-1]) + 1) if held.size else (0, inside.shape[axis]))
    (z0, z1), (y0, y1), (x0, x1) = edges
    hu = np.clip(blocks.array[z0:z1, y0:y1, x0:x1], -MOST_HU, MOST_HU).reshape(z1 - z0, -1)
    numbers = [
        hu.mean(axis=1), hu.std(axis=1), (hu < body.OUTLINE_HU).mean(axis=1),
        ((hu > FAT_HU[0]) & (hu < FAT_HU[1])).mean(axis=1), (hu > BONE_HU).mean(axis=1),
    ]  # fmt: skip
    middles = (np.arange(HEIGHTS) + 0.5) / HEIGHTS * len(hu) - 0.5
    profile = [float(each) for item in numbers for each in np.interp(middles, np.arange(len(hu)), item)]
    steps = np.round(np.array(blocks.spacing_mm_zyx) / volume.spacing_mm_zyx)
    frame = tuple(
        (float(start * step), min(float(stop * step), float(count)))
        for (start, stop), step, count in zip(edges, steps, volume.shape_zyx, strict=True)
    )
    return frame, profile
