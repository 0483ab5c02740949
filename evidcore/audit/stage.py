"""Stage `audit`: ask the same questions under several conditions, and say what the difference means."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from evidcore.contracts import Audit, EvalOptions, Row, StageContext, StageResult
from evidcore.contracts.stage import Dependencies, Key, Problems, StageTraits, Workload
from evidcore.errors import PluginError, RecipeError, did_you_mean
from evidcore.evaluate.eval_stage import AnonymizedPolicy, EvalStage, training
from evidcore.recipe import Recipe
from evidcore.recipe.schema import RecipeContext
from evidcore.registry import find
from evidcore.registry.factory import Option, options

POLICY = "policy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditStage(EvalStage):
    """Audit what the evaluations of the data entries measure; the keys of the audit are its own keys too."""

    audit: str = POLICY  # the component that asks and compares
    blind_arm: str = ""  # the arm that was trained alike over blank volumes: the policy is compared with it

    traits: ClassVar[StageTraits] = StageTraits(measures=True, compares=True)

    @classmethod
    def open_keys(cls, table: Mapping[str, Any], around: RecipeContext) -> Mapping[str, Option] | None:
        """Return the options of the audit and of the evaluations."""
        evaluations = super().open_keys(table, around)
        with contextlib.suppress(PluginError):
            known = options(find("audit", str(table.get("audit", POLICY))).load(), "audit")
            return None if evaluations is None else {**evaluations, **known}
        return None

    @classmethod
    def problems(cls, table: Mapping[str, Any], at: Key, around: RecipeContext) -> Problems:
        """Yield an audit that is not installed, and data entries that nothing can measure."""
        yield from super().problems(table, at, around)
        try:
            find("audit", str(table.get("audit", POLICY)))
        except PluginError as cause:
            yield (*at, "audit"), str(cause)
        arm = table.get("blind_arm")
        stages = [item for item in around.raw.get("stage", ()) if isinstance(item, Mapping)]
        arms = {str(item["arm"]) for item in stages[: int(at[-1])] if item.get("arm")}
        if arm and arm not in arms:
            text = f"no stage above has arm = {arm!r}.{did_you_mean(str(arm), arms)}"
            yield (*at, "blind_arm"), f"{text} Train it as the recipe's own, with volumes = 'blank'."

    def check(self, context: StageContext) -> None:
        """Build the evaluations; hold the blind arm to the training of the recipe's own policy."""
        super().check(context)
        if not self.blind_arm:
            return
        above = [*itertools.takewhile(lambda stage: stage is not self, context.recipe.stages)]
        known, arm = (
            {
                f"{stage.label}[{number}].{key}": value
                for number, stage in enumerate(
                    item for item in above if item.arm == name and item.output == "model"
                )
                for key, value in dataclasses.asdict(stage).items()
                if key != "arm"
            }
            for name in ("", self.blind_arm)
        )
        alike = {key: "blank" if key.endswith("].volumes") else value for key, value in known.items()}
        differing = [key for key in {**alike, **arm} if alike.get(key) != arm.get(key)]
        if differing:
            raise RecipeError(
                f"{context.where}.blind_arm: arm {self.blind_arm!r} must train as the recipe's own "
                f"policy, with volumes = 'blank'. It differs in {', '.join(differing[:4])}. Set these "
                "alike, or leave blind_arm out."
            )

    def depends_on(self, context: StageContext, upstream: Mapping[str, str]) -> Dependencies:
        """Return what an evaluation depends on, and the arm that it compares with."""
        needs, arm = super().depends_on(context, upstream), f"arm.{self.blind_arm}"
        sources = {arm: upstream[arm]} if arm in upstream else {}
        return dataclasses.replace(needs, upstream={**needs.upstream, **sources})

    def workload(self) -> Workload:
        """Return what is asked, and what it is compared with."""
        load = super().workload()
        beside = ", beside a trained blind arm"
        return dataclasses.replace(load, text=load.text + beside) if self.blind_arm else load

    def components(self, recipe: Recipe) -> Iterator[tuple[str, Any]]:
        """Yield the audit too, with its options."""
        yield from super().components(recipe)
        yield "audit", self.table("audit", self.audit)

    def ask(self, policy: AnonymizedPolicy, asking: EvalOptions, context: StageContext) -> StageResult:
        """Audit each data entry."""
        audit: Audit = context.component("audit", self.table("audit", self.audit), "audit")
        arm = None
        if self.blind_arm:
            arm = context.policy(prompts_per_pass=self.prompts_per_batch, arm=self.blind_arm)
        rows: list[Row] = []
        answers: list[Mapping[str, Any]] = []
        lines, verdicts = {}, {}
        for use in self.data:
            asking = dataclasses.replace(asking, dataset=context.dataset(use.dataset))
            prompts = self.prompts(use, context)
            policy.prove(prompts)
            result = audit(
                policy, prompts, context.tasks[use.task], self.evaluation(use, context),
                training(use, context), asking, use.task, arm,
            )  # fmt: skip
            rows += [*result.rows(), *policy.rows(use.task, asking.max_new_tokens)]
            verdicts[use.task] = f"{result.verdict()} {policy.caveat}".rstrip()
            if result.reference_lines():
                lines[use.task] = result.reference_lines()
            answers += result.lines()
        return StageResult(rows=tuple(rows), answers=tuple(answers), reference_lines=lines, verdict=verdicts)
