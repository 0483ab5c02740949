"""The parts of `Sam2VideoModel` that tracking needs, for many objects at once and without a session.

transformers' own session takes one object after the other. Here each row is an object on a slice of its own,
with its own memory. Two things are done otherwise than there, both for mask prompts, as the code of SAM 2.1
does them: the memory of the prompted slice is made of the mask as it comes back from low resolution, and the
pointer of the object is that of the single-mask token.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from safetensors import torch as safetensors
from torch import Tensor

from evidcore_plugin_medsam2.pixels import resized

if TYPE_CHECKING:
    from transformers import Sam2VideoModel

MASK_SCALE, MASK_BIAS = 20.0, -10.0  # a mask prompt as logits: sam2_base.py, `_use_mask_as_output`
ABSENT = -1024.0  # the logit of an object that is not on the slice: sam2_base.py, NO_OBJ_SCORE
NO_POINT = -1  # the label of a padding point


class Batch:
    """Tensors of which each has a row for each slice."""

    def rows(self, numbers: Int[Tensor, " chosen"] | slice) -> Self:
        return type(self)(**{name: part[numbers] for name, part in vars(self).items()})


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class View(Batch):
    """What the encoder sees in slices, a slice a row, in three resolutions."""

    fine: Float[Tensor, "row fine_channel fine_y fine_x"]
    middle: Float[Tensor, "row middle_channel middle_y middle_x"]
    coarse: Float[Tensor, "row channel y x"]

    @classmethod
    def read(cls, content: bytes) -> View:
        """Read back what `written` gave."""
        return cls(**safetensors.load(content))

    def written(self) -> bytes:
        """Return it as the content of a file."""
        return safetensors.save({name: part.cpu().contiguous() for name, part in vars(self).items()})

    @property
    def size_bytes(self) -> int:
        return sum(part.nbytes for part in vars(self).values())

    def to(self, device: torch.device, dtype: torch.dtype) -> View:
        """Return it elsewhere or in another type."""
        return View(**{name: part.to(device, dtype) for name, part in vars(self).items()})


Rows = TypeVar("Rows", bound=Batch)


def stacked(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts as those of one."""
    if len(parts) == 1:
        return parts[0]
    names = vars(parts[0])
    return type(parts[0])(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Found(Batch):
    """The object of each row on the row's slice."""

    logits: Float[Tensor, "row low_y low_x"]  # above 0: the object
    pointer: Float[Tensor, "row channel"]
    is_there: Bool[Tensor, "row 1"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Remembered:
    """What is kept of a slice for the next ones."""

    features: Float[Tensor, "token row memory_channel"]  # bfloat16, as in SAM 2.1
    pointer: Float[Tensor, "row channel"]

    def rows(self, numbers: Int[Tensor, " chosen"] | slice) -> Remembered:
        return Remembered(features=self.features[:, numbers], pointer=self.pointer[numbers])


class Network:
    """A `Sam2VideoModel` on its device."""

    def __init__(self, model: Sam2VideoModel, device: torch.device, dtype: torch.dtype) -> None:
        """Move the model; a `dtype` of bfloat16 is autocast, as the code of MedSAM2 runs."""
        self.device, self.dtype = device, dtype
        self.is_mixed = dtype == torch.bfloat16
        self.real = torch.float32 if self.is_mixed else dtype  # of weights and of what is not rounded
        self.model = model.eval().requires_grad_(False).to(device, self.real)
        self.size_px = int(model.image_size)
        self.memories = int(model.num_maskmem) - 1  # besides the prompted slice
        with self.computing():
            self._image_places = model.get_image_wide_positional_embeddings()
            height, width = model.backbone_feature_sizes[-1]
            shape = torch.Size((1, model.hidden_dim, height, width))
            places = model.vision_encoder.neck.position_encoding(shape, device, self.real)
            self._places = places.flatten(2).permute(2, 0, 1)  # (token, 1, channel)
            shape = torch.Size((1, model.mem_dim, height, width))
            places = model.memory_encoder.position_encoding(shape, device, self.real)
            self._memory_places = places.flatten(2).permute(2, 0, 1)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Without gradients, in the type that was asked for.

        Unless it is told not to, torch lets a GPU's convolutions round float32 to the 10 bits of TF32.
        """
        mixed = torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_mixed)
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = before and self.is_mixed  # TF32 moved 2.7 % of the signs
        try:
            with torch.inference_mode(), mixed:
                yield
        finally:
            torch.backends.cudnn.allow_tf32 = before

    def encode(self, pixels: Float[Tensor, "slice 3 size size"]) -> View:
        """Look at slices, normalised as for ImageNet."""
        seen = self.model.get_image_features(pixels.to(self.device, self.real), return_dict=True)
        fine, middle, coarse = (
            flat.permute(1, 2, 0).unflatten(2, tuple(size))  # (token, slice, channel) to maps
            for flat, size in zip(seen.fpn_hidden_states, self.model.backbone_feature_sizes, strict=True)
        )
        return View(fine=fine, middle=middle, coarse=coarse)

    def from_points(
        self, view: View, places: Float[Tensor, "row point 2"], labels: Int[Tensor, "row point"]
    ) -> Found:
        """Find the object that points mark on their own slice.

        Places are x and y in the model's pixels; labels are 1 on the object, 2 and 3 at corners of its box.
        """
        sparse, dense = self.model.prompt_encoder(
            places[:, None].to(self.device, self.real), labels[:, None].to(self.device), None, None
        )
        no_memory = self.model.no_memory_embedding.reshape(1, -1, 1, 1)
        many = self._gives_many(labels.shape[1], is_prompted=True)
        return self._decode(view, view.coarse + no_memory, sparse, dense, many)

    def from_masks(self, view: View, masks: Bool[Tensor, "row size size"]) -> Found:
        """Take masks, in the model's pixels, for the objects on their slices."""
        shown = masks[:, None].to(self.device, self.real)
        low_yx = self.model.prompt_encoder.mask_input_size
        logits = resized(shown * MASK_SCALE + MASK_BIAS, low_yx, antialias=True)
        dense_prompt = self.model.mask_downsample(shown)
        sparse, dense = self.model.prompt_encoder(*self._no_points(len(masks)), None, dense_prompt)
        pointer = self._decode(view, view.coarse, sparse, dense, False).pointer
        is_there = shown.flatten(1).any(dim=1, keepdim=True)
        pointer = torch.where(is_there, pointer, self.model.no_object_pointer)
        return Found(logits=logits[:, 0], pointer=pointer, is_there=is_there)

    def follow(
        self, view: View, prompted: Remembered, passed: Sequence[Remembered], spans: Float[Tensor, " row"]
    ) -> Found:
        """Find the objects on `view`, the next slices of their ways.

        `passed` is of the slices since the prompts', the last one last; `spans` tells over how many slices
        the pointers of each row are dated.
        """
        model, rows = self.model, len(view.coarse)
        times = model.memory_temporal_positional_encoding  # the last one is for the prompted slice
        recent = passed[max(0, len(passed) - self.memories) :]
        kept = [prompted.features, *(item.features for item in recent)]
        ages = [0, *range(len(recent), 0, -1)]
        places = [self._memory_places + times[age - 1] for age in ages]
        pointers, pointer_places = self._pointers(prompted, passed, spans)
        memory = torch.cat([*(item.to(pointers.dtype) for item in kept), pointers])
        dated = torch.cat([*(item.expand(-1, rows, -1) for item in places), pointer_places])
        tokens = model.memory_attention(
            current_vision_features=view.coarse.flatten(2).permute(2, 0, 1),
            current_vision_position_embeddings=self._places,
            memory=memory,
            memory_posision_embeddings=dated,
            num_object_pointer_tokens=len(pointers),
        )[0]  # (row, token, channel)
        coarse = tokens.transpose(1, 2).reshape(view.coarse.shape)
        sparse, dense = model.prompt_encoder(*self._no_points(rows), None, None)
        return self._decode(view, coarse, sparse, dense, self._gives_many(0, is_prompted=False))

    def remember(self, view: View, found: Found, *, is_prompted: bool) -> Remembered:
        """Make a memory of what was found on slices; masks of prompted ones are taken as certain."""
        model = self.model
        logits = resized(found.logits[:, None].to(self.real), (self.size_px,) * 2)
        shown = (logits > 0).to(self.real) if is_prompted else logits.sigmoid()
        shown = shown * model.config.sigmoid_scale_for_mem_enc + model.config.sigmoid_bias_for_mem_enc
        features, _ = model.memory_encoder(view.coarse, shown)
        hidden = model.occlusion_spatial_embedding_parameter
        if hidden is not None:
            features = features + (~found.is_there)[..., None, None] * hidden[..., None, None]
        tokens = features.to(torch.bfloat16).flatten(2).permute(2, 0, 1)
        return Remembered(features=tokens, pointer=found.pointer)

    def _pointers(
        self, prompted: Remembered, passed: Sequence[Remembered], spans: Float[Tensor, " row"]
    ) -> tuple[Float[Tensor, "token row memory_channel"], Float[Tensor, "token row memory_channel"]]:
        """Return the pointers of the slices before as tokens, and what dates them."""
        from transformers.models.sam2_video.modeling_sam2_video import get_1d_sine_pe

        model = self.model
        most = model.config.max_object_pointers_in_encoder - 1
        recent = passed[::-1][:most]
        ages = [len(passed) + 1, *range(1, len(recent) + 1)]
        pointers = torch.stack([prompted.pointer, *(item.pointer for item in recent)])
        parts = model.hidden_dim // model.mem_dim  # a pointer is as wide as several tokens of memory
        tokens = pointers.reshape(*pointers.shape[:2], parts, model.mem_dim).permute(0, 2, 1, 3).flatten(0, 1)
        if not model.config.enable_temporal_pos_encoding_for_object_pointers:
            return tokens, torch.zeros_like(tokens)
        dates = torch.tensor(ages, device=self.device, dtype=torch.float32)[:, None] / spans
        sines = get_1d_sine_pe(dates, model.hidden_dim).to(self.real)
        dated = model.temporal_positional_encoding_projection_layer(sines)
        return tokens, dated.repeat_interleave(parts, dim=0)

    def _decode(
        self,
        view: View,
        coarse: Float[Tensor, "row channel y x"],
        sparse: Float[Tensor, "row 1 point channel"],
        dense: Float[Tensor, "row channel y x"],
        gives_many: bool,
    ) -> Found:
        """Return the mask of each row, the best of three where the decoder gives many."""
        model, rows = self.model, len(coarse)
        masks, quality, tokens, score = model.mask_decoder(
            image_embeddings=coarse,
            image_positional_embeddings=self._image_places.expand(rows, -1, -1, -1),
            sparse_prompt_embeddings=sparse,
            dense_prompt_embeddings=dense,
            multimask_output=gives_many,
            high_resolution_features=[view.fine, view.middle],
        )
        row = torch.arange(rows, device=self.device)
        best = quality[:, 0].argmax(dim=1)  # 0 where there is one
        is_there = score[:, 0] > 0
        pointer = model.object_pointer_proj(tokens[row, 0, best])
        return Found(
            logits=torch.where(is_there[..., None], masks[row, 0, best], ABSENT),
            pointer=torch.where(is_there, pointer, model.no_object_pointer),
            is_there=is_there,
        )

    def _gives_many(self, points: int, *, is_prompted: bool) -> bool:
        """Tell whether the decoder gives three masks, which it does for prompts that leave much open."""
        config = self.model.config
        allowed = config.multimask_output_in_sam and (is_prompted or config.multimask_output_for_tracking)
        return bool(allowed and config.multimask_min_pt_num <= points <= config.multimask_max_pt_num)

    def _no_points(self, rows: int) -> tuple[Float[Tensor, "row 1 1 2"], Int[Tensor, "row 1 1"]]:
        labels = torch.full((rows, 1, 1), NO_POINT, dtype=torch.int32, device=self.device)
        return torch.zeros(rows, 1, 1, 2, device=self.device, dtype=self.real), labels
