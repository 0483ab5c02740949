"""Reader `slice-reader`: a small 2D network that names the findings a slice shows; trained by `fit`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn

from evidcore.api import Crop, DataError, EncoderInput, InlineOptions, Reader, prepare
from evidcore.cache import plain_file
from evidcore.compute.loading import load_weights
from evidcore.contracts import FitData, ImageQuestion
from evidcore.data import read_geometry
from evidcore.data.stored import unreadable
from evidcore_plugin_emrl.matched_slices import NOTHING
from evidcore_plugin_emrl.reader_fit import ReaderFit, fit_reader
from evidcore_plugin_emrl.reading_figures import Scores

WEIGHTS, WORDS = "weights.safetensors", "reader.json"
FIT = ReaderFit()
SLICES_PER_PASS = 64
MOST_READ = 200_000  # crops of which the scores are kept


class SliceReader(Reader):
    """Name findings on axial slices, each by itself; a U-Net marks them, and the clearest place decides.

    Asked about some of its findings by name, it answers about these, seen or not; otherwise it lists what it
    sees. Of crops with several slices it tells what any of them shows. It is given pixels alone: no height,
    no file, no neighbouring slice.
    """

    deterministic: ClassVar[bool] = True

    def __init__(
        self,
        recipe_folder: Path = Path(),
        *,
        size_yx: tuple[Annotated[int, Ge(32), Le(512)], Annotated[int, Ge(32), Le(512)]] = (96, 128),
        channels: tuple[Annotated[int, Ge(4)], ...] = (32, 64, 96, 128),
        windows: tuple[tuple[float, float], ...] = ((-160.0, 240.0), (-20.0, 120.0), (-1000.0, 1000.0)),
        pretrained: str = "",
    ) -> None:
        """Describe the network; it has no weights before `fit` or `load`.

        Args:
            recipe_folder: where a relative `pretrained` starts.
            size_yx: voxels of a slice as the network sees it; other slices are resized to it.
            channels: of the U-Net's levels; each is half as fine as the one before, the first half as fine as
                the slice.
            windows: (low, high) in HU, an input channel each; () scales values of arbitrary intensity.
            pretrained: a folder that a `fit` stage wrote; "" for none.

        Raises:
            ValueError: if the size cannot be halved once for each level.
        """
        step = 2 ** len(channels)
        if len(channels) < 2 or any(side % step for side in size_yx):
            raise ValueError(
                f"slice-reader: {len(channels)} levels need at least 2 channels and sides that are multiples "
                f"of {step}, got size_yx = {list(size_yx)}, channels = {list(channels)}."
            )
        self.size_yx, self.channels, self.windows = size_yx, channels, windows
        self.network: nn.Module | None = None
        self.findings: tuple[str, ...] = ()
        self.thresholds: tuple[float, ...] = ()
        self._pretrained = recipe_folder / pretrained if pretrained else None
        self._read: dict[Crop, Scores] = {}

    def ready(self) -> None:
        if self.network is None and self._pretrained is None:
            remedy = "Put a fit stage with its service as component above the stage that uses it, or name a"
            remedy += " folder that such a stage wrote: pretrained = '…'."
            raise DataError(f"slice-reader: was never fitted. {remedy}")
        if self.network is None and self._pretrained is not None:
            self.load(self._pretrained)

    def __call__(self, questions: Sequence[ImageQuestion]) -> Sequence[str | None]:
        crops = [crop for question in questions for crop in question.crops]
        seen = dict(zip(crops, self.read(crops), strict=True))
        best = {item: np.max([seen[crop] for crop in item.crops], axis=0) for item in questions if item.crops}
        return [self._said(best[item], item.text) if item.crops else None for item in questions]

    def read(self, crops: Sequence[Crop]) -> list[Scores]:
        """Return for each crop a score a finding, in logits above its threshold: named where above 0.

        What it said of a crop is kept: a reward asks about the same slices again and again.
        """
        self.ready()
        new = [crop for crop in dict.fromkeys(crops) if crop not in self._read]
        if len(self._read) + len(new) > MOST_READ:
            self._read.clear()
            new = list(dict.fromkeys(crops))
        pixels = [self.pixels(crop) for crop in new]
        each = self.scores(torch.cat(pixels)) if pixels else torch.zeros(0, len(self.findings))
        some = torch.split(each, [len(item) for item in pixels])
        result = (item.amax(dim=0).double().numpy() - np.asarray(self.thresholds) for item in some)
        self._read.update(zip(new, result, strict=True))
        return [self._read[crop] for crop in crops]

    def pixels(self, crop: Crop) -> Float[Tensor, "slice channel y x"]:
        """Return a crop's slices as the network sees them.

        Raises:
            DataError: if the crop shows a part of its slices, or its file cannot be used.
        """
        geometry = read_geometry(crop.volume)
        first, stop, y0, y1, x0, x1 = geometry.box_of(crop)
        (_, height, width), shows = geometry.shape_zyx, ""
        if crop.drawing is not None and crop.drawing.kind != "picture":
            shows = f"what is drawn of them is {crop.drawing.mark()!r}"
        elif (y0, y1, x0, x1) != (0, height, 0, width):
            shows = f"the crop shows y {y0}..{y1}, x {x0}..{x1} of {height} x {width}"
        if shows:
            why = f"slice-reader reads whole slices, and {shows}. Ask about the slice."
            raise DataError(f"{crop.volume.path}: {why}")
        size = (stop - first, *self.size_yx)
        given = EncoderInput(size_zyx=size, spacing_mm_zyx=None, windows=self.windows, any_depth=True)
        return prepare(crop, given).movedim(0, 1)

    @torch.no_grad()
    def scores(self, pixels: Float[Tensor, "slice channel y x"]) -> Float[Tensor, "slice finding"]:
        """Return the logits of what slices show."""
        assert self.network is not None
        passes = [slice_scores(self.network(some)) for some in torch.split(pixels, SLICES_PER_PASS)]
        return torch.cat(passes)

    def fit(self, given: FitData, *, options: Annotated[ReaderFit, InlineOptions] = FIT) -> None:
        """Train on the findings' masks, from weights drawn anew from `seed`."""
        self._read.clear()
        fit_reader(self, given, options)

    def load(self, folder: Path) -> None:
        words, path = folder / WORDS, folder / WEIGHTS
        for file in (words, path):
            if not file.is_file():
                raise unreadable(file, remedy="Name the checkpoint folder of a fit stage.")
        try:
            known = json.loads(plain_file(words).read_text(encoding="utf-8"))
            fitted_as, findings, thresholds = (known[key] for key in ("network", "findings", "thresholds"))
        except (ValueError, TypeError, KeyError, RecursionError) as cause:
            raise DataError(f"{words}: is not as a fit stage writes it ({cause!r}). Fit it anew.") from cause
        if fitted_as != self.described():
            why = f"was fitted as {fitted_as}, and this slice-reader is {self.described()}"
            raise DataError(f"{words}: {why}. Give it the options that it was fitted with.")
        network = self.blank_network(len(findings))
        load_weights(network, path, "Fit it anew.")
        self.network = network.eval()
        self._read.clear()
        self.findings, self.thresholds = tuple(findings), tuple(thresholds)

    def described(self) -> dict[str, Any]:
        """Return the options that weights belong to, as JSON has them."""
        return {
            "size_yx": list(self.size_yx),
            "channels": list(self.channels),
            "windows": [list(window) for window in self.windows],
        }

    def blank_network(self, findings: int) -> nn.Module:
        """Return the network with weights drawn from torch's present random state.

        It gives logits (slice, 1 + finding, y / 2, x / 2); the first is that of nothing.
        """
        from monai.networks.nets import UNet

        marks = UNet(
            spatial_dims=2,
            in_channels=4 * max(1, len(self.windows)),
            out_channels=1 + findings,
            channels=self.channels,
            strides=(2,) * (len(self.channels) - 1),
            act="relu",
            norm="batch",
        )
        return nn.Sequential(nn.PixelUnshuffle(2), marks)

    def _said(self, scores: Scores, question: str) -> str:
        """Write what is seen; of findings that the question names, what is not seen too."""
        asked = [name for name in self.findings if name.lower() in question.lower()]
        seen = [name for name, score in zip(self.findings, scores, strict=True) if score > 0]
        if asked:
            return " ".join(f"There is {'a' if name in seen else 'no'} {name}." for name in asked)
        return " ".join(f"There is a {name}." for name in seen) or NOTHING


def slice_scores(logits: Float[Tensor, "slice class y x"]) -> Float[Tensor, "slice finding"]:
    """Return how clearly the clearest place of a slice shows each finding: its logit against all else."""
    margins = []
    for index in range(1, logits.shape[1]):
        others = torch.cat([logits[:, :index], logits[:, index + 1 :]], dim=1)
        margins.append(logits[:, index] - torch.logsumexp(others, dim=1))
    pooled = nn.functional.avg_pool2d(torch.stack(margins, dim=1), 2, 1)
    return pooled.amax(dim=(2, 3))
