"""The page of one answer about one scan: its slices with what the answer points at, and what was said."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from evidcore_plugin_pages import gallery
from evidcore_plugin_pages.document import NOTICE, shell
from evidcore_plugin_pages.examples import completion
from evidcore_plugin_pages.gallery import viewer_figure
from evidcore_plugin_pages.markup import DASH, Html, data_block, join, number, tag
from evidcore_plugin_pages.tables import facts, tree

from evidcore.volume import Volume

_SIZES = ((64, 320), (48, 224), (32, 160))  # slices and pixels of an edge; the first that stays below
_MOST_BYTES = 8_000_000


def write_answer_page(
    folder: Path, record: Mapping[str, Any], volume: Volume, mask: npt.NDArray[np.bool_] | None
) -> Path:
    """Write `index.html` into `folder` and return its path.

    Args:
        folder: where the answer lies.
        record: what its answer.json holds.
        volume: the scan.
        mask: what the answer points at, shape (z, y, x) on the grid of `volume`; None where it has none.
    """
    drawn = _drawn(volume, record["evidence"], mask)
    place = (record["evidence"] or {}).get("slice")
    start = len(drawn.z) // 2 if place is None else drawn.z.index(place)
    note = "The answer names no slice." if place is None else f"Key slice {place} of {drawn.depth}."
    scan = Path(record["scan"]["path"]).name
    body = [
        tag(
            "header",
            tag("p", tag("b", NOTICE), class_="banner"),
            tag("p", "evidcore answer", class_="kicker"),
            tag("h1", scan),
            facts(_facts(record)),
            class_="top",
        ),
        tag(
            "main",
            tag(
                "section",
                tag("h2", "Answer"),
                tag(
                    "div",
                    viewer_figure(1, "volume-0", drawn, start, note),
                    tag("div", *_said(record), class_="beside"),
                    class_="case",
                ),
            ),
            _section("Unlike the training scans", _unlike(record)) if record["unlike"] else None,
            _section("Does it look?", _looking(record)),
            _section("Trained on", *(tag("p", line) for line in training_lines(record["training"]))),
            _section("Evidence", _evidence(record["evidence"])) if record["evidence"] else None,
            _section("Record", _record(record)),
        ),
        tag("footer", tag("p", NOTICE), tag("p", "Written by evidcore. Opens without a network.")),
        tag("div", id="tip", role="status", hidden=True),
        data_block(drawn.block(), id="volume-0"),
    ]
    path = folder / "index.html"
    path.write_text(shell(f"{scan} · evidcore", join(body)), encoding="utf-8")
    return path


def _section(title: str, *content: object) -> Html:
    return tag("section", tag("h2", title), *content)


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


def _said(record: Mapping[str, Any]) -> list[Html | None]:
    """Return the prompt, what the model wrote, and what was read in it."""
    return [
        tag("div", tag("h4", "Prompt"), tag("pre", record["prompt"], class_="text")),
        tag("h4", "What the model wrote"),
        completion(record["completion"]),
        _malformed(record["malformed"]),
        _options(record) if record["options"] else None,
        *_findings(record["findings"]),
    ]


def _malformed(reason: str | None) -> Html | None:
    return tag("p", f"Malformed: {reason}", class_="malformed") if reason else None


def _options(record: Mapping[str, Any]) -> Html:
    """Return the options with how likely the model finds them, on the scan and on a volume of air."""
    chosen = record["choice"] or record["lenient_choice"]
    heads = ("Option", "Written", "Share", "Share on a blank volume", "Log-likelihood, nats")
    rows = []
    for row in record["options"]:
        told = "log_likelihood" if row["verdict_log_likelihood"] is None else "verdict_log_likelihood"
        rows.append(
            tag(
                "tr",
                tag("th", f"{row['letter']}) {row['option']}", scope="row"),
                tag("td", "chosen" if row["letter"] == chosen else ""),
                tag("td", number(row["share"], "rate"), class_="num strong"),
                tag("td", number(row["blank"]["share"], "rate"), class_="num"),
                tag("td", number(row[told]), class_="num faint"),
            )
        )
    names = ["", "", "num", "num", "num"]
    head = [tag("th", text, scope="col", class_=name) for text, name in zip(heads, names, strict=True)]
    note = "Shares compare these options with each other. They are no probabilities of disease."
    unknown = record["options_not_trained"]
    return join([
        tag("h4", "Options"),
        tag("div", tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows)), class_="scroll"),
        tag("p", note, class_="faint small"),
        tag("p", f"Not among the findings of the training data: {', '.join(unknown)}.") if unknown else "",
    ])


def _findings(by_labeler: Mapping[str, Any] | None) -> list[Html]:
    """Return what each labeler reads in the report."""
    found = []
    for name, findings in (by_labeler or {}).items():
        items = [tag("li", _finding(item)) for item in findings]
        found.append(tag("h4", f"Findings that {name} reads in it"))
        found.append(tag("ul", *items) if items else tag("p", "None.", class_="empty"))
    return found


def _finding(item: Mapping[str, Any]) -> str:
    size = f"{item['size_mm']:g} mm" if item["size_mm"] is not None else None
    return ", ".join(part for part in (item["name"], item["state"], item["side"], size) if part)


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


def _unlike(record: Mapping[str, Any]) -> Html:
    note = "The answer is worth less the further the scan lies outside. That none is listed proves nothing."
    return join([
        tag("ul", *(tag("li", line) for line in unlike_lines(record))),
        tag("p", note, class_="faint small"),
    ])


def _looking(record: Mapping[str, Any]) -> Html:
    """Return the answer to a volume of air, and what follows from it."""
    return join([
        tag("p", looking_sentence(record), class_="lead"),
        tag("h4", "What the model wrote over a volume of air"),
        completion(record["blank"]["completion"]),
        _malformed(record["blank"]["malformed"]) or "",
    ])


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


def _evidence(evidence: Mapping[str, Any]) -> Html:
    heads = ("z", "y", "x", "From, mm", "To, mm", "In the file, i j k")
    rows = [
        tag(
            "tr",
            tag("td", box["z"]),
            tag("td", f"{box['y0']} to {box['y1']}"),
            tag("td", f"{box['x0']} to {box['x1']}"),
            tag("td", _place(box["from_mm_zyx"])),
            tag("td", _place(box["to_mm_zyx"])),
            tag("td", _in_file(box["in_file"])),
        )
        for box in evidence["boxes"]
    ]
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in heads)))
    mask = evidence["mask"]
    said = "The answer has no boxes and no mask."
    if mask is not None:
        said = f"Mask: {mask['path']}, {mask['voxels']} voxels, {mask['volume_ml']:g} ml, on the file's grid."
    return join([
        tag("p", f"Axes: {evidence['axes']}.", class_="faint small"),
        tag("div", tag("table", head, tag("tbody", *rows)), class_="scroll") if rows else "",
        tag("p", said),
    ])


def _place(mm: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in mm)


def _in_file(box: Mapping[str, Sequence[int]] | None) -> str:
    if box is None:
        return DASH
    return ", ".join(f"{low} to {high}" for low, high in zip(box["start_ijk"], box["stop_ijk"], strict=True))


def _record(record: Mapping[str, Any]) -> Html:
    kept = {key: record[key] for key in ("scan", "model", "data", "software")}
    return tag("details", tag("summary", "Scan, model, data, software"), tree(kept))
