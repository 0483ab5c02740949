"""The check of segmenters."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import nibabel
import numpy as np
import numpy.typing as npt

from evidcore.api import Box, DataError, Segmenter, VolumeRef
from evidcore.contracts import (
    BoxPrompt,
    MaskPrompt,
    MaskRequest,
    PointPrompt,
    SegmenterPrompt,
    SegmenterSession,
)
from evidcore.contracts.segmenting import Window
from evidcore.data import read_geometry
from evidcore.data.boxes import dice
from evidcore_testing.clauses import broken, raised, raises_nothing, refusal, require

Shape = tuple[int, int, int]
Asked = tuple[list[SegmenterPrompt], Window | None]
ROUNDING = 0.001  # of the voxels: objects that are computed together may differ by rounding


def check_segmenter(
    segmenter: Segmenter,
    volume: VolumeRef,
    prompts: Sequence[SegmenterPrompt],
    *,
    truth: npt.NDArray[np.bool_] | None = None,
    least_dice: float = 0.5,
) -> None:
    """Assert the contract of a segmenter.

    - a mask is boolean, on the volume's grid, and not empty for a prompt that can be used;
    - nothing lies outside the window;
    - equal prompts get equal masks, whatever was asked between and whatever the caller does with a mask;
    - the objects of one call are OR-ed, and `masks` gives what `mask` gives, in the order of the requests;
    - a prompt or a window that cannot be used raises a ValueError;
    - a volume that is missing or holds NaN raises a DataError that names the file;
    - an easy object is found.

    Args:
        segmenter: the component under test.
        volume: what is segmented.
        prompts: prompts that can be used, one object each.
        truth: the mask of that object, shape (z, y, x), if all prompts are for the same one.
        least_dice: how well it must be found.
    """
    shape = read_geometry(volume).shape_zyx
    session = segmenter.session(volume)
    masks = [session.mask([prompt]) for prompt in prompts]
    for prompt, mask in zip(prompts, masks, strict=True):
        sound = mask.shape == shape and mask.dtype == np.bool_
        result = f"must be bool {shape}, got {mask.dtype} {mask.shape}"
        require(sound, segmenter, "a mask is boolean, on the volume's grid", result)
        clause = "a prompt that can be used gives no empty mask"
        require(bool(mask.any()), segmenter, clause, f"got one for {prompt}")
        z = prompt.z
        for window in ((z, z + 1), (max(0, z - 1), min(shape[0], z + 2))):
            inside = session.mask([prompt], window)
            beyond = int(inside[: window[0]].sum() + inside[window[1] :].sum())
            clause = "nothing lies outside the window"
            require(beyond == 0, segmenter, clause, f"{beyond} voxels beyond slices {window[0]}..{window[1]}")
        if truth is not None:
            likeness = dice(mask, truth)
            clause = "an easy object is found"
            require(likeness >= least_dice, segmenter, clause, f"Dice {likeness:.2f} for {prompt}")
    for prompt, mask in zip(prompts, masks, strict=True):
        apart = int(
            (session.mask([prompt]) != mask).sum() + (segmenter.session(volume).mask([prompt]) != mask).sum()
        )
        require(apart == 0, segmenter, "equal prompts get equal masks", f"{apart} voxels differ for {prompt}")
    _together(segmenter, session, prompts, shape)
    clause = "a mask is the caller's: writing into it changes no later mask"
    twice = [MaskRequest(prompts=(prompts[0],))] * 2
    for is_alone in (True, False):
        own = session.mask(prompts[:1]) if is_alone else session.masks(twice)[0]
        before = own.copy()
        with raises_nothing(segmenter, clause, "writing"):
            own[:] = ~own
        again = session.mask(prompts[:1]) if is_alone else session.masks(twice)[0]
        apart = int((again != before).sum())
        require(apart == 0, segmenter, clause, f"{apart} voxels differ for {prompts[0]}")
    clause = "a prompt or a window that cannot be used raises a ValueError"
    for bad, span in _unusable(shape):
        given = f"{bad}" if span is None else f"the window {span} with {bad}"
        refusal(segmenter, clause, given, partial(session.mask, bad, span))
    _bad_volumes(segmenter, shape)


def prompts_from(mask: npt.NDArray[np.bool_]) -> list[SegmenterPrompt]:
    """Give a box, a point and a mask prompt for an object, on the slice where it is largest.

    Args:
        mask: the object, shape (z, y, x), not empty.
    """
    z = int(mask.sum(axis=(1, 2)).argmax())
    places = np.argwhere(mask[z])
    (y0, x0), (y1, x1) = places.min(axis=0), places.max(axis=0) + 1
    inner = places[np.abs(places - places.mean(axis=0)).sum(axis=1).argmin()]  # the voxel nearest the middle
    return [
        BoxPrompt(box=Box(z=z, y0=int(y0), y1=int(y1), x0=int(x0), x1=int(x1))),
        PointPrompt(z=z, y=int(inner[0]), x=int(inner[1])),
        MaskPrompt(z=z, mask=mask[z]),
    ]


def _together(
    segmenter: Segmenter, session: SegmenterSession, prompts: Sequence[SegmenterPrompt], shape: Shape
) -> None:
    """Ask for every prompt and for all of them at once, some twice, some within a window."""
    z = prompts[0].z
    near = (max(0, z - 1), min(shape[0], z + 2))
    both = [*prompts, _elsewhere(prompts[0], shape)]
    requests = [
        MaskRequest(prompts=tuple(both)),
        *(MaskRequest(prompts=(prompt,)) for prompt in prompts),
        MaskRequest(prompts=(prompts[0],), z_window=near),
        MaskRequest(prompts=(prompts[0],)),
    ]
    clause = "`masks` gives what `mask` gives, in the order of the requests"
    with raises_nothing(segmenter, clause, f"{len(requests)} requests"):
        answered = session.masks(requests)
    require(len(answered) == len(requests), segmenter, clause, f"{len(answered)} masks for {len(requests)}")
    for index, (request, mask) in enumerate(zip(requests, answered, strict=True)):
        alone = session.mask(request.prompts, request.z_window)
        apart = int((mask != alone).sum()) if mask.shape == alone.shape else alone.size
        require(apart <= ROUNDING * alone.size, segmenter, clause, f"request {index}: {apart} voxels differ")
    union = np.logical_or.reduce([session.mask([prompt]) for prompt in both])
    apart = int((session.mask(both) != union).sum())
    clause = "the objects of one call are OR-ed"
    require(apart <= ROUNDING * union.size, segmenter, clause, f"{apart} voxels differ from the union")


def _elsewhere(prompt: SegmenterPrompt, shape: Shape) -> BoxPrompt:
    """Return a box on the prompt's slice, in the quarter farthest from it."""
    _, height, width = shape
    match prompt:
        case BoxPrompt(box=box):
            y, x = box.y0, box.x0
        case PointPrompt(y=y, x=x):
            pass
        case MaskPrompt(mask=mask):
            y, x = (int(place) for place in np.argwhere(mask)[0])
    y0, x0 = (0 if 2 * y >= height else height // 2), (0 if 2 * x >= width else width // 2)
    box = Box(z=prompt.z, y0=y0, y1=y0 + max(1, height // 2), x0=x0, x1=x0 + max(1, width // 2))
    return BoxPrompt(box=box)


def _unusable(shape: Shape) -> list[Asked]:
    z, y, x = shape
    middle = (y // 2, x // 2)
    point = PointPrompt(z=0, y=middle[0], x=middle[1])
    prompts: list[list[SegmenterPrompt]] = [
        [],
        [BoxPrompt(box=Box(z=z, y0=0, y1=2, x0=0, x1=2))],
        [BoxPrompt(box=Box(z=-1, y0=0, y1=2, x0=0, x1=2))],
        [BoxPrompt(box=Box(z=0, y0=0, y1=y + 1, x0=0, x1=2))],
        [BoxPrompt(box=Box(z=0, y0=middle[0], y1=middle[0], x0=0, x1=2))],
        [PointPrompt(z=z, y=middle[0], x=middle[1])],
        [PointPrompt(z=0, y=-1, x=middle[1])],
        [MaskPrompt(z=0, mask=np.zeros((y, x), dtype=np.bool_))],
        [MaskPrompt(z=0, mask=np.ones((y + 1, x), dtype=np.bool_))],
    ]
    windows: list[Window] = [(0, 0), (1, 0), (-1, z), (0, z + 1)]
    if z > 1:
        windows.append((1, z))  # the point's slice is not in it
    asked: list[Asked] = [(bad, None) for bad in prompts]
    return asked + [([point], window) for window in windows]


def _bad_volumes(segmenter: Segmenter, shape: Shape) -> None:
    clause = "a volume that cannot be used raises a DataError that names the file"
    with tempfile.TemporaryDirectory() as folder:
        nan = Path(folder) / "nan.nii"
        array = np.zeros(shape[::-1], dtype=np.float32)
        array[0, 0, 0] = np.nan
        nibabel.save(nibabel.Nifti1Image(array, np.diag([-2.0, -2.0, 5.0, 1.0])), nan)
        point = PointPrompt(z=0, y=0, x=0)
        for path, what in ((nan, "a volume with NaN"), (Path(folder) / "gone.nii", "a missing file")):
            ref = VolumeRef(path=str(path))
            error = raised(partial(lambda ref: segmenter.session(ref).mask([point]), ref))
            if error is None:
                broken(segmenter, clause, f"{what} was accepted")
            named = isinstance(error, DataError) and path.name in str(error)
            require(named, segmenter, clause, f"{what} raised {type(error).__name__}: {error}")
