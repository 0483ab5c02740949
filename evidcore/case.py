"""What is known about a scan, what is asked about it and what a model answered: plain frozen data.

Arrays are `z, y, x`: z to superior, y to posterior, x to the patient's left (LPS), spacing in the same order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Split = Literal["train", "validation", "test"]
Intensity = Literal["hu", "arbitrary"]
Side = Literal["left", "right", "both"]
State = Literal["present", "absent", "uncertain"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VolumeRef:
    """Where a volume lies. Nothing is read until `evidcore.volume` is asked."""

    path: str
    intensity: Intensity = "hu"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskRef:
    """Where a mask lies, on the grid of its volume.

    A `.nii`/`.nii.gz` label map, or an `.npz` of boolean arrays of which `key` names one.
    """

    path: str
    key: str | None = None
    label: int | None = None  # value in a label map; None: every value above 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of text, in characters, that carries a label."""

    start: int
    end: int  # exclusive
    label: str  # "normal" or "abnormal" for report sentences

    def __post_init__(self) -> None:
        """Refuse a stretch that is empty or runs backwards."""
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
    span: Span | None = None  # where the text says so


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A question with options that came with a case."""

    id: str
    text: str
    options: tuple[str, ...]
    answer: int  # index into options
    true_options: tuple[int, ...] = ()  # every option that holds, where known; the answer among them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A scan with what is known about it; data, not a question.

    `patient` may be None in 2D sets without patients; statistics then cluster by case and say so.
    """

    id: str
    patient: str | None
    volumes: tuple[VolumeRef, ...]
    report: Report | None = None
    findings: tuple[Finding, ...] = ()
    masks: Mapping[str, MaskRef] = dataclasses.field(default_factory=dict)  # by finding or organ name
    questions: tuple[Question, ...] = ()
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # e.g. the impression text

    def state_of(self, finding: str) -> State | None:
        """Return what is known of `finding`, None where nothing is."""
        return next((item.state for item in self.findings if item.name == finding), None)

    def present(self) -> tuple[str, ...]:
        """Return the names of the findings that are present, in the case's order."""
        return tuple(item.name for item in self.findings if item.state == "present")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Crop:
    """What an encoder is given: a whole volume, a part of one, or an empty one of the same grid.

    `uri()` is the string that travels through trainers in place of pixels.
    """

    volume: VolumeRef
    box_zyx: tuple[int, int, int, int, int, int] | None = None  # z0, z1, y0, y1, x0, x1 in voxels
    blank: bool = False  # every voxel air: the grounding audit's empty volume

    def uri(self) -> str:
        """Return the string form; `parse_uri` is its inverse."""
        marks = [f"intensity={self.volume.intensity}"]
        if self.box_zyx is not None:
            marks.append("box=" + ",".join(str(edge) for edge in self.box_zyx))
        if self.blank:
            marks.append("blank=1")
        return f"{self.volume.path}#{'&'.join(marks)}"

    @classmethod
    def parse_uri(cls, uri: str) -> Crop:
        """Read back what `uri()` wrote.

        Raises:
            ValueError: if the text is not such a string; names it.
        """
        path, hash_sign, tail = uri.rpartition("#")
        marks = dict(mark.partition("=")[::2] for mark in tail.split("&"))
        intensity = marks.get("intensity")
        if not hash_sign or intensity not in ("hu", "arbitrary"):
            raise ValueError(f"not a crop: {uri!r}; write it with Crop.uri()")
        box = None
        if "box" in marks:
            z0, z1, y0, y1, x0, x1 = (int(edge) for edge in marks["box"].split(","))
            box = (z0, z1, y0, y1, x0, x1)
        kind: Intensity = "hu" if intensity == "hu" else "arbitrary"
        return cls(volume=VolumeRef(path=path, intensity=kind), box_zyx=box, blank="blank" in marks)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextPart:
    """Text shown to the model."""

    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisualPart:
    """Pixels shown to the model, by reference."""

    crop: Crop


Part = TextPart | VisualPart


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
    """What the model is asked about one case, and what a right answer is judged against."""

    id: str  # unique within a task and split
    case: Case
    task: str  # the task's name in the recipe
    parts: tuple[Part, ...]  # the user turn
    reference: Mapping[str, Any] = dataclasses.field(
        default_factory=dict
    )  # the task's own: options, letter, ...

    def crops(self) -> tuple[Crop, ...]:
        """Return what is shown, in order."""
        return tuple(part.crop for part in self.parts if isinstance(part, VisualPart))

    def written(self) -> str:
        """Return the user turn as text, `<image>` where pixels are shown."""
        return "".join(part.text if isinstance(part, TextPart) else "<image>" for part in self.parts)

    def showing(self, crops: Sequence[Crop]) -> Prompt:
        """Return the same question over other pixels; the case that it is judged against stays.

        Raises:
            ValueError: if the number of crops differs.
        """
        if len(crops) != len(self.crops()):
            raise ValueError(f"prompt {self.id!r} shows {len(self.crops())} crops, got {len(crops)}")
        fresh = iter(crops)
        parts = tuple(
            VisualPart(crop=next(fresh)) if isinstance(part, VisualPart) else part for part in self.parts
        )
        return dataclasses.replace(self, parts=parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Box:
    """A box in voxels of the case's volume, edges as in a slice: start included, stop excluded."""

    z: int  # the axial slice it lies on
    y0: int
    y1: int
    x0: int
    x1: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """What an answer points at, in voxels of the source volume."""

    slice: int | None = None
    boxes: tuple[Box, ...] = ()
    mask: MaskRef | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """A completion, read by its task.

    `malformed` gives the reason where the strict format does not hold; lenient fields may still be filled.
    """

    text: str  # the completion as written
    malformed: str | None = None
    think: str | None = None
    choice: str | None = None  # the letter under the strict format
    lenient_choice: str | None = None  # the letter a tolerant reader finds
    report: str | None = None
    evidence: Evidence | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Action:
    """One tool call inside an episode."""

    tool: str
    arguments: Mapping[str, Any]
    error: str | None = None  # what the tool answered when the call was bad


@dataclasses.dataclass(frozen=True, kw_only=True)
class Episode:
    """A prompt and everything that followed it, as token ids.

    `loss_mask` is 1 on tokens that the model wrote and 0 on tokens that a tool gave. `crops` are pixels that
    tools added, each at the position in `ids` of its first token.
    """

    prompt: Prompt
    ids: tuple[int, ...] = ()
    loss_mask: tuple[int, ...] = ()
    crops: tuple[tuple[int, Crop], ...] = ()
    actions: tuple[Action, ...] = ()
    finished: bool = False  # the model ended its turn

    def __post_init__(self) -> None:
        """Refuse a mask that does not fit the tokens."""
        if len(self.ids) != len(self.loss_mask):
            raise ValueError(f"{len(self.ids)} tokens but {len(self.loss_mask)} loss mask entries")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollout:
    """One sampled answer, ready to be judged. Rollouts of one `group` answer the same prompt."""

    prompt: Prompt
    group: int
    text: str
    answer: Answer
    actions: tuple[Action, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """A reward's verdict on one rollout: the value that trains, its parts and why."""

    value: float
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unscored:
    """No verdict: not applicable, or failed. Never counted as 0."""

    kind: Literal["not-applicable", "failed"]
    reason: str


Verdict = Score | Unscored
