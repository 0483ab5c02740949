"""Encoder `published-vision` and bridge `published-tokens`: the eyes of a published vision-language model.

Together with the language model of the same checkpoint they are that model: same weights, same arithmetic.

1. Qwen2.5-VL and Qwen3-VL, dense or not, are taken apart (`qwen_vision`): the encoder is the tower, so that
   features of the frozen tower are kept, and the bridge is the merger, which a stage may train. A *patch* is
   what becomes one token: a square of 2 x 2 of the tower's own patches, side by side.
2. Of any other model the class itself is asked what it makes of a picture (`get_image_features`, with its own
   image processor), projector and all: its result are embeddings of the language model. So Gemma 3, MedGemma,
   InternVL, LLaVA, SmolVLM, GLM-V, Mistral 3 and what else transformers loads are one component.
"""

import inspect
import json
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any

import torch
import transformers
from annotated_types import Ge
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from evidcore.api import Bridge, Encoder, EncoderInput, Language, Patches
from evidcore.contracts import Grid
from evidcore.errors import RecipeError, RunError
from evidcore_plugin_encoders.patch_centres import patch_centres
from evidcore_plugin_encoders.qwen_vision import COLOURS, QwenMergers, QwenTower, qwen_config

Vision = Mapping[str, Any]
SOFT_TISSUE = ((-160.0, 240.0),)  # HU
REMEDY = "Take another model, or another encoder and bridge."
USUAL_PIXELS = 448  # where a tower takes any size
# settings of image processors that would cut a picture into several
CUTS = ("do_image_splitting", "crop_to_patches", "do_pan_and_scan", "slice_mode")
WHOLE = {**dict.fromkeys(CUTS, False), "vision_input_type": "vanilla"}  # the last is Perception LM's
BEFORE, BEHIND = "before-6d1", "behind-6d1"
TEXT_PARTS = ("language_model", "text_model")


class PublishedVision(Encoder):
    """The vision tower of the recipe's language model, applied to each axial slice.

    Of Qwen2.5-VL (arXiv 2502.13923) and Qwen3-VL (arXiv 2511.21631) the tower alone, of others with its
    projector.
    """

    published_names: Mapping[str, str] = {"eyes.visual.": "model.visual.", "eyes.model.": "model."}

    @classmethod
    def read_published(cls, language: Language) -> dict[str, Any]:
        """Return configuration, image processor, and how the model's processor writes a picture.

        Raises:
            RecipeError: if there is no such processor, or it writes no picture.
        """
        config: Any = language.vision()
        name = getattr(language, "name", "")
        kind = transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
        if kind is None or not name or config.model_type in COLOURS:
            return {}
        inner, text_config = transformers.MODEL_MAPPING[type(config)], config.get_text_config()
        if inner is kind or not hasattr(inner, "get_image_features"):
            text = f"model.language: {kind.__name__} takes in its pictures otherwise than among the words."
            raise RecipeError(f"{text} {REMEDY}")
        options = {"revision": getattr(language, "revision", None), "local_files_only": True}
        try:
            processor = transformers.AutoProcessor.from_pretrained(name, **options)
            images = json.loads(processor.image_processor.to_json_string())
            images["image_processor_type"] = type(processor.image_processor).__name__
            token_id = getattr(config, "image_token_id", None) or config.image_token_index
            image_token = processor.tokenizer.convert_ids_to_tokens(int(token_id))
            cropped = (images.get("crop_size") or {}).get("height", USUAL_PIXELS)
            size = getattr(getattr(config, "vision_config", None), "image_size", cropped)
            side = size if isinstance(size, int) else int(size[0])
            with torch.device("cpu"):  # a model's shape is built on another one
                picture = _picture(processor, image_token, _image_processor(images), side)
        except (OSError, ValueError, AttributeError, ImportError) as cause:
            raise RecipeError(
                f"model.language: the processor of {name!r} shows no picture ({str(cause).splitlines()[0]}). "
                "Put processor_config.json, preprocessor_config.json and chat_template.jinja of the "
                "published model beside it."
            ) from cause
        return {
            "config": json.loads(config.to_json_string()), "image_processor": images, "side": side,
            "tokens": picture.count(image_token), "picture": picture, "image_token": image_token,
            "masks_by": kind.__name__ if hasattr(kind, "create_masks_for_generate") else "",
            "text_width": text_config.hidden_size, "image_token_id": int(token_id),
            "picture_ids": processor.tokenizer(picture, add_special_tokens=False)["input_ids"],
        }  # fmt: skip

    def __init__(
        self,
        vision: Vision | None = None,
        *,
        size: Annotated[int, Ge(28)] | None = None,
        slices: Annotated[int, Ge(1)] = 32,
        windows: tuple[tuple[float, float], ...] = SOFT_TISSUE,
    ) -> None:
        """Build the tower without weights; `load_from` takes them from the published model.

        Args:
            vision: the published model's configuration and processor.
            size: height and width that a slice is resized to, in pixels: what the tower was trained on, if
                left out. Qwen-VL's takes any multiple of 32 (Qwen3-VL: 256, or 64 tokens, if left out) or 28
                (Qwen2.5-VL: 252). A view may choose other multiples, as `image` does to keep a picture's own
                aspect.
            slices: slices taken from a volume that is shown whole.
            windows: (low, high) in HU: one, shown in grey, or three, for red, green and blue; [] scales by
                percentiles, for any intensity, and takes photographs in their colours.
        """
        super().__init__()
        if len(windows) not in (0, 1, 3):
            raise RecipeError(
                f"model.encoder.windows: {len(windows)} windows, and a picture has 3 channels. Name one "
                "window, shown in grey, or three, for red, green and blue."
            )
        config = qwen_config(vision)
        self.eyes: QwenTower | WholeModel = WholeModel(vision) if config is None else QwenTower(config)
        side = self.eyes.side(size)
        self.input = EncoderInput(
            size_zyx=(slices, side, side), spacing_mm_zyx=None, windows=windows, any_depth=True,
            multiple_px=self.eyes.multiple_px, colours=not windows,
        )  # fmt: skip
        self.width = self.eyes.width

    def grid(self, size_zyx: Grid) -> Grid:
        """Return the grid of tokens of each slice; they count as a square where no grid is known."""
        return (size_zyx[0], *self.eyes.grid(*size_zyx[1:]))

    def forward(self, volumes: Float[Tensor, "volume channel z y x"]) -> Patches:
        """Encode each slice as the published model would a picture."""
        _, _, depth, height, width = volumes.shape
        grid = self.grid((depth, height, width))
        slices = volumes.transpose(1, 2).flatten(0, 1).expand(-1, 3, -1, -1)
        features = self.eyes((slices + 1) / 2).reshape(len(volumes), -1, self.width)
        step = (1.0, height / grid[1], width / grid[2])
        return Patches(features, grid, patch_centres(grid, step, features.device))

    def mismatches(self, published: Mapping[str, Any], sizes: Collection[Grid]) -> Iterator[str]:
        """Compare colours and sizes of Qwen-VL with those of the published processor; others are asked it."""
        if isinstance(self.eyes, QwenTower):
            yield from self.eyes.mismatches(published, sizes)

    def load_from(self, published: nn.Module) -> None:
        """Take the weights of the tower, and of the projector where it belongs to it."""
        _copy(self, published, "model.encoder")
        if isinstance(self.eyes, WholeModel):
            self.eyes.refuse_other_inputs(published)


class PublishedTokens(Bridge):
    """The layers by which the recipe's language model takes in what `published-vision` sees.

    Qwen-VL's mergers, which a stage may train; Qwen3-VL's also make what is added after the first layers. Of
    other models the encoder has made embeddings, which are given as they are.
    """

    def __init__(self, width: int, text_width: int, grid_zyx: Grid, vision: Vision | None = None) -> None:
        """Build the mergers without weights; `load_from` takes them from the published model."""
        super().__init__()
        config = qwen_config(vision)
        expected, given = text_width, text_width
        self.visual = None if config is None else QwenMergers(config)
        if self.visual is not None:
            self.published_names = {"visual.": "model.visual."}
            self.deep_layers = self.visual.deep_layers
            expected, given = self.visual.width, self.visual.text_width
        if width != expected:
            raise RecipeError(
                f"model.bridge: published-tokens takes features of {expected} numbers, as encoder "
                f"'published-vision' gives them, and this encoder gives {width}. Use that encoder, or "
                "another bridge."
            )
        if text_width != given:
            raise RecipeError(
                f"model.bridge: published-tokens gives embeddings of {given} numbers, and the language "
                f"model's have {text_width}. Use the language model that it was published with."
            )

    def tokens(self, grid_zyx: Grid) -> int:
        return math.prod(grid_zyx)

    def token_grid(self, grid_zyx: Grid) -> Grid | None:
        return grid_zyx

    def forward(self, patches: Patches) -> Float[Tensor, "volume token layers_and_text_width"]:
        """Return an embedding for each patch, and one for each of the first layers."""
        return patches.features if self.visual is None else self.visual(patches.features)

    def load_from(self, published: nn.Module) -> None:
        _copy(self, published, "model.bridge")


class WholeModel(nn.Module):
    """What sees of a published model, its language model left out, with its image processor."""

    def __init__(self, vision: Vision | None) -> None:
        """Build it without weights."""
        super().__init__()
        published = (vision or {}).get("published")
        if not published:
            raise RecipeError(
                "model.encoder: the language model has no eyes of its own, as far as is known on this "
                'machine. Name a vision-language model, as language = { id = "Qwen/Qwen3-VL-4B-Instruct", '
                'revision = "…" } (if it is one, `hf download ID` lets it be known), or another encoder.'
            )
        self.images = _image_processor(published["image_processor"])
        self.side_pixels, self.multiple_px = published["side"], None
        self.width, self.tokens = published["text_width"], published["tokens"]
        self.ids, self.image_id = published.get("picture_ids"), published.get("image_token_id")
        config = transformers.AutoConfig.for_model(**published["config"])
        text = config.get_text_config()
        text.num_hidden_layers, text.vocab_size, text.pad_token_id = 1, 1, None  # it is left out below
        if getattr(text, "layer_types", None):
            text.layer_types = text.layer_types[:1]
        build = transformers.AutoModelForImageTextToText.from_config
        try:
            self.model = build(config, dtype=torch.float32).model
        except RuntimeError:  # some read values while they are built, of which the meta device has none
            with torch.device("cpu"):
                self.model = build(config, dtype=torch.float32).model
        for name in TEXT_PARTS:
            if hasattr(self.model, name):
                if type(text) not in transformers.MODEL_MAPPING:  # a checkpoint is read through it
                    decoder = type(getattr(self.model, name))
                    transformers.AutoModel.register(type(text), decoder, exist_ok=True)
                setattr(self.model, name, None)

    def side(self, size: int | None) -> int:
        """Return the height and width of a slice in pixels."""
        if size not in (None, self.side_pixels):
            raise RecipeError(
                f"model.encoder.size: the tower was trained on pictures of {self.side_pixels} pixels and "
                f"takes no others, got {size}. Leave it out."
            )
        return int(self.side_pixels)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of tokens of a picture."""
        if (height, width) != (self.side_pixels, self.side_pixels):
            raise ValueError(
                f"the tower takes slices of {(self.side_pixels, self.side_pixels)} pixels (y, x), got "
                f"{(height, width)}"
            )
        side = math.isqrt(self.tokens)
        return (side, side) if side * side == self.tokens else (1, self.tokens)

    def forward(self, pictures: Float[Tensor, "picture 3 y x"]) -> Float[Tensor, "picture token width"]:
        """Return the embeddings of pictures on 0..1."""
        known = inspect.signature(self.model.get_image_features).parameters
        features: list[Tensor] = []
        for picture in pictures:
            given = self.images(images=[picture], return_tensors="pt", do_rescale=False)
            output = self.model.get_image_features(**{key: given[key] for key in given if key in known})
            features += [item.flatten(0, -2) for item in output.pooler_output]
        return torch.cat(features).reshape(len(pictures), -1, self.width)

    @torch.no_grad()
    def refuse_other_inputs(self, published: Any) -> None:
        """Show the class a picture, and compare what its language model is given with what ours would be.

        Raises:
            RunError: if it is given more, or other embeddings; names it.
        """
        seen: dict[str, Any] = {}
        side, ids = self.side_pixels, torch.tensor([self.ids])
        picture, is_image = torch.linspace(0, 1, 3 * side**2).reshape(3, side, side), ids == self.image_id
        shown = {**self.images(images=[picture], return_tensors="pt", do_rescale=False), "logits_to_keep": 1}
        shown |= dict.fromkeys(("token_type_ids", "mm_token_type_ids"), is_image.long())
        known = inspect.signature(published.forward).parameters
        take = published.get_decoder().register_forward_pre_hook
        with take(lambda _module, _args, given: seen.update(given), with_kwargs=True):
            published(input_ids=ids, **{key: shown[key] for key in shown if key in known})
        ours = {"inputs_embeds", "position_ids", "attention_mask", "past_key_values"}
        others = [key for key in seen.keys() - ours if isinstance(seen[key], Tensor | dict | list)]
        if isinstance(positions := seen.get("position_ids"), Tensor) and len(positions) > 3:
            others.append(f"positions along {len(positions)} axes")
        if not others:
            words = published.get_input_embeddings()(ids)
            expected = words.masked_scatter(is_image[..., None], self.eval()(picture[None]))
            if (seen["inputs_embeds"] - expected).abs().max() > 1e-3 * expected.abs().max():
                others.append("embeddings of its own")
        if others:
            name, more = type(published).__name__, ", ".join(sorted(others))
            text = f"model.language: {name} also gives its language model {more}, beside words and pictures."
            raise RunError(f"{text} {REMEDY}")


def _picture(processor: Any, image_token: str, images: Any, side: int) -> str:
    """Return how a picture stands in a text: by showing a black one."""
    processor.image_processor = images
    parts = [{"type": "text", "text": BEFORE}, {"type": "image"}, {"type": "text", "text": BEHIND}]
    chat = processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
    black = {"images": [Image.new("RGB", (side, side))], "images_kwargs": {"return_tensors": "pt"}}
    ids = processor(text=[chat], **black)["input_ids"][0]
    text = processor.tokenizer.decode(ids, skip_special_tokens=False)
    picture: str = text.partition(BEFORE)[2].partition(BEHIND)[0]
    if image_token not in picture:
        raise ValueError(f"it writes no image token {image_token!r}")
    return picture


def _image_processor(given: Vision) -> Any:
    kind = getattr(transformers, given["image_processor_type"])
    whole = {key: value for key, value in WHOLE.items() if key in given}
    return kind(**{key: value for key, value in given.items() if key != "image_processor_type"} | whole)


def _copy(part: Encoder | Bridge, published: nn.Module, where: str) -> None:
    """Copy a part's weights from the published model."""
    given = published.state_dict()
    for name, weight in part.state_dict().items():
        prefix = next(filter(name.startswith, part.published_names))
        theirs = part.published_names[prefix] + name.removeprefix(prefix)
        if (result := given.get(theirs)) is None or result.shape != weight.shape:
            shape = "is missing" if result is None else f"has shape {tuple(result.shape)}"
            raise RunError(
                f"{where}: {theirs} of {type(published).__name__} {shape}, and must have "
                f"{tuple(weight.shape)}."
            )
        weight.copy_(result)
