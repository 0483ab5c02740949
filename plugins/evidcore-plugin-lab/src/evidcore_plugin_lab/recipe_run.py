"""`evidcore.run`: run a recipe from Python."""

import os
from pathlib import Path

from evidcore_plugin_audit.given_recipe import Given, Overrides, given_recipe
from evidcore_plugin_audit.run_reader import Run, run_to_completion

from evidcore.registry import watch
from evidcore.runs.assembly import Assembly
from evidcore.runs.begin import start


def run(
    recipe: Given,
    *,
    out: str | os.PathLike[str] = "runs",
    overrides: Overrides = (),
    fresh: bool = False,
    locked: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Run:
    """Run a recipe as `evid run` does: train, measure, audit, and write the evidence page.

    An interrupt leaves a run that `Run(folder).resume()` goes on with; the error names the folder.

    Args:
        recipe: a TOML file; the tables of one as a dict; or a recipe that was read by `evidcore.recipe.load`.
        out: where runs lie.
        overrides: changed keys, `{"stage.grpo.steps": 3}` or `["stage.grpo.steps=3"]`.
        fresh: run every stage anew, even where an earlier run has its result.
        locked: a run's lock.toml or an evid.lock; whatever differs is refused.
        progress: print how far it is.

    Raises:
        RecipeError: every mistake of the recipe, before anything is trained.
        EvidError: whatever else a person can fix.
    """
    lock = None if locked is None else Path(locked)
    if lock is not None:
        watch("pins", f"{lock}: comparing with it").hold_to(lock)
    assembly = Assembly(given_recipe(recipe, overrides))
    folder = start(assembly.recipe, Path(out), fresh=fresh, assembly=assembly, locked=lock)
    return run_to_completion(folder, progress=progress, accept_changes=False, assembly=assembly)
