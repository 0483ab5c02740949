"""What an endpoint's HTTP answer means: a text, another try, a refusal of this text, or the end."""

from __future__ import annotations

import dataclasses
import datetime
import email.utils
import json
import re
from collections.abc import Mapping

_TRY_AGAIN = (408, 409, 425, 429)
_THIS_TEXT = (400, 413, 422)


@dataclasses.dataclass(frozen=True)
class Unanswered:
    """One conversation got no answer; holds nothing of its words."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Again:
    """It may work later; `wait_s` is what the endpoint asked for, None where it did not."""

    reason: str
    wait_s: float | None = None


@dataclasses.dataclass(frozen=True)
class Stop:
    """It will not work for any conversation."""

    reason: str


def read_answer(status: int, content: bytes, wait_s: float | None) -> str | Unanswered | Again | Stop:
    """Tell what an answer means.

    Args:
        status: HTTP status.
        content: the whole body of a status of 200, not needed for others.
        wait_s: pause that its headers ask for.
    """
    if status == 200:
        return _completion(content)
    if status in _TRY_AGAIN or status >= 500:
        return Again(f"HTTP {status}", wait_s)
    if status in _THIS_TEXT:
        return Unanswered(f"the endpoint refused the request with HTTP {status}")
    if status in (401, 403):
        return Stop(f"it answered HTTP {status}: the key is missing or not allowed. Check key_env.")
    if status == 404:
        return Stop("it answered HTTP 404. Check url (it ends with the version, as in '/v1') and model.")
    return Stop(f"it answered HTTP {status}, which is no completion. Check url.")


def wait_asked_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that `Retry-After` asks for, as a number or as a date; None where it does not."""
    asked = headers.get("Retry-After", "").strip()
    if not asked:
        return None
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", asked):
        return float(asked)
    try:
        date = email.utils.parsedate_to_datetime(asked)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=datetime.UTC)
    return max(0.0, (date - datetime.datetime.now(datetime.UTC)).total_seconds())


def _completion(content: bytes) -> str | Unanswered | Again:
    try:
        choice = json.loads(content)["choices"][0]
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


def whole_characters(text: str) -> str:
    """Return a text in which half a character, as of an emoji that was cut, is U+FFFD: it has no UTF-8."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)
