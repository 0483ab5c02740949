"""Read a recipe: TOML and `--set` in, a checked frozen Recipe out, or every mistake at once."""

import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.cache import plain_file
from evidcore.errors import RecipeError, did_you_mean
from evidcore.recipe import schema
from evidcore.recipe.check import StageTable, check, section
from evidcore.recipe.lines import Key, key_lines, line_of
from evidcore.recipe.resolve import toml_tables
from evidcore.registry import LOCK, factory, parse_toml, watch
from evidcore.registry.factory import Components
from evidcore.registry.signature import fields

_STEP = re.compile(r"([A-Za-z0-9_-]+)((?:\[\d+\])*)")


def load(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> schema.Recipe:
    """Read and check a recipe. Imports the components that it names.

    Args:
        source: a TOML file, or the tables of one: their relative paths start in the working directory.
        overrides: what `--set` gave, `stage.grpo.steps=3`; values are TOML.

    Raises:
        RecipeError: naming the file, and every mistake with its line.
    """
    if isinstance(source, Mapping):
        path, text = Path("recipe given as a dict"), toml_tables(source)
        raw = parse_toml(text)
    else:
        path = Path(source)
        text, raw = read_toml(path)
    lines = key_lines(text)
    origins: dict[Key, str] = {}
    wrong: list[tuple[int, str]] = []
    for item in overrides:
        try:
            origins[_override(raw, item)] = "command line"
        except ValueError as cause:
            wrong.append((0, f"command line, --set {item}: {cause}"))
    lock = path.resolve().parent / LOCK
    if (pins := watch("pins", f"{lock}: comparing what it pins" if lock.exists() else "")) is not None:
        pins.name_packages(raw, lock, str(path))
    top, result = check(raw)
    for problem in result:
        line = line_of(lines, problem.key)
        where = "" if isinstance(source, Mapping) else f"line {line}, "
        if any(problem.key[: len(key)] == key for key in origins):
            line, where = 0, "command line, "
        wrong.append((line, f"{where}{section(raw, problem.key)}: {problem.text}"))
    refuse(path, wrong)
    text_lines = text.split("\n")  # a resolved recipe tells what is a default
    given = {key: line for key, line in lines.items() if not text_lines[line - 1].endswith("  # default")}
    origins = {key: f"line {line}" for key, line in given.items()} | origins
    if not raw.get("arms", True):
        origins = _without_arms(raw, origins)
    top = {**{item.name: item.default for item in fields(schema.Top)}, **top}
    services = top["service"]
    around = schema.RecipeContext(raw, {name: str(table["kind"]) for name, table in services.items()})
    stages = tuple(
        _stage(item, around, left_out=() if top["arms"] else ("blind_arm",))
        for item in top["stage"]
        if top["arms"] or not item.values.get("arm")
    )
    named = {use.task for stage in stages for use in stage.data_uses() if use.task} - top["task"].keys()
    direct = {name: Components().table("task", {"use": name}) for name in sorted(named)}
    folder = Path(top["recipe_folder"] or path.parent).resolve()
    if top["fitted"] and not (folder / top["fitted"]).is_dir():
        raise RecipeError(f"{path}: fitted: {folder / top['fitted']}: no such folder. Leave the key out.")
    return schema.Recipe(
        name=top["name"], seed=top["seed"], folder=folder, path=path, text=text, overrides=tuple(overrides),
        origins=origins, observers=top["observers"], fitted=top["fitted"], threads=top["threads"],
        datasets=top["dataset"], tasks=top["task"] | direct, services=services,
        model=top["model"], features=top["features"], stages=stages,
    )  # fmt: skip


def _without_arms(raw: dict[str, Any], origins: Mapping[Key, str]) -> dict[Key, str]:
    """Take the stages of arms out of a checked recipe; return where the values of the others come from."""
    left = [place for place, stage in enumerate(raw["stage"]) if not stage.get("arm")]
    raw["stage"] = [raw["stage"][place] for place in left]
    result = {key: origin for key, origin in origins.items() if key[:1] != ("stage",) or len(key) == 1}
    for now, place in enumerate(left):
        result |= {
            ("stage", now, *key[2:]): source for key, source in origins.items() if key[:2] == ("stage", place)
        }
    return result


def refuse(path: Path, wrong: Sequence[tuple[int, str]]) -> None:
    """Raise every mistake of a file at once, each with the line that it is sorted by, if there is any."""
    if wrong:
        count = "1 mistake" if len(wrong) == 1 else f"{len(wrong)} mistakes"
        listing = "\n".join(f"  {text}" for _, text in sorted(wrong))
        raise RecipeError(f"{path}: {count}\n{listing}")


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """Return a TOML file as text and as tables."""
    try:
        text = plain_file(path).read_text(encoding="utf-8-sig")  # some editors write a byte order mark
    except FileNotFoundError as cause:
        beside = [item.name for item in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, beside) or f" There: {', '.join(sorted(beside)) or 'no .toml file'}."
        raise RecipeError(f"{path}: no such file.{hint}") from cause
    except (OSError, UnicodeDecodeError) as cause:
        text = f"{path}: cannot be read as UTF-8 text ({cause}). Give a recipe, a TOML file."
        raise RecipeError(text) from cause
    try:
        return text, parse_toml(text)
    except tomllib.TOMLDecodeError as cause:
        result = re.search(r"^(.*) \(at (?:line (\d+), column (\d+)|end of document)\)$", str(cause))
        if result is None:  # it says no place
            raise RecipeError(f"{path}: not TOML that can be read: {cause}.") from cause
        what = result.group(1)
        line = result.group(2) if result.group(2) else str(text.rstrip().count("\n") + 1)
        written = text.split("\n")[int(line) - 1].strip()[:80] if text.strip() else ""
        raise RecipeError(f"{path}: 1 mistake\n  line {line}, not TOML: {what}, in {written!r}.") from cause


def _override(raw: dict[str, Any], item: str) -> Key:
    """Put one `--set` into the tables and return where."""
    name, equals, text = item.partition("=")
    if not equals:
        raise ValueError("must read path=value, as in stage.grpo.steps=3.")
    try:
        value = parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as cause:
        raise ValueError(
            f"{text!r} is not a TOML value; a text needs quotes: '{name}=\"{text}\"'."
        ) from cause
    steps: list[str | int] = []
    for part in name.strip().split("."):
        result = _STEP.fullmatch(part)
        if result is None:
            raise ValueError(f"{part!r} is not a key; write keys with dots and places with [0].")
        steps += [result.group(1), *(int(place) for place in re.findall(r"\d+", result.group(2)))]
    steps = _stage_place(raw, steps)
    target: Any = raw
    for depth, step in enumerate(steps, start=1):
        is_key = isinstance(step, str) and isinstance(target, dict)
        if not is_key and not (isinstance(step, int) and isinstance(target, list) and step < len(target)):
            raise ValueError(f"there is no {factory.show(tuple(steps[:depth])).lstrip('.')} in the recipe.")
        if depth == len(steps):
            target[step] = value
        else:
            target = target.setdefault(step, {}) if is_key else target[step]
    return tuple(steps)


def _stage_place(raw: Mapping[str, Any], steps: list[str | int]) -> list[str | int]:
    """Turn `stage.grpo`, `stage.fit[1]`, and `stage.longer.sft` of an arm "longer" into the stage's place."""
    if len(steps) < 2 or steps[0] != "stage" or isinstance(steps[1], int):
        return steps
    stages = raw.get("stage", [])
    arms = {stage["arm"] for stage in stages if stage.get("arm")}
    arm = steps[1] if len(steps) > 2 and steps[1] in arms else ""
    named, whose = (f"stage.{arm}.", f"arm {arm!r}") if arm else ("stage.", "recipe")
    kind, *rest = steps[2:] if arm else steps[1:]
    kinds = {index: stage.get("kind") for index, stage in enumerate(stages) if stage.get("arm", "") == arm}
    twins = [index for index, known in kinds.items() if known == kind]
    if not twins:
        known = sorted({str(kind) for kind in kinds.values()})
        raise ValueError(f"the {whose} has no {kind} stage; it has {', '.join(known) or 'none'}.")
    if rest and isinstance(rest[0], int):
        if rest[0] >= len(twins):
            raise ValueError(f"the {whose} has {len(twins)} {kind} stages, counted from 0, got [{rest[0]}].")
        return ["stage", twins[rest[0]], *rest[1:]]
    if len(twins) > 1:
        choices = ", ".join(f"{named}{kind}[{index}]" for index in range(len(twins)))
        raise ValueError(f"the {whose} has {len(twins)} {kind} stages; say which: {choices}.")
    return ["stage", twins[0], *rest]


def _stage(table: StageTable, around: schema.RecipeContext, left_out: Sequence[str]) -> Any:
    defaults = {item.name: item.default for item in fields(table.form) if not item.is_required}
    keys = {item.name for item in fields(table.form)}
    given = {name: value for name, value in table.values.items() if name in keys - {*left_out}}
    values = table.form.filled({**defaults, **given}, around)
    if any(item.metadata.get("open") for item in dataclasses.fields(table.form)):
        values["options"] = table.options
    return table.form(**values)
