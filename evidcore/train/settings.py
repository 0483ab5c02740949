"""The keys of the stages that train the whole model."""

import dataclasses
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Le, Lt, MinLen

from evidcore.compute.processes import processes
from evidcore.contracts import (
    Answers,
    EvalOptions,
    Evaluation,
    RolloutStrategy,
    Stage,
    StageContext,
    StageTraits,
    Workload,
)
from evidcore.contracts.stage import Key, Lora, Problems
from evidcore.errors import RecipeError, did_you_mean
from evidcore.model.policy import VLMPolicy
from evidcore.prompts.rows import PromptSource, Volumes, prompt_sets
from evidcore.recipe import Recipe, trl_fields
from evidcore.recipe.order import as_tables, unmeasured
from evidcore.recipe.schema import DataUse, RecipeContext, Table
from evidcore.registry.factory import Kind
from evidcore.train.fit import named_data
from evidcore.train.sampler import RolloutPolicy

log = logging.getLogger(__name__)

TrainedPart = Literal["encoder", "bridge", "language"]
SharePrompts = Literal["auto", "always", "never"]


def dtype_of_products(trl: Mapping[str, Any]) -> torch.dtype:
    """Return the type of matrix products of a stage with these TRL keys, and of who answers as it trained."""
    if trl.get("fp16"):
        return torch.float16
    # a GPU without bfloat16 may emulate it, slowly
    usual = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if trl.get("bf16", usual) else torch.float32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay:
    """Gold answers whose likelihoods a policy is held to while it learns from rewards about other tasks."""

    data: Annotated[tuple[DataUse, ...], MinLen(1)]
    rows_per_step: Annotated[int, Ge(1)] = 8
    weight: Annotated[float, Gt(0)] = 1.0  # of the divergence from the start, in nats a token


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluating:
    """Questions about patients of the validation split, which the model is asked every so many steps."""

    data: Annotated[tuple[DataUse, ...], MinLen(1)]
    every_steps: Annotated[int, Ge(1)] = 50
    max_new_tokens: Annotated[int, Ge(1)] = 256
    figure: str = ""  # "<task>/<headline of its evaluation>", of the best; empty: that of the first entry
    keep: Literal["last", "best"] = "last"  # the model that the stage leaves
    stop_after: Annotated[int, Ge(0)] = 0  # measurements on end without gain; 0: never


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingKeys:
    """Keys of every stage that trains the whole model."""

    train: tuple[TrainedPart, ...]
    steps: Annotated[int, Ge(1)]
    learning_rate: Annotated[float, Gt(0)] | Mapping[str, Annotated[float, Gt(0)]]
    optimizer: Literal["adamw", "muon"] = "adamw"  # "muon": for matrices, AdamW for the rest
    momentum: Annotated[float, Ge(0), Lt(1)] | None = None  # Muon's; None: torch's default
    save_every_steps: Annotated[int, Ge(1)] = 50
    pixel_check_every_steps: Annotated[int, Ge(0)] = 100  # of the pixel-flow proof; 0: at the start alone
    lora: Lora | None = None
    evaluate: Evaluating | None = None
    trl: Table = dataclasses.field(default_factory=dict)  # fields of SFTConfig or GRPOConfig

    @property
    def rates(self) -> dict[str, float]:
        """Return the learning rate of each trained part."""
        given = self.learning_rate
        return {part: float(given[part] if isinstance(given, Mapping) else given) for part in self.train}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SftSettings(TrainingKeys):
    """Keys of an `sft` stage beside its data and its re-weighter."""

    rows_per_step: Annotated[int, Ge(1)] = 16
    rows_per_forward: Annotated[int, Ge(0)] = 0  # bounds memory; 0: the whole step at once
    questions_per_volume: Annotated[int, Ge(1)] = 1  # rows in turn of one volume, which is then read once
    loss_per: Literal["token", "row"] = "token"  # what a step's weighted sum is divided by


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrpoSettings(TrainingKeys):
    """Keys of a `grpo` stage beside its data, its rewards and how answers come about."""

    prompts_per_step: Annotated[int, Ge(1), Le(10**6)] = 8
    answers_per_prompt: Annotated[int, Ge(2), Le(10_000)] = 8
    prompts_per_forward: Annotated[int, Ge(0)] = 0  # bounds memory, by whole groups; 0: the whole step
    share_prompts: SharePrompts = "auto"  # score a prompt once for all its answers; "auto": where that pays
    max_failure_rate: Annotated[float, Ge(0), Lt(1)] | None = None  # share of a reward's last calls that fail
    temperature: Annotated[float, Gt(0)] = 1.0
    max_new_tokens: Annotated[int, Ge(1)] = 256
    replay: Replay | None = None
    collapse: Literal["warn", "stop"] = "warn"  # where answers, format or rewards collapse: end the stage

    @property
    def limits(self) -> tuple[tuple[str, float], ...]:
        """Return what leaves tokens out when answers are sampled, by its field of trl."""
        none = {"top_k": (None, 0), "top_p": (None, 1.0), "min_p": (None, 0.0)}
        return tuple((key, self.trl[key]) for key in none if self.trl.get(key) not in none[key])


def policy_of(by: Stage | None, context: StageContext, model: Any, processor: Any, **given: Any) -> VLMPolicy:
    """Return a policy over a model that answers as the stage `by` which it was trained has it answer."""
    given |= {"seed": context.recipe.seed, "dtype": dtype_of_products(getattr(by, "trl", {}))}
    if by is None or (strategy := by.strategy(context)) is None:
        return VLMPolicy(model, processor, **given)
    return RolloutPolicy(model, processor, strategy, **given)


def _texts(given: Any) -> list[str]:
    return [item for item in given if isinstance(item, str)] if isinstance(given, list) else []


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingStage(TrainingKeys, Stage):
    """A stage that trains the whole model on a trainer of TRL."""

    volumes: Volumes = "own"  # an arm may be shown "other-patient" or "blank" ones
    rollout: Annotated[Table, Kind("rollout")] | None = None  # how the policy answers; None: in one turn
    tools: Annotated[tuple[Annotated[Table, Kind("tool")], ...], MinLen(1)] = ()

    traits: ClassVar[StageTraits] = StageTraits(trains=True, is_distributed=True)
    trainer: ClassVar[str]  # of TRL: "sft" or "grpo"

    @property
    def output(self) -> str:
        """Return "model"."""
        return "model"

    def source(self, context: StageContext, data: Sequence[DataUse], *, in_turn: int = 1) -> PromptSource:
        """Return the prompts of data entries, shown as the stage shows them."""
        sets = prompt_sets(context, data)
        return PromptSource(sets, seed=context.recipe.seed, volumes=self.volumes, in_turn=in_turn)

    def evaluation(self, use: DataUse, context: StageContext) -> Evaluation[Any]:
        """Return what measures a data entry of `evaluate`."""
        table = {"use": context.recipe.evaluation_of(use)}
        built: Evaluation[Any] = context.component("evaluation", table, "evaluate")
        return built

    def components(self, recipe: Recipe) -> Iterator[tuple[str, Any]]:
        """Yield what measures between steps too."""
        yield from super().components(recipe)
        for use in () if self.evaluate is None else self.evaluate.data:
            yield "evaluation", {"use": recipe.evaluation_of(use)}

    def measurement(self, context: StageContext, *model: Any) -> Callable[[], dict[str, float]] | None:
        """Return what asks a model and its processor, as they stand, what `evaluate` names; None: nothing.

        It is called in every process, each of which asks its share, and returns the same figures in all: by
        "<task>/<metric>", the headline of the first entry before the others.
        """
        if (keys := self.evaluate) is None:
            return None
        policy = policy_of(self, context, *model)
        asking = EvalOptions(max_new_tokens=keys.max_new_tokens, seed=context.recipe.seed)
        asked = [(use.task, context.prompts(use), self.evaluation(use, context)) for use in keys.data]

        def measure() -> dict[str, float]:
            figures: dict[str, float] = {}
            for name, prompts, evaluation in asked:
                task, mine = context.tasks[name], prompts[processes().block(len(prompts))]
                shares = processes().gather([*evaluation.answer(policy, mine, task, asking)] if mine else [])
                if processes().is_first:
                    said = [answer for share in shares for answer in share]
                    [result] = evaluation.score([Answers(prompts, said)], task, name)
                    figures[f"{name}/{evaluation.headline}"] = fmean(result.values(evaluation.headline))
                    for row in result.rows():
                        figures |= {} if row.value is None else {f"{name}/{row.metric}": row.value}
            return processes().share(figures)

        return measure

    def _workload(self, text: str, *, also: str = "", **own: Any) -> Workload:
        """Return what both trainers say alike, and what is a stage's own; `also` ends the card's sentence."""
        lora = "" if self.lora is None else f", LoRA of rank {self.lora.rank}"
        how = f"{self.steps} steps, {self.optimizer}{lora}{also}"
        if self.evaluate is not None and self.evaluate.keep == "best":
            how += f"; the best of {-(-self.steps // self.evaluate.every_steps)} measurements kept"
        return Workload(
            text=text + lora,
            summary=f"`{self.kind}` of {', '.join(self.train)} on {named_data(self)}: {how}",
            train=self.train, trains_whole_model=True, steps=self.steps, optimizer=self.optimizer,
            lora=self.lora,
            is_checkpointed=any(self.trl.get(f"{kind}_checkpointing") for kind in ("activation", "gradient")),
            **own,
        )  # fmt: skip

    def strategy(self, context: StageContext) -> RolloutStrategy | None:
        """Return how answers come about, with its tools."""
        if self.rollout is None:
            return None
        given = {"encoder_input": context.encoder_input} if self.tools else {}
        tools = [
            context.component("tool", table, f"tools[{index}]", **given)
            for index, table in enumerate(self.tools)
        ]
        result: RolloutStrategy = context.component("rollout", self.rollout, "rollout", tools=tools)
        return result

    def check(self, context: StageContext) -> None:
        """Build how answers come about; in a dry run, take one step over a stand-in.

        Warns of bfloat16 on a CPU that has no instructions for it.
        """
        self.strategy(context)
        if (keys := self.evaluate) is not None:
            built = {use.task: self.evaluation(use, context) for use in keys.data}
            known = [f"{task}/{item.headline}" for task, item in built.items()]
            if keys.figure and keys.figure not in known:
                text = f"must be one of {', '.join(known)}, got {keys.figure!r}"
                raise RecipeError(
                    f"{context.where}.evaluate.figure: {text}.{did_you_mean(keys.figure, known)}"
                )
            for item in () if context.is_dry_run else built.values():
                item.ready()
        is_slow = torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "NO AVX", "AVX2")
        if self.trl.get("bf16") and is_slow and not torch.cuda.is_available():
            says = "this CPU has no instructions for bfloat16, which then takes many times as long as float32"
            log.warning("%s.trl.bf16: %s. Set it to false.", context.where, says)
        if context.is_dry_run:  # importing trl alone takes 6 s
            trainer = importlib.import_module(f"evidcore.train.trl.{self.trainer}")
            trainer.try_step(self, context.where)

    @classmethod
    def filled(cls, values: Mapping[str, Any], around: RecipeContext) -> dict[str, Any]:
        """Fill in the fields of TRL's configuration that a recipe states; its model may state `bf16`."""
        usual = {"bf16": True} if around.table("model").get("bfloat16") else {}
        return {**values, "trl": {**trl_fields.DEFAULTS[cls.trainer], **usual, **values.get("trl", {})}}

    @classmethod
    def problems(cls, table: Mapping[str, Any], at: Key, around: RecipeContext) -> Problems:
        """Yield what the training keys say against each other or the recipe."""
        if table.get("tools") and not table.get("rollout"):
            text = "are called by a rollout, and none is named. Write rollout = { use = 'tool-call' }."
            yield (*at, "tools"), text
        given, train = table.get("train"), _texts(table.get("train"))
        if isinstance(given, list) and not train:
            yield (*at, "train"), "must name at least one of encoder, bridge and language, got []."
        if len(set(train)) != len(train):
            yield (*at, "train"), f"names a part twice, got {train!r}."
        rates = table.get("learning_rate")
        if isinstance(rates, Mapping) and rates.keys() != set(train):
            text = f"must have the keys of train ({', '.join(train)}) and no other, got {', '.join(rates)}."
            yield (*at, "learning_rate"), text
        if "language" not in around.has_weights and "language" not in train:
            text = "the language model has no weights, and this stage does not train it."
            yield at, f"{text} Fit model.language above."
        if isinstance(lora := table.get("lora"), Mapping):
            parts = _texts(lora.get("parts", ["language"]))
            if not {*parts} <= {*train}:
                text = f"adapts {' and '.join(parts)}, and train is {train!r}. Name the same in both."
                yield (*at, "lora"), text
            if "language" in {*train} - {*parts}:
                text = "beside adapters the language model is not trained in full."
                yield (*at, "lora", "parts"), f"{text} Add 'language', or take it out of train."
        if isinstance(asked := table.get("evaluate"), Mapping):
            yield from unmeasured(asked, (*at, "evaluate"), around)
            for index, use in enumerate(as_tables(asked.get("data"))):
                if use.get("split", "train") == "train":
                    text = "would measure on patients that are learnt from. Write split = 'validation'."
                    yield (*at, "evaluate", "data", index, "split"), text
        if table.get("momentum") is not None and table.get("optimizer") != "muon":
            text = "is Muon's. Leave it out, or write optimizer = 'muon'; AdamW's betas are fields of trl."
            yield (*at, "momentum"), text
        around.has_weights.update({"language", "bridge"})
        trl = table.get("trl")
        for field, text in trl_fields.problems(cls.trainer, trl, table) if isinstance(trl, Mapping) else ():
            yield (*at, "trl", field), text
