"""The two models that ship with this package, and their audit."""

import dataclasses
from pathlib import Path
from typing import Any

from evidcore_plugin_audit.external import write_alone
from evidcore_plugin_audit.post_run import auditing

from evidcore.compute.signals import stop_request
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import StageOutputs
from evidcore.runs.folder import RunFolder

HERE = Path(__file__).parent
TRAINING = HERE / "train.toml"  # makes the models
RECIPE = HERE / "tour.toml"  # asks them
MODELS = HERE / "models"
MADE = MODELS / "made.json"  # of what they were made
TASK = "choice"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shipped:
    """A model, and how it was trained."""

    name: str
    trained_on: str

    @property
    def folder(self) -> Path:
        return MODELS / self.name


SCAN = Shipped(name="scan-reader", trained_on="trained on scans with their questions")
WORDS = Shipped(name="word-reader", trained_on="trained alike over blank volumes: it knows the words alone")


def audit(model: Shipped, root: Path) -> tuple[RunFolder, dict[str, Any]]:
    """Audit a model in a new run folder; return the folder with the result.

    The model that was trained over blank volumes is the trained blind arm of the other one.

    Args:
        model: one of the two.
        root: where runs lie.
    """
    own = [f'name="tour-{model.name}"', f'model.language.folder="models/{model.name}"']
    assembly = Assembly(load(RECIPE, own))
    arms = {"words": WORDS.folder} if model is SCAN else {}
    (asked,) = assembly.recipe.stages
    stage = auditing(asked, blind_arm="".join(arms))
    before = StageOutputs(model=model.folder, arms=arms)
    with stop_request.installed():
        told = f"model {model.name}, {model.trained_on}"
        return write_alone(assembly, stage, root, told, before=before)
