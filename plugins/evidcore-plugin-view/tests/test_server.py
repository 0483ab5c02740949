"""Who is answered, and what: other hosts, other sites and other users of the machine are not."""

import pytest
from evidcore_plugin_view.opened_run import OpenedRun
from evidcore_plugin_view.server import ViewServer

from evidcore.errors import RunError

FIRST = "a:answers:02-evaluate:0"


def test_it_listens_on_this_machine_alone(served):
    assert served.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"Host": "evil.example"}, b"Host 'evil.example' is refused"),
        ({"Host": ""}, b"Host '' is refused"),
        ({"Origin": "http://evil.example"}, b"Origin 'http://evil.example' is refused"),
        ({"Origin": "null"}, b"Origin 'null' is refused"),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, b"another site is refused"),
        ({}, b"Open the address that `evid view` printed"),
        ({"Cookie": "nonsense"}, b"Open the address that `evid view` printed"),
    ],
)
def test_strangers_are_refused(asked, served, headers, said):
    for path in ("/", "/assets/app.js", "/api/runs"):
        status, _, body = asked(served, path, **headers)
        assert (status, said in body) == (403, True)


def test_the_address_exchanges_its_key_for_a_cookie(asked, served):
    status, headers, _ = asked(served, f"/?key={served.key}")
    assert (status, headers["Location"]) == (303, "/")
    assert "HttpOnly; Path=/; SameSite=Strict" in headers["Set-Cookie"]
    status, _, body = asked(served, "/", Cookie=headers["Set-Cookie"].partition(";")[0])
    assert (status, b"<title>evidcore view" in body) == (200, True)
    assert asked(served, "/?key=wrong")[0] == 403


def test_nothing_is_kept_by_a_browser_or_loaded_from_elsewhere(asked, served):
    _, headers, _ = asked(served, "/", Cookie=f"{served.cookie}={served.key}")
    assert headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "http" not in headers["Content-Security-Policy"]


def test_only_the_packages_own_files_are_given(asked, served):
    cookie = f"{served.cookie}={served.key}"
    for path in ("/assets/../server.py", "/assets/%2e%2e/server.py", "/server.py", "/assets/"):
        assert asked(served, path, Cookie=cookie)[0] == 404
    assert (
        asked(served, "/assets/app.js", Cookie=cookie)[1]["Content-Type"] == "text/javascript; charset=utf-8"
    )


@pytest.mark.parametrize(
    ("name", "query", "status", "said"),
    [
        ("nothing", {}, 404, "nothing is called 'nothing'"),
        ("rows", {}, 400, "rows: the request lacks 'run'"),
        ("rows", {"run": "c", "kind": "answers", "stage": "x"}, 400, "no run is called 'c'. There are: a."),
        ("rows", {"run": "a", "kind": "files", "stage": "x"}, 400, "got 'files'"),
        ("rows", {"run": "a", "kind": "answers", "stage": "02-evaluat"}, 400, "Did you mean '02-evaluate'?"),
        ("line", {"line": "a:answers:../../x:0"}, 400, "stage '../../x' has no answers"),
        ("line", {"line": "a:answers:02-evaluate:99"}, 400, "so no line 99"),
        ("line", {"line": "12"}, 400, "not a line of a run: '12'"),
        ("scene", {"a": "a:rollouts:03-grpo:0:9"}, 400, "has 3 rollouts, so no rollout 9"),
        ("extent", {"a": FIRST, "overlay": "b"}, 400, "nothing to draw is called 'b'"),
        ("value", {"a": FIRST, "z": 99, "y": 0, "x": 0}, 400, "axial slices are 0 to 31, got 99"),
        ("slice.png", {"a": FIRST, "plane": "oblique"}, 400, "got 'oblique'"),
        (
            "slice.png",
            {"a": FIRST, "plane": "axial", "index": 0, "low": 5, "high": 5},
            400,
            "a window must rise",
        ),
    ],
)
def test_mistakes_are_told_with_their_value(get, served, name, query, status, said):
    result, answer = get(served, name, **query)
    assert result == status
    assert said in answer["error"]


def test_a_long_text_is_cut_and_its_length_told(get, served):
    _, rows = get(served, "rows", run="a", kind="answers", stage="02-evaluate")
    _, line = get(served, "line", line="a:answers:02-evaluate:3")
    assert (rows[3]["malformed"], line["text"]["characters"], line["text"]["cut"]) == (True, 10_000_000, True)
    assert len(line["text"]["text"]) == 20_000


def test_a_port_that_is_taken_is_named(served, looked):
    with pytest.raises(RunError, match=rf"--port {served.port}: Address already in use"):
        ViewServer({"a": OpenedRun(looked, show_reports=False)}, port=served.port)
