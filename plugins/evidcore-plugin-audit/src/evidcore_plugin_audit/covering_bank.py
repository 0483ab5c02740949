"""Encoder input with one cell covered: each of its voxels there has the value that it has in a blank volume.

An input voxel is covered as a whole, by where its centre lies in the scan. Scale and windows are those of the
uncovered scan, so nothing outside of the cell changes.
"""

import dataclasses
import hashlib
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from evidcore.api import Crop, Encoder, Patches, prepare
from evidcore.contracts import Grid
from evidcore.data import read_geometry
from evidcore.model.bank import VOLUMES_PER_PASS, FeatureBank
from evidcore.model.parts import evaluating
from evidcore.model.policy import VLMPolicy
from evidcore_plugin_audit.cell_grid import BoxZYX


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoveredCrop(Crop):
    """A crop with one cell covered."""

    cell_zyx: BoxZYX | None = None  # in voxels of the volume; None: nothing is covered

    @property
    def whole(self) -> Crop:
        """Return the crop with nothing covered."""
        return Crop(**{item.name: getattr(self, item.name) for item in dataclasses.fields(Crop)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Input:
    """What an encoder is given of a crop, and of a blank one."""

    own: Float[Tensor, "channel z y x"]
    blank: Float[Tensor, "channel z y x"]
    places_zyx: tuple[Tensor, Tensor, Tensor]  # centres of its voxels along each axis, in voxels of the scan

    def inside(self, cell_zyx: BoxZYX) -> Bool[Tensor, "z y x"]:
        """Return which voxels have their centre in a cell."""
        z, y, x = (
            (start <= places) & (places < stop)
            for start, stop, places in zip(cell_zyx[::2], cell_zyx[1::2], self.places_zyx, strict=True)
        )
        return z[:, None, None] & y[:, None] & x

    def covered(self, cell_zyx: BoxZYX | None) -> Float[Tensor, "channel z y x"]:
        """Return the input with a cell covered."""
        return self.own if cell_zyx is None else torch.where(self.inside(cell_zyx), self.blank, self.own)


class CoveringBank(FeatureBank):
    """A bank that also knows covered crops, whose features it does not keep."""

    def __init__(self, own: FeatureBank) -> None:
        """Take the bank of the model, which is asked for all that is not covered."""
        super().__init__(own.spec)
        self.own = own
        self._covered: dict[int, tuple[int, BoxZYX | None]] = {}  # the whole crop's handle, and the cell
        self._inputs: dict[int, _Input] = {}  # by the whole crop's handle

    def begin(self) -> None:
        """Forget the covered crops of the last question."""
        self._covered.clear()
        self._inputs.clear()

    def handle(self, crop: Crop, size_zyx: Grid) -> int:
        """Return the handle of a crop, covered or not."""
        if not isinstance(crop, CoveredCrop):
            return self.own.handle(crop, size_zyx)
        whole = self.own.handle(crop.whole, size_zyx)
        digest = hashlib.blake2b(f"{whole} {crop.cell_zyx}".encode(), digest_size=8).digest()
        handle = int.from_bytes(digest, "big") >> 1  # to fit an int64 tensor
        self._covered[handle] = whole, crop.cell_zyx
        return handle

    def size_zyx(self, handle: int) -> Grid:
        """Return the voxel size at which the encoder is given what `handle` stands for."""
        return self.own.size_zyx(self._covered.get(handle, (handle,))[0])

    def changes(self, crop: CoveredCrop, size_zyx: Grid) -> bool | None:
        """Tell whether covering changes the encoder's input; None where no voxel of it lies in the cell."""
        whole, cell = self._covered[self.handle(crop, size_zyx)]
        given = self._input(whole)
        if cell is None or not given.inside(cell).any():
            return None
        return not torch.equal(given.covered(cell), given.own)

    def pixels(self, handles: Sequence[int]) -> Float[Tensor, "volume channel z y x"]:
        """Return encoder input for handles of one size."""
        result = []
        for handle in handles:
            if handle in self._covered:
                whole, cell = self._covered[handle]
                result.append(self._input(whole).covered(cell))
            else:
                result.append(self.own.pixels([handle])[0])
        return torch.stack(result)

    def patches(
        self, handles: Sequence[int], encoder: Encoder, *, live: bool = False
    ) -> list[tuple[list[int], Patches]]:
        """Return the encoder's output for distinct handles, in batches of one patch grid each."""
        plain = [handle for handle in handles if handle not in self._covered]
        result = self.own.patches(plain, encoder, live=live) if plain else []
        by_size: dict[Grid, list[int]] = {}
        for handle in handles:
            if handle in self._covered:
                by_size.setdefault(self.size_zyx(handle), []).append(handle)
        for group in by_size.values():
            for start in range(0, len(group), VOLUMES_PER_PASS):
                some = group[start : start + VOLUMES_PER_PASS]
                result.append((some, self._encode(some, encoder)))
        return result

    @torch.no_grad()
    def _encode(self, handles: Sequence[int], encoder: Encoder) -> Patches:
        """Return features, rounded as those that the model's own bank keeps."""
        weight = next(encoder.parameters())
        pixels = self.pixels(handles).to(weight.device)
        with evaluating(encoder):
            # a lone volume is summed in another order than one among others
            output = encoder(pixels if len(handles) > 1 else torch.cat([pixels, pixels]))
        wide = torch.promote_types(weight.dtype, torch.float32)
        features = output.features[: len(handles)].to(self.own.dtype).to(wide)
        return Patches(features, output.grid_zyx, output.centres_mm)

    def _input(self, whole: int) -> _Input:
        if whole not in self._inputs:
            crop, size = self.own.crop(whole), self.own.size_zyx(whole)
            self._inputs[whole] = _Input(
                own=prepare(crop, self.spec, size),
                blank=prepare(dataclasses.replace(crop, blank=True), self.spec, size),
                places_zyx=self._places(crop, size),
            )
        return self._inputs[whole]

    def _places(self, crop: Crop, size_zyx: Grid) -> tuple[Tensor, Tensor, Tensor]:
        """Return where `prepare` takes each voxel from; outside of the crop it is no number."""
        geometry = read_geometry(crop.volume)
        box = geometry.box_of(crop)
        result = []
        for axis, wanted in enumerate(size_zyx):
            start, stop = box[2 * axis : 2 * axis + 2]
            count = wanted
            if self.spec.spacing_mm_zyx is not None:
                step = geometry.spacing_mm_zyx[axis] / self.spec.spacing_mm_zyx[axis]
                count = max(1, round((stop - start) * step))
            share = (torch.arange(wanted) - (wanted - count) // 2 + 0.5) / count
            places = start + share * (stop - start)
            result.append(torch.where((share > 0) & (share < 1), places, torch.nan))
        return result[0], result[1], result[2]


def connected(policy: VLMPolicy) -> CoveringBank:
    """Have a policy answer about covered crops too; return the bank that makes them."""
    own = policy.model.model.bank
    assert own is not None  # a model that is asked is connected
    bank = CoveringBank(own)
    policy.model.model.bank = policy.processor.image_processor.bank = bank
    return bank
