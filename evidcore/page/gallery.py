"""The volumes of a page: each is read once, kept once, and shown wherever a case needs it."""

from __future__ import annotations

from collections.abc import Sequence

from evidcore.case import Crop, VolumeRef
from evidcore.errors import EvidError
from evidcore.page import slices
from evidcore.page.cases import Known
from evidcore.page.markup import Html, data_block, join, tag

_MOST_OUTLINES = 6  # more colours cannot be told apart
_SMALL_BYTES = 300_000  # not worth making coarser
_BODY_SIDES = (("left", "R"), ("right", "L"), ("top", "A"), ("bottom", "P"))
_OUTLINE_SWITCH = tag(
    "label", tag("input", type="checkbox", class_="outline", checked=True), tag("span", "outlines")
)


class Gallery:
    """Reads volumes as cards ask for them, and gives the page their data blocks.

    Args:
        budget_bytes: what all volumes together may take; later ones become coarser, then are left out.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._left = budget_bytes
        self._viewers = 0
        self._volumes: dict[str, tuple[str, slices.Slices]] = {}  # path -> (element id, slices)
        self._thumbnails: dict[str, Html] = {}
        self._faults: dict[str, str] = {}

    def viewer(self, uris: Sequence[str], known: Known | None, finding: str | None = None) -> Html:
        """Return the slice viewer of the first crop's volume; a sentence where nothing can be shown.

        Args:
            uris: what the prompt showed.
            known: the case, whose masks are outlined.
            finding: the viewer starts where this one is largest.
        """
        crops = _crops(uris)
        if isinstance(crops, str):
            return _nothing(crops)
        path = crops[0].volume.path
        if crops[0].blank:
            return _nothing("Every voxel of this volume is air.")
        if path not in self._volumes and path not in self._faults:
            try:
                drawn = self._drawn(crops[0].volume, known)
            except (EvidError, OSError) as cause:
                self._faults[path] = f"The volume cannot be shown: {cause}"
            else:
                if drawn is None:
                    self._faults[path] = "Left out to keep this page small."
                else:
                    self._volumes[path] = (f"volume-{len(self._volumes)}", drawn)
        if path in self._faults:
            return _nothing(self._faults[path])
        name, drawn = self._volumes[path]
        self._viewers += 1
        return viewer_figure(self._viewers, name, drawn, drawn.start(finding), _shown(crops))

    def thumbnail(self, uris: Sequence[str]) -> Html:
        """Return one slice of the first crop's volume, small."""
        crops = _crops(uris)
        if isinstance(crops, str):
            return _nothing(crops, small=True)
        if crops[0].blank:
            return _nothing("air only", small=True)
        path = crops[0].volume.path
        if path not in self._thumbnails:
            try:
                self._thumbnails[path] = self._small(crops[0].volume)
            except (EvidError, OSError) as cause:
                self._thumbnails[path] = _nothing(f"The volume cannot be shown: {cause}", small=True)
        return self._thumbnails[path]

    def blocks(self) -> Html:
        """Return the data of every volume that a viewer uses."""
        return join(data_block(drawn.block(), id=name) for name, drawn in self._volumes.values())

    def _drawn(self, ref: VolumeRef, known: Known | None) -> slices.Slices | None:
        from evidcore import volume

        read = volume.read(ref)
        masks = {}
        if known is not None:
            present = set(known.case.present())
            wanted = [name for name in known.case.masks if name in present] or list(known.case.masks)
            for name in wanted[:_MOST_OUTLINES]:
                masks[name] = volume.read_mask(known.case.masks[name], read)
        for most_slices, most_pixels in ((48, 192), (24, 128), (12, 96)):
            drawn = slices.render(
                read.array,
                read.spacing_mm_zyx,
                is_hu=ref.intensity == "hu",
                masks=masks,
                most_slices=most_slices,
                most_pixels=most_pixels,
            )
            # a quarter of what is left: later volumes must find room too
            if drawn.bytes_written() <= max(self._left / 4, _SMALL_BYTES):
                break
        if drawn.bytes_written() > self._left:
            return None
        self._left -= drawn.bytes_written()
        return drawn

    def _small(self, ref: VolumeRef) -> Html:
        if ref.path in self._volumes:
            drawn = self._volumes[ref.path][1]
        else:
            from evidcore import volume

            read = volume.read(ref)
            middle = read.array.shape[0] // 2
            plane = read.array[middle : middle + 1]
            drawn = slices.render(
                plane, read.spacing_mm_zyx, is_hu=ref.intensity == "hu", masks={}, most_pixels=96
            )
        picture = next(iter(drawn.windows.values()))[drawn.start()]
        return tag(
            "img",
            class_="thumb",
            alt="An axial slice of the volume that was shown",
            src=picture,
            style=f"aspect-ratio:{drawn.aspect:.4f}",
        )


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
    said = []
    if boxes and all(box[1] - box[0] == 1 for box in boxes):
        said.append(f"The prompt showed slices {', '.join(str(box[0]) for box in boxes)}.")
    else:
        said += [
            f"The prompt showed z {b[0]} to {b[1]}, y {b[2]} to {b[3]}, x {b[4]} to {b[5]}." for b in boxes
        ]
    if others:
        said.append(f"It also showed {others} other volume{'s' * (others > 1)}.")
    return " ".join(said)


def viewer_figure(number: int, name: str, drawn: slices.Slices, start: int, note: str) -> Html:
    """Return the slice viewer of a volume whose data block has the id `name`.

    Args:
        number: tells this viewer's switches from those of others on the page.
        name: id of the block `drawn.block()`.
        drawn: the volume's slices.
        start: position in `drawn.z` that is seen first.
        note: what stands below.
    """
    window = next(iter(drawn.windows))
    switch = [
        tag(
            "label",
            tag("input", type="radio", name=f"window-{number}", value=label, checked=label == window),
            tag("span", label),
        )
        for label in drawn.windows
    ]
    keys = [tag("span", mask, class_=f"key s{place}") for place, mask in enumerate(drawn.outlines)]
    outlines = [
        tag("path", d=paths[start], class_=f"s{place}")  # the script draws them anew on other slices
        for place, paths in enumerate(drawn.outlines.values())
        if start in paths
    ]
    grid = f"0 0 {drawn.width_px} {drawn.height_px}"
    source = f"slice {drawn.z[start]} of {drawn.depth}"
    screen = tag(
        "div",
        tag("img", src=drawn.windows[window][start], alt=f"Axial {source}, {window}", draggable="false"),
        tag("svg", *outlines, viewBox=grid, preserveAspectRatio="none", aria_hidden="true"),
        *(tag("span", letter, class_=f"side {side}", aria_hidden="true") for side, letter in _BODY_SIDES),
        class_="screen",
        style=f"aspect-ratio:{drawn.aspect:.4f}",
    )
    slider = tag("input", type="range", min=0, max=len(drawn.z) - 1, value=start, aria_label="Axial slice")
    return tag(
        "figure",
        screen,
        tag("div", slider, tag("output", source), class_="slider"),
        tag("div", *switch, class_="switch", role="group", aria_label="Window") if len(switch) > 1 else None,
        tag("div", _OUTLINE_SWITCH, *keys, class_="keys") if keys else None,
        tag("figcaption", note) if note else None,
        class_="viewer",
        data_volume=name,
    )


def _nothing(sentence: str, *, small: bool = False) -> Html:
    return tag("p", sentence, class_="thumb empty" if small else "viewer empty")
