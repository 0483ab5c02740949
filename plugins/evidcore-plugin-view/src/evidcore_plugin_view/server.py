"""The viewer's server: bound to this machine, opened by a key; it hands requests to `Routes`.

Pages of other sites cannot read it: a request must name this machine as its host, may come from no other
origin, and needs a cookie that only the printed address sets. Other users of the machine lack the key.
"""

import errno
import hmac
import json
import logging
import mimetypes
import secrets
import socket
from collections.abc import Mapping
from importlib.resources import files

from evidcore_plugin_pages.jinja import environment
from werkzeug import Request, Response
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

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
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-store",  # a browser keeps nothing of a patient
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_NEEDS_KEY = "Open the address that `evid view` printed: it holds the key to this run."
log = logging.getLogger(__name__)


class ViewServer(ThreadedWSGIServer):
    """Serves runs "a" and "b" to this machine; port 0 takes a free one.

    Raises:
        RunError: if the port is taken.
    """

    def __init__(self, runs: Mapping[str, OpenedRun], *, port: int) -> None:
        self.key = secrets.token_urlsafe(24)
        self.routes = Routes(runs)
        try:
            listening = socket.create_server((HOST, port), backlog=128)
        except OSError as cause:
            if cause.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise RunError(
                f"--port {port}: {cause.strerror}. Give another port, or 0 for any that is free."
            ) from cause
        with listening:
            application = Request.application(self._answer)
            super().__init__(HOST, port, application, _Handler, fd=listening.fileno())
        self.cookie = f"evid-view-{self.port}"  # its name; a host's ports share their cookies
        self.address = f"http://{HOST}:{self.port}/?key={self.key}"

    def _answer(self, request: Request) -> Response:
        """Answer one request, after it has made sure who asks."""
        refusal = self._refusal(request)
        if refusal:
            answer = Response(f"{refusal}\n", 403)
        elif request.path == "/" and "key" in request.args:
            answer = self._let_in(request.args["key"])
        elif not self._is_key(request.cookies.get(self.cookie, "")):
            answer = Response(f"{_NEEDS_KEY}\n", 403)
        elif request.path.startswith("/api/"):
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
        return (
            "A request from another site is refused." if site == "cross-site" and mode != "navigate" else ""
        )

    def _is_key(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.key.encode())

    def _let_in(self, key: str) -> Response:
        """Exchange the key in the address for a cookie, so that no link that is passed on holds it."""
        if not self._is_key(key):
            return Response(f"{_NEEDS_KEY}\n", 403)
        answer = Response(status=303, headers={"Location": "/"})
        answer.autocorrect_location_header = False
        answer.set_cookie(self.cookie, self.key, httponly=True, samesite="Strict")
        return answer

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

    def version_string(self) -> str:
        """Name no versions."""
        return "evid-view"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log a request for debugging; its query may hold words that were searched for."""
        log.debug("%s", self.path.partition("?")[0])


def _asset(path: str) -> Response:
    if path == "/":
        text = environment("evidcore_plugin_view").get_template("viewer.html").render()
        return Response(text, mimetype="text/html")
    known = {f"/assets/{asset.name}": asset for asset in _ASSETS.iterdir() if asset.is_file()}
    if path not in known:
        return Response("There is no such page.\n", 404)
    kind = "text/javascript" if path.endswith(".js") else mimetypes.guess_type(path)[0]
    return Response(known[path].read_bytes(), mimetype=kind or "application/octet-stream")


def _json(value: object, status: int = 200) -> Response:
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", errors="backslashreplace")
    return Response(body, status, mimetype="application/json")
