"""Segmenter `slice-propagator`: a small 2D network carries a mask from slice to slice; trained by `fit`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from evidcore.api import DataError, InlineOptions, Segmenter, VolumeRef
from evidcore.compute.loading import load_weights
from evidcore.contracts import FitData, SegmenterPrompt, SegmenterSession
from evidcore.contracts.segmenting import Window
from evidcore.data import Mask, Volume, volume_cache
from evidcore.data.stored import unreadable
from evidcore_plugin_segmenters.growth import around_point, smooth
from evidcore_plugin_segmenters.propagation import Frame, Track, carry
from evidcore_plugin_segmenters.propagator_fit import PropagatorFit, fit_propagator
from evidcore_plugin_segmenters.regions import tight_box

WEIGHTS = "weights.safetensors"
POINT_SMOOTHING = 5  # steps, as in `region-growing`
FIT = PropagatorFit()


class SlicePropagator(Segmenter):
    """Carry a mask from the prompted slice to its neighbours with a small U-Net (MONAI's `BasicUNet`).

    The network sees a square around the prompt, twice as large as the box, resampled to `size` x `size`:
    the slice and the one before it in each of the windows, the mask of the one before, and on the prompted
    slice the box in its place. Objects of many sizes look alike to it, so it learns from few. A point stands
    for the box of what region growing finds around it; a mask is taken as it is on its slice.
    """

    def __init__(
        self,
        recipe_folder: Path = Path(),
        *,
        size: Annotated[int, Ge(32), Le(256)] = 64,
        width: Annotated[int, Ge(4), Le(64)] = 12,
        windows: tuple[tuple[float, float], ...] = ((-1000.0, 400.0), (-150.0, 250.0)),
        pretrained: str = "",
    ) -> None:
        """Build the network; it has no weights before `fit` or `load`.

        Args:
            recipe_folder: where a relative `pretrained` starts.
            size: voxels along each side of what the network sees, a multiple of 16.
            width: channels of the first level; deeper ones have up to eight times as many.
            windows: (low, high) in HU, two input channels each; values of arbitrary intensity are scaled by
                the slice's percentiles 0.5 and 99.5 instead, once for each window.
            pretrained: a folder with `weights.safetensors`, as a `fit` stage writes it; "" for none.

        Raises:
            ValueError: if `size` is no multiple of 16, or there is no window.
        """
        if size % 16:
            raise ValueError(f"slice-propagator: size must be a multiple of 16, got {size}.")
        if not windows:
            raise ValueError("slice-propagator: windows must hold at least one (low, high) in HU, got none.")
        self.size, self.width, self.windows = size, width, windows
        self.network: nn.Module | None = None
        self._pretrained = recipe_folder / pretrained if pretrained else None

    def session(self, volume: VolumeRef) -> PropagatingSession:
        if self.network is None:
            if self._pretrained is None:
                raise DataError(
                    "slice-propagator: has no weights. Put a fit stage with its service as component above "
                    "the stage that uses it, or name a folder that such a stage wrote: pretrained = '…'."
                )
            self.network = self._network_from(self._pretrained)
        read = volume_cache.read(volume)
        return PropagatingSession(read, volume.path, self.network, self.size, self.windows)

    def fit(self, given: FitData, *, options: Annotated[PropagatorFit, InlineOptions] = FIT) -> None:
        """Train on the masks of cases, from weights drawn anew from `seed`.

        A training example is a chain of neighbouring slices, upwards or downwards. It starts with the box on
        the prompted slice, or with the true mask on any slice of the object; from then on the network is
        given its own masks, as when it is used. Chains run past the object's ends, so that it learns to stop.
        """
        fit_propagator(self, given, options)

    def load(self, folder: Path) -> None:
        self.network = self._network_from(folder)

    def _network_from(self, folder: Path) -> nn.Module:
        path = folder / WEIGHTS
        if not path.is_file():
            raise unreadable(path, remedy="Name the checkpoint folder of a fit stage as pretrained.")
        network = self.blank_network()
        load_weights(
            network, path, "Give slice-propagator the width and windows that they were trained with."
        )
        return network.eval()

    def blank_network(self) -> nn.Module:
        """Return the network with weights drawn from torch's present random state."""
        from monai.networks.nets import BasicUNet

        narrow = (self.width, self.width, 2 * self.width, 4 * self.width, 8 * self.width, self.width)
        network: nn.Module = BasicUNet(
            spatial_dims=2, in_channels=2 * len(self.windows) + 2, out_channels=1, features=narrow
        )
        return network


@dataclasses.dataclass(eq=False)
class PropagatingSession(SegmenterSession):
    """One volume that objects are carried through, all objects of a call at a time."""

    _volume: Volume
    _path: str
    _network: nn.Module
    _size: int
    _windows: tuple[tuple[float, float], ...]

    def mask(self, prompts: Sequence[SegmenterPrompt], z_window: Window | None = None) -> Mask:
        return self.masks([Segmenter.MaskRequest(prompts=tuple(prompts), z_window=z_window)])[0]

    def masks(self, requests: Sequence[Segmenter.MaskRequest]) -> list[Mask]:
        """Answer the requests, every prompt once, all prompts of all requests side by side."""
        shape = self._volume.shape_zyx
        for request in requests:
            self.refuse_unusable(request.prompts, request.z_window, shape, self._path)
        asked = [(self.on_slices(item.prompts), item.z_window or (0, shape[0])) for item in requests]
        windows: dict[Segmenter.SlicePrompt, Window] = {}
        for prompts, (start, stop) in asked:
            for prompt in prompts:
                first, last = windows.get(prompt, (start, stop))
                windows[prompt] = (min(first, start), max(last, stop))
        tracks = {prompt: self._track(prompt, window) for prompt, window in windows.items()}
        with torch.no_grad():
            carry(list(tracks.values()), self._run)
        answers = []
        for prompts, (start, stop) in asked:
            result = np.zeros(shape, dtype=np.bool_)
            for prompt in prompts:
                tracks[prompt].put_into(result, start, stop)
            answers.append(result)
        return answers

    def _track(self, prompt: Segmenter.SlicePrompt, window: Window) -> Track:
        match prompt:
            case Segmenter.BoxPrompt(box=box):
                given = None
            case Segmenter.PointPrompt(z=z, y=y, x=x):
                plane = smooth(self._volume.array[z], POINT_SMOOTHING)
                box, given = tight_box(around_point(plane, y, x)[0], z), None
            case Segmenter.MaskPrompt(z=z, mask=mask):
                box, given = tight_box(mask, z), mask
        _, dy, dx = self._volume.spacing_mm_zyx
        frame = Frame.around(box, (dy, dx), self._size)
        return Track(self._volume, frame, box, given, window, self._windows)

    def _run(self, inputs: Tensor) -> Tensor:
        device = next(self._network.parameters()).device
        return torch.sigmoid(self._network(inputs.to(device))).float().cpu()
