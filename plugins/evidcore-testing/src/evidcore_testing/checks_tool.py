"""The check of tools."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from evidcore.api import Prompt, TextPart, Tool, VisualPart
from evidcore_testing.checks_view import require_inside
from evidcore_testing.clauses import broken, raised, raises_nothing, refusal, require


def check_tool(
    tool: Tool, prompt: Prompt, good: Sequence[Mapping[str, Any]], *, bad: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Assert the contract of a tool.

    - it has a name that a model can write and a description;
    - the schema is a JSON schema of an object;
    - a good call gives parts, of the prompt's own case, and the same parts again;
    - a bad call raises a ValueError with a message, and nothing else.

    Args:
        tool: the component under test.
        prompt: what the model is being asked.
        good: arguments that work, at least one.
        bad: arguments that do not, beside those made here by leaving out and spoiling the good ones'.
    """
    result = f"got name {tool.name!r}"
    require(bool(re.fullmatch(r"[a-z][a-z0-9_-]*", tool.name)), tool, "a model can write its name", result)
    require(bool(tool.description.strip()), tool, "it has a description", f"got {tool.description!r}")
    _schema_is_sound(tool)
    for arguments in good:
        _good_call(tool, arguments, prompt)
    clause = "a bad call raises a ValueError with a message"
    required = [str(name) for name in tool.schema.get("required", ())]
    incomplete = [
        {name: value for name, value in arguments.items() if name != missing}
        for arguments in good
        for missing in required
    ]
    for arguments in (*bad, *incomplete):
        refusal(tool, clause, f"{arguments!r}", partial(tool, arguments, prompt))
    for arguments in _spoilt(good):
        attempt = partial(tool, arguments, prompt)
        if raised(attempt) is not None:
            refusal(tool, clause, f"{arguments!r}", attempt)


def _schema_is_sound(tool: Tool) -> None:
    schema, clause = tool.schema, "the schema is a JSON schema of an object"
    try:
        plain = json.loads(json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError) as error:
        broken(tool, clause, f"it cannot be written as JSON: {error}")
    require(plain.get("type") == "object", tool, clause, f"got type {plain.get('type')!r}")
    properties = plain.get("properties")
    if not isinstance(properties, dict):
        broken(tool, clause, f"got properties {properties!r}")
    types = {"string", "number", "integer", "boolean", "array", "object", "null"}
    for name, each in properties.items():
        known = isinstance(each, dict) and (each.get("type") in types or "enum" in each or "anyOf" in each)
        require(known, tool, clause, f"property {name!r} has no type: {each!r}")
    required = plain.get("required", [])
    strangers = [name for name in required if name not in properties]
    require(not strangers, tool, clause, f"required but not among the properties: {strangers}")


def _good_call(tool: Tool, arguments: Mapping[str, Any], prompt: Prompt) -> None:
    clause = "a good call gives parts"
    with raises_nothing(tool, clause, f"{dict(arguments)!r}"):
        parts = tool(arguments, prompt)
        again = tool(arguments, prompt)
    sound = bool(parts) and all(isinstance(part, TextPart | VisualPart) for part in parts)
    require(sound, tool, clause, f"got {parts!r} for {dict(arguments)!r}")
    require(parts == again, tool, "equal calls give equal parts", f"{parts}, then {again}")
    for part in parts:
        if isinstance(part, VisualPart):
            require_inside(tool, part.crop, prompt.case)


def _spoilt(good: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Put odd values in the place of each argument of the good calls in turn; add an unknown one."""
    numbers = [-(10**9), 10**30, 0.5, math.nan, math.inf]
    odd: list[Any] = [None, "?", "", [], {}, [None], *numbers, True, [math.nan] * 4]
    calls = [{**arguments, name: value} for arguments in good for name in arguments for value in odd]
    return [*calls, *({**arguments, "no-such-argument": 1} for arguments in good)]
