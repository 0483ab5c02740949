"""What is known about a scan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast, get_args

from evidcore.case.read_only import ReadOnly

Split = Literal["train", "validation", "test"]
Intensity = Literal["hu", "arbitrary"]
Oblique = Literal["refuse", "resample"]
Side = Literal["left", "right", "both"]
State = Literal["present", "absent", "uncertain"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VolumeRef:
    """Where a volume lies: a file, or a folder of one DICOM series; what that does not say, or wrongly."""

    path: str  # nothing is read until `evidcore.data` is asked
    intensity: Intensity = "hu"
    key: str | None = None  # which array of an .npz, or the SeriesInstanceUID in a folder of several series
    rescale: tuple[float, float] | None = None  # slope and intercept that the values as read still need
    spacing_mm_zyx: tuple[float, float, float] | None = None  # in place of the file's, in body axes
    axes: str | None = None  # where the axes of the stored array run to, e.g. "SPL" for z, y, x
    tilted: Oblique = "refuse"  # axes that lean from the body's, as under a tilted gantry

    def to_params(self) -> dict[str, str]:
        """Return everything but the path as text; `from_params` is its inverse."""
        given = {
            "intensity": self.intensity,
            "key": self.key,
            "rescale": self.rescale and _numbers(self.rescale),
            "spacing": self.spacing_mm_zyx and _numbers(self.spacing_mm_zyx),
            "axes": self.axes,
            "tilted": None if self.tilted == "refuse" else self.tilted,
        }
        return {name: text for name, text in given.items() if text is not None}

    @classmethod
    def from_params(cls, path: str, params: Mapping[str, str]) -> VolumeRef:
        """Read back what `to_params()` wrote.

        Raises:
            ValueError: if a parameter is missing or has no such value; names them.
        """
        intensity, tilted = params.get("intensity"), params.get("tilted", "refuse")
        if intensity not in get_args(Intensity) or tilted not in get_args(Oblique):
            raise ValueError(f"not parameters of a volume: {dict(params)!r}")
        rescale, spacing = (params.get(name) for name in ("rescale", "spacing"))
        return cls(
            path=path,
            intensity=cast(Intensity, intensity),
            key=params.get("key"),
            rescale=None if rescale is None else _exactly(2, rescale),
            spacing_mm_zyx=None if spacing is None else _exactly(3, spacing),
            axes=params.get("axes"),
            tilted=cast(Oblique, tilted),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskRef:
    """Where a mask lies, on the grid of its volume; `by` names the segmenter that predicted it.

    The file is a label map in any format of a volume, a `.png` in greys, a `.seg.nrrd`, an RTSTRUCT or
    DICOM-SEG file, an `.npy`, or an `.npz` of arrays.
    """

    path: str
    key: str | None = None  # which array, segment or region
    label: int | None = None  # value in a label map, None: every value above 0; number of a region or segment
    axes: str | None = None  # where the axes of an array run to, e.g. "RAS"
    by: str = ""  # empty: it was annotated, and counts as true


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of text, in characters, that carries a label."""

    start: int
    end: int  # exclusive
    label: str  # "normal" or "abnormal" for report sentences

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"a span must hold text, got {self.start}..{self.end}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """A radiologist's text; `spans` labels its sentences where that is known."""

    text: str
    spans: tuple[Span, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding and what is said about it."""

    name: str
    state: State = "present"
    side: Side | None = None
    size_mm: float | None = None
    malignant: bool | None = None
    location: str | None = None  # the organ or the part of one: "kidney", "upper lobe"
    span: Span | None = None  # where the text says so


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A question with options that came with a case."""

    id: str
    text: str
    options: tuple[str, ...]
    answer: int  # index into options
    true_options: tuple[int, ...] = ()  # every option that holds, where known; the answer among them
    kind: str | None = None  # results are told by it; without, by the right option


@dataclasses.dataclass(frozen=True, kw_only=True)
class Query:
    """Words that mean something in a case, and the masks that answer them.

    Unlike a question it has no options: names of masks are never shown to a model.
    """

    id: str  # unique in its case
    text: str
    masks: tuple[str, ...]  # names among the case's masks; together they are what is meant
    among: tuple[str, ...] = ()  # masks that the words alone do not tell apart; those meant among them
    kind: str | None = None  # results are told by it

    def __post_init__(self) -> None:
        """Refuse a query that means nothing, or something that it could not."""
        if not self.masks:
            raise ValueError(f"query {self.id!r} must name the masks that answer it, got none")
        if self.among and not set(self.masks) <= set(self.among):
            raise ValueError(f"query {self.id!r} means {self.masks}, which must be among {self.among}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case(ReadOnly):
    """A scan with what is known about it: `masks` are true, `predicted` ones are some segmenter's."""

    id: str
    patient: str | None  # None in 2D sets without patients: statistics then cluster by case and say so
    volumes: tuple[VolumeRef, ...]
    report: Report | None = None
    findings: tuple[Finding, ...] = ()
    masks: Mapping[str, MaskRef] = dataclasses.field(default_factory=dict)  # by finding or organ; the truth
    predicted: Mapping[str, MaskRef] = dataclasses.field(default_factory=dict)  # by what was asked; no truth
    questions: tuple[Question, ...] = ()
    queries: tuple[Query, ...] = ()
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # e.g. the impression text

    def __post_init__(self) -> None:
        """Refuse a predicted mask among those that count as true."""
        super().__post_init__()
        if wrong := [name for name, mask in self.masks.items() if mask.by]:
            text = f"case {self.id!r}: mask {wrong[0]!r} was predicted by {self.masks[wrong[0]].by!r}"
            raise ValueError(f"{text}, and masks count as true. Put it into `predicted`.")

    @property
    def regions(self) -> Mapping[str, MaskRef]:
        """Return a mask for each name: the true one, else the predicted. Nothing is scored by it."""
        return {**self.masks, **self.predicted, **self.masks}  # true ones come first

    def state_of(self, finding: str) -> State | None:
        """Return what is known of `finding`, None where nothing is."""
        return next((item.state for item in self.findings if item.name == finding), None)

    def present(self) -> tuple[str, ...]:
        """Return the names of the findings that are present, in the case's order."""
        return tuple(item.name for item in self.findings if item.state == "present")


def _numbers(values: Sequence[float]) -> str:
    return ",".join(repr(float(value)) for value in values)


def _exactly(count: int, text: str) -> Any:
    """Read `count` numbers with commas between."""
    values = tuple(float(part) for part in text.split(","))
    if len(values) != count:
        raise ValueError(f"expected {count} numbers, got {text!r}")
    return values
