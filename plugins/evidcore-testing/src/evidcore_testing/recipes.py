"""The text of a recipe over phantoms and a tiny model; a test gives its stages."""

from collections.abc import Mapping
from typing import Any

from evidcore.recipe.resolve import toml_value

MODEL: Mapping[str, Any] = {
    "language": {"use": "tiny", "width": 32, "layers": 1},
    "view": {"use": "volume"},
    "encoder": {"use": "vit3d", "width": 48, "layers": 1, "heads": 4, "patch_zyx": [8, 16, 16]},
    "bridge": {"use": "projection"},
}


def recipe_text(*stages: Mapping[str, Any], **tables: Any) -> str:
    """Write a recipe as its file has it: `tables` over the usual ones, parts of `model` over `MODEL`."""
    top = {"schema": 1, "name": "tiny", "seed": 17, "dataset": {"chest": {"use": "phantom-chest"}}, **tables}
    top["model"] = {**MODEL, **tables.get("model", {})}
    return "\n".join([*_lines(top), *(stage_text(**stage) for stage in stages)])


def stage_text(**table: Any) -> str:
    """Write a stage as a recipe's file has it."""
    return "\n".join(["[[stage]]", *_lines(table), ""])


def replaced(text: str, *pairs: tuple[str, str], count: int = -1) -> str:
    """Return a text with pieces replaced, each of which it must hold; `count` is that of `str.replace`."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new, count)
    return text


def phantoms(train: int, validation: int, test: int, **options: Any) -> dict[str, Any]:
    """Give the table of a data set of chest phantoms, so many cases a split."""
    counts = {"train_cases": train, "validation_cases": validation, "test_cases": test}
    return {"use": "phantom-chest", **counts, **options}


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {toml_value(value)}" for key, value in table.items()]
