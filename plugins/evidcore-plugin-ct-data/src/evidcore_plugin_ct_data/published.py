"""What the published sets have in common: where they come from, and a `Walk` over what their tables name."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

from annotated_types import Gt

from evidcore.api import Case, Dataset
from evidcore.case import Split
from evidcore_plugin_ct_data.archives import Inside
from evidcore_plugin_ct_data.files import Files, Origin, same_name
from evidcore_plugin_ct_data.hub import Repository, Revision
from evidcore_plugin_ct_data.walk import Entry, Selection, Walk, set_folder


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubSource:
    """Where a set of the Hub lies, or is fetched from.

    Args:
        path: the folder that holds the set.
        revision: full commit hash of the Hub repository: what is not in `path` is fetched from there.
        max_gb: more than this is never fetched for a split.
    """

    path: str | None = None
    revision: Revision | None = None
    max_gb: Annotated[float, Gt(0)] = 50.0

    def files(
        self,
        repository: str,
        recipe_folder: Path,
        cache_folder: Path,
        origins: Callable[[str], Sequence[Origin]] = same_name,
        inside: Inside = str,
    ) -> Files:
        """Return the files of a set in the user's folder, else in one of the cache for this commit alone."""
        fetched = Repository(id=repository, revision=self.revision) if self.revision else None
        return Files(
            folder=set_folder(recipe_folder, cache_folder, self.path, fetched),
            repository=fetched,
            origins=origins,
            inside=inside,
            max_gb=self.max_gb,
            where_from=f"https://huggingface.co/datasets/{repository}",
        )


class PublishedSet(Dataset):
    """A data set in its publisher's layout; `Walk` says what the arguments mean."""

    def __init__(self, files: Files, selection: Selection, *, recipe_folder: Path, path: str | None) -> None:
        self._files = files
        self._walk = Walk(self._entries, files, selection, recipe_folder=recipe_folder, path=path)
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
