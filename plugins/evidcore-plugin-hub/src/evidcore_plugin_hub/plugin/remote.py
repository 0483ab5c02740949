"""The Hub's side: names become commits once, and every byte that is read is bounded and hashed here.

huggingface_hub fetches files and keeps them. A file that was changed in its cache is given back without a
word, so a cached one is taken only where its hash is known from elsewhere, and fetched anew otherwise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from evidcore.errors import PluginError, printable
from evidcore_plugin_hub.trust.pins import SOURCE

TAG = "evidcore-plugin"
FILE = "evid-plugin.json"
_REFERENCE = re.compile(r"hub:([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclasses.dataclass(frozen=True)
class Reference:
    """A repository of the Hub at a commit."""

    repository: str  # OWNER/NAME
    commit: str

    def __str__(self) -> str:
        """Return how recipes and locks write it."""
        return f"hub:{self.repository}@{self.commit}"


def parse(text: str) -> tuple[str, str | None]:
    """Return the repository and the revision of `hub:OWNER/NAME[@REV]`.

    Raises:
        PluginError: if it is written otherwise.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None or ".." in text:
        raise PluginError(f"{text!r} must read hub:OWNER/NAME or hub:OWNER/NAME@REVISION.")
    return match[1], match[2]


def reference(source: str) -> Reference:
    """Return the reference that a lock's `source` is."""
    match = SOURCE.fullmatch(source)
    assert match is not None
    return Reference(match["repository"], match["commit"])


def resolve(text: str, *, allow_cached: bool = False) -> Reference:
    """Turn `hub:OWNER/NAME[@REV]` into a commit, once. A commit needs no network.

    Where the Hub cannot be reached, `allow_cached` takes the commit that it named last: to be read, not run.

    Raises:
        PluginError: if the Hub does not know it or cannot be reached.
    """
    repository, revision = parse(text)
    if revision and _COMMIT.fullmatch(revision):
        return Reference(repository, revision)
    from huggingface_hub import HfApi

    hub = HfApi()
    with _explained(f"hub:{repository}@{revision or 'main'}"):
        if allow_cached:
            return Reference(repository, hub.resolve_revision(repository, revision=revision).resolved)
        result = hub.model_info(repository, revision=revision)
    commit = str(result.sha)
    if not _COMMIT.fullmatch(commit) or result.id.lower() != repository.lower():
        raise PluginError(
            f"hub:{repository}: the Hub answered with {result.id!r} at {commit!r}, which is another."
        )
    return Reference(repository, commit)


def fetch(
    at: Reference, path: str, most_bytes: int, sha256: str = "", *, allow_cached: bool = False
) -> bytes:
    """Return a file at a commit; what is longer than `most_bytes` is refused before it is read.

    A cached copy is taken where it has the `sha256` that the file must have. Where the Hub cannot be reached,
    `allow_cached` takes it as it is: to be read, not to be run.

    Raises:
        PluginError: if it is not there, too long or another, or the Hub cannot be reached.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.utils import disable_progress_bars

    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise PluginError(f"{at}: {path!r} leads out of the repository.")
    cached = try_to_load_from_cache(at.repository, path, revision=at.commit)
    copy = Path(cached).read_bytes() if isinstance(cached, str) else None
    if copy is not None and sha256 and _hash(copy) == sha256:
        return copy
    disable_progress_bars()
    try:
        with _explained(f"{at}: {path}"):
            size = get_hf_file_metadata(hf_hub_url(at.repository, path, revision=at.commit)).size
            if size is None or size > most_bytes:
                raise PluginError(f"{at}: {path} is longer than {most_bytes} bytes, so it was not read.")
            file = hf_hub_download(at.repository, path, revision=at.commit, force_download=True)
            content = Path(file).read_bytes()
    except PluginError as cause:
        if allow_cached and copy is not None and _is_offline(cause.__context__):
            return copy
        raise
    if sha256 and _hash(content) != sha256:
        raise PluginError(f"{at}: {path} has the sha256 {_hash(content)}, and must have {sha256}.")
    return content


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def snapshot(at: Reference) -> Path:
    """Return the folder of what was fetched at a commit."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(at.repository, revision=at.commit, local_files_only=True))


def paths(at: Reference) -> list[str]:
    """Return the paths of all files of a repository at a commit.

    Raises:
        PluginError: if the Hub does not know it or cannot be reached.
    """
    from huggingface_hub import HfApi

    with _explained(str(at)):
        result = HfApi().model_info(at.repository, revision=at.commit)
    return sorted(item.rfilename for item in result.siblings or ())


def search(words: str, kind: str | None, limit: int) -> list[dict[str, Any]]:
    """Return repositories that hold plugins: id, commit, downloads, kinds, when they last changed."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import get_session

    start = "evidcore-"
    tags = [TAG, *([start + kind] if kind else [])]
    with _explained("the Hub"):
        get_session().head(constants.ENDPOINT, timeout=10.0)  # listing tries five times where nobody answers
        models = list(HfApi().list_models(filter=tags, search=words or None, limit=limit, full=True))
    result = []
    for item in models:
        kinds = {tag.removeprefix(start) for tag in item.tags or () if tag.startswith(start)} - {"plugin"}
        result.append({
            "repository": item.id, "commit": item.sha, "downloads": item.downloads,
            "kinds": sorted(kinds), "changed": str(item.last_modified or "")[:10],
        })  # fmt: skip
    return result


def upload(repository: str, files: dict[str, bytes], message: str, tag: str) -> Reference:
    """Write files as one commit, in place of all that was there, and tag it.

    Raises:
        PluginError: if the tag is there already, nobody is logged in, or the Hub refuses.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    hub = HfApi()
    with _explained(f"hub:{repository}"):
        hub.create_repo(repository, exist_ok=True)
        if tag in {item.name for item in hub.list_repo_refs(repository).tags}:
            raise PluginError(f"hub:{repository}: {tag} is published already. Raise the version.")
        result = hub.model_info(repository)
        before = {item.rfilename for item in result.siblings or ()} - {".gitattributes"}
        if before - {"README.md"} and FILE not in before:
            raise PluginError(f"hub:{repository}: holds files and no plugin. Name a repository of its own.")
        operations: list[Any] = [CommitOperationAdd(path, content) for path, content in sorted(files.items())]
        operations += [CommitOperationDelete(path) for path in sorted(before - set(files))]
        commit = hub.create_commit(
            repository, operations, commit_message=message, parent_commit=result.sha
        ).oid
        hub.create_tag(repository, tag=tag, revision=commit)
    return Reference(repository, commit)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn an exception of the Hub's client into a sentence."""
    from huggingface_hub import errors

    try:
        yield
    except PluginError:
        raise
    except Exception as cause:  # of the client, its transport and the answer's parser
        status = cause.response.status_code if isinstance(cause, errors.HfHubHTTPError) else 0
        if isinstance(cause, errors.RepositoryNotFoundError):
            words = "there is no such repository, or you may not see it (`hf auth login`)"
        elif isinstance(cause, errors.RevisionNotFoundError):
            words = "there is no such revision"
        elif isinstance(cause, errors.RemoteEntryNotFoundError):
            words = "there is no such file at this commit"
        elif status in (401, 403):
            words = "the Hub wants to know who you are, or that you may: `hf auth login`"
        elif _is_offline(cause):
            words = "the Hub cannot be reached, and no copy is kept here"
        else:
            first = printable(str(cause).partition("\n")[0][:200])
            raise PluginError(f"{what}: {type(cause).__name__}: {first}.") from cause
        raise PluginError(f"{what}: {words}.") from None


def _is_offline(cause: BaseException | None) -> bool:
    from huggingface_hub import errors

    unreachable = (
        errors.OfflineModeIsEnabled | errors.RevisionResolutionError | errors.LocalEntryNotFoundError
    )
    return isinstance(cause, unreachable) or "Connect" in type(cause).__name__
