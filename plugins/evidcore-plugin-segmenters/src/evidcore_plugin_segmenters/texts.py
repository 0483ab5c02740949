"""The session of a segmenter that takes words and nothing else."""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from evidcore.api import Segmenter
from evidcore.contracts import SegmenterPrompt, SegmenterSession
from evidcore.contracts.segmenting import Window
from evidcore.data import Mask

SESSIONS = 2  # volumes are asked about one after another
_TEXTS = 64  # of a volume that are remembered


class TextSession(SegmenterSession):
    """One volume, and the masks of the texts that were asked about it."""

    takes = (Segmenter.TextPrompt,)

    def __init__(self, shape_zyx: tuple[int, int, int], path: str, find: Callable[[str], Mask]) -> None:
        """Ask `find` once for the mask of each text, on all slices of the volume at `path`."""
        self._shape, self._path = shape_zyx, path
        self._found = functools.lru_cache(maxsize=_TEXTS)(find)

    def mask(self, prompts: Sequence[SegmenterPrompt], z_window: Window | None = None) -> Mask:
        """Return what the texts name, OR-ed, (z, y, x); a window is cut from the whole volume's mask."""
        self.refuse_unusable(prompts, z_window, self._shape, self._path)
        start, stop = z_window or (0, self._shape[0])
        result = np.zeros(self._shape, dtype=np.bool_)
        for prompt in prompts:
            if isinstance(prompt, Segmenter.TextPrompt):
                result[start:stop] |= self._found(prompt.words)[start:stop]
        return result
