"""Which stages of a recipe lead to one of them."""

from evidcore.api import Stage
from evidcore.recipe import Recipe


def stages_before(recipe: Recipe, place: int) -> dict[int, Stage]:
    """Return the stages that lead to one, by place: an arm's, and those of the recipe's line before them."""
    arm = recipe.stages[place].arm
    own = {at: stage for at, stage in enumerate(recipe.stages[:place]) if arm and stage.arm == arm}
    begins = min(own, default=place)
    return {at: stage for at, stage in recipe.line.items() if at < begins} | own
