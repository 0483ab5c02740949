"""Build what an evaluate stage measures texts by."""

from __future__ import annotations

from typing import Any

from evidcore.contracts import Labeler, Metric
from evidcore.evaluate.measuring import NamedMetric
from evidcore.plugins import factory
from evidcore.recipe import Evaluate
from evidcore.run.parts import Parts


def labeler_of(parts: Parts, stage: Evaluate, where: str) -> Labeler:
    """Return what reads the findings of a stage's reports."""
    given = {"recipe_folder": parts.recipe.folder}
    labeler: Labeler = factory.build(
        "labeler", stage.labeler, given=given, where=f"{where}.labeler", services=parts.services
    )
    return labeler


def metrics_of(parts: Parts, stage: Evaluate, labeler: Labeler, where: str) -> list[NamedMetric]:
    """Return the metrics of a stage, in the recipe's order."""
    given: dict[str, Any] = {"recipe_folder": parts.recipe.folder, "labeler": labeler}
    found = []
    for place, table in enumerate(stage.metric):
        metric: Metric = factory.build(
            "metric", table, given=given, where=f"{where}.metric[{place}]", services=parts.services
        )
        name, bare = str(table["name"]), str(table["use"]).rpartition("/")[2]
        found.append(NamedMetric(metric=metric, name=name or bare, prefix=f"{name}_" if name else ""))
    return found
