"""Encoders `timm-slices` and `hf-slices`: any 2D model of timm or transformers, applied to each axial slice.

Both are built without reading a file. A model of timm has a name; one of transformers is a type and what its
configuration has otherwise than the defaults. Weights of another one are refused with what to write.
"""

import copy
import inspect
import json
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import torch
import transformers
from annotated_types import Ge
from huggingface_hub import try_to_load_from_cache
from jaxtyping import Float
from torch import Tensor

from evidcore.api import Encoder, EncoderInput, InlineOptions, Patches
from evidcore.cache import plain_file
from evidcore.compute.loading import TELLING, load_weights, refuse_random
from evidcore.contracts import FitData, Grid
from evidcore.errors import PluginError, RecipeError, RunError, did_you_mean
from evidcore_plugin_encoders.encoder_fit import EncoderFit, fit_encoder
from evidcore_plugin_encoders.patch_centres import patch_centres

WINDOWS = ((-1000.0, 400.0), (-160.0, 240.0), (-500.0, 1300.0))  # low, high in HU: lung, soft tissue, bone
COLOUR_CHANNELS = 3
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")  # on the Hub
FIT = EncoderFit(learning_rate=3e-4, cases_per_step=8, supervision=("labels",), shift_voxels=4)
Windows = tuple[tuple[float, float], ...]
Value = bool | int | float | str


class SliceEncoder(Encoder):
    """Encode every slice on its own with a 2D model, `body`; patches keep their place in z, y, x."""

    body: Any
    mean: Tensor
    spread: Tensor
    weights_loaded: Tensor

    def __init__(self, model: str, source: str, size_zyx: Grid, windows: Windows, channels: int) -> None:
        """Declare the input; one window is shown in all `channels` of the model."""
        super().__init__()
        for low, high in windows:
            if not low < high:
                raise ValueError(f"a window is [low, high] in HU, low below high; got [{low:g}, {high:g}]")
        if len(windows) not in (0, 1, channels):
            text = f"{len(windows)} windows, and the model takes {channels} channels"
            raise RecipeError(f"model.encoder.windows: {text}. Name one window, or as many.")
        self.model, self.source = model, source
        self.input = EncoderInput(size_zyx=size_zyx, spacing_mm_zyx=None, windows=windows, any_depth=True)
        self._planes: dict[tuple[int, int], tuple[int, int]] = {}  # pixels -> patches
        # Inputs come in -1..1; a pretrained model wants its own mean and spread, on 0..1.
        self.register_buffer("mean", torch.full((channels, 1, 1), 0.5))
        self.register_buffer("spread", torch.full((channels, 1, 1), 0.5))
        # Kept in the weights, so that a model read back from a folder is known to be complete.
        self.register_buffer("weights_loaded", torch.tensor([not source]))

    @abstractmethod
    def encode(self, body: Any, slices: Float[Tensor, "slice channel y x"]) -> Tensor:
        """Return features (slice, row, column, width), or (slice, patch, width) of square patches."""

    @abstractmethod
    def read(self, place: str, revision: str | None) -> tuple[Sequence[float], Sequence[float]]:
        """Take weights from a folder or from the Hub; return mean and spread of the model's inputs."""

    def grid(self, size_zyx: Grid) -> Grid:
        depth, height, width = size_zyx
        return (depth, *self._plane(height, width))

    def forward(self, volumes: Float[Tensor, "volume channel z y x"]) -> Patches:
        """Encode each slice and lay the patches out in z, y, x order."""
        if not bool(self.weights_loaded):
            text = f"model.encoder: the weights {self.source!r} were named but never loaded."
            raise RunError(f"{text} Call load_pretrained() before encoding.")
        count, channels, depth, height, width = volumes.shape
        slices = volumes.transpose(1, 2).reshape(count * depth, channels, height, width)
        rows, columns = self._plane(height, width)
        result = self._patches(self.body, (slices + 1 - 2 * self.mean) / (2 * self.spread))
        features = result.reshape(count, depth * rows * columns, self.width)
        grid, step = (depth, rows, columns), (1.0, height / rows, width / columns)
        return Patches(features, grid, patch_centres(grid, step, features.device))

    def missing_weights(self) -> str:
        """Say that weights of the Hub are not here; a folder is read when the model is put together."""
        name, _, revision = self.source.partition("@")
        here = (try_to_load_from_cache(name, file, revision=revision) for file in WEIGHTS if revision)
        if not revision or any(isinstance(path, str) for path in here):
            return ""
        return f"weights of {name} are not here. `hf download {name} --revision {revision}` gets them."

    def load_pretrained(self) -> None:
        """Load the named weights, and the mean and spread of what they were trained on."""
        if not self.source:
            return
        local = plain_file(Path(self.source).expanduser())
        place, _, revision = (str(local), "", "") if local.is_dir() else self.source.partition("@")
        try:
            scales = self.read(place, revision or None)
        except Exception as cause:
            reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
            raise RunError(
                f"model.encoder.pretrained: {self.source!r} cannot be loaded into {self.model!r}: {reason} "
                f"Name a Hub id of this model; without network, run `hf download {place} --local-dir FOLDER` "
                "elsewhere, copy the folder here and set pretrained to it."
            ) from cause
        for given, buffer in zip(scales, (self.mean, self.spread), strict=True):
            values = torch.tensor(given)
            buffer.copy_((values if len(values) == len(buffer) else values.mean()).reshape(-1, 1, 1))
        self.weights_loaded.fill_(True)

    def fit(self, given: FitData, *, options: Annotated[EncoderFit, InlineOptions] = FIT) -> None:
        """Train the model on what is known about the cases, from the named weights if there are any."""
        if not bool(self.weights_loaded):
            self.load_pretrained()
        fit_encoder(self, given, options)

    def load(self, folder: Path) -> None:
        advice = "Fit it anew, or give the encoder the options of then."
        load_weights(self, folder / "weights.safetensors", advice)

    def _plane(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of patches of one slice, found by a run without weights or arithmetic."""
        if (height, width) not in self._planes:
            ghost = copy.deepcopy(self.body).to("meta").eval()
            with torch.no_grad():
                result = self._patches(ghost, torch.zeros(1, len(self.mean), height, width, device="meta"))
            self._planes[height, width] = (result.shape[1], result.shape[2])
        return self._planes[height, width]

    def _patches(self, body: Any, slices: Float[Tensor, "slice channel y x"]) -> Tensor:
        """Return features as (slice, row, column, width)."""
        result = self.encode(body, slices)
        if result.ndim == 4:
            return result
        height, width = slices.shape[-2:]
        step = round((height * width / result.shape[1]) ** 0.5)
        if (height // step) * (width // step) != result.shape[1]:
            why = f"{self.model!r} gives {result.shape[1]} tokens for {height} x {width} pixels"
            remedy = "which is no grid of square patches. Choose another model."
            raise RecipeError(f"model.encoder.model: {why}, {remedy}")
        return result.reshape(result.shape[0], height // step, width // step, self.width)


class TimmSlices(SliceEncoder):
    """Encode every slice on its own with a backbone of timm; patches keep their place in z, y, x."""

    def __init__(
        self,
        *,
        model: str = "resnet18",
        pretrained: str = "",
        size: Annotated[int, Ge(32)] = 224,
        slices: Annotated[int, Ge(1)] = 16,
        windows: Windows = WINDOWS,
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
        super().__init__(model, pretrained, (slices, size, size), windows, max(1, len(windows)))
        self.body = self._build(model)
        self.width = int(self.body.num_features)

    def read(self, place: str, revision: str | None) -> tuple[Sequence[float], Sequence[float]]:
        """Load the weights; timm adapts the first layer to the number of windows."""
        source = f"local-dir:{place}" if Path(place).is_dir() else f"hf-hub:{self.source}"
        body = self._build(source, pretrained=True)
        self.body.load_state_dict(body.state_dict())
        return body.pretrained_cfg["mean"], body.pretrained_cfg["std"]

    def encode(self, body: Any, slices: Float[Tensor, "slice channel y x"]) -> Tensor:
        """Return features, whatever layout the backbone has; class and register tokens have no place."""
        result: Tensor = body.forward_features(slices)
        if result.ndim == 4:
            return result if result.shape[-1] == self.width else result.permute(0, 2, 3, 1)
        return result[:, getattr(body, "num_prefix_tokens", 0) :]

    def _build(self, model: str, *, pretrained: bool = False) -> Any:
        try:
            import timm
        except ImportError as cause:
            text = f"encoder 'timm-slices' needs timm, which cannot be imported ({cause})."
            raise PluginError(f'{text} Install it: pip install "evidcore-plugin-encoders[timm]".') from cause
        name = self.model
        if not timm.is_model(name):
            text = f"model.encoder.model: timm has no backbone {name!r}."
            raise RecipeError(f"{text}{did_you_mean(name, timm.list_models())} See timm.list_models().")
        fixed = timm.get_pretrained_cfg(name).fixed_input_size
        size = {"img_size": self.input.size_zyx[1]} if fixed else {}
        return timm.create_model(model, pretrained, in_chans=self.input.channels, num_classes=0, **size)


class HfSlices(SliceEncoder):
    """Encode every slice on its own: DINOv2 and v3, RAD-DINO, SigLIP, MedSigLIP, CLIP, ViT and others."""

    def __init__(
        self,
        recipe_folder: Path = Path(),
        *,
        model: str = "dinov2",
        config: Mapping[str, Value] = MappingProxyType({}),
        pretrained: str = "",
        size: Annotated[int, Ge(0)] = 0,
        slices: Annotated[int, Ge(1)] = 16,
        windows: Windows = WINDOWS,
    ) -> None:
        """Build the model without weights; `load_pretrained` reads those that are named.

        Args:
            recipe_folder: where a relative `pretrained` starts.
            model: `model_type` in its config.json, for a model of pictures and text that of its vision part:
                "siglip_vision_model", "clip_vision_model".
            config: what its configuration has otherwise than transformers' defaults.
            pretrained: a folder as `save_pretrained` writes it, `NAME@REVISION` on the Hub, or "".
            size: height and width that a slice is resized to, in pixels; 0: the model's own.
            slices: slices taken from a volume that is shown whole.
            windows: (low, high) in HU: one, shown in grey, or three, for red, green and blue; [] scales by
                percentiles, for any intensity.
        """
        if model not in (types := transformers.CONFIG_MAPPING.keys()):
            known = did_you_mean(model, list(types))
            raise RecipeError(f"model.encoder.model: transformers has no type {model!r}.{known}")
        shape: Any = transformers.AutoConfig.for_model(model, **config)
        body = transformers.AutoModel.from_config(shape)
        if body.main_input_name != "pixel_values" or "spatial_shapes" in _arguments(body):
            text = f"model.encoder.model: {model!r} takes more than the pixels of a picture"
            raise RecipeError(f"{text}. Name a vision part, such as 'siglip_vision_model'.")
        size = size or shape.image_size
        source = str(recipe_folder / pretrained) if pretrained and "@" not in pretrained else pretrained
        super().__init__(model, source, (slices, size, size), windows, COLOUR_CHANNELS)
        self.body, self.width = body, int(getattr(shape, "hidden_size", 0) or shape.hidden_sizes[-1])

    def read(self, place: str, revision: str | None) -> tuple[Sequence[float], Sequence[float]]:
        """Read the model, of one of pictures and text the vision part; ask its own image processor."""
        published: Any = transformers.AutoConfig.from_pretrained(place, revision=revision)
        theirs, ours = getattr(published, "vision_config", published), self.body.config
        if theirs.model_type != self.model or _differences(theirs) != _differences(ours):
            pairs = _differences(theirs).items()
            written = ", ".join(f"{name} = {json.dumps(value)}" for name, value in pairs)
            text = f"its configuration is another. Write model = {json.dumps(theirs.model_type)} and "
            raise RecipeError(f"{text}config = {{ {written} }}.")
        self.body, info = type(self.body).from_pretrained(
            place, revision=revision, config=ours, use_safetensors=True, dtype=torch.float32, **TELLING
        )
        refuse_random(place, info, unused=("text_model.", "text_projection", "visual_projection", "logit_"))
        images: Any = transformers.AutoImageProcessor.from_pretrained(place, revision=revision)
        return images.image_mean, images.image_std

    def encode(self, body: Any, slices: Float[Tensor, "slice channel y x"]) -> Tensor:
        """Return the last layer's features; class and register tokens come first and have no place."""
        flags = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in _arguments(body) else {}
        result: Tensor = body(pixel_values=slices, **flags).last_hidden_state
        if result.ndim == 4:
            return result.permute(0, 2, 3, 1)
        rows, columns = (side // body.config.patch_size for side in slices.shape[-2:])
        return result[:, -rows * columns :]


def _arguments(body: Any) -> Collection[str]:
    return inspect.signature(body.forward).parameters.keys()


def _differences(config: Any) -> dict[str, Value]:
    """Return what decides shape and arithmetic, where it is not transformers' default."""
    usual, everyones = type(config)().to_dict(), transformers.PreTrainedConfig().to_dict()
    return {
        name: value
        for name, value in config.to_dict().items()
        if name not in everyones and value != usual.get(name) and isinstance(value, bool | int | float | str)
    }
