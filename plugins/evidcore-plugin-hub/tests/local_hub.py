"""A Hugging Face Hub on this machine: the real huggingface_hub client publishes to it and installs from it.

It speaks what huggingface_hub 2.4.0 asks of model repositories without Xet. `Protocol.ROUTES` lists it all.
The client depends on two details:

1. An LFS file redirects to another host name. The client follows a redirect to the same host, and then misses
   X-Repo-Commit, which only the first answer has.
2. An upload to LFS storage carries no token, like one to a signed address of the real Hub.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

MADE = "2026-01-01T00:00:00.000Z"  # when everything here was made, and last changed
UNLISTED = {"author", "sha", "lastModified", "siblings", "cardData"}  # in a list only on demand
REPO, REVISION, SHA256 = r"([^/]+/[^/]+)", r"([^/]+)", r"([0-9a-f]{64})"


@dataclass(frozen=True)
class HubFile:
    """A file: `content`, repeated up to `size_bytes`, so that a huge file is one block in memory."""

    content: bytes
    size_bytes: int
    is_lfs: bool = False

    @property
    def sha256(self) -> str:
        """The name in LFS storage."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def pointer(self) -> bytes:
        """What git's tree holds instead of a file in LFS storage."""
        told = f"oid sha256:{self.sha256}\nsize {self.size_bytes}\n"
        return f"version https://git-lfs.github.com/spec/v1\n{told}".encode()

    @property
    def blob_id(self) -> str:
        """Git's SHA-1 of what its tree holds."""
        size, held = (len(self.pointer), self.pointer) if self.is_lfs else (self.size_bytes, self.content)
        return hashlib.sha1(b"blob %d\0" % size + held).hexdigest()

    @property
    def etag(self) -> str:
        """What the client compares with its cache, and with a file that it is about to upload."""
        return self.sha256 if self.is_lfs else self.blob_id

    def entry(self, path: str) -> dict[str, Any]:
        """The file's line in a tree listing."""
        lfs = {"oid": self.sha256, "size": self.size_bytes, "pointerSize": len(self.pointer)}
        line = {"type": "file", "path": path, "oid": self.blob_id, "size": self.size_bytes}
        return {**line, "lfs": lfs} if self.is_lfs else line


class Commit(NamedTuple):
    """A version of a repository: its files by path."""

    sha: str
    files: dict[str, HubFile]

    @classmethod
    def after(cls, parent: str, files: dict[str, HubFile]) -> Commit:
        """Name files by a SHA-1 of their contents and of the commit before."""
        held = [parent, sorted((path, file.etag) for path, file in files.items())]
        return cls(hashlib.sha1(json.dumps(held).encode()).hexdigest(), files)

    def describe(self, repo: str) -> dict[str, Any]:
        """What the Hub shows of a model at this commit."""
        card = front_matter(self.files["README.md"].content.decode()) if "README.md" in self.files else {}
        tags = [*(card.get("tags") or []), *filter(None, [card.get("library_name")])]  # as on the Hub
        siblings = [{"rfilename": path} for path in self.files]
        named = {"id": repo, "modelId": repo, "author": repo.split("/")[0], "sha": self.sha}
        counted = {"downloads": 0, "likes": 0, "private": False, "createdAt": MADE, "lastModified": MADE}
        return {**named, **counted, "tags": tags, "cardData": card, "siblings": siblings}


@dataclass
class Repository:
    """Commits on the one branch `main`, oldest first, and the tags that name some of them."""

    commits: list[Commit]
    tags: dict[str, str] = field(default_factory=dict)

    def at(self, revision: str) -> Commit:
        """The commit that `main`, a tag or a full SHA names."""
        sha = self.commits[-1].sha if revision == "main" else self.tags.get(revision, revision)
        for commit in self.commits:
            if commit.sha == sha:
                return commit
        raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")


class Reply(NamedTuple):
    """An answer to a request; its body is JSON unless it is a file."""

    status: int
    headers: dict[str, str]
    body: HubFile | dict[str, Any] | list[dict[str, Any]]


Answer = Reply | dict[str, Any] | list[dict[str, Any]]  # a reply, or what is sent as JSON with status 200


class Refusal(Exception):
    """An error answer; the client chooses its exception by the code."""

    def __init__(self, status: int, message: str, code: str = "", **details: Any) -> None:
        super().__init__(message)
        self.reply = Reply(status, {"X-Error-Code": code} if code else {}, {"error": message, **details})


def front_matter(readme: str) -> dict[str, Any]:
    """Read the YAML between the two lines `---` at the top."""
    match = re.match(r"---\n(.*?)\n---", readme, re.DOTALL)
    return (yaml.safe_load(match[1]) or {}) if match else {}


class Protocol(BaseHTTPRequestHandler):
    """Answers one request, by its route."""

    timeout = 5  # s; a client that stalls does not keep `stop` waiting for longer
    disable_nagle_algorithm = True  # else a body waits 40 ms for the acknowledgement of its headers

    def __init__(self, hub: LocalHub, *connection: Any) -> None:
        self.hub = hub
        super().__init__(*connection)  # answers the request

    def log_message(self, *_: object) -> None:
        """Stay quiet."""

    def respond(self) -> None:
        self.query = parse_qs(urlsplit(self.path).query)
        self.content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.hub.lock:
            self.hub.requests.append((self.command, self.path))
            try:
                answer = self.answer(urlsplit(self.path).path)
            except Refusal as refusal:
                answer = refusal.reply
        with contextlib.suppress(ConnectionError, TimeoutError):  # the client may have gone
            self.send(answer if isinstance(answer, Reply) else Reply(200, {}, answer))

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = respond

    def answer(self, path: str) -> Answer:
        token = self.headers.get("Authorization")
        if token not in {None, f"Bearer {self.hub.token}"}:
            raise Refusal(401, "Invalid credentials in Authorization header")
        if token is None and (self.command == "POST" or path == "/api/whoami-v2"):
            raise Refusal(401, "Invalid username or password.")
        for method, pattern, answer in self.ROUTES:
            if method == self.command.replace("HEAD", "GET") and (match := re.fullmatch(pattern, path)):
                return answer(self, *(unquote(group or "main") for group in match.groups()))
        raise Refusal(501, f"LocalHub has no route for {self.command} {path}")

    def send(self, reply: Reply) -> None:
        body = reply.body
        if not isinstance(body, HubFile):
            content = json.dumps(body, default=str).encode()  # default: front matter may hold a date
            body = HubFile(content, len(content))
        self.send_response(reply.status)
        for name, value in {**reply.headers, "Content-Length": str(body.size_bytes)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            for start in range(0, body.size_bytes, len(body.content) or 1):
                self.wfile.write(body.content[: body.size_bytes - start])

    def whoami(self) -> Answer:
        return {"type": "user", "id": "0", "name": "me", "fullname": "Me", "orgs": []}

    def create_repo(self) -> Answer:
        asked = json.loads(self.content)
        repo = f"{asked['organization'] or 'me'}/{asked['name']}"
        if repo in self.hub.repositories:
            raise Refusal(409, f"You already created this model repo: {repo}", url=f"{self.hub.url}/{repo}")
        attributes = self.hub.file(b"*.bin filter=lfs diff=lfs merge=lfs -text\n", is_lfs=False)
        self.hub.repositories[repo] = Repository([Commit.after(repo, {".gitattributes": attributes})])
        return {"url": f"{self.hub.url}/{repo}", "name": repo}

    def validate_yaml(self) -> Answer:
        try:
            front_matter(json.loads(self.content)["content"])
        except yaml.YAMLError as error:
            raise Refusal(400, "Invalid metadata", errors=[{"message": str(error)}]) from error
        return {"errors": [], "warnings": []}

    def preupload(self, repo: str, revision: str) -> Answer:
        held, files = self.hub.repository(repo).at(revision).files, json.loads(self.content)["files"]
        for file in files:
            is_lfs = b"\0" in base64.b64decode(file.pop("sample"))
            etag = held[file["path"]].etag if file["path"] in held else None
            file.update(uploadMode="lfs" if is_lfs else "regular", shouldIgnore=False, oid=etag)
        return {"files": files}

    def lfs_batch(self, repo: str) -> Answer:
        verify = f"{self.hub.url}/{repo}.git/info/lfs/objects/verify"
        objects = json.loads(self.content)["objects"]
        for item in objects:
            if item["oid"] not in self.hub.lfs:
                upload = f"{self.hub.storage_url}/{item['oid']}"
                item["actions"] = {"upload": {"href": upload}, "verify": {"href": verify}}
        return {"transfer": "basic", "objects": objects}

    def lfs_put(self, oid: str) -> Answer:
        self.hub.file(
            self.content, is_lfs=True
        )  # under its own SHA-256; if that is not `oid`, verify refuses
        return {}

    def lfs_verify(self, repo: str) -> Answer:
        if json.loads(self.content)["oid"] not in self.hub.lfs:
            raise Refusal(404, f"Not uploaded to {repo}")
        return {}

    def lfs_get(self, oid: str) -> Answer:
        return Reply(200, {"ETag": f'"{oid}"'}, self.hub.lfs[oid])

    def commit(self, repo: str, revision: str) -> Answer:
        parent = self.hub.repository(repo).at("main")
        header, *operations = [json.loads(line) for line in self.content.splitlines()]
        if revision != "main" or header["value"].get("parentCommit", parent.sha) != parent.sha:
            raise Refusal(412, "A commit has happened since. Please refresh and try again.")
        files = dict(parent.files)
        for operation in operations:
            match operation:
                case {"key": "file", "value": {"path": path, "content": content}}:
                    files[path] = self.hub.file(base64.b64decode(content), is_lfs=False)
                case {"key": "lfsFile", "value": {"path": path, "oid": oid}}:
                    files[path] = self.hub.lfs[oid]
                case {"key": "deletedFile", "value": {"path": path}}:
                    del files[path]
                case _:
                    raise Refusal(501, f"LocalHub cannot commit a {operation['key']}")
        commit = Commit.after(parent.sha, files)
        self.hub.repository(repo).commits.append(commit)
        return {"commitOid": commit.sha, "commitUrl": f"{self.hub.url}/{repo}/commit/{commit.sha}"}

    def create_tag(self, repo: str, revision: str) -> Answer:
        repository, tag = self.hub.repository(repo), json.loads(self.content)["tag"]
        if tag in repository.tags:
            raise Refusal(409, f"Tag reference exists already: {tag}")
        repository.tags[tag] = repository.at(revision).sha
        return {}

    def models(self) -> Answer:
        asked, wanted = self.query, set(self.query.get("filter", []))
        rows = [repository.at("main").describe(repo) for repo, repository in self.hub.repositories.items()]
        found = [
            row
            for row in rows
            if wanted <= set(row["tags"])
            and asked.get("search", [""])[0].lower() in row["id"].lower()
            and row["author"] in asked.get("author", [row["author"]])
        ]
        hidden = UNLISTED - set(asked.get("expand", [])) - asked.keys()  # cardData=True
        hidden &= {"cardData"} if "full" in asked else UNLISTED
        return [{key: value for key, value in row.items() if key not in hidden} for row in found]

    def model(self, repo: str, revision: str) -> Answer:
        return self.hub.repository(repo).at(revision).describe(repo)

    def refs(self, repo: str) -> Answer:
        repository = self.hub.repository(repo)
        names = {"refs/heads/main": repository.at("main").sha}
        names |= {f"refs/tags/{tag}": sha for tag, sha in repository.tags.items()}
        refs = [{"name": ref.split("/", 2)[2], "ref": ref, "targetCommit": sha} for ref, sha in names.items()]
        return {"branches": refs[:1], "converts": [], "tags": refs[1:]}

    def tree(self, repo: str, revision: str) -> Answer:
        files = self.hub.repository(repo).at(revision).files
        entries = [file.entry(path) for path, file in files.items()]
        if self.query["recursive"] == ["true"]:
            return entries
        folders = sorted({path.split("/")[0] for path in files if "/" in path})
        top = [{"type": "directory", "path": folder, "oid": "0" * 40} for folder in folders]
        return top + [entry for entry in entries if "/" not in entry["path"]]

    def resolve(self, repo: str, revision: str, path: str) -> Answer:
        commit = self.hub.repository(repo).at(revision)
        if path not in commit.files:
            raise Refusal(404, f"Entry not found: {path}", "EntryNotFound")
        file = commit.files[path]
        headers = {"X-Repo-Commit": commit.sha, "ETag": f'"{file.etag}"'}
        if not file.is_lfs:
            return Reply(200, headers, file)
        linked = {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(file.size_bytes)}
        return Reply(302, {**headers, **linked, "Location": f"{self.hub.storage_url}/{file.sha256}"}, {})

    ROUTES = (
        ("GET", "/api/whoami-v2", whoami),
        ("POST", "/api/repos/create", create_repo),
        ("POST", "/api/validate-yaml", validate_yaml),
        ("POST", f"/api/models/{REPO}/preupload/{REVISION}", preupload),
        ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", lfs_batch),
        ("PUT", f"/lfs/{SHA256}", lfs_put),
        ("POST", rf"/{REPO}\.git/info/lfs/objects/verify", lfs_verify),
        ("POST", f"/api/models/{REPO}/commit/{REVISION}", commit),
        ("POST", f"/api/models/{REPO}/tag/{REVISION}", create_tag),
        ("GET", "/api/models", models),
        ("GET", f"/api/models/{REPO}(?:/revision/{REVISION})?", model),
        ("GET", f"/api/models/{REPO}/refs", refs),
        ("GET", f"/api/models/{REPO}/tree/{REVISION}", tree),
        ("GET", f"/{REPO}/resolve/{REVISION}/(.+)", resolve),
        ("GET", f"/lfs/{SHA256}", lfs_get),
    )


class LocalHub:
    """A Hub without repositories, on a free port of this machine, that serves within a `with` block.

    Attributes:
        url: the endpoint for the client.
        token: the one token that may write; it belongs to the user "me".
        requests: method and path, with its query, of each request so far.
    """

    def __init__(self) -> None:
        self.token = "hf_test"
        self.requests: list[tuple[str, str]] = []
        self.repositories: dict[str, Repository] = {}
        self.lfs: dict[str, HubFile] = {}  # by SHA-256
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Protocol, self))
        self.server.daemon_threads = False  # closing waits for them
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.storage_url = f"http://localhost:{self.server.server_port}/lfs"
        self.thread = threading.Thread(
            target=self.server.serve_forever, args=(0.02,)
        )  # looks for a stop each 0.02 s

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Go away: close the port, and wait for the threads."""
        if self.thread.is_alive():
            self.server.shutdown()
            self.server.server_close()
            self.thread.join()

    def environment(self, home: Path) -> dict[str, str]:
        """Variables for another process, which keeps the client's cache under `home`."""
        off = ("HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_PROGRESS_BARS")
        direct = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
        hub = {"HF_ENDPOINT": self.url, "HF_TOKEN": self.token, "HF_HOME": str(home / "huggingface")}
        return {**hub, **dict.fromkeys(off, "1"), **direct}

    def repository(self, repo: str) -> Repository:
        """The repository of this name, such as "me/evid-reward"; refused if there is none."""
        if repo not in self.repositories:
            raise Refusal(404, "Repository not found", "RepoNotFound")
        return self.repositories[repo]

    def file(self, content: bytes, *, is_lfs: bool) -> HubFile:
        """Make a file of content, and keep it if it goes to LFS storage."""
        file = HubFile(content, len(content), is_lfs)
        if is_lfs:
            self.lfs[file.sha256] = file
        return file

    def commits(self, repo: str) -> list[str]:
        """The SHA of each commit, oldest first; the first is the Hub's own, with .gitattributes."""
        return [commit.sha for commit in self.repository(repo).commits]

    def files(self, repo: str, commit: str) -> dict[str, bytes]:
        """The content of each file at a commit, by path; of a huge one its first block."""
        return {path: file.content for path, file in self.repository(repo).at(commit).files.items()}

    def move_tag(self, repo: str, tag: str, commit: str) -> None:
        """Attack: let a tag name another commit."""
        self.repository(repo).tags[tag] = self.repository(repo).at(commit).sha

    def replace(self, repo: str, commit: str, path: str, content: bytes) -> None:
        """Attack: serve other bytes under the same commit, with listings and ETags that agree with them."""
        self.repository(repo).at(commit).files[path] = self.file(content, is_lfs=b"\0" in content)

    def serve_huge(self, repo: str, commit: str, path: str, size_bytes: int) -> None:
        """Attack: serve a file of this many bytes, all of them spaces, without holding it in memory."""
        self.repository(repo).at(commit).files[path] = HubFile(b" " * 65536, size_bytes)
