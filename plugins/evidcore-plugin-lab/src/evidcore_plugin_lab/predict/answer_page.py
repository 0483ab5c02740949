"""The page of one answer about one scan: its slices with what the answer points at, and what was said."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from evidcore_plugin_pages import gallery
from evidcore_plugin_pages.jinja import page
from evidcore_plugin_pages.markup import data_block, tag

from evidcore.data import Volume
from evidcore.runs.folder import write

_SIZES = ((64, 320), (48, 224), (32, 160))  # slices and pixels of an edge; the first that stays below
_MOST_BYTES = 8_000_000


def write_answer_page(
    folder: Path, record: Mapping[str, Any], volume: Volume, mask: npt.NDArray[np.bool_] | None
) -> Path:
    """Write `index.html` into `folder` from what answer.json holds, and return its path.

    `mask` is what the answer points at, shape (z, y, x) on the grid of `volume`.
    """
    evidence = record["evidence"] or {"slice": None, "boxes": ()}
    drawn = _drawn(volume, evidence, mask)
    place, scan, model = evidence["slice"], record["scan"], record["model"]
    facts = [
        ("Task", record["task"]),
        ("Model", f"{model['recipe']}, {model['stage']}"),
        ("Run", tag("code", model["run"])),
        ("Volume", f"{'x'.join(map(str, scan['shape_zyx']))} voxels (z, y, x)"),
    ]
    text = page(
        "evidcore_plugin_lab", "answer.html", title=Path(scan["path"]).name, kicker="evidcore answer",
        record=record, facts=facts, drawn=drawn,
        start=len(drawn.z) // 2 if place is None else drawn.z.index(place),
        note="The answer names no slice." if place is None else f"Key slice {place} of {drawn.depth}.",
        unlike=unlike_lines(record), looking=looking_sentence(record),
        training=list(training_lines(record["training"])),
        kept={key: record[key] for key in ("scan", "model", "data", "software")},
        block=data_block(drawn.block(), id="volume-0"),
    )  # fmt: skip
    path = folder / "index.html"
    write(path, text)
    return path


def _drawn(volume: Volume, evidence: Mapping[str, Any], mask: npt.NDArray[np.bool_] | None) -> gallery.Slices:
    """Render the scan, the key slice and those with boxes among its slices, as large as the page allows."""
    filled, boxes = np.zeros(volume.shape_zyx, dtype=np.bool_), evidence["boxes"]
    for box in boxes:
        filled[box["z"], box["y0"] : box["y1"], box["x0"] : box["x1"]] = True
    masks = {"boxes": filled} if boxes else {}
    if mask is not None and not np.array_equal(mask, filled):
        masks["mask"] = mask
    named = {evidence["slice"], *(box["z"] for box in boxes)} - {None}
    for most_slices, most_pixels in _SIZES:
        drawn = gallery.render(
            volume.array, volume.spacing_mm_zyx, is_hu=volume.intensity == "hu", masks=masks,
            most_slices=most_slices, most_pixels=most_pixels, keep=sorted(named),
        )  # fmt: skip
        if drawn.bytes_written() <= _MOST_BYTES:
            break
    return drawn


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
    blank, what = record["blank"], "likeliest option"
    same = blank["same_likeliest_option"]
    if same is None:
        same, what = blank["same_completion"], "answer"
    if same:
        return f"Without the scan (a volume of air) the {what} is the same: nothing shows that it was seen."
    return f"Without the scan (a volume of air) the {what} is another. One scan proves no more."
