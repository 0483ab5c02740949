"""The Hub's side: names become commits once, and every byte that is fetched is bounded and hashed here.

What was fetched is kept in a folder of ours by commit, for machines without a network. The Hub's own cache is
not used: a file that was changed in it is given back without a word.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
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


def resolve(text: str, *, known: bool = False) -> Reference:
    """Turn a reference into a commit, once. A commit needs no network.

    Args:
        text: `hub:OWNER/NAME[@REV]`.
        known: where the Hub cannot be reached, take the commit that it named last.

    Raises:
        PluginError: if the Hub does not know it or cannot be reached.
    """
    repository, revision = parse(text)
    if revision and _COMMIT.fullmatch(revision):
        return Reference(repository, revision)
    from huggingface_hub import HfApi

    name = revision or "main"
    kept = store(Reference(repository, "revisions.json"))
    before = _revisions(kept)
    try:
        with _told(f"hub:{repository}@{name}"):
            found = HfApi().model_info(repository, revision=revision)
    except PluginError as cause:
        if known and name in before and _is_offline(cause.__context__):
            return Reference(repository, before[name])
        raise
    commit = str(found.sha)
    if not _COMMIT.fullmatch(commit) or found.id.lower() != repository.lower():
        raise PluginError(
            f"hub:{repository}: the Hub answered with {found.id!r} at {commit!r}, which is another."
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({**before, name: commit}), encoding="utf-8")
    return Reference(repository, commit)


def _revisions(kept: Path) -> dict[str, str]:
    """Return which commits the Hub named before; none where that cannot be read."""
    try:
        table = json.loads(kept.read_text(encoding="utf-8"))
        return {str(name): commit for name, commit in table.items() if _COMMIT.fullmatch(commit)}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def fetch(at: Reference, path: str, most_bytes: int, sha256: str = "", *, known: bool = False) -> bytes:
    """Return a file at a commit, from the Hub or the kept copy.

    Args:
        at: the repository and commit.
        path: in the repository.
        most_bytes: what is longer is refused before it is read.
        sha256: what the file must have, where that is known; a kept copy that has it is taken.
        known: where the Hub cannot be reached, take the kept copy as it is: to be read, not to be run.

    Raises:
        PluginError: if it is not there, too long or another, or the Hub cannot be reached.
    """
    kept = store(at) / path
    if not kept.resolve().is_relative_to(store(at).resolve()):
        raise PluginError(f"{at}: {path!r} leads out of the repository.")
    copy = kept.read_bytes() if kept.is_file() else None
    if copy is not None and sha256 and _hash(copy) == sha256:
        return copy
    try:
        content = _read(at, path, most_bytes)
    except PluginError as cause:
        if known and copy is not None and _is_offline(cause.__context__):
            return copy
        raise
    if sha256 and _hash(content) != sha256:
        raise PluginError(f"{at}: {path} has the sha256 {_hash(content)}, and must have {sha256}.")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(content)
    return content


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(at: Reference, path: str, most_bytes: int) -> bytes:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    found = bytearray()
    with _told(f"{at}: {path}"):
        url = hf_hub_url(at.repository, path, revision=at.commit)
        headers = {**build_hf_headers(library_name="evidcore"), "Accept-Encoding": "identity"}
        with get_session().stream("GET", url, headers=headers, timeout=60.0) as answer:
            hf_raise_for_status(answer)
            for piece in answer.iter_bytes():
                found += piece
                if len(found) > most_bytes:
                    raise PluginError(f"{at}: {path} is longer than {most_bytes} bytes, so it was not read.")
    return bytes(found)


def paths(at: Reference) -> list[str]:
    """Return the paths of all files of a repository at a commit.

    Raises:
        PluginError: if the Hub does not know it or cannot be reached.
    """
    from huggingface_hub import HfApi

    with _told(str(at)):
        found = HfApi().model_info(at.repository, revision=at.commit)
    return sorted(item.rfilename for item in found.siblings or ())


def search(words: str, kind: str | None, limit: int) -> list[dict[str, Any]]:
    """Return repositories that hold plugins: id, tags, downloads, when they last changed."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import get_session

    start = "evidcore-"
    tags = [TAG, *([start + kind] if kind else [])]
    with _told("the Hub"):
        get_session().head(constants.ENDPOINT, timeout=10.0)  # listing tries five times where nobody answers
        models = list(HfApi().list_models(filter=tags, search=words or None, limit=limit, full=True))
    found = []
    for item in models:
        kinds = {tag.removeprefix(start) for tag in item.tags or () if tag.startswith(start)} - {"plugin"}
        found.append({
            "repository": item.id, "commit": item.sha, "downloads": item.downloads,
            "kinds": sorted(kinds), "changed": str(item.last_modified or "")[:10],
        })  # fmt: skip
    return found


def upload(repository: str, files: dict[str, bytes], message: str, tag: str) -> Reference:
    """Write files as one commit, in place of all that was there, and tag it.

    Raises:
        PluginError: if the tag is there already, nobody is logged in, or the Hub refuses.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    hub = HfApi()
    with _told(f"hub:{repository}"):
        hub.create_repo(repository, exist_ok=True)
        if tag in {item.name for item in hub.list_repo_refs(repository).tags}:
            raise PluginError(f"hub:{repository}: {tag} is published already. Raise the version.")
        found = hub.model_info(repository)
        before = {item.rfilename for item in found.siblings or ()} - {".gitattributes"}
        if before - {"README.md"} and FILE not in before:
            raise PluginError(f"hub:{repository}: holds files and no plugin. Name a repository of its own.")
        operations: list[Any] = [CommitOperationAdd(path, content) for path, content in sorted(files.items())]
        operations += [CommitOperationDelete(path) for path in sorted(before - set(files))]
        commit = hub.create_commit(
            repository, operations, commit_message=message, parent_commit=found.sha
        ).oid
        hub.create_tag(repository, tag=tag, revision=commit)
    return Reference(repository, commit)


def store(at: Reference) -> Path:
    """Return the folder in which what was fetched at a commit is kept."""
    import platformdirs

    owner, _, name = at.repository.partition("/")
    return Path(platformdirs.user_cache_dir("evidcore", appauthor=False)) / "hub" / owner / name / at.commit


def reference(source: str) -> Reference:
    """Return the reference that a lock's `source` is."""
    match = SOURCE.fullmatch(source)
    assert match is not None
    return Reference(match["repository"], match["commit"])


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn what the Hub's client raises into a sentence."""
    try:
        yield
    except PluginError:
        raise
    except Exception as cause:  # of the client, its transport and the answer's parser
        if words := _expected(cause):
            raise PluginError(f"{what}: {words}.") from None
        words = f"{type(cause).__name__}: {printable(str(cause).partition(chr(10))[0][:200])}"
        raise PluginError(f"{what}: {words}.") from cause


def _expected(cause: Exception) -> str:
    """Return in words what the client met, empty for what only its traceback tells."""
    from huggingface_hub import errors

    if isinstance(cause, errors.RepositoryNotFoundError):
        return "there is no such repository, or you may not see it (`hf auth login`)"
    if isinstance(cause, errors.RevisionNotFoundError):
        return "there is no such revision"
    if isinstance(cause, errors.EntryNotFoundError):
        return "there is no such file at this commit"
    if isinstance(cause, errors.HfHubHTTPError) and cause.response.status_code in (401, 403):
        return "the Hub wants to know who you are, or that you may: `hf auth login`"
    return "the Hub cannot be reached, and no copy is kept here" if _is_offline(cause) else ""


def _is_offline(cause: BaseException | None) -> bool:
    """Tell that nobody answered."""
    from huggingface_hub import errors

    return isinstance(cause, errors.OfflineModeIsEnabled) or "Connect" in type(cause).__name__
