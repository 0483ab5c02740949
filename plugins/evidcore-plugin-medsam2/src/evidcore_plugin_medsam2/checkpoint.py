"""Checkpoints of SAM 2.1 in its own layout, in which MedSAM2 is published: `{"model": tensors by name}`.

Every tensor of the file is used and every tensor of the model filled, or nothing is loaded.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evidcore.api import DataError
from evidcore.data.stored import unreadable

if TYPE_CHECKING:
    from transformers import Sam2VideoModel

ENTRY = "model"
MOST_LISTED = 12  # names of each kind in a message
POINT_KINDS = 4  # not the object, object, first corner, second corner: a tensor each there, one table here

_POINTS = "prompt_encoder.point_embed.weight"
_HEADS = r"(iou_prediction_head|pred_obj_score_head|output_hypernetworks_mlps\.\d+|object_pointer_proj)"
_LAYERS_OF_MASKS = r"mask_downsampler\.layers\.(\d+)\."

# A name of transformers becomes the original one by these, in this order.
_RENAMED: Sequence[tuple[str, str]] = (
    (rf"{_HEADS}\.layers\.0\.", r"\1.layers.1."),  # heads have three layers, feed-forward blocks two
    (rf"{_HEADS}\.proj_in\.", r"\1.layers.0."),
    (rf"{_HEADS}\.proj_out\.", r"\1.layers.2."),
    (r"\.mlp\.proj_in\.", ".mlp.layers.0."),
    (r"\.mlp\.proj_out\.", ".mlp.layers.1."),
    (r"\.mask_embed\.conv1\.", ".mask_downscaling.0."),
    (r"\.mask_embed\.layer_norm1\.", ".mask_downscaling.1."),
    (r"\.mask_embed\.conv2\.", ".mask_downscaling.3."),
    (r"\.mask_embed\.layer_norm2\.", ".mask_downscaling.4."),
    (r"\.mask_embed\.conv3\.", ".mask_downscaling.6."),
    (r"\.upscale_conv1\.", ".output_upscaling.0."),
    (r"\.upscale_layer_norm\.", ".output_upscaling.1."),
    (r"\.upscale_conv2\.", ".output_upscaling.3."),
    (r"^(shared_image_embedding|prompt_encoder\.shared_embedding)\.positional_embedding$",
     "sam_prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"),
    (r"^prompt_encoder\.", "sam_prompt_encoder."),
    (r"^mask_decoder\.", "sam_mask_decoder."),
    (r"^vision_encoder\.neck\.convs\.(\d+)\.", r"image_encoder.neck.convs.\1.conv."),
    (r"^vision_encoder\.backbone\.", "image_encoder.trunk."),
    (r"\.patch_embed\.projection\.", ".patch_embed.proj."),
    (r"^object_pointer_proj\.", "obj_ptr_proj."),
    (r"^temporal_positional_encoding_projection_layer\.", "obj_ptr_tpos_proj."),
    (r"^memory_temporal_positional_encoding$", "maskmem_tpos_enc"),
    (r"^no_memory_embedding$", "no_mem_embed"),
    (r"^no_memory_positional_encoding$", "no_mem_pos_enc"),
    (r"^no_object_pointer$", "no_obj_ptr"),
    (r"^occlusion_spatial_embedding_parameter$", "no_obj_embed_spatial"),
    (r"^memory_encoder\.feature_projection\.", "memory_encoder.pix_feat_proj."),
    (r"^memory_encoder\.projection\.", "memory_encoder.out_proj."),
    (r"^memory_encoder\.memory_fuser\.", "memory_encoder.fuser."),
    (r"\.fuser\.layers\.(\d+)\.scale$", r".fuser.layers.\1.gamma"),
    (r"\.depthwise_conv\.", ".dwconv."),
    (r"\.pointwise_conv(\d)\.", r".pwconv\1."),
    (r"\.o_proj\.", ".out_proj."),
    (r"\.layer_norm(\d?|_final_attn)\.", r".norm\1."),
)  # fmt: skip


def original_names(name: str, mask_layers: int) -> list[str]:
    """Return what the original layout calls a tensor of `Sam2VideoModel`, in several pieces for one of them.

    `mask_layers` convolutions bring a mask down to the features' size.
    """
    if name == _POINTS:
        return [f"sam_prompt_encoder.point_embeddings.{kind}.weight" for kind in range(POINT_KINDS)]
    # there, convolution, norm and activation of each layer are counted through
    name = re.sub(rf"{_LAYERS_OF_MASKS}conv\.", lambda result: _counted(3 * int(result[1])), name)
    name = re.sub(rf"{_LAYERS_OF_MASKS}layer_norm\.", lambda result: _counted(3 * int(result[1]) + 1), name)
    name = name.replace("mask_downsampler.final_conv.", _counted(3 * mask_layers))
    for ours, theirs in _RENAMED:
        name = re.sub(ours, theirs, name)
    return [name]


def _counted(place: int) -> str:
    return f"mask_downsampler.encoder.{place}."


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint; nothing in it is run.

    Raises:
        DataError: if there is no such file, or it is corrupted or of another layout.
    """
    try:
        with warnings.catch_warnings():  # of an odd pickle, which is then refused
            warnings.simplefilter("ignore", UserWarning)
            held: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as cause:
        raise unreadable(path, cause) from cause
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError) as cause:
        raise DataError(  # without torch's words: they advise to read it unsafely
            f"{path}: is not a checkpoint that can be read ({type(cause).__name__}): it is cut short, "
            f"or holds more than tensors. Fetch it again."
        ) from cause
    tensors = held.get(ENTRY) if isinstance(held, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(item, Tensor) for item in tensors.values()):
        result = _first([repr(key) for key in held]) if isinstance(held, dict) else type(held).__name__
        raise DataError(
            f"{path}: must hold {{'{ENTRY}': tensors by name}} as SAM 2.1 writes it, got "
            f"{result or 'nothing'}. Name a folder that save_pretrained wrote as `folder`."
        )
    return tensors


def fill(model: Sam2VideoModel, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Give `model` the tensors of a checkpoint, by their original names; messages name `path`."""
    mask_layers = len(model.memory_encoder.mask_downsampler.layers)
    state: dict[str, Tensor] = {}
    missing: list[str] = []
    misshapen: list[str] = []
    foreign = set(tensors)
    for name, held in model.state_dict().items():
        names = original_names(name, mask_layers)
        foreign -= set(names)
        absent = [item for item in names if item not in tensors]
        missing += absent
        if absent:
            continue
        value = torch.cat([tensors[item] for item in names]) if len(names) > 1 else tensors[names[0]]
        if value.shape != held.shape:
            misshapen.append(f"{names[0]} {tuple(value.shape)} instead of {tuple(held.shape)}")
        state[name] = value
    wrong = [
        f"{len(listed)} {what}: {_first(listed)}"
        for what, listed in (
            ("missing", list(dict.fromkeys(missing))),  # the model holds one of them twice
            ("foreign", sorted(foreign)),
            ("of another shape", misshapen),
        )
        if listed
    ]
    if wrong:
        raise DataError(
            f"{path}: its {len(tensors)} tensors are not those of MedSAM2 (SAM 2.1 Hiera-T, 512 px). "
            f"{'; '.join(wrong)}. Name another checkpoint, for instance MedSAM2_latest.pt of wanglab/MedSAM2."
        )
    model.load_state_dict(state)


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more
