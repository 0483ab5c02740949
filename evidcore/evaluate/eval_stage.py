"""What the stages that ask have in common: which evaluation measures a data entry, and how it is asked."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from evidcore.case import Prompt
from evidcore.contracts import (
    EvalOptions,
    Evaluation,
    Policy,
    Row,
    Stage,
    StageContext,
    StageResult,
    StageTraits,
    Workload,
)
from evidcore.contracts.model import ForwardingPolicy
from evidcore.contracts.stage import Key, Problems
from evidcore.errors import EmptySplitError, PluginError, RecipeError
from evidcore.evaluate.reference_lines import training_prompts
from evidcore.proof.passes import prove_answers, prove_policy
from evidcore.recipe import Recipe
from evidcore.recipe.order import named_evaluations, unmeasured
from evidcore.recipe.schema import DataUse, RecipeContext, Table
from evidcore.registry import find
from evidcore.registry.factory import Option, offer_of, options


class AnonymizedPolicy(ForwardingPolicy):
    """Stands before a policy that is measured, so that nothing but its eyes can give it the answer."""

    def __init__(self, policy: Policy, where: str = "policy") -> None:
        """Take the policy; one that is sealed already is taken as it is. `where` is for errors."""
        self.caveat, self.answers_alone = policy.caveat, policy.answers_alone
        self._policy, self._where, self.cut_off = policy, where, list[bool]()
        if isinstance(policy, AnonymizedPolicy):
            self._policy, self._where, self.cut_off = policy._policy, policy._where, policy.cut_off

    def prove(self, prompts: Sequence[Prompt]) -> None:
        """Prove what the policy sees that will be asked `prompts`."""
        prove_policy(self._policy, prompts, self._where)

    def forward(self, method: str, prompts: Sequence[Prompt], *columns: Any, **settings: Any) -> Any:
        """Ask the policy; keep which answers were cut off."""
        sealed = [prompt.sealed(number) for number, prompt in enumerate(prompts)]
        if method == "log_likelihoods":
            return self._policy.log_likelihoods(sealed, *columns)
        written = self._policy.complete(sealed, **settings)
        if not self.cut_off:  # the first answers of a data entry
            prove_answers(self._policy, sealed, written, self._where, **settings)
        self.cut_off += [item.is_cut_off for item in written]
        return written if method == "complete" else [item.text for item in written]

    def rows(self, name: str, most: int) -> list[Row]:
        """Return what to know of the answers since the last call: those cut off at `most` tokens, caveat."""
        cut, self.cut_off[:] = [*self.cut_off], []
        note = f"{sum(cut)} of {len(cut)} answers had no end after max_new_tokens = {most}"
        rate = Row(name=name, metric="cut_off_rate", value=sum(cut) / max(len(cut), 1), questions=len(cut))
        caveat = Row(name=name, metric="pixel_flow", value=None, note=self.caveat, is_headline=True)
        cut_off = [dataclasses.replace(rate, note=note, is_headline=True)] if any(cut) else []
        return [*cut_off, caveat] if self.caveat else cut_off


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalStage(Stage):
    """A stage that asks the model greedily; the keys of its evaluations are its own keys too."""

    max_new_tokens: Annotated[int, Ge(1)] = 256
    prompts_per_batch: Annotated[int, Ge(1)] = 32
    options: Table = dataclasses.field(default_factory=dict, metadata={"open": True})

    traits: ClassVar[StageTraits] = StageTraits(measures=True)

    @classmethod
    def open_keys(cls, table: Mapping[str, Any], around: RecipeContext) -> Mapping[str, Option] | None:
        """Return the options of the evaluations that its data entries are measured by."""
        result: dict[str, Option] = {}
        try:
            for _, name in named_evaluations(table, around):
                for key, option in options(find("evaluation", name).load(), "evaluation").items():
                    if key not in result or result[key].default is None:  # a default says more than none
                        result[key] = option
        except PluginError:
            return None
        return result

    @classmethod
    def problems(cls, table: Mapping[str, Any], at: Key, around: RecipeContext) -> Problems:
        """Yield the data entries that nothing can measure."""
        yield from unmeasured(table, at, around)

    def components(self, recipe: Recipe) -> Iterator[tuple[str, Any]]:
        """Yield the evaluations too, with their options."""
        yield from super().components(recipe)
        for use in self.data:
            yield "evaluation", self.table("evaluation", recipe.evaluation_of(use))

    def table(self, kind: str, name: str) -> dict[str, Any]:
        """Return the table of a component whose options are keys of this stage."""
        known = options(find(kind, name).load(), kind)
        return {"use": name, **{key: self.options[key] for key in known if key in self.options}}

    def evaluation(self, use: DataUse, context: StageContext) -> Evaluation[Any]:
        """Return what measures a data entry."""
        table = self.table("evaluation", context.recipe.evaluation_of(use))
        built: Evaluation[Any] = context.component("evaluation", table, "evaluation")
        return built

    def check(self, context: StageContext) -> None:
        """Build the evaluations; in a run, ask them whether anything is missing."""
        for evaluation in [self.evaluation(use, context) for use in self.data]:
            if not context.is_dry_run:
                evaluation.ready()

    def refusal(self, use: DataUse, prompts: Sequence[Prompt], context: StageContext) -> str:
        """Return why the evaluation of a data entry cannot measure these prompts; "" if it can."""
        task = context.tasks[use.task]
        wrong = self.evaluation(use, context).refusal(task, prompts)
        return f"task {use.task!r} ({offer_of(task)}): {wrong}" if wrong else ""

    def workload(self) -> Workload:
        """Return what is asked."""
        return Workload(
            text=", ".join(f"{use.task} on {use.dataset} {use.split}" for use in self.data),
            prompts_per_step=self.prompts_per_batch,
            prompts_per_forward=self.prompts_per_batch,
            answers_tokens=self.max_new_tokens,
        )

    def run(self, context: StageContext) -> StageResult:
        """Ask every question of the data entries."""
        self.check(context)
        policy = context.policy(prompts_per_pass=self.prompts_per_batch)
        return self.ask(AnonymizedPolicy(policy, context.where), self.asking(context), context)

    def asking(self, context: StageContext) -> EvalOptions:
        """Return how a policy is asked."""
        return EvalOptions(
            max_new_tokens=self.max_new_tokens, prompts_per_batch=self.prompts_per_batch,
            seed=context.recipe.seed,
        )  # fmt: skip

    def ask(self, policy: AnonymizedPolicy, asking: EvalOptions, context: StageContext) -> StageResult:
        """Ask and measure; write the answers. A stage without a policy has a `run` of its own."""
        raise NotImplementedError

    def prompts(self, use: DataUse, context: StageContext) -> list[Prompt]:
        """Return a data entry's questions."""
        prompts = context.prompts(use)
        if wrong := self.refusal(use, prompts, context):
            raise RecipeError(f"{context.where}: {wrong}. Name another evaluation in the data entry.")
        return prompts


def training_set(use: DataUse, context: StageContext) -> Sequence[DataUse]:
    """Return the entries that blind rules and probes learn from: the training cases of the entry's set.

    For a set without any, for tests alone, they are those that the stages above train on with its task.
    """
    try:
        context.split(use.dataset, "train")
    except EmptySplitError:
        recipe, names = context.recipe, context.recipe.stage_names
        here = names.index(context.where) if context.where in names else len(names)
        arms = {"", *(stage.arm for stage in recipe.stages[here : here + 1])}
        above = [item for stage in recipe.stages[:here] if stage.arm in arms for item in stage.data_uses()]
        learnt = [item for item in dict.fromkeys(above) if item.task == use.task and item.split == "train"]
        if learnt:
            return learnt
    return [dataclasses.replace(use, split="train", limit=0, patient_fraction=1.0)]


def training(use: DataUse, context: StageContext) -> Callable[[], Sequence[Prompt]]:
    """Return what gives the questions about the training cases, from which blind rules learn."""

    def given() -> Sequence[Prompt]:
        learnt = training_set(use, context)
        return training_prompts(lambda seed: [p for x in learnt for p in context.prompts(x, seed=seed)])

    return given
