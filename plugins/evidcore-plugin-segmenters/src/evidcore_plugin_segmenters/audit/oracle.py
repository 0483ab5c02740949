"""What a segmenter is asked about a known mask: oracle prompts, and boxes that are off by a known share."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import scipy  # loads its parts when they are first asked for

from evidcore.api import Box, Segmenter
from evidcore.contracts import SegmenterPrompt
from evidcore.data import Mask
from evidcore_plugin_segmenters.regions import moved, parts, tight_box

ORACLE_BOX, ORACLE_MASK, NAME = "oracle box", "oracle mask", "name as text"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """One way of asking for an object: a prompt for each of its parts on the key slice.

    Figures are means over `tries`: one, or one for each way in which a box can be off.
    """

    name: str
    key: int
    tries: tuple[tuple[SegmenterPrompt, ...], ...]


def key_slice(truth: Mask) -> int:
    """Return the slice that shows most of a mask (z, y, x), the lowest of several."""
    return int(truth.sum(axis=(1, 2)).argmax())


def oracle_boxes(truth: Mask) -> tuple[Box, ...]:
    """Return the tight boxes on the key slice, one for each connected part that is no speck."""
    key = key_slice(truth)
    return tuple(tight_box(part, key) for part in parts(truth[key]))


def ways_to_ask(truth: Mask, name: str, jitters: Sequence[float]) -> list[Asked]:
    """Return the oracle's boxes, its mask on the key slice, its name, and boxes moved by each of `jitters`.

    Moved boxes are off by that share of their height and of their width: up and left, up and right, down and
    left, down and right, all boxes of an object alike. What would leave the slice is cut off.
    """
    key, boxes = key_slice(truth), oracle_boxes(truth)
    result = [
        Asked(name=ORACLE_BOX, key=key, tries=(tuple(Segmenter.BoxPrompt(box=box) for box in boxes),)),
        Asked(name=ORACLE_MASK, key=key, tries=((Segmenter.MaskPrompt(z=key, mask=truth[key].copy()),),)),
        Asked(name=NAME, key=key, tries=((Segmenter.TextPrompt(words=name),),)),
    ]
    for share in jitters:  # exactly: a drawn share would mix errors of several sizes
        tries = tuple(
            tuple(Segmenter.BoxPrompt(box=moved(box, by_yx, truth.shape[1:])) for box in boxes)
            for by_yx in itertools.product((-share, share), repeat=2)
        )
        result.append(Asked(name=moved_name(share), key=key, tries=tries))
    return result


def moved_name(share: float) -> str:
    """Return what tables call boxes that are off by a share of their size."""
    return f"box moved {100 * share:g} %"


def reachable(truth: Mask, boxes: Sequence[Box]) -> Mask:
    """Return what a perfect propagation could find: the connected parts of the mask that meet a box."""
    labels, _ = scipy.ndimage.label(truth, structure=np.ones((3, 3, 3)))
    met = {
        int(label)
        for box in boxes
        for label in np.unique(labels[box.z, box.y0 : box.y1, box.x0 : box.x1])
        if label
    }
    return np.isin(labels, sorted(met))
