"""A small server on this machine that speaks chat completions, for tests of what asks an endpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """What the server does with one request."""

    content: str | None = None  # of the model's message
    status: int = 200
    finish: str = "stop"
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: bytes | None = None  # in place of a chat completion
    after_s: float = 0.0
    cut: bool = False  # close the connection halfway through the answer


@dataclasses.dataclass(frozen=True)
class ChatServer:
    """A running server: its address, and what it was asked."""

    url: str
    requests: list[dict[str, Any]]  # bodies, in order
    headers: list[dict[str, str]]
    begun_s: list[float]  # monotonic time of each request


@contextlib.contextmanager
def chat_server(reply: Callable[[dict[str, Any], int], Reply]) -> Iterator[ChatServer]:
    """Serve on a free port of this machine until the block ends.

    Args:
        reply: from a request's body and its number, counted from 0, to the answer; called in many threads.
    """
    lock = threading.Lock()
    asked: list[dict[str, Any]] = []
    headers: list[dict[str, str]] = []
    begun_s: list[float] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(asked)
                asked.append(body)
                headers.append({**dict(self.headers), "path": self.path})
                begun_s.append(time.monotonic())
            answer = reply(body, number)
            time.sleep(answer.after_s)
            choice = {"message": {"role": "assistant", "content": answer.content}}
            completion = {"choices": [{**choice, "finish_reason": answer.finish}]}
            content = json.dumps(completion).encode() if answer.body is None else answer.body
            with contextlib.suppress(OSError):  # the client may have gone
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if answer.cut else content)
                self.wfile.flush()
            self.close_connection = self.close_connection or answer.cut

        def log_message(self, format: str, *args: Any) -> None:
            """Stay quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield ChatServer(f"http://127.0.0.1:{server.server_port}/v1", asked, headers, begun_s)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
