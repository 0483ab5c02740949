"""What a model is shown and asked, what it answered, and what a reward said to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast, get_args
from urllib.parse import parse_qsl, urlencode

from evidcore.case.read_only import ReadOnly
from evidcore.case.scan import Case, MaskRef, VolumeRef

FULL = 1000.0  # the far edge of a slice as it was shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class Box:
    """A box in voxels of the case's volume, edges as in a slice: start included, stop excluded."""

    z: int  # the axial slice it lies on
    y0: int
    y1: int
    x0: int
    x1: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence(ReadOnly):
    """What an answer points at, in voxels of the source volume."""

    slice: int | None = None
    slices: Mapping[str, int] = dataclasses.field(default_factory=dict)  # of each finding that cites one
    boxes: tuple[Box, ...] = ()
    mask: MaskRef | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer(ReadOnly):
    """A completion, read by its task; `malformed` says why the strict format does not hold."""

    text: str  # the completion as written
    malformed: str | None = None  # lenient fields may still be filled
    think: str | None = None
    choice: str | None = None  # the letter under the strict format
    lenient_choice: str | None = None  # the letter a tolerant reader finds
    report: str | None = None
    evidence: Evidence | None = None
    value: object = None  # anything else that was read, for an evaluation or rewards that know it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Action(ReadOnly):
    """One tool call inside an episode."""

    tool: str
    arguments: Mapping[str, Any]
    error: str | None = None  # what the tool answered when the call was bad


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """What tools gave within an episode: its tokens from `start` to before `stop`."""

    start: int
    stop: int
    actions: tuple[Action, ...] = ()  # the calls that it answers
    parts: tuple[Part, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Episode:
    """A prompt and everything that followed it, as token ids.

    `loss_mask` is 1 on tokens of the model that are trained, and 0 on a tool's. `crops` are pixels that tools
    added, each at the position in `ids` of its first token. `parent` is the episode that it was forked from,
    as it was then, with the first token that they do not share. `entropies` are those of the policy in nats
    before each token, at the temperature of sampling, 0 before a tool's; none where the strategy reads none.
    `log_probs` are those of each token as another engine than the policy's own sampled it, 0 of a tool's.
    `credit` multiplies the advantage of each token; 1 for all where there is none.
    """

    prompt: Prompt
    ids: tuple[int, ...] = ()
    loss_mask: tuple[int, ...] = ()
    crops: tuple[tuple[int, Crop], ...] = ()
    replies: tuple[Reply, ...] = ()
    parent: tuple[Episode, int] | None = None
    entropies: tuple[float, ...] = ()
    log_probs: tuple[float, ...] = ()
    credit: tuple[float, ...] = ()
    finished: bool = False  # the model ended its turn

    def __post_init__(self) -> None:
        """Refuse what does not fit the tokens."""
        if len(self.ids) != len(self.loss_mask):
            raise ValueError(f"{len(self.ids)} tokens but {len(self.loss_mask)} loss mask entries")
        for name in ("entropies", "log_probs", "credit"):
            values = getattr(self, name)
            if values and len(values) != len(self.ids):
                raise ValueError(f"{len(self.ids)} tokens but {len(values)} values of {name}")

    @property
    def written(self) -> int:
        """Return how many tokens the model wrote, trained or not."""
        return len(self.ids) - sum(reply.stop - reply.start for reply in self.replies)

    @property
    def actions(self) -> tuple[Action, ...]:
        """Return every call that was answered, in order."""
        return tuple(action for reply in self.replies for action in reply.actions)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn:
    """A turn of an answer to which tools replied."""

    text: str  # as the model wrote it, calls included
    actions: tuple[Action, ...]
    reply: tuple[Part, ...]

    @property
    def crops(self) -> tuple[Crop, ...]:
        """Return the pixels that the tools showed."""
        return tuple(part.crop for part in self.reply if isinstance(part, VisualPart))

    def to_json(self) -> dict[str, Any]:
        """Return the turn as lines of rollouts and answers hold it."""
        return {
            "text": self.text,
            "actions": [dataclasses.asdict(action) for action in self.actions],
            "reply": written(self.reply),
            "crops": [crop.uri() for crop in self.crops],
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollout:
    """One sampled answer, ready to be judged. Rollouts of one `group` answer the same prompt."""

    prompt: Prompt
    group: int
    text: str  # what the model wrote in its last turn
    answer: Answer  # that text as its task reads it
    turns: tuple[Turn, ...] = ()  # those before the last
    parent: tuple[int, int] | None = None  # the answer of its group that it was forked from, and the token

    @property
    def actions(self) -> tuple[Action, ...]:
        """Return every call that was answered, in order."""
        return tuple(action for turn in self.turns for action in turn.actions)

    @property
    def crops(self) -> tuple[Crop, ...]:
        """Return the pixels that tools showed, in order."""
        return tuple(crop for turn in self.turns for crop in turn.crops)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score(ReadOnly):
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
Change = Literal["", "scrambled", "perturbed", "noisy"]
DrawingKind = Literal["slices", "tiles", "mean", "attenuation", "picture"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
    """How pictures are made of a volume: `evidcore.data.drawing` says what each kind is."""

    kind: DrawingKind
    slices: tuple[int, ...] = ()  # of "slices" and "tiles": indices in the source volume, in order
    columns: int = 0  # of "tiles"
    axis: Literal["", "y", "x"] = ""  # of "mean" and "attenuation": along which the rays run

    def __post_init__(self) -> None:
        """Refuse what its kind has no use for, or what it lacks."""
        takes = {"slices": (1, 0, 0), "tiles": (1, 1, 0), "mean": (0, 0, 1), "attenuation": (0, 0, 1)}
        given = (bool(self.slices), self.columns > 0, self.axis in ("y", "x"))
        if self.kind not in get_args(DrawingKind) or given != takes.get(self.kind, (0, 0, 0)):
            raise ValueError(f"no such drawing: {self}")

    def mark(self) -> str:
        """Return the string form; `parse` is its inverse."""
        numbers = (self.columns, *self.slices) if self.columns else self.slices
        return f"{self.kind}-{self.axis}{','.join(map(str, numbers))}"

    @classmethod
    def parse(cls, mark: str) -> Drawing:
        """Read back what `mark()` wrote.

        Raises:
            ValueError: if the text is not such a string.
        """
        kind, _, rest = mark.partition("-")
        if kind in ("mean", "attenuation"):
            return cls(kind=cast(Any, kind), axis=cast(Any, rest))
        numbers = tuple(int(number) for number in rest.split(",") if rest)
        columns, slices = (numbers[0], numbers[1:]) if kind == "tiles" and numbers else (0, numbers)
        return cls(kind=cast(Any, kind), slices=slices, columns=columns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Crop:
    """What an encoder is given: a whole volume, a part of one, or an empty or changed one of the same grid.

    `uri()` is the string that travels through trainers in place of pixels.
    """

    volume: VolumeRef
    box_zyx: tuple[int, int, int, int, int, int] | None = None  # z0, z1, y0, y1, x0, x1 in voxels
    blank: bool = False  # every voxel air: the grounding audit's empty volume
    change: Change = ""  # what an audit does to the voxels that an encoder is given
    drawing: Drawing | None = None  # the pictures that are made of it; none: its voxels

    def cut(self, box_zyx: tuple[int, int, int, int, int, int]) -> Crop:
        """Return the voxels of a box of the volume; a photograph stays one, no other drawing does."""
        keeps = self.drawing is not None and self.drawing.kind == "picture"
        return dataclasses.replace(self, box_zyx=box_zyx, drawing=self.drawing if keeps else None)

    @property
    def is_slice(self) -> bool:
        """Tell whether it is a single axial slice."""
        return self.box_zyx is not None and self.box_zyx[1] - self.box_zyx[0] == 1

    def voxels_of(self, box: Sequence[float | int]) -> Box:
        """Turn a shown box into voxels of the source volume; one thinner than a voxel becomes its voxel.

        It is x0, y0, x1, y1 in 0..1000, from the corner at the patient's right and front to the far edge.

        Raises:
            ValueError: if the crop is no slice, or the box runs backwards or over the edge.
        """
        z, y0, y1, x0, x1 = self._slice_edges()
        if len(box) != 4:
            raise ValueError(f"a box has 4 numbers x0, y0, x1, y1, got {list(box)!r}")
        left, top, right, bottom = (float(edge) for edge in box)
        if not (0 <= left <= right <= FULL and 0 <= top <= bottom <= FULL):
            raise ValueError(
                f"the box {list(box)!r} must lie inside what was shown: 0 <= x0 <= x1 <= {FULL:g} and "
                f"0 <= y0 <= y1 <= {FULL:g}"
            )
        columns, rows = _voxels(left, right, x1 - x0), _voxels(top, bottom, y1 - y0)
        return Box(z=z, y0=y0 + rows[0], y1=y0 + rows[1], x0=x0 + columns[0], x1=x0 + columns[1])

    def shown_box(self, box: Box) -> tuple[float, float, float, float]:
        """Turn voxels of the source volume into a shown box; `voxels_of` takes its rounded edges back.

        Raises:
            ValueError: if the crop is no slice, or the box lies outside it.
        """
        z, y0, y1, x0, x1 = self._slice_edges()
        if box.z != z or not (y0 <= box.y0 < box.y1 <= y1 and x0 <= box.x0 < box.x1 <= x1):
            raise ValueError(f"{box} lies outside the slice shown, z={z}, y={y0}..{y1}, x={x0}..{x1}")
        wide, high = x1 - x0, y1 - y0
        left, right = ((edge - x0) * FULL / wide for edge in (box.x0, box.x1))
        top, bottom = ((edge - y0) * FULL / high for edge in (box.y0, box.y1))
        return left, top, right, bottom

    def _slice_edges(self) -> tuple[int, int, int, int, int]:
        if self.box_zyx is None or not self.is_slice:
            raise ValueError(f"not a single slice: {self.uri()!r}")
        z, _, y0, y1, x0, x1 = self.box_zyx
        return z, y0, y1, x0, x1

    def uri(self) -> str:
        """Return the string form; `parse_uri` is its inverse."""
        params = self.volume.to_params()
        if self.box_zyx is not None:
            params["box"] = ",".join(str(edge) for edge in self.box_zyx)
        if self.blank:
            params["blank"] = "1"
        if self.change:
            params["change"] = self.change
        if self.drawing is not None:
            params["drawing"] = self.drawing.mark()
        return f"{self.volume.path}#{urlencode(params, safe=',')}"

    @classmethod
    def parse_uri(cls, uri: str) -> Crop:
        """Read back what `uri()` wrote.

        Raises:
            ValueError: if the text is not such a string; names it.
        """
        path, hash_sign, tail = uri.rpartition("#")
        if not hash_sign:
            raise ValueError(f"not a crop: {uri!r}; write it with Crop.uri()")
        params = dict(parse_qsl(tail))
        try:
            volume = VolumeRef.from_params(path, params)
            box = tuple(int(edge) for edge in params["box"].split(",")) if "box" in params else None
            drawing = Drawing.parse(params["drawing"]) if "drawing" in params else None
        except ValueError as cause:
            raise ValueError(f"not a crop: {uri!r} ({cause}); write it with Crop.uri()") from cause
        return cls(
            volume=volume,
            box_zyx=cast(Any, box),
            blank="blank" in params,
            change=cast(Any, params.get("change", "")),
            drawing=drawing,
        )


def _voxels(low: float, high: float, count: int) -> tuple[int, int]:
    # to the nearest edge: whole numbers in 0..1000 hit every edge of up to 1000 voxels exactly
    start, stop = (int(edge * count / FULL + 0.5) for edge in (low, high))
    if start == stop:
        start = min(int((low + high) / 2 * count / FULL), count - 1)
        stop = start + 1
    return start, stop


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextPart:
    """Text shown to the model."""

    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisualPart:
    """Pixels shown to the model, by reference."""

    crop: Crop


Part = TextPart | VisualPart


def written(parts: Sequence[Part]) -> str:
    """Return parts as text, `<image>` where pixels are shown."""
    return "".join(part.text if isinstance(part, TextPart) else "<image>" for part in parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt(ReadOnly):
    """What the model is asked about one case, and what a right answer is judged against."""

    id: str  # unique within a task and split
    case: Case
    task: str  # the task's name in the recipe
    parts: tuple[Part, ...]  # the user turn
    reference: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the task's own: options, letter

    def crops(self) -> tuple[Crop, ...]:
        """Return what is shown, in order."""
        return tuple(part.crop for part in self.parts if isinstance(part, VisualPart))

    def written(self) -> str:
        """Return the user turn as text, `<image>` where pixels are shown."""
        return written(self.parts)

    def words(self) -> str:
        """Return the user turn without what is shown."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

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

    def with_blank_volumes(self) -> Prompt:
        """Return the same question over volumes of air."""
        return self.showing([dataclasses.replace(crop, blank=True) for crop in self.crops()])

    def sealed(self, number: int) -> Prompt:
        """Return what a policy is given: text and pixels; no case, no reference, an id that says nothing."""
        nobody = Case(id=f"case-{number}", patient=None, volumes=())
        return Prompt(id=f"prompt-{number}", case=nobody, task=self.task, parts=self.parts)
