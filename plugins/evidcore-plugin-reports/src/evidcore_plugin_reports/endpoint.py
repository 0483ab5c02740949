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
import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from evidcore.api import Cache
from evidcore.errors import RecipeError, RunError
from evidcore_plugin_reports.endpoint_answers import (
    Again,
    Stop,
    Unanswered,
    read_answer,
    wait_asked_s,
    whole_characters,
)
from evidcore_plugin_reports.http_exchange import (
    Interrupted,
    Opened,
    TooLong,
    Unreadable,
    authorization,
    check_key_env,
    exchange,
    host_of,
    opener,
)

Conversation = Sequence[Mapping[str, Any]]  # messages with "role" and "content": a text, or parts with images

ANSWERS = Cache("endpoint", is_private=True)  # answers may hold words of reports
_MOST_BYTES = 8 * 2**20  # of one answer
_OWN = ("model", "messages", "stream", "n")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Which model is asked, where, and how fast.

    Args:
        url: up to and with the version, "https://host/v1"; `/chat/completions` is added.
        model: the name by which the endpoint knows it.
        sends_text_away: must be true where texts are asked about: they are sent to `url`, also where that is
            an address of this machine, behind which a tunnel may lie.
        sends_images_away: the same, where images are asked about.
        key_env: the environment variable that holds the key; empty where none is needed. The key itself has
            no place in a recipe.
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
        _check(endpoint, sends)
        self.endpoint = endpoint
        self._pace = _Pace(endpoint.requests_per_minute)

    def ask(self, conversations: Sequence[Conversation]) -> list[str | Unanswered]:
        """Return the answer to each conversation, or why there is none.

        Raises:
            RunError: if the endpoint cannot be used at all; says what it answered and what to do.
        """
        bodies = [self._body(item) for item in conversations]
        keys = [hashlib.sha256(f"{self.endpoint.url}\n{body}".encode()).hexdigest() for body in bodies]
        result: dict[str, str | Unanswered] = {}
        for key in dict.fromkeys(keys):
            kept = ANSWERS.get(key)
            if kept is not None:
                result[key] = kept.decode()
        missing = {key: body for key, body in zip(keys, bodies, strict=True) if key not in result}
        if missing:
            result |= self._ask_all(missing)
        return [result[key] for key in keys]

    def _body(self, conversation: Conversation) -> str:
        own = {"model": self.endpoint.model, "messages": [dict(message) for message in conversation]}
        return whole_characters(json.dumps({**self.endpoint.body, **own}, sort_keys=True, ensure_ascii=False))

    def _ask_all(self, bodies: Mapping[str, str]) -> dict[str, str | Unanswered]:
        work, client = _Work(), opener(self.authorization())
        workers = min(self.endpoint.concurrent, len(bodies))
        with ThreadPoolExecutor(workers, thread_name_prefix="endpoint") as pool:
            asked = {
                key: pool.submit(self._ask_and_keep, client, key, body, work) for key, body in bodies.items()
            }
            try:
                return {key: future.result() for key, future in asked.items()}
            except BaseException:
                work.end(RunError(f"{self}: stopped."))
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _ask_and_keep(self, client: Opened, key: str, body: str, work: _Work) -> str | Unanswered:
        answer = self._ask_until_answered(client, body, work)
        if isinstance(answer, str):
            ANSWERS.put(key, answer.encode())
        return answer

    def authorization(self) -> dict[str, str]:
        """Return the header with the key; none where no key is needed.

        Raises:
            RunError: if the variable that should hold it is not set, or holds no key.
        """
        return authorization(self.endpoint.key_env, str(self))

    def _ask_until_answered(self, client: Opened, body: str, work: _Work) -> str | Unanswered:
        reason = ""
        for number in range(self.endpoint.tries):
            self._pace.wait(work)
            outcome = self._ask_once(client, body)
            if isinstance(outcome, Stop):
                raise work.end(RunError(f"{self}: {outcome.reason}"))
            if not isinstance(outcome, Again):
                return outcome
            reason, asked_s = outcome.reason, outcome.wait_s
            if asked_s is not None and asked_s > self.endpoint.longest_wait_s:
                error = RunError(
                    f"{self}: {reason}, and a pause of {asked_s:.0f} s is longer than longest_wait_s = "
                    f"{self.endpoint.longest_wait_s:g}. What was answered is kept; run again later."
                )
                raise work.end(error)
            if asked_s is not None:
                self._pace.hold(asked_s)  # the endpoint asks all of us to pause
            elif number + 1 < self.endpoint.tries:
                work.wait(min(self.endpoint.first_wait_s * 2**number, self.endpoint.longest_wait_s))
        error = RunError(
            f"{self}: gave up after {self.endpoint.tries} tries, the last of which ended with: {reason}. "
            "What was answered is kept; run again to go on."
        )
        raise work.end(error)

    def _ask_once(self, client: Opened, body: str) -> str | Unanswered | Again | Stop:
        """Send once."""
        address, limit_s = f"{self.endpoint.url.rstrip('/')}/chat/completions", self.endpoint.timeout_s
        try:
            answer = exchange(
                client, "POST", address, body.encode(), timeout_s=limit_s, most_bytes=_MOST_BYTES
            )
        except Interrupted as reason:
            return Again(str(reason))
        except TooLong as reason:
            return Stop(f"{reason}; lower body.max_tokens.")
        except Unreadable as reason:
            return Stop(str(reason))
        return read_answer(answer.status, answer.content, wait_asked_s(answer.headers))

    def __str__(self) -> str:
        return f"endpoint {self.endpoint.url}, model {self.endpoint.model!r}"


class _Work:
    """What the threads of one call share: whether it has ended, and by what."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._error: RunError | None = None

    def end(self, error: RunError) -> RunError:
        """Stop all threads and return the first error, which is the cause of the others."""
        with self._lock:
            self._error = self._error or error
            self._ended.set()
            return self._error

    def wait(self, seconds: float) -> None:
        """Wait, unless the work ends meanwhile.

        Raises:
            RunError: what ended it.
        """
        if self._ended.wait(seconds) and self._error is not None:
            raise self._error


class _Pace:
    """Spaces the beginnings of requests, over all threads."""

    def __init__(self, per_minute: float | None) -> None:
        self._gap_s = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self, work: _Work) -> None:
        """Wait for a turn, unless the work ends meanwhile."""
        with self._lock:
            begin = max(self._next, time.monotonic())
            self._next = begin + self._gap_s
        work.wait(max(0.0, begin - time.monotonic()))

    def hold(self, seconds: float) -> None:
        """Let nobody begin before `seconds` have passed."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)


def _check(endpoint: Endpoint, sends: Literal["text", "images"]) -> None:
    host = host_of(endpoint.url, "endpoint.url")
    is_allowed, whose = {
        "text": (endpoint.sends_text_away, "reports"),
        "images": (endpoint.sends_images_away, "scans"),
    }[sends]
    if not is_allowed:
        raise RecipeError(
            f"endpoint: {sends} would be sent to {host!r}, and the recipe does not allow it. If "
            f"those whose {whose} these are agree, write: sends_{sends}_away = true"
        )
    check_key_env(endpoint.key_env, "endpoint.key_env")
    for name in _OWN:
        if name in endpoint.body:
            raise RecipeError(f"endpoint.body.{name}: this field is the client's own; leave it out.")
