"""From prompts to token ids and image handles; from image references to what the model takes."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from transformers import AutoImageProcessor, AutoProcessor, PreTrainedTokenizerBase, ProcessorMixin
from transformers.image_processing_utils import BaseImageProcessor, BatchFeature

from evidcore.case import Case, Crop, Part, Prompt, TextPart, VisualPart, VolumeRef
from evidcore.contracts import Bridge, Encoder, Grid, RolloutStrategy, View
from evidcore.data.preparation import prepare
from evidcore.errors import DataError, RecipeError, RunError
from evidcore.model.bank import FeatureBank
from evidcore.model.parts import build_bridge, build_encoder
from evidcore.model.template import control_tokens, is_answer_tag, read_turns, tool_listing
from evidcore.model.vlm import VolumeVLMConfig
from evidcore.registry import factory

IMAGE_TOKEN = "<|image_pad|>"
VISION_TOKENS = ("<|vision_start|>", IMAGE_TOKEN, "<|vision_end|>")
Reference = Crop | str | int  # a crop, its uri, or the bank's handle of it


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A prompt as the model reads it."""

    ids: tuple[int, ...]
    crops: tuple[Crop, ...]  # in the order of their tokens


@dataclasses.dataclass(frozen=True)
class EncodedAnswer:
    """An answer as the model is to write it, with the tokens that end its turn."""

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]  # the characters of each token, from first to behind the last


class VolumeImageProcessor(BaseImageProcessor):  # type: ignore[misc]
    """Turn references to crops into handles where a feature bank is connected, else into prepared volumes."""

    model_input_names = ("pixel_values",)

    def __init__(
        self,
        encoder: Mapping[str, Any] | None = None,
        bridge: Mapping[str, Any] | None = None,
        view: Mapping[str, Any] | None = None,
        text_width: int = 0,
        vision: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep the tables that encoder, bridge and view are built from."""
        kwargs.pop("image_processor_type", None)
        super().__init__(**kwargs)
        self.encoder, self.bridge, self.view = encoder, bridge, view
        self.text_width, self.vision = text_width, vision
        self.bank: FeatureBank | None = None
        self._parts: tuple[Encoder, Bridge, View] | None = None

    def connect(self, encoder: Encoder, bridge: Bridge, view: View, bank: FeatureBank | None) -> None:
        """Use the model's own parts, and hand out handles of `bank` from now on."""
        self._parts = encoder, bridge, view
        self.bank = bank

    def parts(self) -> tuple[Encoder, Bridge, View]:
        """Return encoder, bridge and view; without weights where no model is connected."""
        if self._parts is None:
            with torch.device("meta"):
                encoder = build_encoder(self.encoder or {}, self.vision, where="processor.encoder")
                bridge = build_bridge(
                    self.bridge or {}, encoder, self.text_width, self.vision, where="processor.bridge"
                )
            view = factory.build("view", self.view or {}, given={}, where="processor.view")
            self._parts = encoder, bridge, view
        return self._parts

    def size_zyx(self, crop: Crop) -> Grid:
        """Return the voxel size at which the encoder is given `crop`."""
        encoder, _, view = self.parts()
        return view.size_zyx(VisualPart(crop=crop), encoder.input)

    def tokens(self, crop: Crop) -> int:
        """Return the number of image tokens of `crop`."""
        encoder, bridge, _ = self.parts()
        return bridge.tokens(encoder.grid(self.size_zyx(crop)))

    def handle(self, crop: Crop) -> int:
        """Return the bank's handle of `crop`."""
        return self._bank().handle(crop, self.size_zyx(crop))

    def prefetch(self, handles: Iterable[int]) -> None:
        """Begin to prepare what the encoder will be given soon."""
        for handle in handles:
            self._bank().prefetch(handle)

    def _bank(self) -> FeatureBank:
        if self.bank is None:
            raise RunError("the processor has no feature bank; load it with its model (evidcore.model.load).")
        return self.bank

    def fetch_images(self, images: Any, *args: Any, **kwargs: Any) -> Any:
        """Leave references alone: transformers would open them as pictures."""
        return images

    def __call__(self, images: Any, *args: Any, **kwargs: Any) -> BatchFeature:
        """Return `pixel_values`: handles (image, 1) as int64, or volumes (image, channel, z, y, x)."""
        flat = list(_flat(images))
        if self.bank is not None:
            handles = [part if isinstance(part, int) else self.handle(_crop(part)) for part in flat]
            return BatchFeature({"pixel_values": torch.tensor(handles, dtype=torch.int64).reshape(-1, 1)})
        encoder = self.parts()[0]
        crops = [_crop(part) for part in flat]
        volumes = [prepare(crop, encoder.input, self.size_zyx(crop)) for crop in crops]
        sizes = {tuple(volume.shape) for volume in volumes}
        if len(sizes) > 1:
            raise DataError(
                f"images of different sizes in a batch: {sorted(sizes)} (channel, z, y, x); load the "
                "processor with its model (evidcore.model.load), whose feature bank takes any."
            )
        return BatchFeature({"pixel_values": torch.stack(volumes)})

    def to_dict(self) -> dict[str, Any]:
        """Return the tables; what is connected is not written."""
        tables = {part: dict(getattr(self, part) or {}) for part in ("encoder", "bridge", "view")}
        vision = None if self.vision is None else dict(self.vision)
        about = {"image_processor_type": type(self).__name__, "text_width": self.text_width, "vision": vision}
        return {**about, **tables}

    def __deepcopy__(self, memo: dict[int, Any]) -> VolumeImageProcessor:
        """Copy the tables and share what is connected."""
        return copy.copy(self)


class VolumeProcessor(ProcessorMixin):  # type: ignore[misc]
    """Tokenizer and image processor of a `VolumeVLM`."""

    model_input_names: ClassVar[list[str]] = ["input_ids", "attention_mask", "pixel_values"]
    context_tokens: int | None = None  # of the connected language model; None: not known

    def __init__(
        self,
        image_processor: VolumeImageProcessor | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        chat_template: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Take both."""
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        assert tokenizer is not None  # transformers checks it
        name = tokenizer.name_or_path or "the language model"
        self.chat_template: str | None = self.chat_template or tokenizer.chat_template
        if not self.chat_template:
            raise RunError(
                f"{name}: its tokenizer has no chat template, so nothing says how a question is put; take an "
                "instruction-tuned language model, or set `tokenizer.chat_template` and save it."
            )
        self.image_token, self._picture = picture_of(image_processor.vision if image_processor else None)
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        if self.image_token_id in (None, tokenizer.unk_token_id):
            raise RunError(
                f"{name}: its tokenizer has no token {self.image_token!r}; evidcore.model.assemble adds it."
            )
        self.turns = read_turns(tokenizer, self.chat_template, where=name)
        self.end_ids = self._ids(self.turns.end_of_turn)
        around = () if self._picture else VISION_TOKENS
        self._control_tokens = sorted({self.image_token, *around, *control_tokens(tokenizer)})
        self._last_id = max(tokenizer.get_vocab().values())

    def encode(self, prompt: Prompt, opening: str = "") -> Encoded:
        """Return the tokens of a prompt, up to where the answer starts; `opening` as `write` takes it."""
        return Encoded(self._ids(self.write(prompt, opening)), prompt.crops())

    def write(self, prompt: Prompt, opening: str = "") -> str:
        """Return a prompt as text, up to where the answer starts.

        `opening` stands before it, see `opening_of`; "" is what the chat template writes.
        """
        text = self.text_of(prompt.parts, f"prompt {prompt.id!r}")
        return f"{opening or self.turns.before_question}{text}{self.turns.before_answer}"

    def opening_of(self, strategy: RolloutStrategy | None) -> str:
        """Return what stands before a question to a model that is told the functions of a strategy.

        They are told by the chat template where it writes them with the strategy's stop texts, and else in
        the words of the question; "" where there are none.
        """
        if strategy is None or not strategy.functions:
            return ""
        assert self.chat_template is not None
        rendered = tool_listing(self.tokenizer, self.chat_template, strategy.functions)
        if rendered is not None and all(text in rendered for text in strategy.stop_texts):
            return rendered  # another form would not stop the sampler
        listed = "\n".join(json.dumps(part["function"], ensure_ascii=False) for part in strategy.functions)
        return f"{self.turns.before_question}Tools:\n{listed}\nTo call one, write {strategy.call_form}\n\n"

    def encode_answer(self, text: str) -> EncodedAnswer:
        """Return the tokens of an answer and of the turn's end, whose offsets are empty."""
        self.refuse_control_token(text, f"answer {text[:60]!r}", is_answer=True)
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        end = ((len(text), len(text)),) * len(self.end_ids)
        offsets = tuple((start, stop) for start, stop in encoded["offset_mapping"])
        return EncodedAnswer((*encoded["input_ids"], *self.end_ids), (*offsets, *end))

    def forbidden_ids(
        self, ends: Collection[int], vocabulary: int, strategy: RolloutStrategy | None = None
    ) -> tuple[int, ...]:
        """Return the tokens that no sampler may write: they stand for images or turns that are not there.

        These are the special tokens but those that end an answer, tags of answers and those by which a
        strategy's tools are called; and the numbers below `vocabulary`, which the head has, without a token.
        """
        call = "" if strategy is None else " ".join([strategy.call_form, *strategy.stop_texts])
        names = [item for item in self._control_tokens if not is_answer_tag(item) and item not in call]
        ids = {*self.tokenizer.convert_tokens_to_ids(names), *range(self._last_id + 1, vocabulary)}
        return tuple(sorted(ids.difference(ends)))

    def encode_tool_turn(self, parts: Sequence[Part]) -> Encoded:
        """Return the tokens that end the model's turn, show a tool's answer and open the next turn."""
        text = self.text_of(parts, "a tool's answer")
        before, after = self.turns.after_answer, self.turns.before_next_answer
        ids = self._ids(f"{before}<tool_response>\n{text}\n</tool_response>{after}")
        return Encoded(ids, tuple(part.crop for part in parts if isinstance(part, VisualPart)))

    def text_of(self, parts: Sequence[Part], where: str) -> str:
        """Return parts as text, with image tokens in the places of images."""
        written = []
        for part in parts:
            if isinstance(part, TextPart):
                self.refuse_control_token(part.text, where)
                written.append(part.text)
            else:
                written.append(self._written_as(self._picture_text(part.crop)))
        return "".join(written)

    def _written_as(self, tokens: str) -> str:
        """Return what stands in a text for an image of these tokens."""
        return tokens if self._picture else f"{VISION_TOKENS[0]}{tokens}{VISION_TOKENS[2]}"

    def _picture_text(self, crop: Crop) -> str:
        """Return the tokens of an image: of a published processor, as that writes each of its slices."""
        count: int = self.image_processor.tokens(crop)
        picture = str(self._picture or self.image_token)
        return picture * (count // picture.count(self.image_token))

    def refuse_control_token(self, text: str, where: str, *, is_answer: bool = False) -> None:
        """Raise DataError where a text holds a control token; an answer may hold its own tags."""
        for token in ("<image>", *self._control_tokens):
            if token in text and not (is_answer and is_answer_tag(token)):
                raise DataError(
                    f"{where}: its text holds the control token {token!r}; take it out of the data."
                )

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def validate_inputs(self, images: Any = None, text: Any = None, **kwargs: Any) -> None:
        """Check that each image has its place; the inherited check knows pictures only."""
        count = sum(1 for _ in _flat(images or []))
        places = sum(part.count(self.image_token) for part in text or [])
        if text is not None and count != places:
            raise ValueError(f"{places} places for images in the text, but {count} images")

    def _multimodal_inputs_from_conversations(self, conversations: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the crops of scans that chats name by path; write each turn as the template takes it."""
        turns = [turn for chat in conversations for turn in chat if isinstance(turn.get("content"), list)]
        for turn in turns:
            turn["content"] = [item for part in turn["content"] for item in self._shown(part)]
        result = super()._multimodal_inputs_from_conversations(conversations, *args, **kwargs)
        for turn in turns:
            text = "".join(item.get("text", self._written_as(self.image_token)) for item in turn["content"])
            turn["content"] = text if self.turns.form == "text" else [{"type": "text", "text": text}]
        return result

    def _shown(self, item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return what the view shows of a scan in its place; a text, or the uri of a crop, as it is."""
        path = next((str(item[key]) for key in ("image", "url", "path") if key in item), "")
        if item["type"] != "image" or not path or "#intensity=" in path:
            return [item]
        encoder, _, view = self.image_processor.parts()
        ref = VolumeRef(path=path, intensity="hu" if encoder.input.windows else "arbitrary")
        parts = view.render(Case(id="scan", patient=None, volumes=(ref,)))
        pairs = [
            ("text", one.text) if isinstance(one, TextPart) else ("image", one.crop.uri()) for one in parts
        ]
        return [{"type": kind, kind: value} for kind, value in pairs]

    def _process_images(self, images: Any, **kwargs: Any) -> tuple[BatchFeature, list[str]]:
        flat = list(_flat(images))
        bank = self.image_processor.bank
        crops = [bank.crop(one) if isinstance(one, int) and bank is not None else _crop(one) for one in flat]
        return self.image_processor(flat), [self._picture_text(crop) for crop in crops]


def refuse_too_long(holds: int | None, name: str, asked: int, answer: int) -> None:
    """Raise RecipeError where a context of `holds` tokens has no room for a prompt and its answer."""
    if holds is not None and asked + answer > holds:
        raise RecipeError(
            f"prompt {name!r} has {asked} tokens and its answer up to {answer}, but the language model's "
            f"context holds {holds}. Shorten max_new_tokens or the text, pool more in the bridge, or show "
            "fewer slices."
        )


def picture_of(vision: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the token of a piece of an image, and how a published processor writes a picture."""
    published = (vision or {}).get("published", {})
    return published.get("image_token", IMAGE_TOKEN), published.get("picture", "")


def add_image_tokens(tokenizer: PreTrainedTokenizerBase, vision: Mapping[str, Any] | None = None) -> str:
    """Add the image tokens where a tokenizer has none; return the one for a piece of an image."""
    image, picture = picture_of(vision)
    if picture:
        return image
    missing = [token for token in VISION_TOKENS if token not in tokenizer.get_vocab()]
    if missing:
        tokenizer.add_special_tokens({"additional_special_tokens": missing})
    return image


def _flat(images: Any) -> Iterator[Reference]:
    if isinstance(images, Crop | str | int):
        yield images
    else:
        for item in images:
            if item is not None:
                yield from _flat(item)


def _crop(reference: Reference) -> Crop:
    if isinstance(reference, Crop):
        return reference
    if isinstance(reference, str):
        return Crop.parse_uri(reference)
    raise RunError(f"image handle {reference} without a feature bank; load the processor with its model.")


AutoImageProcessor.register(
    VolumeVLMConfig, image_processor_classes={"torchvision": VolumeImageProcessor}, exist_ok=True
)
AutoProcessor.register(VolumeVLMConfig, VolumeProcessor, exist_ok=True)
