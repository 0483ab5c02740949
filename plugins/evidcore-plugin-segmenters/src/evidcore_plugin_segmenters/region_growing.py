"""Segmenter `region-growing`: intensities that fill the box, grown slice by slice. No weights."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from evidcore.api import Segmenter, VolumeRef
from evidcore.contracts import SegmenterPrompt, SegmenterSession
from evidcore.contracts.segmenting import Window
from evidcore.data import Mask, Volume, volume_cache
from evidcore.data.content import volume_key
from evidcore_plugin_segmenters.growth import (
    Growth,
    Model,
    Region,
    around_point,
    grow,
    in_box,
    leash,
    of_mask,
    smooth,
)

_SESSIONS = 2  # volumes are asked about one after another, as `recall` remembers them
_OBJECTS = 64  # a volume's prompts that are remembered; more than the rollouts of a step ask about
_PLANES = 512  # smoothed slices that are remembered


class RegionGrowing(Segmenter):
    """Grow a region from the prompt's interior, then carry it from slice to slice.

    On the prompted slice the region is connected and its intensities lie in one interval. For a box the
    interval is the one whose region fills the box and spills least beyond it; for a point the one at which
    the region changes least as the interval widens; for a mask the one whose region is most like it. On each
    next slice the region is grown anew, in the same interval, from where the last one was; it ends where
    little of it is left. A box that is off its object is filled by something else, or less: the mask follows
    the box.

    It needs no training and knows no anatomy: it is the floor that a learned segmenter should beat.
    """

    def __init__(
        self,
        *,
        smoothing_steps: Annotated[int, Ge(0), Le(50)] = 5,
        drift_mm: Annotated[float, Gt(0), Le(50)] = 5.0,
        reach: Annotated[float, Ge(0), Le(5)] = 0.5,
        least_overlap: Annotated[float, Gt(0), Le(1)] = 0.15,
    ) -> None:
        """Take the options; nothing is read before a session is opened.

        Args:
            smoothing_steps: of diffusion, on each slice; more take more noise and more detail away.
            drift_mm: how far the outline may move outwards from one slice to the next, at least one voxel.
            reach: how far the region may get beyond the prompted one on other slices, as a share of its
                height and width.
            least_overlap: share of a slice's region that must be found again on the next, or the object has
                ended.
        """
        self._smoothing_steps = smoothing_steps
        self._growth = Growth(drift_mm=drift_mm, reach=reach, least_overlap=least_overlap)
        self._opened = functools.lru_cache(maxsize=_SESSIONS)(self._open)

    def session(self, volume: VolumeRef) -> GrowingSession:
        """Open `volume`; the last two sessions are kept."""
        return self._opened(volume_key(volume), volume)

    def _open(self, key: str, volume: VolumeRef) -> GrowingSession:
        """Open a volume; `key` is another where its file has changed."""
        return GrowingSession(volume_cache.read(volume), volume.path, self._growth, self._smoothing_steps)


class GrowingSession(SegmenterSession):
    """Smoothed slices and grown objects of one volume, each made when it is first asked for."""

    def __init__(self, volume: Volume, path: str, growth: Growth, smoothing_steps: int) -> None:
        self.volume, self.growth = volume, growth
        self._path = path
        self.plane = functools.lru_cache(maxsize=_PLANES)(lambda z: smooth(volume.array[z], smoothing_steps))
        self._object = functools.lru_cache(maxsize=_OBJECTS)(self._grown)

    def mask(self, prompts: Sequence[SegmenterPrompt], z_window: Window | None = None) -> Mask:
        shape = self.volume.shape_zyx
        self.refuse_unusable(prompts, z_window, shape, self._path)
        start, stop = z_window or (0, shape[0])
        result = np.zeros(shape, dtype=np.bool_)
        for prompt in self.on_slices(prompts):
            for z, region in self._object(prompt).between(start, stop):
                result[z] |= region
        return result

    def _grown(self, prompt: Segmenter.SlicePrompt) -> _Object:
        plane = self.plane(prompt.z)
        match prompt:
            case Segmenter.BoxPrompt(box=box):
                region, model = in_box(plane, box)
            case Segmenter.PointPrompt(y=y, x=x):
                region, model = around_point(plane, y, x)
            case Segmenter.MaskPrompt(mask=mask):
                region, model = of_mask(plane, mask)
        return _Object(self, prompt.z, region, model)


class _Object:
    """What a prompt has given: the region of each slice, as far as it was asked for."""

    def __init__(self, session: GrowingSession, z: int, region: Region, model: Model) -> None:
        self._session, self._model = session, model
        self._within = leash(z, region, session.growth.reach)
        self._regions: dict[int, Region] = {z: region}
        self._ends = {-1: z, 1: z}  # the last slice that was looked at, downwards and upwards
        self._has_ended = {-1: False, 1: False}

    def between(self, start: int, stop: int) -> list[tuple[int, Region]]:
        """Return slices and their regions, from `start` to `stop`."""
        for way, last in ((-1, start), (1, stop - 1)):
            while not self._has_ended[way] and (last - self._ends[way]) * way > 0:
                self._step(way)
        return [(z, region) for z, region in self._regions.items() if start <= z < stop]

    def _step(self, way: int) -> None:
        session, z = self._session, self._ends[way] + way
        spacing_mm_yx = session.volume.spacing_mm_zyx[1:]
        before = self._regions[z - way]
        region = grow(session.plane(z), before, self._model, self._within, spacing_mm_yx, session.growth)
        self._ends[way] = z
        if region is None:
            self._has_ended[way] = True
        else:
            self._regions[z] = region
