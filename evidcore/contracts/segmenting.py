"""Prompts on slices, or words, in; masks out."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from evidcore.case import Box, VolumeRef
from evidcore.contracts.judging import Component

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Window = tuple[int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoxPrompt:
    """A box on an axial slice."""

    box: Box

    @property
    def z(self) -> int:
        """The slice it lies on."""
        return self.box.z


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointPrompt:
    """A voxel inside the object."""

    z: int
    y: int
    x: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MaskPrompt:
    """A mask on an axial slice, boolean, shape (y, x). Equal prompts hold equal voxels."""

    z: int
    mask: Mask

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MaskPrompt) and self.z == other.z and np.array_equal(self.mask, other.mask)

    def __hash__(self) -> int:
        return hash((self.z, self.mask.shape, self.mask.tobytes()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextPrompt:
    """Words that name an object, such as "liver"; the mask is empty where the volume shows none."""

    words: str


SlicePrompt = BoxPrompt | PointPrompt | MaskPrompt  # shown on slice `z`
SegmenterPrompt = SlicePrompt | TextPrompt


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskRequest:
    """One mask that is asked of a session: the prompts are objects that are OR-ed; z from start to stop."""

    prompts: tuple[SegmenterPrompt, ...]
    z_window: Window | None = None


class SegmenterSession(ABC):
    """A segmenter that has looked at one volume; prompts on it are cheap."""

    takes: ClassVar[tuple[type, ...]] = (BoxPrompt, PointPrompt, MaskPrompt)  # others are refused

    @abstractmethod
    def mask(self, prompts: Sequence[SegmenterPrompt], z_window: Window | None = None) -> Mask:
        """Segment the objects that are prompted, together.

        Args:
            prompts: one an object, in voxels of the volume. An object is segmented as if it were alone.
            z_window: slices from start to stop, stop excluded, that hold every prompt; None: all slices.

        Returns:
            The objects OR-ed, bool, shape (z, y, x) on the volume's grid, False outside `z_window`. It is
            the caller's: writing into it changes no later mask.

        Raises:
            ValueError: if a prompt cannot be used, as `refuse_unusable` says; never an empty mask instead.
        """

    @staticmethod
    def on_slices(prompts: Sequence[SegmenterPrompt]) -> list[SlicePrompt]:
        """Return the prompts that lie on a slice: all of a session that takes no text."""
        return [prompt for prompt in prompts if not isinstance(prompt, TextPrompt)]

    @classmethod
    def refuse_unusable(
        cls,
        prompts: Sequence[SegmenterPrompt],
        z_window: Window | None,
        shape_zyx: tuple[int, int, int],
        path: str = "prompts",
    ) -> None:
        """Raise if prompts cannot be used on a volume; every session calls it first. Messages name `path`.

        Raises:
            ValueError: if there is no prompt, or one of a type that the session does not take, the window
                holds no slice or one that the volume lacks, or a prompt lies outside the volume or the
                window, is empty, or is a mask of another grid or type; names the value and what is right.
        """
        z = shape_zyx[0]
        taken = " or ".join(kind.__name__ for kind in cls.takes)
        if not prompts:
            raise ValueError(f"{path}: no prompt was given. Give at least one {taken}.")
        start, stop = z_window or (0, z)  # must hold the prompts' slices: nothing else can be carried
        if not 0 <= start < stop <= z:
            raise ValueError(
                f"{path}: the window {z_window}, from start to stop, stop excluded, must hold slices of the "
                f"volume, and lie within (0, {z})."
            )
        for prompt in prompts:
            if not isinstance(prompt, cls.takes):
                given = prompt if isinstance(prompt, TextPrompt) else type(prompt).__name__
                text = f"{path}: {cls.__name__} takes {taken}, got {given}."
                raise ValueError(f"{text} Give one of these, or name a segmenter that takes it.")
            if wrong := _unusable(prompt, shape_zyx):
                raise ValueError(f"{path}: {wrong}")
            if not isinstance(prompt, TextPrompt) and not start <= prompt.z < stop:
                raise ValueError(
                    f"{path}: the window {z_window} lacks slice {prompt.z}, on which a prompt lies. "
                    f"Widen it, or leave the prompt out."
                )

    def masks(self, requests: Sequence[MaskRequest]) -> list[Mask]:
        """Answer many requests, for instance those of all rollouts of a prompt; equal ones are asked once.

        A segmenter that is faster on many at a time overrides this.

        Returns:
            What `mask` gives for each request, in their order.

        Raises:
            ValueError: if a prompt of any request cannot be used.
        """
        result: dict[MaskRequest, Mask] = {}
        for request in requests:
            if request not in result:
                result[request] = self.mask(request.prompts, request.z_window)
        return [result[request].copy() for request in requests]


class Segmenter(Component, ABC):
    """Turn prompts on slices, or words, into 3D masks. Core gives: `cache_folder`, `recipe_folder`."""

    from evidcore.contracts.segmenting import BoxPrompt as BoxPrompt
    from evidcore.contracts.segmenting import MaskPrompt as MaskPrompt
    from evidcore.contracts.segmenting import MaskRequest as MaskRequest
    from evidcore.contracts.segmenting import PointPrompt as PointPrompt
    from evidcore.contracts.segmenting import SegmenterSession as Session
    from evidcore.contracts.segmenting import SlicePrompt as SlicePrompt
    from evidcore.contracts.segmenting import TextPrompt as TextPrompt

    @abstractmethod
    def session(self, volume: VolumeRef) -> SegmenterSession:
        """Open `volume`.

        Raises:
            DataError: if the volume cannot be used (missing, corrupted, NaN); names the file.
        """


def _unusable(prompt: SegmenterPrompt, shape_zyx: tuple[int, int, int]) -> str:
    """Say what is wrong with a prompt and what would be right; "" for nothing."""
    z, y, x = shape_zyx
    if isinstance(prompt, TextPrompt):
        return "" if prompt.words.strip() else f"{prompt} names nothing. Give words, such as 'liver'."
    if not 0 <= prompt.z < z:
        name = "a mask" if isinstance(prompt, MaskPrompt) else prompt
        return f"there is no slice {prompt.z} for {name}: the volume has slices 0 to {z - 1}."
    match prompt:
        case BoxPrompt(box=box):
            if not (0 <= box.y0 < box.y1 <= y and 0 <= box.x0 < box.x1 <= x):
                return (
                    f"{box} must hold voxels of a slice, which has {y} x {x} (y, x). Boxes run from start "
                    f"to stop, stop excluded."
                )
        case PointPrompt():
            if not (0 <= prompt.y < y and 0 <= prompt.x < x):
                return f"{prompt} must be a voxel of a slice, which has {y} x {x} (y, x)."
        case MaskPrompt(mask=mask):
            if mask.dtype != np.bool_ or mask.shape != (y, x):
                return (
                    f"the mask on slice {prompt.z} must be bool of the slice's shape {(y, x)} (y, x), got "
                    f"{mask.dtype} of {mask.shape}. Resample it onto the volume's grid."
                )
            if not mask.any():
                return f"the mask on slice {prompt.z} holds no voxel. Give one that shows the object."
    return ""
