"""Recipes: strict TOML in, a frozen Recipe out; every mistake at once, each with its line."""

from evidcore.recipe.load import load
from evidcore.recipe.resolve import to_toml
from evidcore.recipe.schema import DataUse, Model, Recipe

__all__ = ["DataUse", "Model", "Recipe", "load", "to_toml"]
