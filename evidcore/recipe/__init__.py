"""Recipes: strict TOML in, a frozen Recipe out; every mistake at once, each with its line.

Belongs here: the keys of a recipe, and what they say against each other. `schema` is a leaf that contracts
build on. Nothing here imports torch. Imported by contracts, runs and the command line.
"""

from evidcore.recipe.load import load
from evidcore.recipe.resolve import to_toml
from evidcore.recipe.schema import DataUse, Model, Recipe

__all__ = ["DataUse", "Model", "Recipe", "load", "to_toml"]
