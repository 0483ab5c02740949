"""One client for OpenAI-compatible chat completions: retries, pace, cache, and leave to send things away.

The order of events for each conversation: an answer kept on the disk is taken; else the client waits for its
turn, sends, and tries again after an answer of 408, 409, 425, 429 or 5xx, a cut connection, a time-out or a
body that is no completion. What concerns one conversation alone (too long, refused, cut off) is told in its
place; what concerns all (key, address, a server that stays away) stops with an error, and what was answered
so far is kept.

Neither errors nor the log hold a word of what was sent or answered, nor the key.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from evidcore.errors import RecipeError, RunError
from evidcore.volume.cache import cache_root, fetch, naming_full_disk, store
from evidcore_plugin_text_metrics.endpoint_answers import (
    Again,
    Stop,
    Unanswered,
    read_answer,
    wait_asked_s,
    whole_characters,
)

if TYPE_CHECKING:
    import httpx2

_Opened = Callable[[], "httpx2.AsyncClient"]
Conversation = Sequence[Mapping[str, Any]]  # messages with "role" and "content": a text, or parts with images

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
        bodies = [self._body(one) for one in conversations]
        keys = [hashlib.sha256(f"{self.endpoint.url}\n{body}".encode()).hexdigest() for body in bodies]
        found: dict[str, str | Unanswered] = {}
        for key in dict.fromkeys(keys):
            kept = _kept(key)
            if kept is not None:
                found[key] = kept.decode()
        missing = {key: body for key, body in zip(keys, bodies, strict=True) if key not in found}
        if missing:
            found |= self._ask_all(missing)
        return [found[key] for key in keys]

    def _body(self, conversation: Conversation) -> str:
        own = {"model": self.endpoint.model, "messages": [dict(message) for message in conversation]}
        return whole_characters(json.dumps({**self.endpoint.body, **own}, sort_keys=True, ensure_ascii=False))

    def _ask_all(self, bodies: Mapping[str, str]) -> dict[str, str | Unanswered]:
        import httpx2

        work = _Work()
        plain = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        client = functools.partial(
            httpx2.AsyncClient, headers={**plain, **self.authorization()}, timeout=None,
            verify=httpx2.create_ssl_context(),
        )  # fmt: skip
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

    def _ask_and_keep(self, client: _Opened, key: str, body: str, work: _Work) -> str | Unanswered:
        answer = self._ask_until_answered(client, body, work)
        if isinstance(answer, str):
            _keep(key, answer)
        return answer

    def authorization(self) -> dict[str, str]:
        """Return the header with the key; none where no key is needed.

        Raises:
            RunError: if the variable that should hold it is not set, or holds no key.
        """
        name = self.endpoint.key_env
        if not name:
            return {}
        key = os.environ.get(name, "").strip()
        if not key:
            raise RunError(
                f"{self}: the environment variable {name!r} that should hold the key is not set. "
                f"Type: export {name}=…"
            )
        if not re.fullmatch(r"[!-~]+", key):
            raise RunError(f"{self}: what {name!r} holds is no key: a key is ASCII without white space.")
        return {"Authorization": f"Bearer {key}"}

    def _ask_until_answered(self, client: _Opened, body: str, work: _Work) -> str | Unanswered:
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

    def _ask_once(self, client: _Opened, body: str) -> str | Unanswered | Again | Stop:
        """Send once. The content of a failure is not looked at, since it may repeat what was sent."""
        import httpx2

        try:
            return asyncio.run(self._send(client, body))
        except TimeoutError:
            return Again(f"no whole answer within {self.endpoint.timeout_s:g} s")
        except httpx2.HTTPError as cause:
            return Again(f"a broken connection ({type(cause).__name__})")

    async def _send(self, client: _Opened, body: str) -> str | Unanswered | Again | Stop:
        """Send, and read headers and body by one deadline; no byte is unpacked."""
        address = f"{self.endpoint.url.rstrip('/')}/chat/completions"
        held = bytearray()
        async with (
            asyncio.timeout(self.endpoint.timeout_s),
            client() as opened,
            opened.stream("POST", address, content=body.encode()) as response,
        ):
            if response.status_code == 200:
                packing = response.headers.get("Content-Encoding", "identity")
                if packing != "identity":
                    return Stop(f"it packs its answers ({packing}), which it was asked not to. Check url.")
                async for chunk in response.aiter_raw():
                    held += chunk
                    if len(held) > _MOST_BYTES:
                        return Stop(f"an answer is longer than {_MOST_BYTES} bytes; lower body.max_tokens.")
            return read_answer(response.status_code, bytes(held), wait_asked_s(response.headers))

    def __str__(self) -> str:
        """Return what messages call it."""
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


def _folder() -> Path:
    return cache_root() / "endpoint"


def _kept(key: str) -> bytes | None:
    with naming_full_disk(_folder()):
        return fetch(_folder() / key[:2] / key)


def _keep(key: str, answer: str) -> None:
    with naming_full_disk(_folder()):
        _folder().mkdir(mode=0o700, parents=True, exist_ok=True)  # answers may hold words of reports
    store(_folder() / key[:2] / key, answer.encode())


def _check(endpoint: Endpoint, sends: Literal["text", "images"]) -> None:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(endpoint.url)
    except ValueError as cause:
        raise RecipeError(f"endpoint.url: {endpoint.url!r} is no address ({cause}).") from cause
    if parts.username or parts.password:
        raise RecipeError("endpoint.url: must hold no name and no password. Name a variable with key_env.")
    is_written_so = endpoint.url.isascii() and endpoint.url.isprintable() and " " not in endpoint.url
    is_complete = parts.scheme in ("http", "https") and parts.hostname
    if not is_written_so or not is_complete or parts.query or parts.fragment:
        raise RecipeError(
            f"endpoint.url: must be an address such as 'https://host/v1' without a query, "
            f"got {endpoint.url.partition('?')[0]!r}."
        )
    is_allowed, whose = {
        "text": (endpoint.sends_text_away, "reports"),
        "images": (endpoint.sends_images_away, "scans"),
    }[sends]
    if not is_allowed:
        raise RecipeError(
            f"endpoint: {sends} would be sent to {parts.hostname!r}, and the recipe does not allow it. If "
            f"those whose {whose} these are agree, write: sends_{sends}_away = true"
        )
    if endpoint.key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", endpoint.key_env):
        raise RecipeError(
            "endpoint.key_env: must be the name of an environment variable, not a key. "
            "Type: export CHAT_KEY=… and key_env = 'CHAT_KEY'"
        )
    for name in _OWN:
        if name in endpoint.body:
            raise RecipeError(f"endpoint.body.{name}: this field is the client's own; leave it out.")
