"""Which fields `trl = { … }` may pass to TRL, told without importing it, which takes seconds.

Those that a stage's trainer goes by are listed in trl_fields.toml. Others are refused: what the recipe says
by keys of its own, what names files, code or hosts elsewhere, and what would have no effect.
"""

import functools
import operator
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evidcore.errors import did_you_mean
from evidcore.registry.factory import Components, Form, mistakes_of
from evidcore.registry.signature import Option

CONFIGS: Mapping[str, str] = {"grpo": "GRPOConfig", "sft": "SFTConfig"}
_LISTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
DEFAULTS: Mapping[str, Mapping[str, Any]] = _LISTS["defaults"]
PASSED: Mapping[str, Mapping[str, str]] = {  # by stage: what its trainer goes by, each field with its type
    stage: {field: hint for part in ("both", stage) for field, hint in _LISTS["passed"][part].items()}
    for stage in CONFIGS
}
REFUSED: Mapping[str, str] = {
    **{field: f"the recipe says it with `{key}`" for field, key in _LISTS["recipe_key"].items()},
    **{field: why for why, listed in _LISTS["refused"].items() for field in listed},
}


def problems(stage: str, table: Mapping[str, Any], around: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (field, sentence) for every entry of a `trl` table, in a stage's, that cannot be passed on."""
    passed, known = PASSED[stage], {name for names in (REFUSED, *PASSED.values()) for name in names}
    given, wrong = {**around, **DEFAULTS[stage], **table}, []
    for field, value in table.items():
        need, *values = _LISTS["needs"].get(field, [field])
        if field not in known:
            text = f"{CONFIGS[stage]} has no such field.{did_you_mean(field, passed)}"
        elif field not in passed:
            why = REFUSED.get(field, f"it has no effect in stage `{stage}`")
            text = f"{why}; it cannot be set through trl, got {value!r}."
        elif passed[field] == "dict" and not isinstance(value, Mapping):
            text = f"must be a table, since a text may name a file, got {value!r}."
        elif passed[field] != "dict" and not _fits(passed[field], value):
            text = f"must be {passed[field]}, got {value!r}."
        elif value and (given.get(need) not in values if values else not given.get(need)):
            text = f"has no effect without {' = '.join([need, *map(repr, values)])}, got {value!r}."
        else:
            continue
        wrong.append((field, text))
    return wrong


def _fits(hint: str, value: Any) -> bool:
    """Tell whether a TOML value fits a type as it is written in Python."""
    names: dict[str, Any] = {"bool": bool, "int": int, "float": float, "str": str, "list": list}
    made = functools.reduce(operator.or_, [names[part] for part in hint.split(" | ")])
    form = Form({"value": Option(name="value", type=made, default=None)})
    return not mistakes_of(lambda table: form.check(table, Components()), {"value": value})[1]
