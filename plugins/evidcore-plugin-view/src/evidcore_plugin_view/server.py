"""The viewer's server: bound to this machine, opened by a key; it hands requests to `Routes`.

Pages of other sites cannot read it: a request must name this machine as its host and may come from no other
origin. What is asked of a run needs a header with the key. The key stands in the fragment of the printed
address, which a browser sends to no server, and is no cookie: those of a host go to all of its ports. The
page and its assets hold nothing of a run. All users and programs of the machine can connect, so the time,
number and size of what comes without the key are bounded.
"""

import contextlib
import errno
import functools
import hmac
import io
import json
import logging
import mimetypes
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from evidcore_plugin_pages.jinja import environment
from werkzeug import Request, Response
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from evidcore.errors import EvidError, RunError
from evidcore_plugin_view.opened_run import OpenedRun
from evidcore_plugin_view.routes import Routes

HOST = "127.0.0.1"
USUAL_PORT = 8765
# connections that have not shown the key; for one more, the oldest is closed. Files need descriptors, too
MOST_UNAUTHENTICATED = min(64, os.sysconf("SC_OPEN_MAX") // 4)
MOST_HEAD_BYTES = 1 << 16  # of a request: its line with the query, and its headers; no body is read
UNAUTHENTICATED_S = 30.0  # until the head has come, and until each part of an answer is taken
AUTHENTICATED_S = 600.0  # until an answer is taken by a client with the key; a tunnel may be slow
_ASSETS = files("evidcore_plugin_view") / "assets"
_POLICY = (
    "default-src 'none'; img-src 'self' blob: data:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-store",  # a browser keeps nothing of a patient
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_read = functools.cache(lambda name: (_ASSETS / name).read_bytes())  # once for all who ask
log = logging.getLogger(__name__)


class ViewServer(ThreadedWSGIServer):
    """Serves runs "a" and "b" to this machine; port 0 takes a free one.

    Raises:
        RunError: if the port is taken.
    """

    def __init__(self, runs: Mapping[str, OpenedRun], *, port: int) -> None:
        self.key = secrets.token_urlsafe(24)
        self.routes = Routes(runs)
        self._unauthenticated: dict[socket.socket, None] = {}  # the oldest first
        self._lock = threading.Lock()
        try:
            listening = socket.create_server((HOST, port), backlog=128)
        except OSError as cause:
            if cause.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            hint = "Give another port, or 0 for any that is free."
            raise RunError(f"--port {port}: {cause.strerror}. {hint}") from cause
        with listening:
            application = Request.application(self._answer)
            super().__init__(HOST, port, application, _Handler, fd=listening.fileno())
        self.address = f"http://{HOST}:{self.port}/#key={self.key}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin with a connection; where there are too many without the key, the oldest is closed for it."""
        with self._lock:
            self._unauthenticated[request] = None
            if len(self._unauthenticated) > MOST_UNAUTHENTICATED:
                oldest = next(iter(self._unauthenticated))
                del self._unauthenticated[oldest]
                with contextlib.suppress(OSError):  # its client has closed it
                    oldest.shutdown(socket.SHUT_RDWR)  # which ends its thread
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._forget(request)
        super().shutdown_request(request)

    def _forget(self, connection: socket.socket) -> None:
        """Count a connection no longer among those without the key."""
        with self._lock:
            self._unauthenticated.pop(connection, None)

    def _answer(self, request: Request) -> Response:
        """Answer one request, after it has made sure who asks."""
        refusal = self._refusal(request)
        if refusal:
            answer = Response(f"{refusal}\n", 403)
        elif request.path.startswith("/api/"):
            connection: socket.socket = request.environ["werkzeug.socket"]
            self._forget(connection)
            connection.settimeout(AUTHENTICATED_S)
            answer = self._api(request.path.removeprefix("/api/"), request)
        else:
            answer = _asset(request.path)
        answer.headers.update(_HEADERS)
        return answer

    def _refusal(self, request: Request) -> str:
        """Return why a request is refused, empty where it may be answered."""
        allowed = [f"{name}:{self.port}" for name in (HOST, "localhost")]
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        if request.method != "GET":
            return f"{request.method} is refused: this server answers GET alone."
        if host not in allowed:
            return f"Host {host!r} is refused: this server answers to {' and '.join(allowed)}."
        if origin is not None and origin not in [f"http://{name}" for name in allowed]:
            return f"Origin {origin!r} is refused: this server answers its own pages only."
        site, mode = request.headers.get("Sec-Fetch-Site"), request.headers.get("Sec-Fetch-Mode")
        if site == "cross-site" and mode != "navigate":
            return "A request from another site is refused."
        given, wanted = request.headers.get("Authorization", ""), f"Bearer {self.key}"
        if request.path.startswith("/api/") and not hmac.compare_digest(given.encode(), wanted.encode()):
            return (
                "The key to this run is missing, or of a viewer that has ended. Open the address that "
                f"`evid view` printed: it begins with {self.address.removesuffix(self.key)}"
            )
        return ""

    def _api(self, name: str, request: Request) -> Response:
        query = {key: values[-1] for key, values in request.args.lists()}
        try:
            result = self.routes.answer(name, query)
        except (EvidError, ValueError, KeyError) as error:
            says = f"{name}: the request lacks {error}" if isinstance(error, KeyError) else str(error)
            return _json({"error": says}, 400)
        if result is None:
            return _json({"error": f"nothing is called {name!r}"}, 404)
        if isinstance(result, bytes):
            kind = "image/png" if name.endswith(".png") else "application/octet-stream"
            return Response(result, mimetype=kind)
        return _json(result)


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        """Answer one request, whose head keeps to the bounds; what lies behind it is left unread."""
        head, end_s = bytearray(), time.monotonic() + UNAUTHENTICATED_S
        with contextlib.suppress(OSError):  # too late, or gone
            while b"\r\n\r\n" not in head and len(head) <= MOST_HEAD_BYTES:
                self.connection.settimeout(max(end_s - time.monotonic(), 1e-3))
                piece = self.connection.recv(4096)
                if not piece:
                    return
                head += piece
            self.connection.settimeout(UNAUTHENTICATED_S)
            if len(head) > MOST_HEAD_BYTES:
                self.command = self.path = self.requestline = ""
                self.request_version = self.protocol_version
                self.send_error(431, explain=f"Address and headers may have {MOST_HEAD_BYTES} bytes.")
                return
            self.rfile.close()
            self.rfile = io.BytesIO(head)
            super().handle()

    def version_string(self) -> str:
        """Name no versions."""
        return "evid-view"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log no query, which may hold words that were searched for."""
        log.debug("%s %s", getattr(self, "path", "").partition("?")[0], code)

    def log(self, type: str, message: str, *args: Any) -> None:
        """Log for debugging what was wrong with a request: anybody could fill a terminal with it."""
        log.debug(message, *args)


def _asset(path: str) -> Response:
    if path == "/":
        text = environment("evidcore_plugin_view").get_template("viewer.html").render()
        return Response(text, mimetype="text/html")
    known = {f"/assets/{asset.name}": asset for asset in _ASSETS.iterdir() if asset.is_file()}
    if path not in known:
        return Response("There is no such page.\n", 404)
    kind = "text/javascript" if path.endswith(".js") else mimetypes.guess_type(path)[0]
    return Response(_read(known[path].name), mimetype=kind or "application/octet-stream")


def _json(value: object, status: int = 200) -> Response:
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", errors="backslashreplace")
    return Response(body, status, mimetype="application/json")
