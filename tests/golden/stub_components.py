"""Components of a package that exists in tests alone: what the recipes of the golden texts name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

from evidcore.api import (
    InlineOptions,
    Labeler,
    Metric,
    Reader,
    Scorer,
    Segmenter,
    Stage,
    StageResult,
    Workload,
)
from evidcore.contracts import StageTraits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    low_hu: float = -1000.0
    high_hu: float = 1000.0
    name: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    most: Annotated[int, Ge(1)] = 8
    names: tuple[str, ...] = ("case",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strict(Reading):
    share: Annotated[float, Gt(0), Lt(1)]
    judge: Scorer | None = None


class Scans:
    """A data set with an option of every type."""

    def __init__(
        self,
        recipe_folder: Path | None = None,
        *,
        cases: Annotated[int, Ge(1)] = 4,
        share: Annotated[float, Ge(0), Le(1)] = 0.5,
        spacing_mm: Annotated[float, Gt(0), Lt(100)] = 1.0,
        are_new: bool = False,
        mode: Literal["chest", "abdomen"] = "chest",
        either: Literal["auto"] | int = "auto",
        title: str = "",
        long: Annotated[str, MinLen(2), MaxLen(4)] = "abc",
        folder: Path | None = None,
        tags: tuple[str, ...] = (),
        pair: tuple[float, float] = (0.0, 1.0),
        some: Annotated[tuple[int, ...], MinLen(1), MaxLen(3)] = (1,),
        shares: Mapping[str, Annotated[float, Ge(0)]] = {},
        window: Window = Window(low_hu=-500.0),
        windows: tuple[Window, ...] = (),
        maybe: Annotated[int, Ge(0)] | None = None,
        lists: tuple[tuple[int, ...], ...] = (),
        anything: Any = None,
    ) -> None: ...


class Needy:
    """A data set with an option that has no default, and with flat ones."""

    def __init__(self, *, depth: int, reading: Annotated[Strict, InlineOptions]) -> None: ...


class Words:
    """A language model without weights, which a fit stage may train."""

    has_weights = False

    def __init__(self, *, width: Annotated[int, Ge(8)] = 32) -> None: ...

    @classmethod
    def problems(cls, table):
        if table.get("width", 32) % 8:
            yield "width", f"must be a multiple of 8, got {table['width']!r}."
        if table.get("width") == 64:
            yield "", "is too wide for the stub."

    def fit(self, given, *, steps: Annotated[int, Ge(1)] = 3) -> None: ...

    load = fit


class Published(Words):
    has_weights = True
    fit = None


class Eye:
    def __init__(self, *, depth: Annotated[int, Ge(1)] = 2) -> None: ...

    def fit(
        self, given, *, steps: Annotated[int, Ge(1)] = 30,
        learning_rates: Mapping[str, float] = {}, reading: Annotated[Reading, InlineOptions],
    ) -> None: ...  # fmt: skip

    load = fit


class Line:
    """A bridge without options."""


class Plain:
    def __init__(self, *, spacing_mm: tuple[float, float, float] = (3.0, 3.0, 3.0)) -> None: ...


class Tagged(Plain):
    tags_slices = True


class Ask:
    evaluation = "stub-evaluation"

    def __init__(self, *, think: bool = True) -> None: ...


class AskSlice(Ask):
    needs_slice_tags = True


class AskNothing(Ask):
    evaluation = ""


class Same:
    def __init__(self, *, power: Annotated[float, Gt(0)] = 2.0) -> None: ...


class Book:
    """A reader that asks the core for what stays in the run's process."""

    def __init__(self, policy: Any, recipe_folder: Path, *, pages: int = 3) -> None: ...


class Grow:
    def __init__(self, *, seeds: int = 1) -> None: ...

    def fit(self, given, *, steps: Annotated[int, Ge(1)] = 30) -> None: ...

    load = fit


class Judged:
    """A reward whose options are components, one and many."""

    def __init__(
        self,
        cases: Any = None,
        *,
        strict: bool = True,
        reader: Reader | None = None,
        scorer: Scorer = {"use": "stub-scorer", "power": 3.0},  # noqa: B006
        others: tuple[Scorer, ...] = (),
    ) -> None: ...


class Level:
    def __init__(self, *, level: Annotated[float, Ge(0), Le(1)] = 0.0, reading: str = "strict") -> None: ...


class Count:
    def __init__(self, *, scorer: Scorer = {"use": "stub-scorer"}, order: int = 1) -> None: ...  # noqa: B006


class Measure:
    def __init__(
        self,
        *,
        metric: tuple[Metric, ...] = ({"use": "stub-metric"},),
        segmenter: Segmenter = {"use": "stub-segmenter"},  # noqa: B006
        labeler: Labeler | None = None,
        rescue: bool = False,
    ) -> None: ...


class Listen:
    def __init__(
        self, *, conditions: tuple[str, ...] = ("blank",), cases: Annotated[int, Ge(1)] = 9
    ) -> None: ...


class Zoom:
    def __init__(self, *, times: int = 2) -> None: ...


class Talk:
    def __init__(self, *, turns: Annotated[int, Ge(1)] = 3) -> None: ...


def greedy(*, weight: float = 1.0) -> Level:
    return Level()


def untyped(*, depth=3) -> Level:
    return Level()


def odd(*, depth: Nowhere = 3) -> Level:  # noqa: F821
    return Level()


def twice(*, most: int, reading: Annotated[Reading, InlineOptions]) -> Level:
    return Level()


def loose(*, reading: Annotated[dict[str, int], InlineOptions]) -> Level:
    return Level()


NOT_CALLABLE = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tally(Stage):
    """A stage of another package, whose open keys are the options of a function."""

    at_least: Annotated[int, Ge(1)] = 1
    window: Window | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict, metadata={"open": True})

    traits = StageTraits(needs_tasks=False)

    @classmethod
    def open_keys(cls, table, around):
        from evidcore.registry.factory import options

        return options(Scans)

    @classmethod
    def problems(cls, table, at, around):
        if len(table.get("data", ())) > 1:
            yield (*at, "data"), "tallies one data entry."

    def workload(self):
        return Workload(text="counting")

    def run(self, context):
        return StageResult()


def no_stage(*, steps: int = 3) -> int:
    return steps
