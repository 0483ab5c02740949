"""The page of one answer about one scan: its slices with what the answer points at, and what was said."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from evidcore_plugin_pages import gallery
from evidcore_plugin_pages.jinja import page
from evidcore_plugin_pages.markup import data_block, tag

from evidcore.data import Volume

_SIZES = ((64, 320), (48, 224), (32, 160))  # slices and pixels of an edge; the first that stays below
_MOST_BYTES = 8_000_000


def write_answer_page(
    folder: Path, record: Mapping[str, Any], volume: Volume, mask: npt.NDArray[np.bool_] | None
) -> Path:
    """Write `index.html` into `folder` from what answer.json holds, and return its path.

    `mask` is what the answer points at, shape (z, y, x) on the grid of `volume`.
    """
    drawn = _drawn(volume, record["evidence"], mask)
    place = (record["evidence"] or {}).get("slice")
    start = len(drawn.z) // 2 if place is None else drawn.z.index(place)
    note = "The answer names no slice." if place is None else f"Key slice {place} of {drawn.depth}."
    scan = Path(record["scan"]["path"]).name
    text = page(
        "evidcore_plugin_lab", "answer.html", title=scan, kicker="evidcore answer", record=record,
        facts=_facts(record), drawn=drawn, start=start, note=note, unlike=unlike_lines(record),
        looking=looking_sentence(record), training=list(training_lines(record["training"])),
        kept={key: record[key] for key in ("scan", "model", "data", "software")},
        block=data_block(drawn.block(), id="volume-0"),
    )  # fmt: skip
    path = folder / "index.html"
    path.write_text(text, encoding="utf-8")
    return path


def _drawn(
    volume: Volume, evidence: Mapping[str, Any] | None, mask: npt.NDArray[np.bool_] | None
) -> gallery.Slices:
    """Render the scan, the key slice and those with boxes among its slices, as large as the page allows."""
    boxes: Sequence[Mapping[str, Any]] = evidence["boxes"] if evidence else ()
    place = evidence["slice"] if evidence else None
    keep = sorted({*(box["z"] for box in boxes), *([] if place is None else [place])})
    masks = {} if mask is None or _is_boxes(mask, boxes) else {"mask": mask}
    for most_slices, most_pixels in _SIZES:
        drawn = gallery.render(
            volume.array,
            volume.spacing_mm_zyx,
            is_hu=volume.intensity == "hu",
            masks=masks,
            most_slices=most_slices,
            most_pixels=most_pixels,
            keep=keep,
        )
        if drawn.bytes_written() <= _MOST_BYTES:
            break
    paths: dict[int, str] = {}
    for box in boxes:
        at = drawn.z.index(box["z"])
        paths[at] = paths.get(at, "") + _outline(box, drawn.voxels_per_px)
    return dataclasses.replace(drawn, outlines={"boxes": paths, **drawn.outlines}) if paths else drawn


def _is_boxes(mask: npt.NDArray[np.bool_], boxes: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether a mask is nothing but the boxes, so that one outline says it."""
    filled = np.zeros_like(mask)
    for box in boxes:
        filled[box["z"], box["y0"] : box["y1"], box["x0"] : box["x1"]] = True
    return bool((filled == mask).all())


def _outline(box: Mapping[str, Any], voxels_per_px: int) -> str:
    """Return a box's edges as an SVG path in pixels."""
    x0, x1, y0, y1 = (f"{box[edge] / voxels_per_px:g}" for edge in ("x0", "x1", "y0", "y1"))
    return f"M{x0} {y0}H{x1}V{y1}H{x0}Z"


def _facts(record: Mapping[str, Any]) -> list[tuple[str, object]]:
    model, shape = record["model"], "x".join(map(str, record["scan"]["shape_zyx"]))
    return [
        ("Task", record["task"]),
        ("Model", f"{model['recipe']}, {model['stage']}"),
        ("Run", tag("code", model["run"])),
        ("Volume", f"{shape} voxels (z, y, x)"),
    ]


def training_lines(training: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words what the model was trained on."""
    for data in training["datasets"]:
        phantom = ", generated phantoms, no patients" if data["is_phantom"] else ""
        count = (
            "not here" if data["patients"] is None else f"{data['patients']} patients, {data['scans']} scans"
        )
        yield f"Data {data['name']} ({data['component']}{phantom}): {count}."
        if data["findings"]:
            yield f"Findings of {data['name']}: {', '.join(data['findings'])}."
    scans = training["scans"]
    if scans is None:
        yield (
            "What the training scans were like is not known, so no scan can be compared: "
            f"{training['unknown']} Run `evid predict RUN` where the data is."
        )
        return
    ranges = [f"{name} {low:.3g} to {high:.3g}" for name, (low, high) in scans["ranges"].items()]
    yield f"The middle 98 % of {scans['measured']} training scans: {'; '.join(ranges)}."


def unlike_lines(record: Mapping[str, Any]) -> list[str]:
    """Return the warnings that a scan is unlike those of the training."""
    return [f"{'FAR OUTSIDE' if one['is_far'] else 'unlike'}: {one['sentence']}" for one in record["unlike"]]


def looking_sentence(record: Mapping[str, Any]) -> str:
    """Return in words whether the answer changed without pixels."""
    blank = record["blank"]
    if blank["same_likeliest_option"] is not None:
        same, what = blank["same_likeliest_option"], "likeliest option"
    else:
        same, what = blank["same_completion"], "answer"
    if same:
        return f"Without the scan (a volume of air) the {what} is the same: nothing shows that it was seen."
    return f"Without the scan (a volume of air) the {what} is another. One scan proves no more."
