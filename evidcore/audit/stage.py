"""Stage `audit`: ask the same questions under several conditions, and say what the difference means."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from evidcore.contracts import Asking, Audit, Policy, Row, StageContext, StageResult, Workload
from evidcore.contracts.stage import Found, Key
from evidcore.errors import PluginError, RecipeError
from evidcore.evaluate.asking import AskingStage, training
from evidcore.recipe import Recipe
from evidcore.recipe.shape import Surroundings
from evidcore.registry import find
from evidcore.registry.factory import Option, options

POLICY = "policy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditStage(AskingStage):
    """Audit what the evaluations of the data entries measure; the keys of the audit are its own keys too."""

    audit: str = POLICY  # the component that asks and compares
    blind_arm: bool = False  # also train a policy alike over blank volumes, and compare with it

    compares: ClassVar[bool] = True

    @classmethod
    def open_keys(cls, table: Mapping[str, Any], around: Surroundings) -> Mapping[str, Option] | None:
        """Return the options of the audit and of the evaluations."""
        evaluations = super().open_keys(table, around)
        with contextlib.suppress(PluginError):
            own = options(find("audit", str(table.get("audit", POLICY))).load(), "audit")
            return None if evaluations is None else {**evaluations, **own}
        return None

    @classmethod
    def problems(cls, table: Mapping[str, Any], at: Key, around: Surroundings) -> Found:
        """Yield an audit that is not installed, and data entries that nothing can measure."""
        yield from super().problems(table, at, around)
        try:
            find("audit", str(table.get("audit", POLICY)))
        except PluginError as cause:
            yield (*at, "audit"), str(cause)
        if table.get("blind_arm") is True and table.get("arm"):
            text = "it is trained as the recipe's own policy, and this one stands in an arm. Leave one out."
            yield (*at, "blind_arm"), text
        elif table.get("blind_arm") is True and "bridge" not in around.has_weights:
            text = "no stage above trains a policy, so none can be trained alike. Put sft or grpo above."
            yield (*at, "blind_arm"), text

    @property
    def has_blind_arm(self) -> bool:
        """Return what its key says."""
        return self.blind_arm

    def check(self, context: StageContext) -> None:
        """Build the evaluations; look whether the stages above can be gone through blind."""
        super().check(context)
        if self.blind_arm:
            above = itertools.takewhile(lambda stage: stage is not self, context.recipe.stages)
            for stage in above:
                if not stage.arm and stage.blanked() is None:
                    text = f"stage {stage.label!r} above cannot train over blank volumes"
                    raise RecipeError(f"{context.where}.blind_arm: {text}. Leave blind_arm out.")

    def workload(self) -> Workload:
        """Return what is asked, and that an arm is trained for it."""
        load = super().workload()
        beside = ", beside a trained blind arm"
        return dataclasses.replace(load, text=load.text + beside) if self.blind_arm else load

    def components(self, recipe: Recipe) -> Iterator[tuple[str, Any]]:
        """Yield the audit too, with its options."""
        yield from super().components(recipe)
        yield "audit", self.table("audit", self.audit)

    def ask(self, policy: Policy, asking: Asking, context: StageContext) -> StageResult:
        """Audit each data entry."""
        audit: Audit = context.component("audit", self.table("audit", self.audit), "audit")
        arm = None
        if self.blind_arm:
            arm = context.policy(prompts_per_pass=self.prompts_per_batch, blind_arm=True)
        rows: list[Row] = []
        answers: list[Mapping[str, Any]] = []
        lines, verdicts = {}, {}
        for use in self.data:
            asking = dataclasses.replace(asking, dataset=context.dataset(use.dataset))
            found = audit(
                policy, self.prompts(use, context), context.tasks[use.task], self.evaluation(use, context),
                training(use, context), asking, use.task, arm,
            )  # fmt: skip
            rows += found.rows()
            verdicts[use.task] = found.verdict()
            if found.reference_lines():
                lines[use.task] = found.reference_lines()
            answers += found.lines()
        return StageResult(rows=tuple(rows), answers=tuple(answers), reference_lines=lines, verdict=verdicts)
