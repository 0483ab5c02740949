"""Miniatures on disk, and a server that speaks the Hub's protocol to the real client."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from evidcore_plugin_ct_data.miniatures import write

from evidcore.api import DataError
from evidcore.registry.factory import build

COMMIT = "a" * 40
TOKEN = "hf_good"
SPLITS = ("train", "validation", "test")
LARGE = 2000  # bytes; larger files come from elsewhere, as on the Hub


class Home:
    """A folder with the miniature of a data set."""

    def __init__(self, name: str, folder: Path, **options: Any) -> None:
        self.name, self.folder, self.options = name, folder, options
        self.set = folder / "set"
        write(name, self.set)

    def dataset(self, **options: Any) -> Any:
        kept = {"path": "set"} | self.options | options
        table = {"use": self.name, **{name: value for name, value in kept.items() if value is not ...}}
        given = {"recipe_folder": self.folder, "cache_folder": self.folder / "cache"}
        return build("dataset", table, given=given, where=self.name)

    def cases(self, split: str = "train", **options: Any) -> dict[str, Any]:
        return {case.id: case for case in self.dataset(**options).cases(split)}

    def every(self, **options: Any) -> dict[str, Any]:
        """Return the cases of all splits."""
        return {name: case for split in SPLITS for name, case in self.cases(split, **options).items()}

    def refusal(self, split: str = "train", **options: Any) -> str:
        with pytest.raises(DataError) as caught:
            list(self.dataset(**options).cases(split))
        return str(caught.value)

    def edit(self, name: str, old: str, new: str) -> None:
        file = self.set / name
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.fixture
def home(tmp_path):
    """Return a function that writes a miniature."""
    return lambda name, **options: Home(name, tmp_path, **options)


class Hub:
    """Repositories on a local server: what it holds, what it is asked, and how it behaves."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}  # repository -> name -> content
        self.gated = False
        self.cut_at: dict[str, int] = {}  # file -> bytes after which the connection breaks, once
        self.damaged: set[str] = set()
        self.asked: list[tuple[str, str, str | None, str | None]] = []  # method, path, range, authorization
        self.sent: list[tuple[str, str | None]] = []  # path and range of contents
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Answers,), {"hub": self}))
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.elsewhere = f"http://localhost:{self.port}"

    def put(self, repository: str, folder: Path, *, under: str = "") -> None:
        held = self.files.setdefault(repository, {})
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                held[under + path.relative_to(folder).as_posix()] = path.read_bytes()

    def fetched(self) -> list[str]:
        """The names of the files whose content was asked for, in order."""
        return [name.rpartition(COMMIT + "/")[2] for name, _ in self.sent]

    def ranges(self, name: str) -> list[str | None]:
        return [part for path, part in self.sent if path.endswith(name)]


class Answers(BaseHTTPRequestHandler):
    """The Hub's addresses that the client asks: resolve, paths-info and tree, and a store elsewhere."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        held, token = self.headers.get("Range"), self.headers.get("Authorization")
        self.hub.asked.append((self.command, path, held, token))
        if path.startswith("/store/"):
            self.content(path.removeprefix("/store/"))
            return
        if self.hub.gated and token != f"Bearer {TOKEN}":
            self.refuse(403 if token else 401, "GatedRepo")
            return
        parts = path.strip("/").split("/")
        is_api = parts[0] == "api"
        repository = "/".join(parts[1 + is_api : 3 + is_api])
        action, revision = parts[3 + is_api : 5 + is_api]
        if repository not in self.hub.files:
            self.refuse(404, "RepoNotFound")
        elif revision != COMMIT:
            self.refuse(404, "RevisionNotFound")
        elif action == "paths-info":
            names = parse_qs(body)["paths"]
            self.listing(repository, [name for name in names if name in self.hub.files[repository]])
        elif action == "tree":
            self.listing(repository, list(self.hub.files[repository]))
        else:
            self.resolve(repository, "/".join(parts[5:]))

    do_HEAD = do_POST = do_GET

    def listing(self, repository: str, names: list[str]) -> None:
        files = self.hub.files[repository]
        rows = [{"type": "file", "path": name, "size": len(files[name]), "oid": "0" * 40} for name in names]
        self.send(200, json.dumps(rows).encode(), {"Content-Type": "application/json"})

    def resolve(self, repository: str, name: str) -> None:
        content = self.hub.files[repository].get(name)
        if content is None:
            self.refuse(404, "EntryNotFound")
        elif len(content) > LARGE:
            headers = {
                "Location": f"{self.hub.elsewhere}/store/{repository}/{COMMIT}/{name}",
                "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
                "X-Linked-Size": str(len(content)),
            }
            self.send(302, b"", headers)
        else:
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            self.content(f"{repository}/{COMMIT}/{name}", etag=blob)

    def content(self, place: str, etag: str = "elsewhere") -> None:
        repository, _, name = place.partition(f"/{COMMIT}/")
        content = self.hub.files[repository][name]
        if name in self.hub.damaged:
            content = b"?" * len(content)
        if self.command == "GET":
            self.hub.sent.append((place, self.headers.get("Range")))
        start = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        headers = {"ETag": f'"{etag}"', "Content-Length": str(len(content) - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = self.hub.cut_at.pop(name, None) if self.command == "GET" else None
        self.send(206 if start else 200, content[start:] if cut is None else content[start:cut], headers)
        if cut is not None:
            self.close_connection = True

    def refuse(self, status: int, code: str) -> None:
        self.send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in ({"X-Repo-Commit": COMMIT, "Content-Length": str(len(content))} | headers).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(BrokenPipeError):
                self.wfile.write(content)


@pytest.fixture
def hub(monkeypatch) -> Iterator[Hub]:
    """A server that takes the Hub's place."""
    served = Hub()
    thread = threading.Thread(target=served.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield served
    served.server.shutdown()
    served.server.server_close()
    thread.join()
