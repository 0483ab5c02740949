"""Encoder `published-vision` and bridge `published-tokens`: the eyes of any published vision-language model.

What the class of a published model makes of pictures (`get_image_features`, with its own image processor) is
taken as it is, projector and all: its result are embeddings of the language model. So SigLIP and Gemma 3
(MedGemma), InternVL, LLaVA, SmolVLM, LFM2-VL, Mistral 3 and what else transformers loads are one component.
Qwen2.5-VL and Qwen3-VL are better served by `native-vision`, whose projector is a bridge of its own.
"""

import inspect
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
import transformers
from annotated_types import Ge
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from evidcore.api import Bridge, Encoder, EncoderInput, Language, Patches
from evidcore.contracts import Grid
from evidcore.errors import RecipeError, RunError
from evidcore_plugin_encoders.native_vision import SOFT_TISSUE
from evidcore_plugin_encoders.patch_centres import patch_centres

Vision = Mapping[str, Any]
USUAL_PIXELS = 448  # where a tower takes any size
# settings of image processors that would cut a picture into several
WHOLE = {"do_image_splitting": False, "crop_to_patches": False, "do_pan_and_scan": False}
BEFORE, BEHIND = "before-6d1", "behind-6d1"
TEXT_PARTS = ("language_model", "text_model")


class PublishedVision(Encoder):
    """The vision tower and projector of the recipe's language model, applied to each axial slice."""

    published_names: ClassVar[Mapping[str, str]] = {"eyes.": "model."}

    @classmethod
    def read_published(cls, language: Language) -> dict[str, Any]:
        """Return configuration, image processor, and how the model's processor writes a picture.

        Raises:
            RecipeError: if there is no such processor, or it writes no picture.
        """
        return read_published(language)

    def __init__(
        self,
        vision: Vision | None = None,
        *,
        slices: Annotated[int, Ge(1)] = 32,
        windows: tuple[tuple[float, float], ...] = SOFT_TISSUE,
    ) -> None:
        """Build the tower without weights; `load_from` takes them from the published model.

        Args:
            vision: the published model's configuration and processor.
            slices: slices taken from a volume that is shown whole.
            windows: (low, high) in HU: one, shown in grey, or three, for red, green and blue; [] scales by
                percentiles, for any intensity, and takes photographs in their colours.
        """
        super().__init__()
        published = _published(vision, "model.encoder")
        self.eyes, self.images = _eyes(published), _image_processor(published["image_processor"])
        side = published["side"]
        self.input = EncoderInput(
            size_zyx=(slices, side, side), spacing_mm_zyx=None, windows=windows, any_depth=True,
            multiple_px=side, colours=not windows,
        )  # fmt: skip
        self.width, self.tokens = published["text_width"], published["tokens"]

    def grid(self, size_zyx: Grid) -> Grid:
        """Return the tokens of each slice, as a square where they are one."""
        depth, height, width = size_zyx
        if (height, width) != self.input.size_zyx[1:]:
            raise ValueError(
                f"the tower takes slices of {self.input.size_zyx[1:]} pixels (y, x), got {(height, width)}"
            )
        side = math.isqrt(self.tokens)
        return (depth, side, side) if side * side == self.tokens else (depth, 1, self.tokens)

    def forward(self, volumes: Float[Tensor, "volume channel z y x"]) -> Patches:
        """Encode each slice as the published model would a picture."""
        _, _, depth, height, width = volumes.shape
        grid = self.grid((depth, height, width))
        slices = volumes.transpose(1, 2).flatten(0, 1).expand(-1, 3, -1, -1)
        features = torch.cat([
            _features(self.eyes, self.images, picture[None]) for picture in (slices + 1) / 2
        ])
        features = features.reshape(len(volumes), -1, self.width)
        step = (1.0, height / grid[1], width / grid[2])
        return Patches(features, grid, patch_centres(grid, step, features.device))

    def load_from(self, published: nn.Module) -> None:
        """Take the weights of tower and projector."""
        weights = getattr(published, "model", published).state_dict()
        with torch.no_grad():
            for name, weight in self.eyes.state_dict().items():
                if (given := weights.get(name)) is None or given.shape != weight.shape:
                    raise RunError(
                        f"model.encoder: {name} of {type(published).__name__} is missing or not of shape "
                        f"{tuple(weight.shape)}."
                    )
                weight.copy_(given)


class PublishedTokens(Bridge):
    """Gives what `published-vision` sees as it is: the published projector has made embeddings of it."""

    def __init__(self, width: int, text_width: int, grid_zyx: Grid) -> None:
        """Take an encoder whose features are embeddings."""
        super().__init__()
        if width != text_width:
            raise RecipeError(
                f"model.bridge: published-tokens takes features of {text_width} numbers, as encoder "
                f"'published-vision' gives them, and this encoder gives {width}. Use that encoder, or "
                "another bridge."
            )

    def tokens(self, grid_zyx: Grid) -> int:
        """Return a token for each patch."""
        return math.prod(grid_zyx)

    def token_grid(self, grid_zyx: Grid) -> Grid | None:
        """Return the grid of patches."""
        return grid_zyx

    def forward(self, patches: Patches) -> Float[Tensor, "volume token text_width"]:
        """Return the features."""
        return patches.features


def read_published(language: Language) -> dict[str, Any]:
    """Return what `published-vision` needs to know of a published model."""
    config: Any = language.vision()
    name = getattr(language, "name", "")
    kind = transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
    if kind is None or not name:
        return {}
    if not hasattr(transformers.MODEL_MAPPING[type(config)], "get_image_features"):
        text = f"model.language: {kind.__name__} takes in its pictures otherwise than among the words."
        raise RecipeError(f"{text} Take another model, or another encoder and bridge.")
    size = getattr(getattr(config, "vision_config", None), "image_size", USUAL_PIXELS)
    side = size if isinstance(size, int) else size[0]
    options = {"revision": getattr(language, "revision", None), "local_files_only": True}
    try:
        processor = transformers.AutoProcessor.from_pretrained(name, **options)
        images = json.loads(processor.image_processor.to_json_string())
        images["image_processor_type"] = type(processor.image_processor).__name__
        with torch.device("cpu"):  # a model's shape is built on another one
            picture, tokens = _picture(processor, config, _image_processor(images), side)
    except (OSError, ValueError, AttributeError) as cause:
        raise RecipeError(
            f"model.language: the processor of {name!r} shows no picture ({str(cause).splitlines()[0]}). Put "
            "processor_config.json, preprocessor_config.json and chat_template.jinja of the published model "
            "beside it."
        ) from cause
    return {
        "config": json.loads(config.to_json_string()),
        "image_processor": images,
        "side": side,
        "tokens": tokens,
        "picture": picture,
        "image_token": processor.tokenizer.convert_ids_to_tokens(_image_token_id(config)),
        "masks_by": kind.__name__ if hasattr(kind, "create_masks_for_generate") else "",
        "text_width": config.get_text_config().hidden_size,
    }


def _picture(processor: Any, config: Any, images: Any, side: int) -> tuple[str, int]:
    """Return how a picture stands in a text, and its number of image tokens: by showing a black one."""
    processor.image_processor = images
    parts = [{"type": "text", "text": BEFORE}, {"type": "image"}, {"type": "text", "text": BEHIND}]
    chat = processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
    ids = processor(text=[chat], images=[Image.new("RGB", (side, side))])["input_ids"][0]
    text = processor.tokenizer.decode(ids, skip_special_tokens=False)
    picture = text.partition(BEFORE)[2].partition(BEHIND)[0]
    token = processor.tokenizer.convert_ids_to_tokens(_image_token_id(config))
    if not (count := picture.count(token)):
        raise ValueError(f"it writes no image token {token!r}")
    return picture, count


def _image_token_id(config: Any) -> int:
    return int(getattr(config, "image_token_id", None) or config.image_token_index)


def _published(vision: Vision | None, where: str) -> dict[str, Any]:
    if vision is None or not vision.get("published"):
        raise RecipeError(f"{where}: the language model has no eyes of its own, as far as is known here.")
    return dict(vision["published"])


def _eyes(published: Vision) -> Any:
    """Build what sees of a published model, its language model left out."""
    given = dict(published["config"])
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
    text = config.get_text_config()
    text.num_hidden_layers = 1
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1]
    try:
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    except RuntimeError:  # some read values while they are built, of which the meta device has none
        with torch.device("cpu"):
            model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    eyes = getattr(model, "model", model)
    for name in TEXT_PARTS:
        if hasattr(eyes, name):
            setattr(eyes, name, None)
    return eyes


def _image_processor(given: Vision) -> Any:
    kind = getattr(transformers, given["image_processor_type"])
    whole = {key: value for key, value in WHOLE.items() if key in given}
    return kind(**{key: value for key, value in given.items() if key != "image_processor_type"} | whole)


def _features(eyes: Any, images: Any, pictures: Float[Tensor, "picture 3 y x"]) -> Tensor:
    """Return the embeddings of pictures on 0..1, (token, width), one picture after another."""
    known = inspect.signature(eyes.get_image_features).parameters
    given = images(images=list(pictures), return_tensors="pt", do_rescale=False)
    output = eyes.get_image_features(**{key: value for key, value in given.items() if key in known})
    return torch.cat([item.flatten(0, -2) for item in output.pooler_output])
