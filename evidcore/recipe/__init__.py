"""Recipes: strict TOML in, a frozen Recipe out; every mistake at once, each with its line."""

from evidcore.recipe.load import load
from evidcore.recipe.resolve import to_toml
from evidcore.recipe.shape import (
    Audit,
    DataUse,
    Evaluate,
    Fit,
    Grpo,
    Language,
    Lora,
    Model,
    Recipe,
    Sft,
    Stage,
    data_uses,
)

__all__ = [
    "Audit",
    "DataUse",
    "Evaluate",
    "Fit",
    "Grpo",
    "Language",
    "Lora",
    "Model",
    "Recipe",
    "Sft",
    "Stage",
    "data_uses",
    "load",
    "to_toml",
]
