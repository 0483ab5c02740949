"""A stage of a recipe: its keys, what it depends on, what it needs, and how it runs."""

from __future__ import annotations

import dataclasses
import typing
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

from annotated_types import Ge, Gt, Lt, MinLen

from evidcore.case import Case, Prompt, Split
from evidcore.contracts.answering import RolloutStrategy, Rows, Task
from evidcore.contracts.dataset import Dataset, View
from evidcore.contracts.evaluating import StageResult
from evidcore.data.encoder_input import EncoderInput
from evidcore.recipe.schema import DataUse, RecipeContext
from evidcore.registry.signature import marked_kind

if TYPE_CHECKING:
    from evidcore.contracts.model import Language, Policy  # load torch
    from evidcore.recipe import Recipe
    from evidcore.registry.factory import Option

Key = tuple[str | int, ...]  # path of a value in the recipe
Problems = Iterator[tuple[Key, str]]


@runtime_checkable
class EventSink(Protocol):
    """Whoever is told about the steps of one stage."""

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hear the figures of a step; steps count from 1."""

    def rollouts_judged(self, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        """Hear the judged groups of a step, as lines of the rollout file."""


class NullSink:
    """An `EventSink` that drops everything."""

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Drop it."""

    def rollouts_judged(self, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        """Drop it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters in place of full training."""

    rank: Annotated[int, Ge(1)] = 16
    alpha: Annotated[float, Gt(0)] = 32.0
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    use_dora: bool = False  # magnitudes of columns are learnt by themselves
    parts: Annotated[tuple[Literal["encoder", "language"], ...], MinLen(1)] = ("language",)
    target_modules: tuple[str, ...] = ()  # last names of linear layers; none: all of these parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """What a stage computes, in numbers: what a plan works out memory and time from."""

    text: str  # "500 steps of 12 prompts x 8 answers"
    summary: str = ""  # what a model card says of it; "" where it trains nothing
    train: tuple[str, ...] = ()  # "encoder", "bridge", "language"; of a fit, the component alone
    trains_whole_model: bool = False  # forward and backward of encoder, bridge and language model
    steps: int = 0
    prompts_per_step: int = 0
    prompts_per_forward: int = 0
    answers_per_prompt: int = 1
    share_prompts: str = "never"  # "always", "auto" where that pays: a prompt is scored once for its answers
    answers_tokens: int | None = None  # most tokens that are written; None: gold answers stand there
    samples: bool = False  # while training
    limits: tuple[tuple[str, float], ...] = ()  # of `Sampling` that leave tokens out, as ("top_k", 20)
    optimizer: str = "adamw"
    lora: Lora | None = None
    keeps_reference: bool = False  # the model as it was, beside the one that is trained
    is_checkpointed: bool = False  # activations are computed again in the backward pass
    replay: tuple[DataUse, ...] = ()
    replayed_rows: int = 0  # a step


class Engine(ABC):
    """Kind `sampler`: what writes the answers of rollouts.

    A strategy never sees it: budgets, tools' turns and forks are the same whatever engine runs. Each process
    of a run has its own.
    """

    from evidcore.contracts.answering import Continuation as Continuation
    from evidcore.contracts.answering import Prefix as Prefix
    from evidcore.contracts.answering import Rows as Rows
    from evidcore.contracts.answering import Sampling as Sampling

    is_policy: ClassVar[bool] = False  # its passes are the trained model's own: there is nothing to correct
    gives_entropies: ClassVar[bool] = False  # with what rows wrote
    applies: ClassVar[Collection[str]] = ("top_k", "top_p", "min_p")  # limits of `Sampling`

    def refusals(self, workload: Workload, strategy: RolloutStrategy) -> Sequence[str]:
        """Say what a stage asks for that it cannot do, before anything runs; empty: nothing.

        With a limit its log-probabilities are among the tokens that are left, the policy's among all: their
        ratio, by which an answer counts, is that of two different things, unless it is the policy.
        """
        result = []
        if strategy.reads_entropies and not self.gives_entropies:
            result.append("the rollout reads entropies of tokens, which it does not give.")
        for name, value in workload.limits:
            if name not in self.applies:
                result.append(f"it does not apply trl.{name} = {value:g}. Take it out.")
            elif not self.is_policy:
                result.append(
                    f"with trl.{name} = {value:g} its log-probabilities are among the tokens that are left, "
                    "the policy's among all, and no weight corrects that. Take it out, or sample in the "
                    "trainer's own process."
                )
        return result

    @abstractmethod
    def begin(self, model: Any, processor: Any, stop_texts: Sequence[str]) -> Rows:
        """Take the weights as they are now, and return what continues rows with them.

        It is called before each step's answers, in every process.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageTraits:
    """What holds of every stage of a kind."""

    needs_tasks: bool = True  # every data entry names what is asked
    trains: bool = False  # may not see the test split, and mixes its data by `sampling_weight`
    validates: bool = False  # also reads the validation cases of its data sets, to choose
    measures: bool = False  # writes rows
    compares: bool = False  # asks under several conditions: an audit
    is_distributed: bool = False  # runs in every process; others in the first alone


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dependencies:
    """What a stage's result depends on, beside its own table and data."""

    model: Mapping[str, Any]  # tables of the model, by part
    upstream: Mapping[str, str]  # hashes of earlier outputs
    words: str  # what a counted vocabulary comes from: "phrases", "texts" too, or nothing, ""


class StageContext(ABC):
    """What a run gives a stage: its data, its components, the model as the stages before left it."""

    recipe: Recipe
    where: str  # the stage's name, as in `results/<name>.json`
    folder: Path  # where it writes `checkpoint/` and `answers.jsonl`
    announce: EventSink
    is_dry_run: bool  # nothing will be run: `check` alone is called
    resume: bool  # go on from the last whole checkpoint in `checkpoint/steps`
    tasks: Mapping[str, Task]
    services: Mapping[str, Any]
    view: View

    @abstractmethod
    def split(self, dataset: str, split: Split) -> Sequence[Case]:
        """Return the cases of a split."""

    @abstractmethod
    def dataset(self, name: str) -> Dataset:
        """Return a data set of the recipe."""

    @abstractmethod
    def cases(self, use: DataUse) -> Sequence[Case]:
        """Return the cases of a data entry."""

    @abstractmethod
    def prompts(self, use: DataUse, *, seed: int = 0) -> list[Prompt]:
        """Return everything that a data entry's task asks; seed 0 is evaluation's."""

    @abstractmethod
    def component(self, kind: str, table: Mapping[str, Any] | str, key: str, **given: Any) -> Any:
        """Return the component of a table of this stage, or a service; built once a run.

        Args:
            kind: component kind.
            table: the recipe table with `use`, or the name of a service.
            key: of the table in the stage, for messages: "reward[0]".
            given: what the stage gives it beside what a run gives every component of the kind.
        """

    @property
    @abstractmethod
    def phrases(self) -> tuple[str, ...]:
        """Return the finding names of all data sets."""

    @property
    @abstractmethod
    def language(self) -> Language:
        """Return where the language model comes from."""

    @property
    @abstractmethod
    def encoder_input(self) -> EncoderInput:
        """Return what the encoder takes; no weights are read."""

    @abstractmethod
    def encoder(self) -> Any:
        """Return a new encoder, with the weights that a fit stage wrote where there was one."""

    @abstractmethod
    def image_tokens(self, use: DataUse) -> int:
        """Return how many embeddings the bridge gives for a data entry's first visual part."""

    @abstractmethod
    def model(self) -> tuple[Any, Any]:
        """Return a new VolumeVLM as the stages before left it, and its processor."""

    @abstractmethod
    def policy(self, *, prompts_per_pass: int = 64, arm: str = "") -> Any:
        """Return a Policy over `model()`, or over what an arm of the recipe trained."""

    @abstractmethod
    def bind_policy(self, policy: Policy) -> None:
        """Let components that were given `policy` ask this one, and `start_policy` what `model()` gives."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage(ABC):
    """One `[[stage]]` table of a recipe; its fields are the keys, checked by their annotations.

    An entry point `evidcore.stage` names the class, and that name is `kind` in the recipe. Its package
    counts in the hash by which a finished stage is used again.
    """

    from evidcore.contracts.stage import Dependencies as Dependencies

    kind: str = ""
    arm: str = ""  # of a line beside the recipe's own: it leaves that here, and what it trains stays in it
    data: Annotated[tuple[DataUse, ...], MinLen(1)]

    traits: ClassVar[StageTraits] = StageTraits()

    @property
    def label(self) -> str:
        """Return what folders call it, behind its number."""
        return self.kind

    @property
    def output(self) -> str | None:
        """Return what its checkpoint is: "encoder", "language", "model", "service.<name>"; None: nothing."""
        return None

    def data_uses(self) -> tuple[DataUse, ...]:
        """Return every data entry, whichever key it stands in."""
        return (*self.data, *(use for item in vars(self).values() for use in getattr(item, "data", ())))

    @classmethod
    def open_keys(cls, table: Mapping[str, Any], around: RecipeContext) -> Mapping[str, Option] | None:
        """Return the keys that the table may hold beside the fields; None where that cannot be told.

        Their values, with defaults filled in, are the field `options` of a stage that has any.
        """
        return {}

    @classmethod
    def filled(cls, values: Mapping[str, Any], around: RecipeContext) -> dict[str, Any]:
        """Return the values of the fields with those defaults that hang on other keys."""
        return dict(values)

    @classmethod
    def problems(cls, table: Mapping[str, Any], at: Key, around: RecipeContext) -> Problems:
        """Yield what the table as read says against itself or the recipe: (path, sentence).

        `around.has_weights` holds the parts that have weights before this stage; add what it gives weights.
        """
        yield from ()

    def components(self, recipe: Recipe) -> Iterator[tuple[str, Any]]:
        """Yield (kind, table) of the components that it names; a table may be a list, or a service's name."""
        hints = typing.get_type_hints(type(self), include_extras=True)
        for item in dataclasses.fields(self):
            if kind := marked_kind(hints[item.name]):
                yield kind, getattr(self, item.name)

    def depends_on(self, context: StageContext, upstream: Mapping[str, str]) -> Dependencies:
        """Return what its result depends on: the model and all that the stages above left, if not overridden.

        Args:
            context: of the stage.
            upstream: hashes of the outputs so far: "encoder", "model", "service.<name>"; "arm.<name>" is the
                model of an arm, which counts for nobody who does not ask for it.
        """
        model = context.recipe.model
        parts = {name: getattr(model, name) for name in ("encoder", "bridge", "view", "language")}
        left = {output: key for output, key in upstream.items() if not output.startswith("arm.")}
        words = "" if left.keys() & {"language", "model"} else "texts"
        return Dependencies(model=parts, upstream=left, words=words)

    def check(self, context: StageContext) -> None:
        """Build its components, and look whether it could run; no model is behind them.

        In a dry run weights may not have been fetched: try the keys on stand-ins, as cheaply as can be. In a
        run, before its first stage: ask the components whether they have what they need.

        Raises:
            EvidError: what is wrong or missing, and what to type.
        """
        return

    def refusal(self, use: DataUse, prompts: Sequence[Prompt], context: StageContext) -> str:
        """Return why it cannot do with these prompts what it is for; "" if it can."""
        return ""

    def strategy(self, context: StageContext) -> RolloutStrategy | None:
        """Return how the policy that it trains answers, to be measured as trained; None: in one turn."""
        return None

    @abstractmethod
    def workload(self) -> Workload:
        """Return what it computes."""

    @abstractmethod
    def run(self, context: StageContext) -> StageResult:
        """Do it; called once in each process that takes part."""
