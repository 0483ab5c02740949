import asyncio
import contextlib
import datetime
import email.utils
import gzip
import logging
import socket
import threading
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from evidcore_plugin_reports import endpoint
from evidcore_plugin_reports.endpoint import ChatClient, Endpoint, Unanswered, wait_asked_s
from evidcore_plugin_reports.http_exchange import authorization, exchange, opener
from evidcore_plugin_reports.testing import Reply, chat_server

from evidcore.errors import RecipeError, RunError

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

SECRET = "Zebra-striped finding of Jane"
KEY = "sk-0123456789"
BODY = b'{"messages": []}'
PACKED = Reply(body=gzip.compress(b" " * 10**6), headers={"Content-Encoding": "gzip"})
BAD = rb'{"choices": [{"message": {"content": "bad \ud800 x"}}]}'


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("CHAT_KEY", KEY)
    monkeypatch.setenv("CHAT_KEY_HOST", "127.0.0.1")


def client(server, **settings):
    given = {"url": server.url, "model": "tiny", "sends_text_away": True, "first_wait_s": 0.01, **settings}
    return ChatClient(Endpoint(**given))


def asked(text):
    return [{"role": "user", "content": text}]


def in_turn(*replies):
    """Answer with one reply after another, and go on with the last."""
    return lambda body, number: replies[min(number, len(replies) - 1)]


def test_answers_come_in_the_order_of_the_questions_and_a_question_is_sent_once():
    def echo(body, number):
        return Reply(content=body["messages"][0]["content"].upper(), after_s=0.05 * (number == 0))

    with chat_server(echo) as server:
        answers = client(server).ask([asked("a"), asked("b"), asked("a"), asked("c")])
    assert answers == ["A", "B", "A", "C"]
    assert sorted(body["messages"][0]["content"] for body in server.requests) == ["a", "b", "c"]


def test_a_request_is_what_the_recipe_says(caplog):
    caplog.set_level(logging.DEBUG)
    with chat_server(in_turn(Reply(content="yes"))) as server:
        chat = client(server, key_env="CHAT_KEY", body={"temperature": 0.5, "seed": 7})
        assert chat.ask([asked(SECRET)]) == ["yes"]
    assert server.requests == [{"model": "tiny", "temperature": 0.5, "seed": 7, "messages": asked(SECRET)}]
    (headers,) = server.headers
    assert (headers["path"], headers["Authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
    assert SECRET not in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    "first",
    [Reply(status=429), Reply(status=500, body=b"oops"), Reply(status=503), Reply(content="half", cut=True),
     Reply(body=b"<html>hello</html>"), Reply(body=b"[" * 200_000), Reply(body=b'{"choices": []}'),
     Reply(body=b'{"choices": [{"message": "text"}]}'), Reply(content="late", after_s=0.6)],
    ids=["429", "500", "503", "cut", "no-json", "deep", "no-choice", "no-message", "slow"],
)  # fmt: skip
def test_what_may_pass_is_tried_again(first):
    with chat_server(in_turn(first, Reply(content="yes"))) as server:
        assert client(server, timeout_s=0.3).ask([asked("a")]) == ["yes"]
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "begun", [b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"HTTP/1.1 200 OK\r\nX:"]
)
def test_an_answer_that_trickles_in_is_timed_as_a_whole(begun):
    """Each byte of the body, or of a header, comes in time; the answer does not."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"

    def trickle():
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(begun)
            for _ in range(100):
                connection.sendall(b" ")
                stop.wait(0.05)

    stop = threading.Event()
    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        settings = Endpoint(url=url, model="tiny", sends_text_away=True, timeout_s=0.4, tries=1)
        with pytest.raises(RunError, match=r"gave up after 1 tries.*no whole answer within 0\.4 s"):
            ChatClient(settings).ask([asked("a")])
    finally:
        stop.set()
        thread.join()
        listener.close()


def test_half_a_character_is_sent_and_kept_as_a_replacement():
    with chat_server(in_turn(Reply(body=BAD))) as server:
        assert client(server).ask([asked("cut \ud83d")]) == ["bad \ufffd x"]
        assert client(server).ask([asked("cut \ud83d")]) == ["bad \ufffd x"]
    (body,) = server.requests
    assert body["messages"][0]["content"] == "cut \ufffd"


def test_retry_after_is_obeyed_by_all_requests():
    replies = in_turn(Reply(status=429, headers={"Retry-After": "1"}), Reply(content="yes"))
    with chat_server(replies) as server:
        assert client(server, concurrent=1).ask([asked("a"), asked("b")]) == ["yes", "yes"]
    first, second, _ = server.begun_s
    assert second - first >= 1.0


def test_retry_after_is_a_number_or_a_date():
    said = {"7": 7.0, "0.5": 0.5, "Wed, 21 Oct 2015 07:28:00 GMT": 0.0, "soon": None}
    said |= {"Wed, 21 Oct 99999999999 07:28:00 GMT": None, "Wed, 21 Oct 2015 07:28:00 +99999999999": None}
    assert {text: wait_asked_s({"Retry-After": text}) for text in said} == said
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=60)
    assert 50 < wait_asked_s({"Retry-After": email.utils.format_datetime(later, usegmt=True)}) <= 60
    assert wait_asked_s({}) is None


def test_requests_are_spaced(monkeypatch):
    waits, delay_s = [], endpoint._Pace.delay_s
    monkeypatch.setattr(endpoint, "time", SimpleNamespace(monotonic=lambda: 5.0))  # all ask at once
    monkeypatch.setattr(endpoint._Pace, "delay_s", lambda self: waits.append(delay_s(self)) or waits[-1])
    with chat_server(in_turn(Reply(content="yes"))) as server:
        client(server, requests_per_minute=600).ask([asked(name) for name in "abcd"])
    assert sorted(waits) == pytest.approx([0.0, 0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(status=400, body=SECRET.encode()), "refused the request with HTTP 400"),
        (Reply(status=413), "HTTP 413"),
        (Reply(content=SECRET, finish="length"), "cut off; raise body.max_tokens"),
        (Reply(content=SECRET, finish="content_filter"), "content filter"),
        (Reply(content=None), "empty"),
        (Reply(content="  "), "empty"),
    ],
    ids=["400", "413", "length", "filter", "none", "blank"],
)
def test_one_text_that_cannot_be_answered_does_not_stop_the_others(reply, reason):
    def answer(body, number):
        return reply if SECRET in body["messages"][0]["content"] else Reply(content="yes")

    with chat_server(answer) as server:
        refused, other = client(server).ask([asked(SECRET), asked("b")])
        assert isinstance(refused, Unanswered)
        assert reason in refused.reason
        assert SECRET not in refused.reason
        assert other == "yes"
        client(server).ask([asked(SECRET)])
    assert len(server.requests) == 3, "what was not answered is not kept"


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(status=401, body=SECRET.encode()), "HTTP 401: the key"),
        (Reply(status=403, body=SECRET.encode()), "HTTP 403: the key"),
        (Reply(status=404), r"HTTP 404\. Check url"),
        (Reply(status=302, headers={"Location": "http://127.0.0.1:9/"}), "HTTP 302"),
        (Reply(status=429, headers={"Retry-After": "4000"}), "429, and a pause of 4000 s is longer .*= 300"),
        (PACKED, r"it packs its answers \(gzip\), which it was asked not to"),
        (Reply(body=b" " * (9 * 2**20)), r"an answer is longer than 8388608 bytes; lower body\.max_tokens"),
    ],
    ids=["401", "403", "404", "elsewhere", "pause", "packed", "long"],
)
def test_what_concerns_all_texts_stops_the_work(reply, said):
    with chat_server(in_turn(reply)) as server, pytest.raises(RunError, match=said) as caught:
        client(server, concurrent=1, key_env="CHAT_KEY").ask([asked(SECRET), asked("b"), asked("c")])
    assert server.url in str(caught.value)
    assert SECRET not in str(caught.value)
    assert KEY not in str(caught.value)
    (headers,) = server.headers
    assert headers["Accept-Encoding"] == "identity"


def test_the_error_is_the_cause_and_not_what_it_stopped():
    """The first question waits for its second try while the second one meets a wrong key."""

    def reply(body, number):
        return Reply(status=500 if body["messages"][0]["content"] == "a" else 401, after_s=0.1 * number)

    with chat_server(reply) as server, pytest.raises(RunError, match="HTTP 401: the key is missing"):
        client(server, first_wait_s=30.0).ask([asked("a"), asked("b")])


def test_a_server_that_stays_away_is_given_up_and_what_it_answered_is_kept():
    def fails_later(body, number):
        return Reply(content="yes") if body["messages"][0]["content"] == "a" else Reply(status=500)

    with chat_server(fails_later) as server:
        with pytest.raises(RunError, match=r"gave up after 2 tries.*HTTP 500\. What was answered is kept"):
            client(server, concurrent=1, tries=2).ask([asked("a"), asked("b")])
        assert client(server).ask([asked("a")]) == ["yes"]
    assert [body["messages"][0]["content"] for body in server.requests] == ["a", "b", "b"]


def test_a_kept_answer_is_of_this_endpoint_model_and_question():
    with chat_server(lambda body, number: Reply(content=str(number))) as server:
        assert client(server).ask([asked("a")]) == ["0"]
        assert client(server).ask([asked("a")]) == ["0"]
        assert client(server, body={"temperature": 1.0}).ask([asked("a")]) == ["1"]
        other = Endpoint(url=server.url, model="other", sends_text_away=True)
        assert ChatClient(other).ask([asked("a")]) == ["2"]
    with chat_server(in_turn(Reply(content="elsewhere"))) as server:
        assert client(server).ask([asked("a")]) == ["elsewhere"]


@pytest.mark.parametrize(("key", "url", "said"), TABLE["keys"])
def test_a_key_that_may_not_go_there_is_named_by_its_variable_and_not_shown(monkeypatch, key, url, said):
    monkeypatch.setenv("CHAT_KEY", key)
    monkeypatch.setenv("CHAT_KEY_HOST", "host.example")
    with chat_server(in_turn(Reply(content="yes"))) as server, pytest.raises(RunError, match=said) as caught:
        client(server, key_env="CHAT_KEY", **({"url": url} if url else {})).ask([asked("a")])
    assert server.requests == []
    assert KEY not in str(caught.value)


def test_a_key_goes_unencrypted_to_another_machine_where_its_variable_says_so(monkeypatch):
    monkeypatch.setenv("CHAT_KEY_HOST", "http://node:8000")
    assert authorization("CHAT_KEY", "http://node:8000/v1", "chat") == {"Authorization": f"Bearer {KEY}"}


@pytest.mark.parametrize(("settings", "said"), TABLE["refused"])
def test_a_recipe_is_refused(settings, said):
    given = {"url": "https://host.example/v1", "model": "tiny", "sends_text_away": True, **settings}
    with pytest.raises(RecipeError, match=said) as caught:
        ChatClient(Endpoint(**given))
    assert "abc" not in str(caught.value)


def test_an_exchange_ends_where_a_loop_runs_already_as_in_a_notebook():
    async def cell():
        address = f"{server.url}/chat/completions"
        return exchange(opener({}), "POST", address, BODY, timeout_s=9, most_bytes=999)

    with chat_server(in_turn(Reply(content="yes"))) as server:
        assert asyncio.run(cell()).status == 200
