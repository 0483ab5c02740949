"""Files of a data set repository on the Hugging Face Hub, at one commit: asked for by name, resumed, checked.

Order of events for one file: its size and checksum are asked for (HEAD); what an interrupted process has left
is continued (Range); the whole is compared with the checksum; then the file gets its name. Processes that
want the same file wait for the first.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from filelock import FileLock
from pydantic import StringConstraints

from evidcore.api import DataError
from evidcore.cache import naming_full_disk
from evidcore.errors import is_disk_full

Revision = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]  # a branch could move under a run

PATHS_PER_REQUEST = 500  # sizes asked for at once
SHA256_LENGTH = 64  # of a large file's checksum; other files have that of a git blob


class NotThere(DataError):
    """The repository has no such file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repository:
    """A data set repository at one commit. Nothing is asked of the network before a method is called."""

    id: str  # "owner/name"
    revision: str  # full commit hash

    @property
    def page(self) -> str:
        """Where a person reads about it and accepts its terms."""
        return f"https://huggingface.co/datasets/{self.id}"

    @property
    def _commit(self) -> dict[str, str]:
        return {"repo_type": "dataset", "revision": self.revision}

    def sizes_bytes(self, names: Sequence[str]) -> dict[str, int]:
        """Return the sizes of those files of `names` that the repository has."""
        result: dict[str, int] = {}
        for start in range(0, len(names), PATHS_PER_REQUEST):
            with self._explained():
                some = list(names[start : start + PATHS_PER_REQUEST])
                part = self._api().get_paths_info(self.id, some, **self._commit)
            result |= {item.path: item.size for item in part if hasattr(item, "size")}
        return result

    def names(self) -> list[str]:
        with self._explained():
            result = self._api().list_repo_tree(self.id, recursive=True, **self._commit)
            return sorted(item.path for item in result if hasattr(item, "size"))

    def fetch(self, name: str, to: Path) -> None:
        """Bring a file to `to`, unless it is there.

        Raises:
            NotThere: if the repository has no such file.
            DataError: if access is refused, the network is out of reach, the disk is full or the content
                wrong; says what to do.
        """
        lock = to.with_name(f".{to.name}.lock")
        with naming_full_disk(to.parent):
            to.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(lock):
                if not to.exists():
                    with self._explained(name):
                        self._fetch(name, to)
            lock.unlink(missing_ok=True)  # whoever still waits for it finds the file there

    def _fetch(self, name: str, to: Path) -> None:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        url = hf_hub_url(self.id, name, endpoint=_endpoint(), **self._commit)
        facts = get_hf_file_metadata(url, endpoint=_endpoint())
        part = to.with_name(f".{to.name}.{facts.etag[:16]}.part")
        part.touch()
        with part.open("r+b") as file:
            offset = file.seek(0, os.SEEK_END)  # the Hub's client begins anew after a kill
            # the client logs this address where a connection breaks; that of `facts` may be signed
            http_get(url, file, resume_size=offset, headers=build_hf_headers(), expected_size=facts.size)
        result = _checksum(part, facts.etag)
        if result != facts.etag:
            part.unlink()
            why = f"{name} arrived damaged: its checksum is {result}, expected {facts.etag}"
            raise DataError(f"{self.page}: {why}. What arrived was deleted; start again.")
        part.replace(to)

    def _api(self) -> Any:
        from huggingface_hub import HfApi

        return HfApi(endpoint=_endpoint())

    @contextmanager
    def _explained(self, name: str | None = None) -> Iterator[None]:
        """Turn what the client raises into a message that says what to do."""
        from huggingface_hub import errors

        page = self.page
        what = f"{page}: {name}" if name else page
        try:
            yield
        except (errors.HTTPError, errors.EntryNotFoundError, OSError) as cause:
            status = getattr(getattr(cause, "response", None), "status_code", None)
            reason = f"status {status}" if status else f"{type(cause).__name__}: {cause}"
            remedy = f"Ask for it on {page}; `hf auth whoami` names it."
            gated = f"the token's account has none ({status}). {remedy}"
            if status == 401:
                remedy = f"Accept its terms on {page}, then type `hf auth login`, and start again."
                gated = f"no valid token was sent. {remedy}"
            says: dict[type[BaseException], str] = {  # the first that fits: some are kinds of others
                errors.GatedRepoError: f"access to this set is gated, and {gated}",
                errors.RevisionNotFoundError: f"there is no commit {self.revision!r}. Take one from "
                f"{page}/commits/main.",
                errors.RepositoryNotFoundError: "the Hub shows no such set. It may be private, or have "
                f"moved: look at {page}; if it needs a token, type `hf auth login`.",
                errors.EntryNotFoundError: f"is not in commit {self.revision[:12]} of the set. Check "
                f"{page}/tree/{self.revision}.",
                errors.OfflineModeIsEnabled: "cannot be fetched, HF_HUB_OFFLINE is set. Unset it, or copy "
                "the file into the folder that `path` names.",
                BaseException: f"the Hub could not be reached, or broke off ({reason}). What has arrived is "
                "kept: check the network and start again.",
            }
            text = next(text for kind, text in says.items() if isinstance(cause, kind))
            if is_disk_full(cause):
                text = "the disk is full. Free space, or set `path` to another disk."
            is_absent = isinstance(cause, errors.EntryNotFoundError)
            raise (NotThere if is_absent else DataError)(f"{what}: {text}") from cause


def _endpoint() -> str | None:
    """Return HF_ENDPOINT as it is now; the client reads it only once."""
    return os.environ.get("HF_ENDPOINT") or None


def _checksum(path: Path, like: str) -> str:
    """Return the checksum of a file in the kind of `like`: SHA-256, or that of a git blob."""
    if len(like) == SHA256_LENGTH:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    digest.update(path.read_bytes())
    return digest.hexdigest()
