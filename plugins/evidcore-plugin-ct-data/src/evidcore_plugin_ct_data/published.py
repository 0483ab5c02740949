"""What the published sets have in common: their cases come by a `Walk` over what their tables name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path

from evidcore.case import Case, Split
from evidcore.case_reading import Missing
from evidcore.contracts import Dataset
from evidcore_plugin_ct_data.files import Files
from evidcore_plugin_ct_data.walk import Entry, Walk


class PublishedSet(Dataset):
    """A data set in its publisher's layout; `Walk` says what the arguments mean."""

    def __init__(
        self,
        files: Files,
        *,
        recipe_folder: Path,
        path: str | None,
        limit: int | None,
        ids: tuple[str, ...] | str,
        missing: Missing,
        max_missing: int,
    ) -> None:
        self._files = files
        self._walk = Walk(
            self._entries,
            files,
            recipe_folder=recipe_folder,
            path=path,
            limit=limit,
            ids=ids,
            missing=missing,
            max_missing=max_missing,
        )
        self.left_out = self._walk.left_out

    @abstractmethod
    def _entries(self, split: Split) -> Iterable[Entry]:
        """Yield everything that the set's tables name in a split, in their order."""

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the usable cases of a split in the order of its tables; see `Walk.cases`."""
        return self._walk.cases(split)

    def listed(self, split: Split) -> Iterator[Case]:
        """Yield every case that the tables name, also those without files; see `Walk.listed`."""
        return self._walk.listed(split)

    def unlisted(self) -> Iterator[str]:
        """Say what the tables have against a case; see `Walk.unlisted`."""
        return self._walk.unlisted()
