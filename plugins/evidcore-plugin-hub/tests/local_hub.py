"""A Hugging Face Hub on this machine: the real huggingface_hub client publishes to it and installs from it.

It speaks what huggingface_hub 2.4.0 asks of model repositories without Xet and without LFS storage.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit

from huggingface_hub import RepoCard

REPO, REVISION = r"([^/]+/[^/]+)", r"([^/]+)"


class HubFile(NamedTuple):
    """A file: `content`, repeated up to `size_bytes`, so that a huge file is one block in memory."""

    content: bytes
    size_bytes: int

    @property
    def etag(self) -> str:
        return hashlib.sha1(b"blob %d\0" % self.size_bytes + self.content).hexdigest()


class Commit(NamedTuple):
    sha: str
    files: dict[str, HubFile]

    @classmethod
    def after(cls, parent: str, files: dict[str, HubFile]) -> Commit:
        """Name files by a SHA-1 of their contents and of the commit before."""
        content = [parent, sorted((path, file.etag) for path, file in files.items())]
        return cls(hashlib.sha1(json.dumps(content).encode()).hexdigest(), files)

    def describe(self, repo: str) -> dict[str, Any]:
        """What the Hub shows of a model at this commit."""
        readme = self.files.get("README.md", HubFile(b"", 0)).content.decode()
        card = RepoCard(readme, ignore_metadata_errors=True).data.to_dict()
        tags = [*(card.get("tags") or []), *filter(None, [card.get("library_name")])]  # as on the Hub
        siblings = [{"rfilename": path} for path in self.files]
        return {"id": repo, "sha": self.sha, "tags": tags, "cardData": card, "siblings": siblings}


@dataclass
class Repository:
    """Commits on the one branch `main`, oldest first, and the tags that name some of them."""

    commits: list[Commit]
    tags: dict[str, str] = field(default_factory=dict)

    def at(self, revision: str) -> Commit:
        sha = self.commits[-1].sha if revision == "main" else self.tags.get(revision, revision)
        for commit in self.commits:
            if commit.sha == sha:
                return commit
        raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any  # sent as JSON unless it is a file


class Refusal(Exception):
    """An error answer; the client chooses its exception by the code."""

    def __init__(self, status: int, message: str, code: str = "", **details: Any) -> None:
        super().__init__(message)
        self.reply = Reply(status, {"X-Error-Code": code} if code else {}, {"error": message, **details})


class Protocol(BaseHTTPRequestHandler):
    timeout = 5  # s; a client that stalls does not keep `stop` waiting for longer
    disable_nagle_algorithm = True  # else a body waits 40 ms for the acknowledgement of its headers

    server: LocalHub

    def log_message(self, *_: object) -> None:
        pass

    def respond(self) -> None:
        self.query = parse_qs(urlsplit(self.path).query)
        self.content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.lock:
            self.server.requests.append((self.command, self.path))
            try:
                answer = self.answer(urlsplit(self.path).path)
            except Refusal as refusal:
                answer = refusal.reply
        with contextlib.suppress(ConnectionError, TimeoutError):  # the client may have gone
            self.send(answer if isinstance(answer, Reply) else Reply(200, {}, answer))

    do_GET = do_HEAD = do_POST = respond

    def answer(self, path: str) -> Any:
        token = self.headers.get("Authorization")
        if token not in {None, f"Bearer {self.server.token}"} or (token is None and self.command == "POST"):
            raise Refusal(401, "Invalid credentials in Authorization header")
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

    def create_repo(self) -> Any:
        asked = json.loads(self.content)
        repo = f"{asked['organization'] or 'me'}/{asked['name']}"
        if repo in self.server.repositories:
            raise Refusal(409, "You already created this model repo", url=f"{self.server.url}/{repo}")
        attributes = {".gitattributes": HubFile(b"", 0)}
        self.server.repositories[repo] = Repository([Commit.after(repo, attributes)])
        return {"url": f"{self.server.url}/{repo}", "name": repo}

    def preupload(self, repo: str, revision: str) -> Any:
        files = json.loads(self.content)["files"]
        return {"files": [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in files]}

    def commit(self, repo: str, revision: str) -> Any:
        parent = self.server.repository(repo).at("main")
        header, *operations = map(json.loads, self.content.splitlines())
        if revision != "main" or header["value"].get("parentCommit", parent.sha) != parent.sha:
            raise Refusal(412, "A commit has happened since. Please refresh and try again.")
        files = dict(parent.files)
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                content = base64.b64decode(value["content"])
                files[value["path"]] = HubFile(content, len(content))
            else:
                del files[value["path"]]
        commit = Commit.after(parent.sha, files)
        self.server.repository(repo).commits.append(commit)
        return {"commitOid": commit.sha, "commitUrl": f"{self.server.url}/{repo}/commit/{commit.sha}"}

    def create_tag(self, repo: str, revision: str) -> Any:
        repository, tag = self.server.repository(repo), json.loads(self.content)["tag"]
        repository.tags[tag] = repository.at(revision).sha
        return {}

    def models(self) -> Any:
        wanted, words = set(self.query.get("filter", [])), self.query.get("search", [""])[0].lower()
        rows = [repository.at("main").describe(repo) for repo, repository in self.server.repositories.items()]
        return [row for row in rows if wanted <= set(row["tags"]) and words in row["id"].lower()]

    def model(self, repo: str, revision: str) -> Any:
        return self.server.repository(repo).at(revision).describe(repo)

    def refs(self, repo: str) -> Any:
        tags = self.server.repository(repo).tags.items()
        refs = [{"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": sha} for tag, sha in tags]
        return {"branches": [], "converts": [], "tags": refs}

    def resolve(self, repo: str, revision: str, path: str) -> Any:
        commit = self.server.repository(repo).at(revision)
        if file := commit.files.get(path):
            return Reply(200, {"X-Repo-Commit": commit.sha, "ETag": f'"{file.etag}"'}, file)
        raise Refusal(404, f"Entry not found: {path}", "EntryNotFound")

    ROUTES = (
        ("POST", "/api/repos/create", create_repo),
        ("POST", "/api/validate-yaml", lambda self: {"errors": [], "warnings": []}),
        ("POST", f"/api/models/{REPO}/preupload/{REVISION}", preupload),
        ("POST", f"/api/models/{REPO}/commit/{REVISION}", commit),
        ("POST", f"/api/models/{REPO}/tag/{REVISION}", create_tag),
        ("GET", "/api/models", models),
        ("GET", f"/api/models/{REPO}(?:/revision/{REVISION})?", model),
        ("GET", f"/api/models/{REPO}/refs", refs),
        ("GET", f"/{REPO}/resolve/{REVISION}/(.+)", resolve),
    )


class LocalHub(ThreadingHTTPServer):
    """A Hub without repositories, on a free port of this machine, that serves within a `with` block.

    `token` may write; `requests` holds the method and path, with its query, of each request so far.
    """

    daemon_threads = False  # closing waits for them

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Protocol)
        self.token = "hf_test"
        self.requests: list[tuple[str, str]] = []
        self.repositories: dict[str, Repository] = {}
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,))  # s between looks

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Go away: close the port, and wait for the threads."""
        if self.thread.is_alive():
            self.shutdown()
            self.server_close()
            self.thread.join()

    def environment(self, home: Any) -> dict[str, str]:
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
        """Attack: serve other bytes under the same commit, with ETags that agree with them."""
        self.repository(repo).at(commit).files[path] = HubFile(content, len(content))

    def serve_huge(self, repo: str, commit: str, path: str, size_bytes: int) -> None:
        """Attack: serve a file of this many bytes, all of them spaces, without holding it in memory."""
        self.repository(repo).at(commit).files[path] = HubFile(b" " * 65536, size_bytes)
