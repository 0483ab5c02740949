"""Build what an evaluate stage measures answers by."""

from __future__ import annotations

from typing import Any

from evidcore.contracts import Labeler, Metric, Segmenter
from evidcore.evaluate.measuring import NamedMetric
from evidcore.recipe import Audit, Evaluate
from evidcore.registry import factory
from evidcore.run.parts import Parts
from evidcore.volume import cache_root


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


def segmenter_of(parts: Parts, stage: Evaluate | Audit, where: str) -> Segmenter:
    """Return what makes masks of the boxes that answers name: a service, or one of the stage's own."""
    segmenter: Segmenter
    if isinstance(stage.segmenter, str):
        segmenter = parts.services[stage.segmenter]
    else:
        given = {"recipe_folder": parts.recipe.folder, "cache_folder": cache_root()}
        segmenter = factory.build(
            "segmenter", stage.segmenter, given=given, where=f"{where}.segmenter", services=parts.services
        )
    return segmenter
