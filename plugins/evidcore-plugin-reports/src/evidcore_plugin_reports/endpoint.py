"""One client for OpenAI-compatible chat completions: retries, pace, cache, and leave to send things away.

The order of events for each conversation: an answer kept on the disk is taken; else the client waits for its
turn, sends, and tries again after an answer of 408, 409, 425, 429 or 5xx, a cut connection, a time-out or a
body that is no completion. What concerns one conversation alone (too long, refused, cut off) is told in its
place; what concerns all (key, address, a server that stays away) stops with an error, and what was answered
so far is kept.

Neither errors nor the log hold a word of what was sent or answered, nor the key.
"""

from __future__ import annotations

import dataclasses
import datetime
import email.utils
import hashlib
import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from evidcore.api import Cache
from evidcore.errors import RecipeError, RunError
from evidcore_plugin_reports import http_exchange
from evidcore_plugin_reports.http_exchange import Opened

Conversation = Sequence[Mapping[str, Any]]  # messages with "role" and "content": a text, or parts with images

ANSWERS = Cache("endpoint", is_private=True)  # answers may hold words of reports
_MOST_BYTES = 8 * 2**20  # of one answer
_RESERVED = ("model", "messages", "stream", "n")
_TRY_AGAIN = (408, 409, 425, 429)
_THIS_TEXT = (400, 413, 422)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Which model is asked, where, and how fast.

    Args:
        url: up to and with the version, "https://host/v1"; `/chat/completions` is added.
        model: the name by which the endpoint knows it.
        sends_text_away: must be true where texts are asked about: they are sent to `url`, also where that is
            an address of this machine, behind which a tunnel may lie.
        sends_images_away: the same, where images are asked about.
        key_env: the environment variable that holds the key, empty where none is needed; `<key_env>_HOST`
            says to which host it may go. The key itself has no place in a recipe.
        body: further fields of a request, such as `temperature`, `max_tokens` or `response_format`.
        concurrent: how many requests may be under way at once.
        requests_per_minute: at most so many are begun; None: no bound but `concurrent`.
        timeout_s: for one whole answer.
        tries: for one conversation, before the client gives up.
        first_wait_s: pause before the second try; each further one is twice as long.
        longest_wait_s: no pause is longer; if the endpoint asks for one, the client gives up at once.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}

    url: str
    model: str
    sends_text_away: bool = False
    sends_images_away: bool = False
    key_env: str = ""
    body: dict[str, Any] = dataclasses.field(default_factory=lambda: {"temperature": 0.0, "max_tokens": 2048})
    concurrent: Annotated[int, Ge(1), Le(64)] = 4
    requests_per_minute: Annotated[float, Gt(0)] | None = None
    timeout_s: Annotated[float, Gt(0)] = 120.0
    tries: Annotated[int, Ge(1)] = 6
    first_wait_s: Annotated[float, Gt(0)] = 1.0
    longest_wait_s: Annotated[float, Gt(0)] = 300.0


class ChatClient:
    """Asks one endpoint. Nothing is opened before the first question.

    Raises:
        RecipeError: if the recipe does not allow to send this away, or the address or a field cannot be.
    """

    def __init__(self, endpoint: Endpoint, *, sends: Literal["text", "images"] = "text") -> None:
        """Take the settings and refuse what they must not hold.

        Args:
            endpoint: what is asked.
            sends: what of patients leaves the machine; the settings must allow it by name.
        """
        host = http_exchange.host_of(endpoint.url, "endpoint.url")
        is_allowed, whose = {
            "text": (endpoint.sends_text_away, "reports"),
            "images": (endpoint.sends_images_away, "scans"),
        }[sends]
        if not is_allowed:
            raise RecipeError(
                f"endpoint: {sends} would be sent to {host!r}, and the recipe does not allow it. If "
                f"those whose {whose} these are agree, write: sends_{sends}_away = true"
            )
        http_exchange.check_key_env(endpoint.key_env, "endpoint.key_env")
        for name in _RESERVED:
            if name in endpoint.body:
                raise RecipeError(f"endpoint.body.{name}: this field is the client's own; leave it out.")
        self.endpoint = endpoint
        self._pace = _Pace(endpoint.requests_per_minute)

    def ask(self, conversations: Sequence[Conversation]) -> list[str | Unanswered]:
        """Return the answer to each conversation, or why there is none.

        Raises:
            RunError: if the endpoint cannot be used at all; says what it answered and what to do.
        """
        bodies = [self._body(item) for item in conversations]
        keys = [hashlib.sha256(f"{self.endpoint.url}\n{body}".encode()).hexdigest() for body in bodies]
        cached = {key: ANSWERS.get(key) for key in dict.fromkeys(keys)}
        result: dict[str, str | Unanswered] = {key: text.decode() for key, text in cached.items() if text}
        missing = {key: body for key, body in zip(keys, bodies, strict=True) if key not in result}
        if missing:
            result |= self._ask_all(missing)
        return [result[key] for key in keys]

    def _body(self, conversation: Conversation) -> str:
        own = {"model": self.endpoint.model, "messages": [dict(message) for message in conversation]}
        return whole_characters(json.dumps({**self.endpoint.body, **own}, sort_keys=True, ensure_ascii=False))

    def _ask_all(self, bodies: Mapping[str, str]) -> dict[str, str | Unanswered]:
        stop, client = threading.Event(), http_exchange.opener(self.authorization())
        pool = ThreadPoolExecutor(min(self.endpoint.concurrent, len(bodies)), thread_name_prefix="endpoint")
        try:
            asked = {pool.submit(self._ask_and_keep, client, *item, stop): item[0] for item in bodies.items()}
            return {asked[future]: future.result() for future in as_completed(asked)}
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)

    def _ask_and_keep(self, client: Opened, key: str, body: str, stop: threading.Event) -> str | Unanswered:
        try:
            answer = self._ask_until_answered(client, body, stop)
        except RunError:
            stop.set()  # here, before this thread begins another
            raise
        if isinstance(answer, str):
            ANSWERS.put(key, answer.encode())
        return answer

    def authorization(self) -> dict[str, str]:
        """Return the header with the key; none where no key is needed.

        Raises:
            RunError: if the variable that should hold it is not set, or holds no key.
        """
        return http_exchange.authorization(self.endpoint.key_env, self.endpoint.url, str(self))

    def _ask_until_answered(self, client: Opened, body: str, stop: threading.Event) -> str | Unanswered:
        reason, pause_s = "", 0.0
        for number in range(self.endpoint.tries):
            if stop.wait(pause_s) or stop.wait(self._pace.delay_s()):
                return Unanswered("another conversation ended the work")
            outcome = self._ask_once(client, body)
            if not isinstance(outcome, Again):
                return outcome
            reason, asked_s = outcome.reason, outcome.wait_s
            if asked_s is not None and asked_s > self.endpoint.longest_wait_s:
                raise RunError(
                    f"{self}: {reason}, and a pause of {asked_s:.0f} s is longer than longest_wait_s = "
                    f"{self.endpoint.longest_wait_s:g}. What was answered is kept; run again later."
                )
            if asked_s is not None:
                self._pace.hold(asked_s)  # the endpoint asks all of us to pause
            else:
                pause_s = min(self.endpoint.first_wait_s * 2**number, self.endpoint.longest_wait_s)
        raise RunError(
            f"{self}: gave up after {self.endpoint.tries} tries, the last of which ended with: {reason}. "
            "What was answered is kept; run again to go on."
        )

    def _ask_once(self, client: Opened, body: str) -> str | Unanswered | Again:
        address, limit_s = f"{self.endpoint.url.rstrip('/')}/chat/completions", self.endpoint.timeout_s
        try:
            answer = http_exchange.exchange(
                client, "POST", address, body.encode(), timeout_s=limit_s, most_bytes=_MOST_BYTES
            )
        except http_exchange.Interrupted as reason:
            return Again(str(reason))
        except http_exchange.TooLong as reason:
            raise RunError(f"{self}: {reason}; lower body.max_tokens.") from None
        except http_exchange.Unreadable as reason:
            raise RunError(f"{self}: {reason}") from None
        status = answer.status
        if status in _TRY_AGAIN or status >= 500:
            return Again(f"HTTP {status}", wait_asked_s(answer.headers))
        if status in _THIS_TEXT:
            return Unanswered(f"the endpoint refused the request with HTTP {status}")
        if status in (401, 403):
            why = "the key is missing or not allowed. Check key_env."
            raise RunError(f"{self}: it answered HTTP {status}: {why}")
        if status == 404:
            why = "Check url (it ends with the version, as in '/v1') and model."
            raise RunError(f"{self}: it answered HTTP 404. {why}")
        if status != 200:
            raise RunError(f"{self}: it answered HTTP {status}, which is no completion. Check url.")
        try:
            choice = json.loads(answer.content)["choices"][0]
            text, finish = choice["message"].get("content"), choice.get("finish_reason")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Again("HTTP 200 with a body that is no chat completion")
        if finish == "length":
            return Unanswered("the answer was cut off; raise body.max_tokens")
        if finish == "content_filter":
            return Unanswered("the endpoint's content filter withheld the answer")
        if not isinstance(text, str) or not text.strip():
            return Unanswered("the answer is empty")
        return whole_characters(text)

    def __str__(self) -> str:
        return f"endpoint {self.endpoint.url}, model {self.endpoint.model!r}"


class _Pace:
    """Spaces the beginnings of requests, over all threads."""

    def __init__(self, per_minute: float | None) -> None:
        self._gap_s = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def delay_s(self) -> float:
        """Take the next turn, and return how long it is until then."""
        with self._lock:
            begin = max(self._next, time.monotonic())
            self._next = begin + self._gap_s
        return max(0.0, begin - time.monotonic())

    def hold(self, seconds: float) -> None:
        """Let nobody begin before `seconds` have passed."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)


@dataclasses.dataclass(frozen=True)
class Unanswered:
    """One conversation got no answer; holds nothing of its words."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Again:
    """It may work later; `wait_s` is what the endpoint asked for, None where it did not."""

    reason: str
    wait_s: float | None = None


def wait_asked_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that `Retry-After` asks for, as a number or as a date; None where it does not."""
    asked = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", asked):
        return float(asked)
    try:
        date = email.utils.parsedate_to_datetime(asked)
    except (ValueError, OverflowError):  # a year or a zone of eleven digits
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=datetime.UTC)
    return max(0.0, (date - datetime.datetime.now(datetime.UTC)).total_seconds())


def whole_characters(text: str) -> str:
    """Return a text in which half a character, as of an emoji that was cut, is U+FFFD: it has no UTF-8."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)
