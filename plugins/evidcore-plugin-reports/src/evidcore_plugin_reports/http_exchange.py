"""One request and its whole answer: a deadline for all of it, a bound on its bytes, nothing unpacked.

Neither errors nor the log hold a word of what was sent or answered, nor the key.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from evidcore.errors import RecipeError, RunError

if TYPE_CHECKING:
    import httpx2

Opened = Callable[[], "httpx2.AsyncClient"]


class Interrupted(Exception):
    """No whole answer came; it may come later."""


class Unreadable(Exception):
    """What came is nothing that is read here."""


class TooLong(Unreadable):
    """It has more bytes than were agreed on."""


@dataclasses.dataclass(frozen=True)
class Answered:
    """An answer; `content` is read of a status of 200 alone, since a failure may repeat what was sent."""

    status: int
    headers: Mapping[str, str]
    content: bytes = b""


def opener(headers: Mapping[str, str]) -> Opened:
    """Return what opens a connection that sends JSON with these headers."""
    import httpx2

    plain = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    return functools.partial(
        httpx2.AsyncClient, headers={**plain, **headers}, timeout=None, verify=httpx2.create_ssl_context()
    )


def exchange(
    client: Opened, method: str, address: str, body: bytes, *, timeout_s: float, most_bytes: int
) -> Answered:
    """Send, and read headers and body by one deadline.

    Raises:
        Interrupted: at the deadline, or if the connection breaks.
        Unreadable: if the answer is packed; TooLong, if it is longer than `most_bytes`.
    """
    import httpx2

    async def run() -> Answered:
        buffer = bytearray()
        async with (
            asyncio.timeout(timeout_s),  # ends a request whatever it waits for, which no read timeout does
            client() as opened,
            opened.stream(method, address, content=body) as response,
        ):
            if response.status_code == 200:
                packing = response.headers.get("Content-Encoding", "identity")
                if packing != "identity":  # unpacked, it could pass the bound
                    text = f"it packs its answers ({packing}), which it was asked not to. Check url."
                    raise Unreadable(text)
                async for chunk in response.aiter_raw():
                    buffer += chunk
                    if len(buffer) > most_bytes:
                        raise TooLong(f"an answer is longer than {most_bytes} bytes")
            return Answered(response.status_code, response.headers, bytes(buffer))

    try:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(run())
        # in a notebook a loop runs in this thread already, so another one waits
        with concurrent.futures.ThreadPoolExecutor(max_workers=1) as item:
            return item.submit(lambda: asyncio.run(run())).result()
    except TimeoutError:
        raise Interrupted(f"no whole answer within {timeout_s:g} s") from None
    except httpx2.HTTPError as cause:
        raise Interrupted(f"a broken connection ({type(cause).__name__})") from cause


def host_of(url: str, where: str) -> str:
    """Return the host of an address that a recipe names as `where`.

    Raises:
        RecipeError: if it is none, or holds what an address here must not.
    """
    try:
        parts = urlsplit(url)
    except ValueError as cause:
        raise RecipeError(f"{where}: {url!r} is no address ({cause}).") from cause
    if parts.username or parts.password:
        raise RecipeError(f"{where}: must hold no name and no password. Name a variable with key_env.")
    is_written_so = url.isascii() and url.isprintable() and " " not in url
    is_complete = parts.scheme in ("http", "https") and parts.hostname
    if not is_written_so or not is_complete or parts.query or parts.fragment:
        must = "must be an address such as 'https://host/v1' without a query"
        raise RecipeError(f"{where}: {must}, got {url.partition('?')[0]!r}.")
    return str(parts.hostname)


def check_key_env(name: str, where: str) -> None:
    """Refuse what is no name of an environment variable.

    Raises:
        RecipeError: naming `where`, and never the value, which may be a key.
    """
    if name and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        must = "must be the name of an environment variable, not a key"
        raise RecipeError(f"{where}: {must}. Type: export CHAT_KEY=… and key_env = 'CHAT_KEY'")


def authorization(key_env: str, url: str, whose: str) -> dict[str, str]:
    """Return the header with the key that a variable holds; none where `key_env` is empty.

    The variable `<key_env>_HOST` names the host that may be sent it: a recipe may be a stranger's, and must
    not choose which of the user's keys goes where. Another machine without TLS is named with its "http://".

    Raises:
        RunError: if either is not set, or the first holds no key; `whose` is what it calls the server.
    """
    if not key_env:
        return {}
    key = os.environ.get(key_env, "").strip()
    if not key:
        what = f"the environment variable {key_env!r} that should hold the key is not set"
        raise RunError(f"{whose}: {what}. Type: export {key_env}=…")
    if not re.fullmatch(r"[!-~]+", key):
        raise RunError(f"{whose}: what {key_env!r} holds is no key: a key is ASCII without white space.")
    parts, named = urlsplit(url), os.environ.get(f"{key_env}_HOST")
    is_open = parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1")
    place = f"{parts.scheme}://{parts.netloc}"
    if named != place and (is_open or named not in (parts.netloc, parts.hostname)):
        text = f"{whose}: the key in {key_env!r} would be sent to {place}, as the recipe says."
        raise RunError(f"{text} If it may, type: export {key_env}_HOST={place}")
    return {"Authorization": f"Bearer {key}"}
