"""What a recipe holds: frozen tables with every default filled in.

The fields of these classes are the recipe's keys: name, type, default and bounds are checked from here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt

from evidcore.case import Split

Table = Mapping[str, Any]
TrainedPart = Literal["encoder", "bridge", "language"]
SharePrompts = Literal["auto", "always", "never"]
DEFAULT_METRICS = ("bleu", "rouge-l", "cider", "abnormal-recall")  # seconds, no download


@dataclasses.dataclass(frozen=True)
class Kind:
    """Marks a field whose value is a component's table (`{ use = "…", … }`)."""

    name: str
    or_service: bool = False  # or the name of a service of that kind


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataUse:
    """Which cases a stage uses, and what is asked about them."""

    dataset: str
    task: str = ""  # of [task.<name>], or a component's own name; empty where a stage asks nothing
    split: Split = "train"
    share: Annotated[float, Gt(0), Le(1)] = 1.0  # of the rows of a step, relative to the other entries
    patients: Annotated[float, Gt(0), Le(1)] = 1.0  # fraction of the patients, picked by hash
    limit: Annotated[int, Ge(0)] = 0  # cases; 0 = all


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters in place of full training of the language model."""

    rank: Annotated[int, Ge(1)] = 16
    alpha: Annotated[float, Gt(0)] = 32.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Language:
    """Where the language model comes from: exactly one of `config`, `id` and `folder`."""

    config: Literal["", "tiny"] = ""  # a shape without weights, for a fit stage
    width: Annotated[int, Ge(8)] | None = None  # of the tiny model; this and the next two with `config` only
    layers: Annotated[int, Ge(1)] | None = None
    heads: Annotated[int, Ge(1)] | None = None
    id: str = ""  # on the Hugging Face Hub
    revision: str = ""  # commit, with `id`
    folder: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """The parts of the vision-language model."""

    language: Language
    encoder: Annotated[Table, Kind("encoder")]
    bridge: Annotated[Table, Kind("bridge")]
    view: Annotated[Table, Kind("view")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardKeys:
    """The keys of a reward's table that are the core's; the others are the component's options."""

    use: str
    weight: Annotated[float, Ge(0)] = 1.0
    gate: str = ""  # name of an earlier reward: counts only where that one is above 0
    name: str = ""  # what metrics and rollouts call it; empty: the component's name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """Train one component by its own `fit`."""

    kind: Literal["fit"] = "fit"
    component: str  # "model.encoder", "model.language" or "service.<name>"
    data: tuple[DataUse, ...]
    options: Table = dataclasses.field(default_factory=dict)  # keyword-only parameters of the component's fit


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingKeys:
    """What every stage says that trains the whole model."""

    train: tuple[TrainedPart, ...]
    steps: Annotated[int, Ge(1)]
    learning_rate: Annotated[float, Gt(0)] | Mapping[str, Annotated[float, Gt(0)]]
    optimizer: Literal["adamw", "muon"] = "adamw"  # "muon": for matrices, AdamW for the rest
    momentum: Annotated[float, Ge(0), Lt(1)] | None = None  # Muon's; None: torch's default
    save_every_steps: Annotated[int, Ge(1)] = 50
    lora: Lora | None = None
    trl: Table = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sft(TrainingKeys):
    """Supervised fine-tuning on the tasks' gold answers."""

    kind: Literal["sft"] = "sft"
    data: tuple[DataUse, ...]
    rows_per_step: Annotated[int, Ge(1)] = 16
    rows_per_forward: Annotated[int, Ge(0)] = 0  # bounds memory; 0: the whole step at once
    reweighter: Annotated[Table, Kind("reweighter")] = dataclasses.field(
        default_factory=lambda: {"use": "uniform"}
    )
    loss_per: Literal["token", "row"] = "token"  # what a step's weighted sum is divided by


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay:
    """Gold answers whose likelihoods a policy is held to while it learns from rewards about other tasks."""

    data: tuple[DataUse, ...]
    rows_per_step: Annotated[int, Ge(1)] = 8
    weight: Annotated[float, Gt(0)] = 1.0  # of the divergence from the start, in nats a token


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grpo(TrainingKeys):
    """Group relative policy optimisation against rewards."""

    kind: Literal["grpo"] = "grpo"
    data: tuple[DataUse, ...]
    reward: tuple[Annotated[Table, Kind("reward")], ...]
    prompts_per_step: Annotated[int, Ge(1)] = 8
    answers_per_prompt: Annotated[int, Ge(2)] = 8
    prompts_per_forward: Annotated[int, Ge(0)] = (
        0  # bounds memory, whole groups pass together; 0: the whole step
    )
    share_prompts: SharePrompts = "auto"  # score a prompt once for all its answers; "auto": where that pays
    reward_time_limit_s: Annotated[float, Ge(0)] = 600.0  # for one reward on one step; 0: none
    temperature: Annotated[float, Gt(0)] = 1.0
    max_new_tokens: Annotated[int, Ge(1)] = 256
    rollout: Annotated[Table, Kind("rollout")] = dataclasses.field(default_factory=lambda: {"use": "plain"})
    tools: tuple[Annotated[Table, Kind("tool")], ...] = ()
    volumes: Literal["own", "other-patient"] = (
        "own"  # the second is a control: every case shows another's scan
    )
    replay: Replay | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricKeys:
    """The keys of a metric's table that are the core's; the others are the component's options."""

    use: str
    name: str = ""  # stands before its figures' names where a stage has the same metric twice


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure the model as it stands."""

    kind: Literal["evaluate"] = "evaluate"
    data: tuple[DataUse, ...]
    max_new_tokens: Annotated[int, Ge(1)] = 256
    prompts_per_batch: Annotated[int, Ge(1)] = 32
    rescue: Annotated[Table, Kind("scorer")] = dataclasses.field(  # likeness that the rescue reading goes by
        default_factory=lambda: {"use": "token-f1"}
    )
    probe: bool = False  # also how well a linear probe reads each finding off the frozen encoder
    labeler: Annotated[Table, Kind("labeler")] = dataclasses.field(
        default_factory=lambda: {"use": "negation-rules"}  # reads the findings of reports
    )
    metric: tuple[Annotated[Table, Kind("metric")], ...] = dataclasses.field(
        default_factory=lambda: tuple({"use": name} for name in DEFAULT_METRICS)  # measure reports
    )
    segmenter: Annotated[Table | str, Kind("segmenter", or_service=True)] = dataclasses.field(
        default_factory=lambda: {"use": "region-growing"}  # makes masks of boxes that answers name
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """Ask the same questions over the right, another patient's and blank volumes."""

    kind: Literal["audit"] = "audit"
    data: tuple[DataUse, ...]
    max_new_tokens: Annotated[int, Ge(1)] = 256
    prompts_per_batch: Annotated[int, Ge(1)] = 32
    exchanges: Annotated[int, Ge(1)] = 3  # of volumes between patients; more: narrower margins
    segmenter: Annotated[Table | str, Kind("segmenter", or_service=True)] = dataclasses.field(
        default_factory=lambda: {"use": "region-growing"}  # makes masks of boxes that answers name
    )


Stage = Fit | Sft | Grpo | Evaluate | Audit


def data_uses(stage: Stage) -> tuple[DataUse, ...]:
    """Return every data entry of a stage, those that it replays among them."""
    replay = stage.replay if isinstance(stage, Grpo) else None
    return stage.data if replay is None else (*stage.data, *replay.data)


STAGES: Mapping[str, type] = {"fit": Fit, "sft": Sft, "grpo": Grpo, "evaluate": Evaluate, "audit": Audit}
OWN_KEYS: Mapping[str, type] = {"reward": RewardKeys, "metric": MetricKeys}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe, read and checked. Component tables hold every default; equal recipes give equal runs."""

    SCHEMA: ClassVar[int] = 1

    name: str
    seed: int
    folder: Path  # where relative paths start
    path: Path = dataclasses.field(compare=False)
    text: str = dataclasses.field(compare=False, repr=False)  # as given
    overrides: tuple[str, ...] = dataclasses.field(compare=False)
    origins: Mapping[tuple[str | int, ...], str] = dataclasses.field(compare=False, repr=False)
    observers: tuple[str, ...]
    datasets: Mapping[str, Table]
    tasks: Mapping[str, Table]  # also the components that data entries name directly
    services: Mapping[str, Table]  # with `kind`
    model: Model
    stages: tuple[Stage, ...]

    def stage_name(self, place: int) -> str:
        """Return the folder name of stage number `place`, counted from 0: `01-fit-encoder`."""
        stage = self.stages[place]
        tail = f"-{stage.component.rpartition('.')[2]}" if isinstance(stage, Fit) else ""
        return f"{place + 1:02d}-{stage.kind}{tail}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Top:
    """The keys of a recipe's top level."""

    schema: Literal[1]
    name: str
    seed: Annotated[int, Ge(0), Le(2**31 - 1)] = 0
    recipe_folder: str = ""  # where relative paths start; empty: the recipe's own folder
    observers: tuple[str, ...] = ()
    dataset: Mapping[str, Annotated[Table, Kind("dataset")]]
    task: Mapping[str, Annotated[Table, Kind("task")]] = dataclasses.field(default_factory=dict)
    service: Mapping[str, Annotated[Table, Kind("service")]] = dataclasses.field(default_factory=dict)
    model: Model
    stage: tuple[Stage, ...]
