"""Axial slices of a volume as inline PNG pictures, one per window, with mask outlines."""

from __future__ import annotations

import base64
import dataclasses
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Plane = npt.NDArray[np.uint8]
WINDOWS_HU = {"lung": (-1350.0, 150.0), "mediastinum": (-160.0, 240.0), "bone": (-500.0, 1300.0)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slices:
    """What the page's viewer needs of one volume; goes into a JSON block."""

    height_px: int
    width_px: int
    voxels_per_px: int  # along each edge of a slice
    aspect: float  # displayed width / height, in mm
    z: tuple[int, ...]  # source index of each slice
    depth: int  # slices in the source volume
    windows: Mapping[str, tuple[str, ...]]  # data URIs
    outlines: Mapping[str, Mapping[int, str]]  # by mask name: position in `z` -> SVG path in pixels
    areas: Mapping[str, tuple[int, ...]]  # by mask name: voxels on each of `z`

    def block(self) -> dict[str, Any]:
        """Return the form that the script reads."""
        return {
            "z": self.z,
            "depth": self.depth,
            "windows": self.windows,
            "outlines": {
                name: {str(place): path for place, path in paths.items()}
                for name, paths in self.outlines.items()
            },
        }

    def start(self, mask: str | None = None) -> int:
        """Return the position in `z` that shows most of a mask, else of all, else the middle."""
        named = self.areas.get(mask) if mask is not None else None
        wanted = [named] if named is not None else list(self.areas.values())
        shares = [[area / max(*areas, 1) for area in areas] for areas in wanted]
        totals = [sum(column) for column in zip(*shares, strict=True)]
        if not any(totals):
            return len(self.z) // 2
        return totals.index(max(totals))

    def bytes_written(self) -> int:
        """Return about how much of the page this takes."""
        return sum(len(uri) for uris in self.windows.values() for uri in uris) + sum(
            len(path) for paths in self.outlines.values() for path in paths.values()
        )


def render(
    array: npt.NDArray[Any],
    spacing_mm_zyx: tuple[float, float, float],
    *,
    is_hu: bool,
    masks: Mapping[str, npt.NDArray[np.bool_]],
    most_slices: int = 48,
    most_pixels: int = 192,
    keep: Sequence[int] = (),
) -> Slices:
    """Render `array` for the page.

    Args:
        array: the volume, `z y x`.
        spacing_mm_zyx: voxel size.
        is_hu: use CT windows; otherwise one window from the 1st to the 99th percentile.
        masks: masks on the same grid, by name.
        most_slices: evenly spaced slices are taken from deeper volumes.
        most_pixels: longer slice edges are averaged down to this.
        keep: slices that are shown beside the evenly spaced ones.
    """
    depth, height, width = array.shape
    even = np.linspace(0, depth - 1, min(depth, most_slices)).round().astype(int)
    chosen = np.union1d(even, np.asarray(keep, dtype=int))
    factor = -(-max(height, width) // most_pixels)
    planes = _averaged(array[chosen], factor)
    if is_hu:
        windows = WINDOWS_HU
    else:
        low, high = (float(edge) for edge in np.percentile(array, (1, 99)))
        windows = {"full range": (low, max(high, low + 1e-6))}
    written = {
        name: tuple(_data_uri(_grey(plane, low, high)) for plane in planes)
        for name, (low, high) in windows.items()
    }
    outlines = {
        name: {
            place: outline(reduced)
            for place, z in enumerate(chosen.tolist())
            if (reduced := np.asarray(_blocks(mask[z][None], factor).any(axis=(2, 4)))[0]).any()
        }
        for name, mask in masks.items()
    }
    return Slices(
        height_px=planes.shape[1],
        width_px=planes.shape[2],
        voxels_per_px=factor,
        aspect=(planes.shape[2] * spacing_mm_zyx[2]) / (planes.shape[1] * spacing_mm_zyx[1]),
        z=tuple(chosen.tolist()),
        depth=depth,
        windows=written,
        outlines=outlines,
        areas={name: tuple(mask[chosen].sum(axis=(1, 2)).tolist()) for name, mask in masks.items()},
    )


def outline(mask: npt.NDArray[np.bool_]) -> str:
    """Return the border of a mask, shape (y, x), as an SVG path along voxel edges."""
    padded = np.pad(mask, 1).astype(np.int8)
    pieces = []
    # a horizontal edge lies between rows that differ, a vertical one between columns that differ
    rows = np.diff(padded, axis=0)[:, 1:-1] != 0
    for y in np.flatnonzero(rows.any(axis=1)).tolist():
        pieces += [f"M{start} {y}H{stop}" for start, stop in _runs(rows[y])]
    columns = np.diff(padded, axis=1)[1:-1, :] != 0
    for x in np.flatnonzero(columns.any(axis=0)).tolist():
        pieces += [f"M{x} {start}V{stop}" for start, stop in _runs(columns[:, x])]
    return "".join(pieces)


def png(plane: Plane) -> bytes:
    """Return an 8-bit grey picture, shape (y, x), as PNG; each row takes the filter that shrinks it most."""
    height, width = plane.shape
    values = plane.astype(np.int16)
    left = np.pad(values, ((0, 0), (1, 0)))[:, :-1]
    above = np.pad(values, ((1, 0), (0, 0)))[:-1]
    corner = np.pad(values, ((1, 0), (1, 0)))[:-1, :-1]
    guess = left + above - corner
    distances = [abs(guess - left), abs(guess - above), abs(guess - corner)]
    paeth = np.choose(np.argmin(distances, axis=0), [left, above, corner])
    candidates = np.stack([values * 0, left, above, (left + above) // 2, paeth])
    residues = ((values - candidates) % 256).astype(np.uint8)  # (filter, y, x)
    best = abs(residues.astype(np.int8).astype(np.int16)).sum(axis=2).argmin(axis=0)
    lines = residues[best, np.arange(height)]
    raw = np.concatenate([best[:, None].astype(np.uint8), lines], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def _averaged(planes: npt.NDArray[Any], factor: int) -> npt.NDArray[np.float32]:
    values = planes.astype(np.float32)
    if factor == 1:
        return values
    return np.asarray(_blocks(values, factor).mean(axis=(2, 4)))


def _blocks(planes: npt.NDArray[Any], factor: int) -> npt.NDArray[Any]:
    """Return planes (z, y, x) in squares (z, y, within, x, within); the rest at the end is cut."""
    depth, height, width = planes.shape
    height, width = height // factor * factor, width // factor * factor
    return planes[:, :height, :width].reshape(depth, height // factor, factor, width // factor, factor)


def _grey(plane: npt.NDArray[np.float32], low: float, high: float) -> Plane:
    share = np.clip((plane - low) / (high - low), 0.0, 1.0)
    # 64 greys: the eye tells no more apart on a slice, and noise below that doubles the page
    return np.asarray(((share * 63).round() * (255 / 63)).round(), dtype=np.uint8)


def _data_uri(plane: Plane) -> str:
    return "data:image/png;base64," + base64.b64encode(png(plane)).decode("ascii")


def _runs(line: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.pad(line.astype(np.int8), 1)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]
