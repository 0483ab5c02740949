"""Data set `m3d-cap`: CT stacks from Radiopaedia with their texts (Hub data set GoodBaiBai88/M3D-Cap).

What the published files need, and what is done about it:

1. `M3D_Cap.json` lists images as `.npy`, which is what the publisher's program makes of them. Both are read:
   those arrays (`M3D_Cap_npy`, 1 x 32 x 256 x 256, cropped and resized), and the published folders of slices
   (`M3D_Cap`), which are stacked in the order of their numbers into the cache.
2. Values are those of windowed pictures, no HU. Spacing was not kept: lengths in mm mean nothing.
3. The plane stands in a stack's name; the direction of the slices was not kept (`axes`).
4. A text file holds more than the findings; they follow `study_findings:`, or else `discussion:`.
5. Several stacks belong to one patient. A patient who is in the test list is left out of the others, by name.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from evidcore.api import DataError, InlineOptions, Report
from evidcore.cache import plain_file
from evidcore.case import Split
from evidcore_plugin_ct_data.files import Origin
from evidcore_plugin_ct_data.m3d_stacks import PREPARED, RAW, homes, locate, same_text, tail
from evidcore_plugin_ct_data.published import SPLITS, Entry, HubSource, PublishedSet
from evidcore_plugin_ct_data.tables import read_json

LIST = "M3D_Cap.json"
SHORTEST = 5  # letters; a section with fewer was left empty


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class M3dCap(PublishedSet):
    """M3D-Cap: 120,092 CT stacks with 42,496 texts. The splits are the published lists.

    Args:
        path: the folder with `M3D_Cap.json` and `M3D_Cap` or `M3D_Cap_npy`.
        revision: full commit hash of the Hub repository: the list and `archives` are fetched from there.
        archives: which archives of the repository hold the cases that are wanted; no others are fetched.
        axes: by plane (axial, coronal, sagittal), where slice, row and column run to, if not to IPL,
            PIL, LIP: axial stacks from the top, coronal from the front, sagittal from the right.
        ids: only these patients (`ct_case/006708`) or stacks, or a text file with one a line.
    """

    repository = "GoodBaiBai88/M3D-Cap"

    source: Annotated[HubSource, InlineOptions]
    archives: tuple[str, ...] = ()
    axes: dict[str, str] | None = None

    def _tables(self) -> list[str]:
        return [LIST]

    def _entries(self, split: Split) -> Iterator[Entry]:
        file = self._files.table(LIST)
        known = read_json(file)
        pairs = {part: _pairs(known, part, file) for part in SPLITS}
        home = homes({part: [image for image, _ in pairs[part]] for part in SPLITS})
        for index, (image, text) in enumerate(pairs[split]):
            where = f"{file}: entry {index} of {split!r}"
            stack = locate(image, self._files, self.cache_folder, self.axes or {}, where)
            below = tail(text)
            if below is None:
                why = f"a text lies below ct_case or ct_quizze, got {text!r}"
                raise DataError(f"{where}: {why}. Fetch the list again.")
            places = [f"{root}/{below}" for root in (PREPARED, RAW, ".")]  # beside the arrays or the slices
            text_name = next((it for it in places if self._files.path(it).is_file()), f"{RAW}/{below}")
            report, fault = _text(self._files.path(text_name))
            entry = stack.entry(split, home, where, report=Report(text=report) if report else None)
            yield dataclasses.replace(entry, names=(*stack.names, text_name), fault=fault)

    def origins(self, name: str) -> Sequence[Origin]:
        """Return the list itself, or the archives that may hold a file."""
        if name == LIST:
            return (Origin(name=name),)
        return [Origin(name=archive, is_archive=True) for archive in self.archives]

    def inside(self, member: str) -> str | None:
        """Return what a member is called in the set; accents go, since the lists have none."""
        name = tail(member)
        return None if name is None else f"{RAW}/{same_text(name)}"


def _pairs(known: Any, split: Split, file: Path) -> list[tuple[str, str]]:
    """Return image and text of each entry of a split's list."""
    pairs = known.get(split) if isinstance(known, dict) else None
    if not isinstance(pairs, list):
        listed = ", ".join(map(repr, known)) if isinstance(known, dict) else f"a {type(known).__name__}"
        raise DataError(f"{file}: has no list {split!r}; it holds {listed}. Fetch the file again.")
    for index, pair in enumerate(pairs):
        if not isinstance(pair, dict) or not pair.get("image") or not pair.get("text"):
            why = f"entry {index} of {split!r}: must name an image and a text, got {pair!r}"
            raise DataError(f"{file}: {why}. Fetch the list again.")
    return [(str(pair["image"]), str(pair["text"])) for pair in pairs]


def _text(place: Path) -> tuple[str, str | None]:
    """Return the findings of a text file, and why it cannot be read; neither where there is none."""
    if not place.is_file():
        return "", None
    try:
        return _findings(plain_file(place).read_text(encoding="utf-8")), None
    except UnicodeDecodeError as cause:
        return "", f"{place}: is no text in UTF-8 ({cause}). Fetch it again, or save it as UTF-8."


def _findings(text: str) -> str:
    """Return the findings of a text file, in one line: what follows its title, or all where there is none."""
    for title in ("study_findings:", "discussion:"):
        _, _, after = text.partition(title)
        section = " ".join(after.split())
        if len(section.replace(" ", "")) >= SHORTEST:
            return section
    return " ".join(text.split())
