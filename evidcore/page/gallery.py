"""The volumes of a page: each is read once, kept once, and shown wherever a case needs it."""

from __future__ import annotations

from collections.abc import Sequence

from evidcore.case import Crop, VolumeRef
from evidcore.errors import EvidError
from evidcore.page import slices
from evidcore.page.cases import Known
from evidcore.page.markup import Html, data_block, join, tag

_MOST_OUTLINES = 6  # more colours cannot be told apart


class Gallery:
    """Reads volumes as cards ask for them, and gives the page their data blocks.

    Args:
        budget_bytes: what all volumes together may take; later ones become coarser, then are left out.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._left = budget_bytes
        self._viewers = 0
        self._volumes: dict[str, tuple[str, slices.Slices]] = {}  # path -> (element id, slices)
        self._faults: dict[str, str] = {}

    def viewer(self, uris: Sequence[str], known: Known | None) -> Html:
        """Return the slice viewer of the first crop; a sentence where nothing can be shown."""
        if not uris:
            return _nothing("The run recorded no image for this prompt.")
        try:
            crop = Crop.parse_uri(uris[0])
        except ValueError as cause:
            return _nothing(f"The image reference cannot be read: {cause}.")
        if crop.blank:
            return _nothing("Every voxel of this volume is air.")
        found = self._slices(crop.volume, known)
        if found is None:
            return _nothing(self._faults[crop.volume.path])
        name, drawn = found
        self._viewers += 1
        return _viewer(self._viewers, name, drawn, crop, len(uris))

    def thumbnail(self, uris: Sequence[str]) -> Html:
        """Return one slice of what a condition showed, small."""
        if not uris:
            return _nothing("No image recorded.", small=True)
        try:
            crop = Crop.parse_uri(uris[0])
        except ValueError as cause:
            return _nothing(f"The image reference cannot be read: {cause}.", small=True)
        if crop.blank:
            return _nothing("air only", small=True)
        found = self._slices(crop.volume, None)
        if found is None:
            return _nothing(self._faults[crop.volume.path], small=True)
        drawn = found[1]
        first = next(iter(drawn.windows.values()))
        return tag(
            "img",
            class_="thumb",
            alt=f"Axial slice {drawn.z[drawn.start]} of the volume that was shown",
            src=first[drawn.start],
            style=f"aspect-ratio:{drawn.aspect:.4f}",
        )

    def blocks(self) -> Html:
        """Return the data of every volume that a viewer uses."""
        return join(data_block(drawn.block(), id=name) for name, drawn in self._volumes.values())

    def _slices(self, ref: VolumeRef, known: Known | None) -> tuple[str, slices.Slices] | None:
        if ref.path in self._faults:
            return None
        if ref.path not in self._volumes:
            try:
                drawn = self._read(ref, known)
            except (EvidError, OSError) as cause:
                self._faults[ref.path] = f"The volume cannot be shown: {cause}"
                return None
            if drawn is None:
                self._faults[ref.path] = "Left out to keep this page small."
                return None
            self._volumes[ref.path] = (f"volume-{len(self._volumes)}", drawn)
        return self._volumes[ref.path]

    def _read(self, ref: VolumeRef, known: Known | None) -> slices.Slices | None:
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
                read.array, read.spacing_mm_zyx, is_hu=ref.intensity == "hu", masks=masks,
                most_slices=most_slices, most_pixels=most_pixels,
            )  # fmt: skip
            if drawn.bytes_written() <= self._left / 3 or most_slices == 12:
                break
        if drawn.bytes_written() > self._left:
            return None
        self._left -= drawn.bytes_written()
        return drawn


def _viewer(number: int, name: str, drawn: slices.Slices, crop: Crop, count: int) -> Html:
    start = drawn.start
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
    screen = tag(
        "div",
        tag("img", src=drawn.windows[window][start], alt="", draggable="false"),
        tag("svg", viewBox=f"0 0 {drawn.width_px} {drawn.height_px}", preserveAspectRatio="none", aria_hidden="true"),
        *(tag("span", letter, class_=f"side {side}", aria_hidden="true") for side, letter in
          (("left", "R"), ("right", "L"), ("top", "A"), ("bottom", "P"))),
        class_="screen",
        style=f"aspect-ratio:{drawn.aspect:.4f}",
    )  # fmt: skip
    controls = tag(
        "div",
        tag("input", type="range", min=0, max=len(drawn.z) - 1, value=start, aria_label="Axial slice"),
        tag("output", f"slice {drawn.z[start]} of {drawn.depth}"),
        class_="slider",
    )
    more = f" The prompt shows {count} images; this is the volume of the first." if count > 1 else ""
    part = " The prompt showed a part of it." if crop.box_zyx is not None else ""
    return tag(
        "figure",
        screen,
        controls,
        tag("div", *switch, class_="switch", role="group", aria_label="Window") if len(switch) > 1 else None,
        tag(
            "div",
            tag(
                "label",
                tag("input", type="checkbox", class_="outline", checked=True),
                tag("span", "outlines"),
            ),
            *keys,
            class_="keys",
        )
        if keys
        else None,
        tag("figcaption", (more + part).strip(), class_="faint") if more or part else None,
        class_="viewer",
        data_volume=name,
    )


def _nothing(sentence: str, *, small: bool = False) -> Html:
    return tag("p", sentence, class_="thumb empty" if small else "viewer empty")
