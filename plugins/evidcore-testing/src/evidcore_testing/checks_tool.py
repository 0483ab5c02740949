"""The check of tools."""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from evidcore.api import Prompt, TextPart, Tool, VisualPart
from evidcore_testing.checks_view import require_inside
from evidcore_testing.clauses import Clauses


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
    check = Clauses(tool)
    can_write = re.fullmatch(r"[a-z][a-z0-9_-]*", tool.name)
    check(can_write, "a model can write its name", f"got name {tool.name!r}")
    check(tool.description.strip(), "it has a description", f"got {tool.description!r}")
    clause = "the schema is a JSON schema of an object"
    try:
        schema = json.loads(json.dumps(tool.schema, allow_nan=False))
    except (TypeError, ValueError) as error:
        check.fail(clause, f"it cannot be written as JSON: {error}", error)
    properties, required = schema.get("properties"), schema.get("required", [])
    check(schema.get("type") == "object", clause, f"got type {schema.get('type')!r}")
    check(isinstance(properties, dict), clause, f"got properties {properties!r}")
    types = {"string", "number", "integer", "boolean", "array", "object", "null"}
    for name, each in properties.items():
        known = isinstance(each, dict) and (each.get("type") in types or {"enum", "anyOf"} & each.keys())
        check(known, clause, f"property {name!r} has no type: {each!r}")
    strangers = [name for name in required if name not in properties]
    check(not strangers, clause, f"required but not among the properties: {strangers}")
    for arguments in good:
        with check.raises_nothing("a good call gives parts", f"{dict(arguments)!r}"):
            parts, again = (tool(arguments, prompt) for _ in range(2))
        sound = parts and all(isinstance(part, TextPart | VisualPart) for part in parts)
        check(sound, "a good call gives parts", f"got {parts!r} for {dict(arguments)!r}")
        check(parts == again, "equal calls give equal parts", f"{parts}, then {again}")
        for part in parts:
            if isinstance(part, VisualPart):
                require_inside(check, part.crop, prompt.case)
    clause = "a bad call raises a ValueError with a message"
    incomplete = [
        {name: value for name, value in arguments.items() if name != missing}
        for arguments, missing in itertools.product(good, required)
    ]
    for arguments in (*bad, *incomplete):
        check.refuses(clause, f"{arguments!r}", partial(tool, arguments, prompt))
    numbers = [-(10**9), 10**30, 0.5, math.nan, math.inf]
    odd: list[Any] = [None, "?", "", [], {}, [None], *numbers, True, [math.nan] * 4]
    spoilt = [{**arguments, name: value} for arguments in good for name in arguments for value in odd]
    for arguments in (*spoilt, *({**arguments, "no-such-argument": 1} for arguments in good)):
        check.refuses(clause, f"{arguments!r}", partial(tool, arguments, prompt), always=False)
