"""Who is answered, and what: other hosts, other sites and other users of the machine are not."""

import contextlib
import re
import select
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from evidcore_plugin_view import server
from evidcore_plugin_view.opened_run import OpenedRun
from evidcore_plugin_view.routes import _OF_LINE, _OF_RUN, _OF_SCAN
from evidcore_plugin_view.server import _ASSETS, ViewServer

from evidcore.errors import RunError

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

FIRST = "a:answers:02-evaluate:0"


@pytest.mark.parametrize(("headers", "said"), TABLE["others"])
def test_other_hosts_and_sites_are_refused_even_with_the_key(asked, served, headers, said):
    for path in ("/", "/assets/app.js", "/api/runs", f"/api/volume.nii?a={FIRST}"):
        status, _, body = asked(served, path, served.key, **headers)
        assert (status, said in body.decode()) == (403, True)


def test_what_is_of_a_run_needs_the_key_in_a_header_and_no_cookie_holds_it(asked, served):
    query = f"a={FIRST}&line={FIRST}&run=a&kind=answers&stage=02-evaluate&key={served.key}"
    key = {"Cookie": f"key={served.key}; evid-view-{served.port}={served.key}"}
    for headers in (key, {**key, "Authorization": "Bearer wrong"}, {**key, "Authorization": served.key}):
        for name in ("runs", "scene", "nothing", *_OF_RUN, *_OF_LINE, *_OF_SCAN):
            status, answered, body = asked(served, f"/api/{name}?{query}", **headers)
            assert (status, answered["Set-Cookie"]) == (403, None)
            assert f"it begins with http://127.0.0.1:{served.port}/#key=\n".encode() in body
    assert asked(served, "/api/runs", served.key)[0] == 200
    assert served.server_address[0] == "127.0.0.1"


def test_the_page_and_assets_alone_are_given_without_a_key_and_hold_nothing_of_a_run(asked, served, looked):
    for path in ("/", *(f"/assets/{path.name}" for path in _ASSETS.iterdir())):
        status, headers, body = asked(served, path)
        assert (status, headers["Set-Cookie"], headers["Cache-Control"]) == (200, None, "no-store")
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "http" not in headers["Content-Security-Policy"]
        assert not any(word.encode() in body for word in (served.key, looked.name, "02-evaluate"))
    assert asked(served, "/assets/app.js")[1]["Content-Type"] == "text/javascript; charset=utf-8"
    for path in ("/assets/../server.py", "/assets/%2e%2e/server.py", "/server.py", "/assets/"):
        assert asked(served, path, served.key)[0] == 404


def is_closed(line, trickle=b""):
    """Tell whether the server closes a connection within 5 s, in which a byte is sent again and again."""
    line.settimeout(0.05)
    try:
        for _ in range(100):
            with contextlib.suppress(TimeoutError):
                line.sendall(trickle)
                if not line.recv(1 << 20):
                    return True
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("trickle", [b"", b"a"])
@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\nHost: "])
def test_a_request_that_does_not_come_is_not_waited_for(served, monkeypatch, start, trickle):
    monkeypatch.setattr(server, "UNAUTHENTICATED_S", 0.2)
    with socket.create_connection(served.server_address) as line:
        line.sendall(start)
        assert is_closed(line, trickle)


MANY = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 999) for number in range(80))


@pytest.mark.parametrize(
    ("query", "more", "status"),
    [
        (b"a" * server.MOST_HEAD_BYTES, b"", 431),
        (b"", b"X: " + b"a" * server.MOST_HEAD_BYTES, 431),
        (b"", MANY, 431),
        (b"", b"Content-Length: 999999999999\r\n\r\n" + b"a" * (1 << 22), 200),
        (b"", b"Transfer-Encoding: chunked\r\n\r\n" + b"400000\r\n" + b"a" * (1 << 22), 200),
    ],
)
def test_of_a_request_only_its_head_is_read_and_of_that_no_more_than_a_bound(served, query, more, status):
    with socket.create_connection(served.server_address) as line:
        with contextlib.suppress(ConnectionError):
            line.sendall(b"GET /?%s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%s" % (query, served.port, more))
        assert line.recv(12) == b"HTTP/1.1 %d" % status
        assert is_closed(line)


def test_idle_connections_do_not_pile_up_and_requests_are_answered_beside_them(served, get):
    with contextlib.ExitStack() as ends:
        idle = [ends.enter_context(socket.create_connection(served.server_address)) for _ in range(255)]
        assert get(served, "runs")[0] == 200
        open_ = [line for line in idle if not select.select([line], [], [], 0)[0]]
        assert 0 < len(open_) <= server.MOST_UNAUTHENTICATED


@pytest.mark.slow
def test_idle_connections_leave_descriptors_for_requests_where_few_may_be_open(looked, asked):
    evid = [sys.executable, "-m", "evidcore", "view", looked, "--no-open", "--port", "0", "--json"]
    words = ["sh", "-c", 'ulimit -n 40 && exec "$@"', "sh", *evid]
    with contextlib.ExitStack() as ends:
        viewer = ends.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        ends.callback(viewer.terminate)
        port, key = re.findall(r":(\d+)/#key=([^\"]+)", viewer.stdout.readline())[0]
        for _ in range(255):
            ends.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert asked(SimpleNamespace(port=int(port)), "/api/runs", key)[0] == 200


@pytest.mark.parametrize(("name", "query", "status", "said"), TABLE["mistakes"])
def test_mistakes_are_told_with_their_value(get, served, name, query, status, said):
    result, answer = get(served, name, **query)
    assert result == status
    assert said in answer["error"]


def test_a_long_text_is_cut_and_its_length_told(get, served):
    _, rows = get(served, "rows", run="a", kind="answers", stage="02-evaluate")
    assert [row["malformed"] for row in rows[:4]] == [False, False, True, True]
    _, line = get(served, "line", line="a:answers:02-evaluate:3")
    assert (line["text"]["characters"], line["text"]["cut"]) == (10_000_000, True)
    assert len(line["text"]["text"]) == 20_000


def test_a_port_that_is_taken_is_named(served, looked):
    with pytest.raises(RunError, match=rf"--port {served.port}: Address already in use"):
        ViewServer({"a": OpenedRun(looked, show_reports=False)}, port=served.port)
