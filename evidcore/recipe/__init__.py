"""Recipes: strict TOML in, a frozen Recipe out; every mistake at once, each with its line.

Belongs here: the keys of a recipe, and what they say against each other. `schema` is a leaf that contracts
build on. Nothing here imports torch. Imported by contracts, runs and the command line.
"""

from evidcore.recipe.load import load as load
from evidcore.recipe.resolve import to_toml as to_toml
from evidcore.recipe.schema import DataUse as DataUse
from evidcore.recipe.schema import Model as Model
from evidcore.recipe.schema import Recipe as Recipe
