"""Checkpoints of SAM 2.1 in its own layout, in which MedSAM2 is published: `{"model": tensors by name}`.

Every tensor of the file is used and every tensor of the model filled, or nothing is loaded.
"""

from __future__ import annotations

import pickle
import re
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from evidcore.api import DataError
from evidcore.cache import plain_file
from evidcore.data.stored import unreadable

if TYPE_CHECKING:
    from transformers import Sam2VideoModel

ENTRY = "model"
MOST_LISTED = 12  # names of each kind in a message
POINT_KINDS = 4  # not the object, object, first corner, second corner: a tensor each there, one table here

_POINTS = "prompt_encoder.point_embed.weight"
_LAYERS_OF_MASKS = r"mask_downsampler\.layers\.(\d+)\."

_NAMES = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))


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
    for ours, theirs in _NAMES["renamed"]:
        name = re.sub(ours.replace("%heads%", _NAMES["heads"]), theirs, name)
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
            held: Any = torch.load(plain_file(path, is_text=False), map_location="cpu", weights_only=True)
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
        why = f"must hold {{'{ENTRY}': tensors by name}} as SAM 2.1 writes it, got {result or 'nothing'}"
        raise DataError(f"{path}: {why}. Name a folder that save_pretrained wrote as `folder`.")
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
        why = f"its {len(tensors)} tensors are not those of MedSAM2 (SAM 2.1 Hiera-T, 512 px)"
        remedy = "Name another checkpoint, for instance MedSAM2_latest.pt of wanglab/MedSAM2."
        raise DataError(f"{path}: {why}. {'; '.join(wrong)}. {remedy}")
    model.load_state_dict(state)


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more
