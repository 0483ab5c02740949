"""Which fields `trl = { … }` may pass to TRL, found in its installed source without importing it.

Those that a stage's trainer goes by are listed in trl_fields.toml. Others are refused: what the recipe says
by keys of its own, what names files, code or hosts elsewhere, and what would have no effect.
"""

import ast
import functools
import operator
import tomllib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evidcore.errors import EvidError, did_you_mean
from evidcore.registry.factory import Components, Form, mistakes_of
from evidcore.registry.signature import Option

CONFIGS: Mapping[str, str] = {"grpo": "GRPOConfig", "sft": "SFTConfig"}
_LISTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
DEFAULTS: Mapping[str, Mapping[str, Any]] = _LISTS["defaults"]
REFUSED: Mapping[str, str] = {
    **{field: f"the recipe says it with `{key}`" for field, key in _LISTS["recipe_key"].items()},
    **{field: why for why, listed in _LISTS["refused"].items() for field in listed},
}


def allowed(stage: str) -> set[str]:
    """Return the fields that a `sft` or `grpo` stage may pass: those that its trainer goes by."""
    return {*_LISTS["passed"]["both"], *_LISTS["passed"][stage]}


@functools.cache
def fields(stage: str) -> dict[str, str]:
    """Return the fields of the trainer configuration of a `sft` or `grpo` stage, each with its annotation."""
    trl, transformers = _folder("trl"), _folder("transformers")
    result: dict[str, str] = {}
    for file in (
        transformers / "training_args.py",
        trl / "trainer" / "base_config.py",
        trl / "trainer" / f"{stage}_config.py",
    ):
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except OSError as cause:
            raise EvidError(f"{file}: cannot be read. pip install 'trl>=1.16,<1.17'.") from cause
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                result |= {
                    item.target.id: ast.unparse(item.annotation)
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                }
    if "learning_rate" not in result:
        raise EvidError(f"{trl}: {CONFIGS[stage]} has no fields here. pip install 'trl>=1.16,<1.17'.")
    return result


def problems(stage: str, table: Mapping[str, Any], around: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (field, sentence) for every entry of a `trl` table, in a stage's, that cannot be passed on."""
    known, passed = fields(stage), allowed(stage)
    given, wrong = {**around, **DEFAULTS[stage], **table}, []
    for field, value in table.items():
        need, *values = _LISTS["needs"].get(field, [field])
        if field not in known:
            text = f"{CONFIGS[stage]} of the installed trl has no such field.{did_you_mean(field, passed)}"
        elif field not in passed:
            why = REFUSED.get(field, f"it has no effect in stage `{stage}`")
            text = f"{why}; it cannot be set through trl, got {value!r}."
        elif "dict" in known[field] and not isinstance(value, Mapping):
            text = f"must be a table, since a text may name a file, got {value!r}."
        elif not _fits(known[field], value):
            text = f"must be {known[field]}, got {value!r}."
        elif value and (given.get(need) not in values if values else not given.get(need)):
            text = f"has no effect without {' = '.join([need, *map(repr, values)])}, got {value!r}."
        else:
            continue
        wrong.append((field, text))
    return wrong


def _folder(package: str) -> Path:
    spec = find_spec(package)  # of a top-level name: finds it without importing it
    if spec is None or spec.origin is None:
        raise EvidError(f"{package} is not installed. `pip install {package}`.")
    return Path(spec.origin).parent


def _fits(annotation: str, value: Any) -> bool:
    """Tell whether a TOML value fits a plain annotation; one that is not plain lets everything pass."""
    names: dict[str, Any] = {
        "bool": bool, "int": int, "float": float, "str": str, "dict": dict, "list": list, "None": None,
    }  # fmt: skip
    parts = [part.strip() for part in annotation.split("|")]
    if not names.keys() >= set(parts):
        return True
    hint = functools.reduce(operator.or_, [names[part] for part in parts])
    form = Form({"value": Option(name="value", type=hint, default=None)})
    return not mistakes_of(lambda table: form.check(table, Components()), {"value": value})[1]
