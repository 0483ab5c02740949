"""What a recipe holds: frozen tables with every default filled in.

The fields of these classes are the recipe's keys: name, type, default and bounds are checked from here.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, MinLen

from evidcore.case import Split
from evidcore.registry import find
from evidcore.registry.factory import named_offer
from evidcore.registry.signature import Kind, component_class

Table = Mapping[str, Any]
USUAL_LANGUAGE = "pretrained"  # the component of a `[model] language` table without `use`


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataUse:
    """Which cases a stage uses, and what is asked about them."""

    dataset: str
    task: str = ""  # of [task.<name>], or a component's own name; empty where a stage asks nothing
    split: Split = "train"
    sampling_weight: Annotated[float, Gt(0), Le(1)] = 1.0  # of a step's rows, relative to other entries
    patient_fraction: Annotated[float, Gt(0), Le(1)] = 1.0  # fraction of the patients, picked by hash
    limit: Annotated[int, Ge(0)] = 0  # cases; 0 = all
    evaluation: str = ""  # measures the answers; empty: the one that the task names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """The parts of the vision-language model."""

    language: Annotated[Table, Kind("language", default=USUAL_LANGUAGE)]
    encoder: Annotated[Table, Kind("encoder")]
    bridge: Annotated[Table, Kind("bridge")]
    view: Annotated[Table, Kind("view")]
    bfloat16: tuple[Literal["encoder", "language"], ...] = ()  # frozen parts whose weights are kept so
    load_in_4bit: bool = False  # the matrices of the language model's layers (QLoRA)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
    """How a frozen encoder's features are kept, so that each volume is encoded once while they fit."""

    precision: Literal["float32", "float16"] = "float32"  # "float16" halves them and rounds
    memory_gb: Annotated[float, Ge(0)] = 1.0  # bound on those in memory, in each process


@dataclasses.dataclass(frozen=True)
class RecipeContext:
    """The recipe around a stage's table, as read; whatever has a wrong type is reported elsewhere."""

    raw: Mapping[str, Any]
    services: Mapping[str, str] = dataclasses.field(default_factory=dict)  # name -> kind
    has_weights: set[str] = dataclasses.field(default_factory=set)  # parts: "language", "bridge"

    def table(self, *keys: str) -> Mapping[str, Any]:
        """Return the table at a path of keys, an empty one where there is none."""
        result: Any = self.raw
        for key in keys:
            result = result.get(key) if isinstance(result, Mapping) else None
        return result if isinstance(result, Mapping) else {}

    def factory_of(self, component: str) -> Any:
        """Return the factory of "model.encoder" or "service.<name>"."""
        section, _, name = component.partition(".")
        if section == "model":
            usual = USUAL_LANGUAGE if name == "language" else ""
            return find(name, str(self.table(section, name).get("use") or usual)).load()
        return named_offer(self.services[name], self.table(section, name)).load()


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
    fitted: str  # a folder of stages that ship with the recipe; empty: none does
    threads: int
    datasets: Mapping[str, Table]
    tasks: Mapping[str, Table]  # also the components that data entries name directly
    services: Mapping[str, Table]  # with `kind`
    model: Model
    features: Features
    stages: tuple[Any, ...]  # of contracts.Stage, which is built on this module

    @property
    def fitted_folder(self) -> Path | None:
        """Return where stages that ship with the recipe lie."""
        return self.folder / self.fitted if self.fitted else None

    def stage_name(self, place: int) -> str:
        """Return the folder name of stage number `place`, counted from 0: `01-fit-encoder`."""
        stage = self.stages[place]
        return f"{place + 1:02d}-{stage.label}" + (f"-{stage.arm}" if stage.arm else "")

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Return the folder names of all stages, in order."""
        return tuple(self.stage_name(place) for place in range(len(self.stages)))

    def evaluation_of(self, use: DataUse) -> str:
        """Return the evaluation that measures a data entry: the one that it names, or its task does."""
        task = component_class(find("task", str(self.tasks[use.task]["use"])).load())
        return str(use.evaluation or task.evaluation)

    @property
    def line(self) -> dict[int, Any]:
        """Return the stages that lead to the recipe's model, by place: all but those of arms."""
        return {place: stage for place, stage in enumerate(self.stages) if not stage.arm}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Top:
    """The keys of a recipe's top level."""

    schema: Literal[1]
    name: str
    seed: Annotated[int, Ge(0), Le(2**31 - 1)] = 0
    recipe_folder: str = ""  # where relative paths start; empty: the recipe's own folder
    observers: tuple[str, ...] = ()
    threads: Annotated[int, Ge(0)] = 0  # of PyTorch on a CPU, in each process; 0: its own choice
    arms: bool = True  # false leaves out arms, and audits' comparison with one
    fitted: str = ""  # a folder of stages that were run before, used where nothing of them was changed
    dataset: Mapping[str, Annotated[Table, Kind("dataset")]]
    task: Mapping[str, Annotated[Table, Kind("task")]] = dataclasses.field(default_factory=dict)
    service: Mapping[str, Annotated[Table, Kind("service")]] = dataclasses.field(default_factory=dict)
    model: Model
    features: Features = Features()
    stage: Annotated[tuple[Annotated[Table, Kind("stage")], ...], MinLen(1)]
