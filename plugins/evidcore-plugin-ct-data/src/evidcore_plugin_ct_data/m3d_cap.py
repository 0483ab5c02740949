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

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from evidcore.api import Case, DataError, InlineOptions, Report
from evidcore.case import Split
from evidcore_plugin_ct_data.files import Files, Origin
from evidcore_plugin_ct_data.m3d_stacks import PREPARED, RAW, Stack, inside, locate, tail
from evidcore_plugin_ct_data.published import Entry, HubSource, PublishedSet, Selection
from evidcore_plugin_ct_data.tables import read_json

REPOSITORY = "GoodBaiBai88/M3D-Cap"
LIST = "M3D_Cap.json"
SHORTEST = 5  # letters; a section with fewer was left empty
PROTECTED: Sequence[Split] = ("test", "validation", "train")  # who keeps a patient that several lists name


class M3dCap(PublishedSet):
    """M3D-Cap: 120,092 CT stacks with 42,496 texts. The splits are the published lists."""

    def __init__(
        self,
        recipe_folder: Path,
        cache_folder: Path,
        *,
        source: Annotated[HubSource, InlineOptions],
        archives: tuple[str, ...] = (),
        axes: dict[str, str] | None = None,
        test_list: str = "test",
        selection: Annotated[Selection, InlineOptions],
    ) -> None:
        """Say where the set lies and which part of it is wanted.

        Args:
            recipe_folder: where a relative `path` starts.
            cache_folder: keeps arrays made of slices, and what is fetched if no `path` is given.
            path: the folder with `M3D_Cap.json` and `M3D_Cap` or `M3D_Cap_npy`.
            revision: full commit hash of the Hub repository: the list and `archives` are fetched from there.
            archives: which archives of the repository hold the cases that are wanted; no others are fetched.
            axes: by plane (axial, coronal, sagittal), where slice, row and column run to, if not to IPL,
                PIL, LIP: axial stacks from the top, coronal from the front, sagittal from the right.
            test_list: which list is the test split; there are shorter ones.
            ids: only these patients (`ct_case/006708`) or stacks, or a text file with one a line.
            source: see `HubSource`.
            selection: see `Selection`.
        """
        files = source.files(REPOSITORY, recipe_folder, cache_folder, origins=self._origins, inside=inside)
        settings = {"axes": dict(axes or {}), "test_list": test_list, "archives": archives}
        super().__init__(files, selection, recipe_folder=recipe_folder, path=source.path, settings=settings)
        self._cache_folder = cache_folder
        self._archives = archives
        self._axes = dict(axes or {})
        self._lists: Mapping[Split, str] = {"train": "train", "validation": "validation", "test": test_list}

    def _tables(self) -> list[str]:
        return [LIST]

    def _entries(self, split: Split) -> Iterator[Entry]:
        file = self._files.table(LIST)
        known = read_json(file)
        homes = _homes(known, self._lists, file)
        for index, pair in enumerate(known[self._lists[split]]):
            where = f"{file}: entry {index} of {self._lists[split]!r}"
            image, text = _paths(pair, where)
            result = locate(image, self._files, self._cache_folder, self._axes, where)
            text_name = _text_name(text, self._files, where)
            home = homes[result.patient]
            elsewhere = None
            if home != split:
                elsewhere = (
                    f"{where}: patient {result.patient!r} is also in the {home} list and stays there alone."
                )
            text, fault = _text(self._files.path(text_name))
            yield Entry(
                case=_case(result, text),
                names=(*result.names, text_name),
                fault=fault,
                elsewhere=elsewhere,
                prepare=result.prepare,
            )

    def _origins(self, name: str) -> Sequence[Origin]:
        if name == LIST:
            return (Origin(name=name),)
        return [Origin(name=archive, is_archive=True) for archive in self._archives]


def _homes(known: Any, lists: Mapping[Split, str], file: Path) -> dict[str, Split]:
    """Return in which split each patient stays."""
    homes: dict[str, Split] = {}
    for split in reversed(PROTECTED):
        pairs = known.get(lists[split]) if isinstance(known, dict) else None
        if not isinstance(pairs, list):
            held = ", ".join(map(repr, known)) if isinstance(known, dict) else f"a {type(known).__name__}"
            raise DataError(
                f"{file}: has no list {lists[split]!r}; it holds {held}. Correct test_list, or fetch the "
                f"file again."
            )
        for index, pair in enumerate(pairs):
            name = tail(_paths(pair, f"{file}: entry {index} of {lists[split]!r}")[0])
            homes[(name or "").rpartition("/")[0]] = split
    return homes


def _paths(pair: Any, where: str) -> tuple[str, str]:
    if not isinstance(pair, dict) or not pair.get("image") or not pair.get("text"):
        raise DataError(f"{where}: must name an image and a text, got {pair!r}. Fetch the list again.")
    return str(pair["image"]), str(pair["text"])


def _text_name(text: str, files: Files, where: str) -> str:
    """Return where a text lies; beside the slices or beside the arrays."""
    name = tail(text)
    if name is None:
        raise DataError(
            f"{where}: a text lies below ct_case or ct_quizze, got {text!r}. Fetch the list again."
        )
    places = [f"{root}/{name}" for root in (PREPARED, RAW, ".")]
    return next((place for place in places if files.path(place).is_file()), f"{RAW}/{name}")


def _text(place: Path) -> tuple[str, str | None]:
    """Return the findings of a text file, and why it cannot be read; neither where there is none."""
    if not place.is_file():
        return "", None
    try:
        return _findings(place.read_text(encoding="utf-8")), None
    except UnicodeDecodeError as cause:
        return "", f"{place}: is no text in UTF-8 ({cause}). Fetch it again, or save it as UTF-8."


def _case(found: Stack, text: str) -> Case:
    return Case(
        id=found.id,
        patient=found.patient,
        volumes=(found.volume,),
        report=Report(text=text) if text else None,
    )


def _findings(text: str) -> str:
    """Return the findings of a text file, in one line: what follows its title, or all where there is none."""
    for title in ("study_findings:", "discussion:"):
        _, _, after = text.partition(title)
        section = " ".join(after.split())
        if len(section.replace(" ", "")) >= SHORTEST:
            return section
    return " ".join(text.split())
