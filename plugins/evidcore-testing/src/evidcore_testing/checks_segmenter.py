"""The check of segmenters."""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import nibabel
import numpy as np
import numpy.typing as npt

from evidcore.api import Box, DataError, Segmenter, VolumeRef
from evidcore.contracts import MaskRequest, SegmenterPrompt, SegmenterSession
from evidcore.contracts.segmenting import Window
from evidcore.data import Mask, read_geometry
from evidcore.data.masks import dice
from evidcore_testing.clauses import Clauses

Shape = tuple[int, int, int]
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
    - a prompt that the session does not take, or that cannot be used, raises a ValueError, and so does such
      a window;
    - a volume that is missing or holds NaN raises a DataError that names the file;
    - an easy object is found.

    Args:
        segmenter: the component under test.
        volume: what is segmented.
        prompts: prompts that can be used, one object each; a text names what the volume shows. One that
            takes text must be given one.
        truth: the mask of that object, shape (z, y, x), if all prompts are for the same one.
        least_dice: how well it must be found.
    """
    check = Clauses(segmenter)
    shape = read_geometry(volume).shape_zyx
    session = segmenter.session(volume)
    takes_text, has_text = (
        Segmenter.TextPrompt in session.takes,
        any(isinstance(item, Segmenter.TextPrompt) for item in prompts),
    )
    clause = "one that takes text is asked with text"
    check(has_text or not takes_text, clause, "give check_segmenter a TextPrompt")
    masks = [session.mask([prompt]) for prompt in prompts]
    for prompt, mask in zip(prompts, masks, strict=True):
        sound = mask.shape == shape and mask.dtype == np.bool_
        got = f"must be bool {shape}, got {mask.dtype} {mask.shape}"
        check(sound, "a mask is boolean, on the volume's grid", got)
        check(mask.any(), "a prompt that can be used gives no empty mask", f"got one for {prompt}")
        z = _slice(prompt, shape)
        for start, stop in ((z, z + 1), _near(prompt, shape)):
            inside = session.mask([prompt], (start, stop))
            beyond = int(inside[:start].sum() + inside[stop:].sum())
            got = f"{beyond} voxels beyond slices {start}..{stop}"
            check(beyond == 0, "nothing lies outside the window", got)
        if truth is not None:
            likeness = dice(mask, truth)
            check(likeness >= least_dice, "an easy object is found", f"Dice {likeness:.2f} for {prompt}")
    for prompt, mask in zip(prompts, masks, strict=True):
        sessions = (session, segmenter.session(volume))
        apart = sum(int((other.mask([prompt]) != mask).sum()) for other in sessions)
        check(apart == 0, "equal prompts get equal masks", f"{apart} voxels differ for {prompt}")
    _together(check, session, prompts, masks[0])
    clause = "a mask is the caller's: writing into it changes no later mask"
    twice = [MaskRequest(prompts=(prompts[0],))] * 2
    asks: list[Callable[[], Mask]] = [lambda: session.mask(prompts[:1]), lambda: session.masks(twice)[0]]
    for ask in asks:
        mask = ask()
        before = mask.copy()
        with check.raises_nothing(clause, "writing"):
            mask[:] = ~mask
        apart = int((ask() != before).sum())
        check(apart == 0, clause, f"{apart} voxels differ for {prompts[0]}")
    clause = "a prompt or a window that cannot be used raises a ValueError"
    for bad, window in _unusable(shape, session, prompts[0]):
        given = f"{bad}" if window is None else f"the window {window} with {bad}"
        check.refuses(clause, given, partial(session.mask, bad, window))
    with tempfile.TemporaryDirectory() as folder:
        nan, gone = (Path(folder, name) for name in ("nan.nii", "gone.nii"))
        array = np.zeros(shape[::-1], dtype=np.float32)
        array[0, 0, 0] = np.nan
        nibabel.save(nibabel.Nifti1Image(array, np.diag([-2.0, -2.0, 5.0, 1.0])), nan)
        clause = "a volume that cannot be used raises a DataError that names the file"
        for path, given in ((nan, "a volume with NaN"), (gone, "a missing file")):
            attempt = partial(lambda ref: segmenter.session(ref).mask(prompts[:1]), VolumeRef(path=str(path)))
            check.refuses(clause, given, attempt, by=DataError, naming=path.name)


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
        Segmenter.BoxPrompt(box=Box(z=z, y0=int(y0), y1=int(y1), x0=int(x0), x1=int(x1))),
        Segmenter.PointPrompt(z=z, y=int(inner[0]), x=int(inner[1])),
        Segmenter.MaskPrompt(z=z, mask=mask[z]),
    ]


def _slice(prompt: SegmenterPrompt, shape: Sequence[int]) -> int:
    """Return the slice of a prompt, of a text the middle one."""
    return shape[0] // 2 if isinstance(prompt, Segmenter.TextPrompt) else prompt.z


def _near(prompt: SegmenterPrompt, shape: Sequence[int]) -> Window:
    z = _slice(prompt, shape)
    return max(0, z - 1), min(shape[0], z + 2)


def _together(
    check: Clauses,
    session: SegmenterSession,
    prompts: Sequence[SegmenterPrompt],
    first: npt.NDArray[np.bool_],
) -> None:
    """Ask for every prompt and for all of them at once, some twice, some within a window."""
    (_, height, width), (_, y, x) = first.shape, np.argwhere(first)[0]
    y0, x0 = (0 if 2 * y >= height else height // 2), (0 if 2 * x >= width else width // 2)
    z = _slice(prompts[0], first.shape)
    quarter = Box(z=z, y0=y0, y1=y0 + max(1, height // 2), x0=x0, x1=x0 + max(1, width // 2))
    far = Segmenter.BoxPrompt(box=quarter)  # the quarter of the slice that is farthest from the object
    both = [*prompts, far] if Segmenter.BoxPrompt in session.takes else prompts
    requests = [
        MaskRequest(prompts=tuple(both)),
        *(MaskRequest(prompts=(prompt,)) for prompt in prompts),
        MaskRequest(prompts=(prompts[0],), z_window=_near(prompts[0], first.shape)),
        MaskRequest(prompts=(prompts[0],)),
    ]
    clause = "`masks` gives what `mask` gives, in the order of the requests"
    with check.raises_nothing(clause, f"{len(requests)} requests"):
        answered = session.masks(requests)
    check(len(answered) == len(requests), clause, f"{len(answered)} masks for {len(requests)}")
    for index, (request, mask) in enumerate(zip(requests, answered, strict=True)):
        alone = session.mask(request.prompts, request.z_window)
        apart = int((mask != alone).sum()) if mask.shape == alone.shape else alone.size
        check(apart <= ROUNDING * alone.size, clause, f"request {index}: {apart} voxels differ")
    union = np.logical_or.reduce([session.mask([prompt]) for prompt in both])
    apart = int((session.mask(both) != union).sum())
    got = f"{apart} voxels differ from the union"
    check(apart <= ROUNDING * union.size, "the objects of one call are OR-ed", got)


def _unusable(
    shape: Shape, session: SegmenterSession, sound: SegmenterPrompt
) -> list[tuple[list[SegmenterPrompt], Window | None]]:
    """Return prompts and windows that no session can use, and prompts that this one does not take."""
    z, y, x = shape
    middle = (y // 2, x // 2)
    boxes = [(z, 0, 2), (-1, 0, 2), (0, 0, y + 1), (0, middle[0], middle[0])]  # z, y0, y1
    prompts: list[SegmenterPrompt] = [
        *(Segmenter.BoxPrompt(box=Box(z=at, y0=y0, y1=y1, x0=0, x1=2)) for at, y0, y1 in boxes),
        Segmenter.PointPrompt(z=z, y=middle[0], x=middle[1]),
        Segmenter.PointPrompt(z=0, y=-1, x=middle[1]),
        Segmenter.MaskPrompt(z=0, mask=np.zeros((y, x), dtype=np.bool_)),
        Segmenter.MaskPrompt(z=0, mask=np.ones((y + 1, x), dtype=np.bool_)),
        Segmenter.TextPrompt(words=" "),
    ]
    kinds: list[SegmenterPrompt] = [
        Segmenter.BoxPrompt(box=Box(z=0, y0=0, y1=y, x0=0, x1=x)),
        Segmenter.PointPrompt(z=0, y=middle[0], x=middle[1]),
        Segmenter.MaskPrompt(z=0, mask=np.ones((y, x), dtype=np.bool_)),
        Segmenter.TextPrompt(words="lung"),
    ]
    prompts += [prompt for prompt in kinds if not isinstance(prompt, session.takes)]
    asked: list[tuple[list[SegmenterPrompt], Window | None]] = [([], None)]
    asked += [([bad], None) for bad in prompts]
    windows = [(0, 0), (1, 0), (-1, z), (0, z + 1)]
    if z > 1 and not isinstance(sound, Segmenter.TextPrompt):  # a window that lacks its slice
        windows.append((0, sound.z) if sound.z else (1, z))
    return asked + [([sound], window) for window in windows]
