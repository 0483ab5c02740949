"""Ask whatever judges texts whether it has what it needs, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evidcore.contracts import Metric, Reward, Scorer
from evidcore.recipe import Evaluate, Grpo, Stage
from evidcore.registry import blame, factory
from evidcore.registry.factory import offer_of
from evidcore.run.measuring import labeler_of, metrics_of
from evidcore.run.parts import Parts


def check_ready(parts: Parts) -> None:
    """Build the metrics, rescue scorers and rewards of every stage, and ask each whether anything is missing.

    Raises:
        EvidError: what is missing, and what to type.
    """
    for place, stage in enumerate(parts.recipe.stages):
        name = parts.recipe.stage_name(place)
        for judge in _judges(parts, stage, name):
            ask(judge, name)


def ask(judge: Metric | Scorer | Reward, stage: str) -> None:
    """Ask one component for a stage.

    Raises:
        EvidError: what is missing, and what to type.
    """
    with blame(offer_of(judge), f"looking for what {stage} needs"):
        judge.ready()


def _judges(parts: Parts, stage: Stage, name: str) -> Iterator[Metric | Scorer | Reward]:
    given: dict[str, Any] = {"recipe_folder": parts.recipe.folder}
    if isinstance(stage, Evaluate):
        yield from (named.metric for named in metrics_of(parts, stage, labeler_of(parts, stage, name), name))
        yield factory.build(
            "scorer", stage.rescue, given=given, where=f"{name}.rescue", services=parts.services
        )
    if isinstance(stage, Grpo):
        for table in stage.reward:
            where = f"{name}.reward {table['use']}"
            yield factory.build(
                "reward", table, given={**given, "policy": None}, where=where, services=parts.services
            )
