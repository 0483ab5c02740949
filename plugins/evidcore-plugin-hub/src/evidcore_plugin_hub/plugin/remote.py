"""The Hub's side: names become commits once, and files are fetched anew, none longer than it may be.

A file that was changed in huggingface_hub's cache is given back without a word, so no cached one is read.
"""

import contextlib
import dataclasses
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


def resolve(text: str) -> Reference:
    """Turn `hub:OWNER/NAME[@REV]` into a commit, once. A commit needs no network.

    Raises:
        PluginError: if the Hub does not know it or cannot be reached.
    """
    repository, revision = parse(text)
    if revision and _COMMIT.fullmatch(revision):
        return Reference(repository, revision)
    from huggingface_hub import HfApi

    with _explained(f"hub:{repository}@{revision or 'main'}"):
        result = HfApi().model_info(repository, revision=revision)
    commit = str(result.sha)
    if not _COMMIT.fullmatch(commit) or result.id.lower() != repository.lower():
        answer = f"the Hub answered with {result.id!r} at {commit!r}"
        raise PluginError(f"hub:{repository}: {answer}, which is another.")
    return Reference(repository, commit)


def fetch(at: Reference, path: str, most_bytes: int) -> bytes:
    """Return a file at a commit; what is longer than `most_bytes` is refused before it is read.

    Raises:
        PluginError: if it is not there or too long, or the Hub cannot be reached.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.utils import disable_progress_bars

    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise PluginError(f"{at}: {path!r} leads out of the repository.")
    disable_progress_bars()
    with _explained(f"{at}: {path}"):
        size = get_hf_file_metadata(hf_hub_url(at.repository, path, revision=at.commit)).size
        if size is None or size > most_bytes:
            raise PluginError(f"{at}: {path} is longer than {most_bytes} bytes, so it was not read.")
        fetched = hf_hub_download(at.repository, path, revision=at.commit, force_download=True)
        return Path(fetched).read_bytes()


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
        made = hub.create_commit(repository, operations, commit_message=message, parent_commit=result.sha)
        hub.create_tag(repository, tag=tag, revision=made.oid)
    return Reference(repository, made.oid)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn an exception of the Hub's client into a sentence."""
    from huggingface_hub import errors

    known = {
        errors.RepositoryNotFoundError: "no such repository, or you may not see it (`hf auth login`)",
        errors.RevisionNotFoundError: "there is no such revision",
        errors.RemoteEntryNotFoundError: "there is no such file at this commit",
        errors.OfflineModeIsEnabled: "the Hub cannot be reached",
        errors.LocalEntryNotFoundError: "the Hub cannot be reached",
    }
    try:
        yield
    except PluginError:
        raise
    except Exception as cause:  # of the client, its transport and the answer's parser
        words = next((text for form, text in known.items() if isinstance(cause, form)), "")
        if isinstance(cause, errors.HfHubHTTPError) and cause.response.status_code in (401, 403):
            words = words or "the Hub wants to know who you are, or that you may: `hf auth login`"
        elif "Connect" in type(cause).__name__:
            words = words or "the Hub cannot be reached"
        if not words:
            first = printable(str(cause).partition("\n")[0][:200])
            raise PluginError(f"{what}: {type(cause).__name__}: {first}.") from cause
        raise PluginError(f"{what}: {words}.") from None
