"""The abstract classes of the component kinds, and what passes through them.

The factory rule holds for each: in a component's constructor, left of `*` the core gives (by the names listed in
the contract's docstring; take only those you need), right of `*` the recipe gives. A keyword-only parameter that is
annotated with a contract (`scorer: Scorer`) is a table with `use` in the recipe, or the name of a `[service.<name>]`.
Construction reads no file and opens no socket.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from torch import Tensor, nn

from evidcore.case import (
    Answer,
    Box,
    Case,
    Crop,
    Episode,
    Finding,
    Part,
    Prompt,
    Rollout,
    Score,
    Span,
    Split,
    Unscored,
    Verdict,
    VisualPart,
    VolumeRef,
)

Grid = tuple[int, int, int]  # z, y, x


class Dataset(ABC):
    """Cases by split. Core gives: `recipe_folder` (relative paths start there), `cache_folder`.

    Case ids are unique over all splits; no patient is in two splits.
    """

    findings: tuple[str, ...] = ()  # the finding vocabulary, in a fixed order; empty where there is none

    @abstractmethod
    def cases(self, split: Split) -> Iterable[Case]:
        """Yield the cases of `split`, lazily, always in the same order."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short hash that changes whenever any case would."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderInput:
    """What an encoder wants to be given."""

    size_zyx: Grid  # voxels; a slice-wise encoder takes any z and declares the usual one
    spacing_mm_zyx: tuple[float, float, float] | None  # None: the whole field of view, resized
    windows: tuple[tuple[float, float], ...]  # (low, high) in HU, one channel each, mapped to -1..1
    # no window at all: one channel, scaled by the volume's percentiles; the only way for arbitrary intensity
    any_depth: bool = False  # z may differ from size_zyx[0]

    @property
    def channels(self) -> int:
        """Number of channels the encoder is given."""
        return max(1, len(self.windows))


@dataclasses.dataclass(frozen=True)
class Patches:
    """An encoder's output.

    `features` has shape (volume, patch, width), patches in `z, y, x` raster order over `grid_zyx`;
    `centres_mm` has shape (patch, 3): patch centres from the input's centre, `z, y, x` in mm (in input voxels
    where the input declares no spacing).
    """

    features: Float[Tensor, "volume patch width"]
    grid_zyx: Grid
    centres_mm: Float[Tensor, "patch 3"]


class Encoder(nn.Module, ABC):
    """Turn volumes into patch features. Core gives: nothing."""

    input: EncoderInput
    width: int

    @abstractmethod
    def grid(self, size_zyx: Grid) -> Grid:
        """Return the patch grid for an input of `size_zyx` voxels, without weights."""

    @abstractmethod
    def forward(self, volumes: Float[Tensor, "volume channel z y x"]) -> Patches:
        """Encode volumes that were prepared as `input` declares."""

    def load_pretrained(self) -> None:
        """Fetch the published weights that the options name, if any.

        Called once, where a model is put together from a recipe; never where it is read back from a folder.
        """


class Bridge(nn.Module, ABC):
    """Turn patches into language-model embeddings. Core gives: `width`, `text_width`, `grid_zyx` (the encoder's usual grid)."""

    @abstractmethod
    def tokens(self, grid_zyx: Grid) -> int:
        """Return the number of embeddings for a patch grid, without weights."""

    @abstractmethod
    def forward(self, patches: Patches) -> Float[Tensor, "volume token text_width"]:
        """Return the embeddings that take the place of the image tokens."""

    def set_anchor(self, embeddings: Float[Tensor, "vocabulary text_width"]) -> None:  # noqa: B027
        """Take what is needed from the language model's embeddings, once, after its weights are loaded.

        Whatever is kept must be a persistent buffer: weights may be sharded or trained later.
        """


class Reweighter(ABC):
    """Weigh the target tokens of supervised fine-tuning. Core gives: nothing."""

    @abstractmethod
    def __call__(
        self, text: str, spans: Sequence[Span], offsets: Sequence[tuple[int, int]]
    ) -> Sequence[float]:
        """Return a weight ≥ 0 for each token of `text`, given each token's characters (start, end).

        Tokens without characters (end of turn) come as (n, n). Padding and prompt tokens are not shown here;
        the core gives them weight 0.
        """


class Reward(ABC):
    """Judge sampled answers; higher is better. Core gives: `policy` (a `Policy`, the model being trained).

    `earlier` holds the verdicts of the rewards before this one in the recipe, by name.
    """

    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    @abstractmethod
    def __call__(
        self, rollouts: Sequence[Rollout], earlier: Mapping[str, Sequence[Verdict]]
    ) -> Sequence[Score | Unscored | None]:
        """Return a verdict per rollout; rollouts come as whole groups.

        None is short for "not applicable". Missing is not zero: an unscored rollout moves no advantage.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoxPrompt:
    """A box on an axial slice."""

    box: Box


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointPrompt:
    """A voxel inside the object."""

    z: int
    y: int
    x: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskPrompt:
    """A mask on an axial slice, shape (y, x)."""

    z: int
    mask: np.ndarray[Any, np.dtype[np.bool_]]


SegmenterPrompt = BoxPrompt | PointPrompt | MaskPrompt


class SegmenterSession(ABC):
    """A segmenter that has looked at one volume; prompts on it are cheap."""

    @abstractmethod
    def mask(
        self, prompts: Sequence[SegmenterPrompt], z_window: tuple[int, int] | None = None
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return the mask, shape (z, y, x) on the volume's grid, False outside `z_window` (start, stop).

        Raises:
            ValueError: if a prompt cannot be used (outside the volume, empty); never an empty mask instead.
        """


class Segmenter(ABC):
    """Turn prompts on slices into 3D masks. Core gives: `cache_folder`."""

    @abstractmethod
    def session(self, volume: VolumeRef) -> SegmenterSession:
        """Open `volume`."""


class View(ABC):
    """What the model is shown of a case, and the way back. Core gives: nothing.

    The box convention of the model belongs here: tasks, tools, rewards and pages speak voxels.
    """

    tags_slices: ClassVar[bool] = False  # the text names each slice's source index

    @abstractmethod
    def render(self, case: Case) -> tuple[Part, ...]:
        """Return the text and visual parts that show `case`."""

    @abstractmethod
    def size_zyx(self, part: VisualPart, encoder: EncoderInput) -> Grid:
        """Return the voxel size at which `encoder` will be given `part`."""

    @abstractmethod
    def to_source(self, part: VisualPart, box: Sequence[float]) -> Box | None:
        """Return a box in the view's own convention as voxels of the source volume, None where it has no slice.

        Raises:
            ValueError: if the box lies outside what was shown; names it.
        """


class Task(ABC):
    """Ask about cases and read the answers. Core gives: nothing."""

    needs_slice_tags: ClassVar[bool] = False

    @abstractmethod
    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        """Return what is asked about `case`; `Prompt.task` is left as the component's own name, ids are unique in a split.

        Equal arguments give equal prompts. Training passes another seed each epoch, evaluation always 0.
        """

    @abstractmethod
    def parse(self, prompt: Prompt, completion: str) -> Answer:
        """Read a completion. Garbage is an Answer with `malformed` set, never an exception."""

    @abstractmethod
    def gold(self, prompt: Prompt) -> tuple[str, tuple[Span, ...]]:
        """Return a right completion and its labelled spans; `parse` finds it well-formed."""


class Sampler(ABC):
    """What a rollout strategy may do with the policy, whatever engine runs it."""

    @abstractmethod
    def sample(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Continue each episode until the model ends its turn, calls a tool or runs out of tokens."""

    @abstractmethod
    def entropies(self, episodes: Sequence[Episode]) -> list[list[float]]:
        """Return the policy's entropy in nats before each token of each episode."""

    @abstractmethod
    def extend(self, episode: Episode, parts: Sequence[Part]) -> Episode:
        """Append what a tool gave; its tokens get loss mask 0."""

    @abstractmethod
    def fork(self, episode: Episode, token: int) -> Episode:
        """Return the episode cut before its token number `token`, to be continued differently."""

    @abstractmethod
    def text(self, episode: Episode) -> str:
        """Return what the model and its tools wrote, without special tokens."""


class RolloutStrategy(ABC):
    """Kind `rollout`: how the answers of a group come about. Core gives: nothing."""

    @abstractmethod
    def __call__(
        self, sampler: Sampler, prompts: Sequence[Prompt], answers_per_prompt: int
    ) -> list[Episode]:
        """Return exactly `answers_per_prompt` episodes for each prompt, in order."""


class Tool(ABC):
    """Something the model may call while it answers. Core gives: `view`, whose box convention is spoken."""

    name: ClassVar[str]
    description: ClassVar[str]
    schema: ClassVar[Mapping[str, Any]]  # JSON schema of the arguments

    @abstractmethod
    def __call__(self, arguments: Mapping[str, Any], prompt: Prompt) -> tuple[Part, ...]:
        """Return text and visual parts.

        Raises:
            ValueError: if the arguments are unusable; the caller passes the message to the model as the answer.
        """


class Reader(ABC):
    """Read images without ever seeing the report: a judge, or any model to be audited. Core gives: nothing."""

    deterministic: ClassVar[bool]

    @abstractmethod
    def __call__(self, crops: Sequence[Crop], question: str) -> str | None:
        """Return an answer, None if there is none."""


class Labeler(ABC):
    """Find findings in text. Core gives: nothing."""

    @abstractmethod
    def __call__(self, text: str) -> tuple[Finding, ...]:
        """Return the findings that `text` speaks of; each span lies inside the text."""


class Scorer(ABC):
    """Compare texts. Core gives: nothing."""

    @abstractmethod
    def __call__(
        self, candidates: Sequence[str], references: Sequence[str]
    ) -> Sequence[float | None]:
        """Return an agreement in 0..1 per pair, None where nothing can be compared; equal texts score 1."""


class Policy(ABC):
    """A model that answers prompts: what evaluation, audits and re-querying rewards see of it."""

    @abstractmethod
    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[str]:
        """Return one completion per prompt, without special tokens; temperature 0 is greedy."""

    @abstractmethod
    def log_likelihoods(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """Return the log-probability in nats of each candidate completion of each prompt, summed over its tokens."""


FitLog = Callable[[Mapping[str, float]], None]


@runtime_checkable
class Fittable(Protocol):
    """A component that a `fit` stage can train.

    Keyword-only parameters of `fit` are the stage's `options` in the recipe, checked like constructor options.
    """

    def fit(
        self, train: Sequence[Case], validation: Sequence[Case], folder: Path, seed: int, log: FitLog
    ) -> None:
        """Train on `train`, choose on `validation`, write weights and `fit.json` (figures) into `folder`."""
        ...

    def load(self, folder: Path) -> None:
        """Read back what `fit` wrote."""
        ...


KINDS: Mapping[str, type] = {
    "dataset": Dataset,
    "encoder": Encoder,
    "bridge": Bridge,
    "reweighter": Reweighter,
    "reward": Reward,
    "segmenter": Segmenter,
    "view": View,
    "task": Task,
    "rollout": RolloutStrategy,
    "tool": Tool,
    "reader": Reader,
    "labeler": Labeler,
    "scorer": Scorer,
}

