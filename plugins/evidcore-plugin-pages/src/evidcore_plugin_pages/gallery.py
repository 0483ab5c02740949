"""The volumes of a page: each is read once and kept once; axial slices as inline PNG, a picture a window."""

import base64
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from evidcore.api import Crop, read, read_mask
from evidcore.case import Drawing
from evidcore.data import Volume
from evidcore.data.drawing import photograph
from evidcore.data.drawing import render as render_crop
from evidcore.errors import EvidError
from evidcore_plugin_pages.cases import Known
from evidcore_plugin_pages.jinja import part
from evidcore_plugin_pages.markup import Html, data_block, join

Plane = npt.NDArray[np.uint8]
WINDOWS_HU = {"lung": (-1350.0, 150.0), "mediastinum": (-160.0, 240.0), "bone": (-500.0, 1300.0)}
_LUNG_HU = (-930.0, -500.0)  # values of aerated lung; air beside a body is lower, noise and all
AXES = {"axial": 0, "coronal": 1, "sagittal": 2}  # which of z, y, x a slice cuts
SIDES = {  # of the body, by edge
    "axial": (("left", "R"), ("right", "L"), ("top", "A"), ("bottom", "P")),
    "coronal": (("left", "R"), ("right", "L"), ("top", "S"), ("bottom", "I")),
    "sagittal": (("left", "A"), ("right", "P"), ("top", "S"), ("bottom", "I")),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slices:
    """What the page's viewer needs of one volume; goes into a JSON block."""

    height_px: int
    width_px: int
    aspect: float  # displayed width / height, in mm
    z: tuple[int, ...]  # source index of each slice
    depth: int  # slices in the source volume
    windows: Mapping[str, tuple[str, ...]]  # data URIs
    outlines: Mapping[str, Mapping[int, str]]  # by mask name: position in `z` -> SVG path in pixels
    areas: Mapping[str, tuple[int, ...]]  # by mask name: voxels on each of `z`
    sides: tuple[tuple[str, str], ...] = SIDES["axial"]

    def block(self) -> dict[str, Any]:
        """Return the form that the script reads."""
        return {"z": self.z, "depth": self.depth, "windows": self.windows, "outlines": self.outlines}

    def start(self, mask: str | None = None) -> int:
        """Return the position in `z` that shows most of a mask, else of all, else the middle."""
        wanted = [areas for name, areas in self.areas.items() if name == mask or mask not in [*self.areas]]
        shares = sum((np.asarray(areas) / max(*areas, 1) for areas in wanted), np.zeros(len(self.z)))
        return int(np.argmax(shares)) if np.any(shares) else len(self.z) // 2

    def bytes_written(self) -> int:
        """Return about how much of the page this takes."""
        return len(json.dumps(self.block()))


def render(
    array: npt.NDArray[Any],
    spacing_mm_zyx: tuple[float, float, float],
    *,
    is_hu: bool,
    masks: Mapping[str, npt.NDArray[np.bool_]],
    most_slices: int = 48,  # for looking, not for reading a scan
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
    planes = _blocks(array[chosen].astype(np.float32), factor).mean(axis=(2, 4))
    windows = WINDOWS_HU if is_hu else full_range(array)
    written = {name: tuple(png_uri(grey(z, *edges)) for z in planes) for name, edges in windows.items()}
    outlines = {
        name: {
            index: outline(reduced)
            for index, z in enumerate(chosen.tolist())
            if (reduced := np.asarray(_blocks(mask[z][None], factor).any(axis=(2, 4)))[0]).any()
        }
        for name, mask in masks.items()
    }
    return Slices(
        height_px=planes.shape[1],
        width_px=planes.shape[2],
        aspect=(planes.shape[2] * spacing_mm_zyx[2]) / (planes.shape[1] * spacing_mm_zyx[1]),
        z=tuple(chosen.tolist()),
        depth=depth,
        windows=written,
        outlines=outlines,
        areas={name: tuple(mask[chosen].sum(axis=(1, 2)).tolist()) for name, mask in masks.items()},
    )


def full_range(array: npt.NDArray[Any]) -> dict[str, tuple[float, float]]:
    """Return the one window of a volume without HU, from the 1st to the 99th percentile."""
    low, high = (float(edge) for edge in np.percentile(array, (1, 99)))
    return {"full range": (low, max(high, low + 1e-6))}


def outline(mask: npt.NDArray[np.bool_]) -> str:
    """Return the border of a mask, shape (y, x), as an SVG path along voxel edges."""
    padded = np.pad(mask, 1).astype(np.int8)
    pieces = []
    # a horizontal edge lies between rows that differ, a vertical one between columns that differ
    rows = np.diff(padded, axis=0)[:, 1:-1] != 0
    for y in np.flatnonzero(rows.any(axis=1)).tolist():
        pieces += [f"M{start} {y}H{stop}" for start, stop in runs(rows[y])]
    columns = np.diff(padded, axis=1)[1:-1, :] != 0
    for x in np.flatnonzero(columns.any(axis=0)).tolist():
        pieces += [f"M{x} {start}V{stop}" for start, stop in runs(columns[:, x])]
    return "".join(pieces)


def cut(array: npt.NDArray[Any], plane: str, index: int) -> npt.NDArray[Any]:
    """Return a slice of an array (z, y, x) as it is looked at: rows down, head up where z is seen."""
    seen = np.asarray(np.take(array, index, axis=AXES[plane]))
    return seen if plane == "axial" else seen[::-1]


def window_of(voxels: npt.NDArray[Any], share: float) -> str:
    """Return the lung's window where more than a share of some voxels in HU is aerated lung."""
    return "lung" if ((voxels > _LUNG_HU[0]) & (voxels < _LUNG_HU[1])).mean() > share else "mediastinum"


def _blocks(planes: npt.NDArray[Any], factor: int) -> npt.NDArray[Any]:
    """Return planes (z, y, x) in squares (z, y, within, x, within); the rest at the end is cut."""
    depth, height, width = planes.shape
    height, width = height // factor * factor, width // factor * factor
    return planes[:, :height, :width].reshape(depth, height // factor, factor, width // factor, factor)


def grey(plane: npt.NDArray[np.float32], low: float, high: float) -> Plane:
    """Return a slice in a window, black at `low` and white at `high`."""
    share = np.clip((plane - low) / (high - low), 0.0, 1.0)
    # 64 greys: the eye tells no more apart on a slice, and noise below that doubles the page
    return np.asarray(((share * 63).round() * (255 / 63)).round(), dtype=np.uint8)


def png_uri(plane: Plane) -> str:
    """Return a picture, grey (y, x) or colours (y, x, channel), as the source of an `img`."""
    file = io.BytesIO()
    Image.fromarray(plane).save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def runs(line: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return where each run of a line begins and ends, end excluded."""
    edges = np.flatnonzero(np.diff(np.pad(line.astype(np.int8), 1)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


_MOST_OUTLINES = 6  # more colours cannot be told apart
_SMALL_BYTES = 300_000  # not worth making coarser
WORDS = {
    "slices": "The prompt showed these slices, one behind the other.",
    "tiles": "The prompt showed these slices in one picture.",
    "mean": "The prompt showed this projection: the mean along each ray.",
    "attenuation": "The prompt showed this projection: the attenuation along each ray.",
    "picture": "The prompt showed this picture.",
}
Shown = tuple[str, Drawing | None]  # a volume's path, and what was made of it


class Gallery:
    """Reads volumes as cards ask for them, and gives the page their data blocks.

    Args:
        budget_bytes: what all volumes together may take; later ones become coarser, then are left out.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._left = budget_bytes
        self._viewers = 0
        self._volumes: dict[Shown, Slices | str] = {}  # a sentence where it cannot be shown
        self._thumbnails: dict[Shown, Html] = {}

    def viewer(self, uris: Sequence[str], known: Known | None, finding: str | None = None) -> Html:
        """Return the slice viewer of the first crop's volume; a sentence where nothing can be shown.

        Where pictures were drawn of the volume it shows these, one viewer for each way of drawing.

        Args:
            uris: what the prompt showed.
            known: the case, whose masks are outlined.
            finding: the viewer starts where this one is largest.
        """
        crops = _crops(uris)
        if isinstance(crops, str):
            return part("nothing", crops)
        if crops[0].blank:
            return part("nothing", "Every voxel of this volume is air.")
        same = [crop for crop in crops if crop.volume.path == crops[0].volume.path]
        drawn_alike = {_key(crop): crop for crop in reversed(same)}
        return join(self._figure(crop, known, finding, crops) for crop in reversed(drawn_alike.values()))

    def _figure(self, crop: Crop, known: Known | None, finding: str | None, crops: Sequence[Crop]) -> Html:
        key = _key(crop)
        if key not in self._volumes:
            try:
                self._volumes[key] = self._drawn(crop, known)
            except (EvidError, OSError) as cause:
                self._volumes[key] = f"The volume cannot be shown: {cause}"
        drawn = self._volumes[key]
        if isinstance(drawn, str):
            return part("nothing", drawn)
        self._viewers += 1
        name = f"volume-{list(self._volumes).index(key)}"
        note = _shown(crops) if crop.drawing is None else WORDS[crop.drawing.kind]
        return part("viewer", self._viewers, name, drawn, drawn.start(finding), note)

    def thumbnail(self, uris: Sequence[str]) -> Html:
        """Return one slice of the first crop's volume, small."""
        crops = _crops(uris)
        if isinstance(crops, str):
            return part("nothing", crops, small=True)
        if crops[0].blank:
            return part("nothing", "air only", small=True)
        key = _key(crops[0])
        if key not in self._thumbnails:
            drawn = self._volumes.get(key, "")
            try:
                if isinstance(drawn, str):
                    drawn = _slices(crops[0], read(crops[0].volume), {}, 3, 96)
                picture = next(iter(drawn.windows.values()))[drawn.start()]
                self._thumbnails[key] = part("thumbnail", picture, drawn.aspect)
            except (EvidError, OSError) as cause:
                self._thumbnails[key] = part("nothing", f"The volume cannot be shown: {cause}", small=True)
        return self._thumbnails[key]

    def blocks(self) -> Html:
        """Return the data of every volume that a viewer uses."""
        volumes = enumerate(self._volumes.values())
        drawn = ((n, item) for n, item in volumes if isinstance(item, Slices))
        return join(data_block(item.block(), id=f"volume-{n}") for n, item in drawn)

    def _drawn(self, crop: Crop, known: Known | None) -> Slices | str:
        volume = read(crop.volume)
        masks = {}
        if known is not None:
            present = set(known.case.present())
            regions = known.case.regions
            wanted = [name for name in regions if name in present] or list(regions)
            for name in wanted[:_MOST_OUTLINES]:
                by = regions[name].by
                masks[f"{name} (by {by})" if by else name] = read_mask(regions[name], volume)
        for most_slices, most_pixels in ((48, 192), (24, 128), (12, 96)):
            drawn = _slices(crop, volume, masks, most_slices, most_pixels * (4 if crop.drawing else 1))
            # a quarter of what is left: later volumes must find room too
            if drawn.bytes_written() <= max(self._left / 4, _SMALL_BYTES):
                break
        if drawn.bytes_written() > self._left:
            return "Left out to keep this page small."
        self._left -= drawn.bytes_written()
        return drawn


def _slices(
    crop: Crop, volume: Volume, masks: Mapping[str, npt.NDArray[np.bool_]], most_slices: int, most_pixels: int
) -> Slices:
    """Render a volume, or the pictures that are drawn of it."""
    if crop.drawing is not None:
        return drawn_pictures(crop, volume, masks, most_pixels)
    return render(
        volume.array, volume.spacing_mm_zyx, is_hu=crop.volume.intensity == "hu", masks=masks,
        most_slices=most_slices, most_pixels=most_pixels,
    )  # fmt: skip


def drawn_pictures(
    crop: Crop, volume: Volume, masks: Mapping[str, npt.NDArray[np.bool_]], most_pixels: int
) -> Slices:
    """Render the pictures that are drawn of a whole volume, with outlines of its masks where they lie.

    Args:
        crop: how it is drawn.
        volume: its volume.
        masks: masks on the volume's grid, by name.
        most_pixels: longer edges are averaged down to this.
    """
    assert crop.drawing is not None
    whole = dataclasses.replace(crop, box_zyx=None)
    drawn = render_crop(whole, volume.array, volume.geometry)
    of_masks = whole
    if crop.drawing.axis:  # a mask has no HU
        of_masks = dataclasses.replace(whole, drawing=dataclasses.replace(crop.drawing, kind="mean"))
    rendered = render(
        drawn.array,
        drawn.spacing_mm_zyx,
        is_hu=crop.volume.intensity == "hu" and drawn.window is None,
        masks={name: render_crop(of_masks, mask, volume.geometry).array > 0 for name, mask in masks.items()},
        most_pixels=most_pixels,
    )
    if crop.drawing.kind == "slices":
        indices = tuple(crop.drawing.slices[place] for place in rendered.z)
        rendered = dataclasses.replace(rendered, z=indices, depth=volume.array.shape[0])
    photo = photograph(whole, in_colours=True)
    if photo is not None:
        size = (rendered.width_px, rendered.height_px)
        colours = np.asarray(Image.fromarray(photo).resize(size, Image.Resampling.BICUBIC))
        rendered = dataclasses.replace(rendered, windows={"colours": (png_uri(colours),)})
    films = {"y": SIDES["coronal"], "x": SIDES["sagittal"]}
    sides = SIDES["axial"] if crop.drawing.kind == "slices" else films.get(crop.drawing.axis, ())
    return dataclasses.replace(rendered, sides=sides)


def _key(crop: Crop) -> Shown:
    return crop.volume.path, crop.drawing


def _crops(uris: Sequence[str]) -> list[Crop] | str:
    """Read crops, or say why there are none."""
    if not uris:
        return "No image was recorded."
    try:
        return [Crop.parse_uri(uri) for uri in uris]
    except ValueError as cause:
        return f"The image reference cannot be read: {cause}."


def _shown(crops: Sequence[Crop]) -> str:
    """Say which parts of the first crop's volume the prompt showed; empty where it was all of it."""
    first = crops[0].volume.path
    boxes = [crop.box_zyx for crop in crops if crop.volume.path == first and crop.box_zyx is not None]
    others = len({crop.volume.path for crop in crops}) - 1
    if boxes and all(box[1] - box[0] == 1 for box in boxes):
        sentences = [f"The prompt showed slices {', '.join(str(box[0]) for box in boxes)}."]
    else:
        sentence = "The prompt showed z {} to {}, y {} to {}, x {} to {}."
        sentences = [sentence.format(*box) for box in boxes]
    if others:
        sentences.append(f"It also showed {others} other volume{'s' * (others > 1)}.")
    return " ".join(sentences)
