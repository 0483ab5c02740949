"""Segmenters that take words and nothing else, and their sessions."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from evidcore.api import Segmenter, VolumeRef
from evidcore.contracts import SegmenterPrompt, SegmenterSession
from evidcore.contracts.segmenting import Window
from evidcore.data import Mask, read_geometry
from evidcore.data.content import volume_key

MASKS = 64  # that are remembered; volumes are asked about one after another


@dataclasses.dataclass(frozen=True, eq=False)
class TextSession(SegmenterSession):
    """One volume, which texts are asked about."""

    takes = (Segmenter.TextPrompt,)
    shape_zyx: tuple[int, int, int]
    path: str
    find: Callable[[str], Mask]

    def mask(self, prompts: Sequence[SegmenterPrompt], z_window: Window | None = None) -> Mask:
        """Return what the texts name, OR-ed, (z, y, x); a window is cut from the whole volume's mask."""
        self.refuse_unusable(prompts, z_window, self.shape_zyx, self.path)
        start, stop = z_window or (0, self.shape_zyx[0])
        result = np.zeros(self.shape_zyx, dtype=np.bool_)
        for prompt in prompts:
            if isinstance(prompt, Segmenter.TextPrompt):
                result[start:stop] |= self.find(prompt.words)[start:stop]
        return result


class TextSegmenter(Segmenter):
    """Opens volumes for `find`, which gives the mask of a text by a volume's key, the volume and the text."""

    find: Callable[[str, VolumeRef, str], Mask]

    def session(self, volume: VolumeRef) -> TextSession:
        """Open `volume`; the model is loaded for the first text."""
        find = functools.partial(self.find, volume_key(volume), volume)
        return TextSession(read_geometry(volume).shape_zyx, volume.path, find)
