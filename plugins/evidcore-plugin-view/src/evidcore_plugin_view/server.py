"""The viewer's server: bound to this machine, opened by a key; it hands requests to `Routes`.

Pages of other sites cannot read it: a request must name this machine as its host, may come from no other
origin, and needs a cookie that only the printed address sets. Other users of the machine lack the key.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import logging
import mimetypes
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from evidcore_plugin_pages.jinja import environment

from evidcore.errors import EvidError, RunError
from evidcore_plugin_view.opened_run import OpenedRun
from evidcore_plugin_view.routes import Routes

HOST = "127.0.0.1"
USUAL_PORT = 8765
_ASSETS = files("evidcore_plugin_view") / "assets"
_POLICY = (
    "default-src 'none'; img-src 'self' blob: data:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_NEEDS_KEY = "Open the address that `evid view` printed: it holds the key to this run."
log = logging.getLogger(__name__)


class ViewServer(ThreadingHTTPServer):
    """Serves runs to this machine.

    Args:
        runs: by name; "a" is the first, "b" the second.
        port: 0 takes a free one.

    Raises:
        RunError: if the port is taken.
    """

    daemon_threads = True

    def __init__(self, runs: Mapping[str, OpenedRun], *, port: int) -> None:
        self.key = secrets.token_urlsafe(24)
        self.routes = Routes(runs)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as cause:
            if cause.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise RunError(
                f"--port {port}: {cause.strerror}. Give another port, or 0 for any that is free."
            ) from cause

    @property
    def address(self) -> str:
        """Return the address to open, with the key."""
        return f"http://{HOST}:{self.server_port}/?key={self.key}"

    @property
    def cookie(self) -> str:
        """Return the name of the cookie that holds the key; a host's ports share their cookies."""
        return f"evid-view-{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    """Answers GET requests, after it has made sure who asks."""

    protocol_version = "HTTP/1.1"
    server_version = "evid-view"
    sys_version = ""

    @property
    def _view(self) -> ViewServer:
        return cast(ViewServer, self.server)

    def do_GET(self) -> None:
        """Answer one request."""
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        refusal = self._refusal()
        if refusal:
            self._text(HTTPStatus.FORBIDDEN, refusal)
        elif parts.path == "/" and "key" in query:
            self._let_in(query["key"])
        elif not self._has_key():
            self._text(HTTPStatus.FORBIDDEN, _NEEDS_KEY)
        elif parts.path.startswith("/api/"):
            self._api(parts.path.removeprefix("/api/"), query)
        else:
            self._asset(parts.path)

    def log_message(self, format: str, *args: Any) -> None:
        """Log a request for debugging; its query may hold words that were searched for."""
        log.debug("%s", urlsplit(self.path).path if hasattr(self, "path") else "")

    def _refusal(self) -> str:
        """Return why a request is refused, empty where it may be answered."""
        allowed = [f"{name}:{self._view.server_port}" for name in (HOST, "localhost")]
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host not in allowed:
            return f"Host {host!r} is refused: this server answers to {' and '.join(allowed)}."
        if origin is not None and origin not in [f"http://{name}" for name in allowed]:
            return f"Origin {origin!r} is refused: this server answers its own pages only."
        if (
            self.headers.get("Sec-Fetch-Site") == "cross-site"
            and self.headers.get("Sec-Fetch-Mode") != "navigate"
        ):
            return "A request from another site is refused."
        return ""

    def _has_key(self) -> bool:
        cookies: SimpleCookie = SimpleCookie()
        with contextlib.suppress(CookieError):
            cookies.load(self.headers.get("Cookie", ""))
        given = cookies.get(self._view.cookie)
        return given is not None and hmac.compare_digest(given.value.encode(), self._view.key.encode())

    def _let_in(self, key: str) -> None:
        """Exchange the key in the address for a cookie, so that no link that is passed on holds it."""
        if not hmac.compare_digest(key.encode(), self._view.key.encode()):
            self._text(HTTPStatus.FORBIDDEN, _NEEDS_KEY)
            return
        cookie = f"{self._view.cookie}={self._view.key}; HttpOnly; SameSite=Strict; Path=/"
        self._send(HTTPStatus.SEE_OTHER, b"", "text/plain", {"Location": "/", "Set-Cookie": cookie})

    def _api(self, name: str, query: Mapping[str, str]) -> None:
        try:
            result = self._view.routes.answer(name, query)
        except (EvidError, ValueError, KeyError) as error:
            said = f"{name}: the request lacks {error}" if isinstance(error, KeyError) else str(error)
            self._json(HTTPStatus.BAD_REQUEST, {"error": said})
            return
        if result is None:
            self._json(HTTPStatus.NOT_FOUND, {"error": f"nothing is called {name!r}"})
        elif isinstance(result, bytes):
            kind = "image/png" if name.endswith(".png") else "application/octet-stream"
            self._send(HTTPStatus.OK, result, kind)
        else:
            self._json(HTTPStatus.OK, result)

    def _asset(self, name: str) -> None:
        if name == "/":
            text = environment("evidcore_plugin_view").get_template("viewer.html").render()
            self._send(HTTPStatus.OK, text.encode(), "text/html; charset=utf-8")
            return
        name = name.removeprefix("/assets/")
        known = {asset.name: asset for asset in _ASSETS.iterdir() if asset.is_file()}
        if name not in known:
            self._text(HTTPStatus.NOT_FOUND, "There is no such page.")
            return
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        kind = "text/javascript" if name.endswith(".js") else kind
        self._send(HTTPStatus.OK, known[name].read_bytes(), f"{kind}; charset=utf-8")

    def _json(self, status: HTTPStatus, value: Any) -> None:
        body = json.dumps(value, ensure_ascii=False).encode("utf-8", errors="backslashreplace")
        self._send(status, body, "application/json; charset=utf-8")

    def _text(self, status: HTTPStatus, sentence: str) -> None:
        self._send(status, f"{sentence}\n".encode(), "text/plain; charset=utf-8")

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str, more: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": _POLICY,
            "Cache-Control": "no-store",  # a browser keeps nothing of a patient
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
            **(more or {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the reader has gone on to another slice
            self.wfile.write(body)
