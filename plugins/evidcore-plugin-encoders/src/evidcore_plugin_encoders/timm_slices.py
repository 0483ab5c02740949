"""Encoder `timm-slices`: any 2D backbone of timm, applied to each axial slice."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor

from evidcore.api import Case, Encoder, EncoderInput, InlineOptions, Patches
from evidcore.compute.loading import load_weights
from evidcore.contracts import FitLog, Grid
from evidcore.errors import PluginError, RecipeError, RunError, did_you_mean
from evidcore_plugin_encoders.encoder_fit import EncoderFit, fit_encoder
from evidcore_plugin_encoders.patch_centres import patch_centres

# (low, high) in HU: lung, soft tissue, bone
WINDOWS = ((-1000.0, 400.0), (-160.0, 240.0), (-500.0, 1300.0))
FIT = EncoderFit(learning_rate=3e-4, cases_per_step=8, supervision=("labels",), shift_voxels=4)


class TimmSlices(Encoder):
    """Encode every slice on its own with a backbone of timm; patches keep their place in z, y, x."""

    mean: Tensor
    spread: Tensor
    weights_loaded: Tensor

    def __init__(
        self,
        *,
        model: str = "resnet18",
        pretrained: str = "",
        size: Annotated[int, Ge(32)] = 224,
        slices: Annotated[int, Ge(1)] = 16,
        windows: tuple[tuple[float, float], ...] = WINDOWS,
    ) -> None:
        """Build the backbone without weights; `load_pretrained` fetches those that are named.

        Args:
            model: timm's name of the backbone.
            pretrained: "" for random weights, a Hub id (`timm/resnet18.a1_in1k@<revision>`), or a folder that
                holds such a download (config.json and weights).
            size: height and width that a slice is resized to, in pixels.
            slices: slices taken from a volume that is shown whole.
            windows: (low, high) in HU, one channel each; [] scales by percentiles, for any intensity.
        """
        super().__init__()
        for low, high in windows:
            if not low < high:
                raise ValueError(f"a window is [low, high] in HU, low below high; got [{low:g}, {high:g}]")
        self.model, self.pretrained = model, pretrained
        self.input = EncoderInput(
            size_zyx=(slices, size, size), spacing_mm_zyx=None, windows=windows, any_depth=True
        )
        self.body = self._build(model)
        self._planes: dict[tuple[int, int], tuple[int, int]] = {}  # pixels -> patches
        self.width = int(self.body.num_features)
        # Inputs come in -1..1; a pretrained backbone wants its own mean and spread, on 0..1.
        self.register_buffer("mean", torch.full((self.input.channels, 1, 1), 0.5))
        self.register_buffer("spread", torch.full((self.input.channels, 1, 1), 0.5))
        # Kept in the weights, so that a model read back from a folder is known to be complete.
        self.register_buffer("weights_loaded", torch.tensor([not pretrained]))

    def grid(self, size_zyx: Grid) -> Grid:
        """Return one layer of patches per slice."""
        depth, height, width = size_zyx
        return (depth, *self._plane(height, width))

    def forward(self, volumes: Float[Tensor, "volume channel z y x"]) -> Patches:
        """Encode each slice and lay the patches out in z, y, x order."""
        if not bool(self.weights_loaded):
            raise RunError(
                f"model.encoder: the weights {self.pretrained!r} were named but never loaded. "
                f"Call load_pretrained() before encoding."
            )
        count, channels, depth, height, width = volumes.shape
        slices = volumes.transpose(1, 2).reshape(count * depth, channels, height, width)
        rows, columns = self._plane(height, width)
        result = self._patches(self.body, (slices + 1 - 2 * self.mean) / (2 * self.spread))
        features = result.reshape(count, depth * rows * columns, self.width)
        grid, step = (depth, rows, columns), (1.0, height / rows, width / columns)
        return Patches(features, grid, patch_centres(grid, step, features.device))

    def load_pretrained(self) -> None:
        """Load the named weights; the first layer is adapted to the number of windows."""
        if not self.pretrained:
            return
        local = Path(self.pretrained).expanduser()
        source = f"local-dir:{local}" if local.is_dir() else f"hf-hub:{self.pretrained}"
        try:
            body = self._build(source, pretrained=True)
            self.body.load_state_dict(body.state_dict())
        except Exception as cause:
            reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
            raise RunError(
                f"model.encoder.pretrained: {self.pretrained!r} cannot be loaded into {self.model!r}: "
                f"{reason} Name a Hub id of this backbone; without network, run "
                f"`hf download {self.pretrained.split('@')[0]} --local-dir FOLDER` elsewhere, copy the "
                f"folder here and set pretrained to it."
            ) from cause
        for name, buffer in (("mean", self.mean), ("std", self.spread)):
            values = torch.tensor(body.pretrained_cfg[name])
            buffer.copy_((values if len(values) == len(buffer) else values.mean()).reshape(-1, 1, 1))
        self.weights_loaded.fill_(True)

    def fit(
        self,
        train: Sequence[Case],
        validation: Sequence[Case],
        folder: Path,
        seed: int,
        log: FitLog,
        *,
        options: Annotated[EncoderFit, InlineOptions] = FIT,
    ) -> None:
        """Train the backbone on what is known about the cases, from the named weights if there are any."""
        if not bool(self.weights_loaded):
            self.load_pretrained()
        fit_encoder(self, train, validation, folder, seed, log, options)

    def load(self, folder: Path) -> None:
        """Read back the weights that `fit` wrote."""
        load_weights(
            self, folder / "weights.safetensors", "Fit it anew, or give the encoder the options of then."
        )

    def _build(self, model: str, *, pretrained: bool = False) -> Any:
        try:
            import timm
        except ImportError as cause:
            raise PluginError(
                f"encoder 'timm-slices' needs timm, which cannot be imported ({cause}). "
                f'Install it: pip install "evidcore-plugin-encoders[timm]".'
            ) from cause
        name = self.model
        if not timm.is_model(name):
            raise RecipeError(
                f"model.encoder.model: timm has no backbone {name!r}."
                f"{did_you_mean(name, timm.list_models())} See timm.list_models()."
            )
        fixed = timm.get_pretrained_cfg(name).fixed_input_size
        size = {"img_size": self.input.size_zyx[1]} if fixed else {}
        return timm.create_model(model, pretrained, in_chans=self.input.channels, num_classes=0, **size)

    def _plane(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of patches of one slice, found by a run without weights or arithmetic."""
        if (height, width) not in self._planes:
            ghost = copy.deepcopy(self.body).to("meta").eval()
            with torch.no_grad():
                result = self._patches(
                    ghost, torch.zeros(1, self.input.channels, height, width, device="meta")
                )
            self._planes[height, width] = (result.shape[1], result.shape[2])
        return self._planes[height, width]

    def _patches(self, body: Any, slices: Float[Tensor, "slice channel y x"]) -> Tensor:
        """Return features as (slice, row, column, width), whatever layout the backbone has."""
        result: Tensor = body.forward_features(slices)
        if result.ndim == 4:
            return result if result.shape[-1] == self.width else result.permute(0, 2, 3, 1)
        result = result[:, getattr(body, "num_prefix_tokens", 0) :]  # class and register tokens have no place
        height, width = slices.shape[-2:]
        step = round((height * width / result.shape[1]) ** 0.5)
        if (height // step) * (width // step) != result.shape[1]:
            raise RecipeError(
                f"model.encoder.model: {self.model!r} gives {result.shape[1]} tokens for "
                f"{height} x {width} pixels, which is no grid of square patches. Choose another backbone."
            )
        return result.reshape(result.shape[0], height // step, width // step, self.width)
