"""Published weights of 3D vision transformers as weights of `vit3d`; `checkpoint_layouts.toml` has the names.

What a network does with the volume before its first layer goes into that layer: filters and positions are
turned to our axes, `(x - mean) / spread` of our input x is folded into filters and biases.
"""

import hashlib
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from evidcore.api import DataError
from evidcore.compute.loading import load_weights
from evidcore.data.stored import refuse_substitute, unreadable
from evidcore_plugin_encoders.vit3d import WEIGHTS, ViT3D

LAYOUTS: Mapping[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
HOLDERS = ("state_dict", "model")  # what trainers call the weights beside what else they save
SOURCE = """# Source

Written by `evid convert encoder` from `{file}` (sha256 {sha256}), read as layout `{name}`:
{published}.

Folded into `stem` and `positions`: our axes z, y, x are the network's {axes}; reversed are our {reversed};
the network is given (x - {mean}) / {spread} of our input x. The file's licence holds for these weights too.
"""


def convert_encoder(file: Path, name: str, folder: Path) -> dict[str, Any]:
    """Write a published encoder's weights into a folder for `pretrained`, and return the encoder's table.

    Args:
        file: safetensors, or what `torch.save` wrote; the encoder may be a part of a larger model.
        name: of the layout.
        folder: gets `weights.safetensors` and `SOURCE.md`.

    Raises:
        DataError: if the file cannot be read, or holds another encoder; if the folder has weights already.
    """
    if name not in LAYOUTS:
        raise DataError(
            f"--as {name}: is none of the layouts that `vit3d` computes: {', '.join(LAYOUTS)}. "
            "CT-CLIP's ctvit is a network of another kind, which no encoder here is."
        )
    if (folder / WEIGHTS).exists():
        raise DataError(f"{folder / WEIGHTS}: is there already. Name another folder with --out.")
    layout = LAYOUTS[name]
    published = _encoder_part(read_tensors(file), file, name)
    width = published[_published_name("class_token", layout)].shape[-1]
    layers = sum(key.endswith(".norm1.weight") for key in published)
    options = layout["encoder"] | {"width": width, "layers": layers}
    encoder = ViT3D(**options)
    weights = {key: torch.zeros_like(weight) for key, weight in encoder.state_dict().items()}
    absent = tuple(layout["absent"])
    names = {_published_name(key, layout): key for key in weights if not key.endswith(absent)}
    wrong = [f"{key} is missing" for key in names if key not in published]
    wrong += [f"{key} has no place" for key in published if key not in names]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise DataError(
            f"{file}: is no encoder of layout {name!r} with {layers} layers: {'; '.join(wrong[:3])}{more}. "
            f"Name a file of {layout['published']}."
        )
    weights |= {names[key]: weight.float() for key, weight in published.items()}
    patch_zyx, grid_zyx = options["patch_zyx"], encoder.grid(options["size_zyx"])
    voxels, patches = math.prod(patch_zyx), math.prod(grid_zyx)
    for key, counts in (("stem.weight", [voxels]), ("stem.bias", [1]), ("positions", [patches, patches + 1])):
        if weights[key].numel() not in [count * width for count in counts]:
            raise DataError(
                f"{file}: {_published_name(key, layout)} is {[*weights[key].shape]}, which does not fit "
                f"patches of {patch_zyx} in volumes of {options['size_zyx']} voxels (z, y, x), {width} wide."
            )
    positions = weights["positions"].reshape(-1, width)
    if len(positions) > patches:  # the first one is the class token's
        weights["class_token"] += positions[0]
        positions = positions[1:]
    weights["positions"] = _turned(positions.T, grid_zyx, layout)[None]
    filters = _turned(weights["stem.weight"].reshape(width, voxels), patch_zyx, layout)[:, None]
    weights["stem.weight"] = filters / layout["spread"]
    weights["stem.bias"] -= layout["mean"] / layout["spread"] * filters.sum((1, 2, 3, 4))
    load_weights(encoder, file, f"Name a file of {layout['published']}.", weights)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(encoder.state_dict(), folder / WEIGHTS)
    with file.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    source = SOURCE.format(file=file.name, sha256=sha256, name=name, **layout)
    (folder / "SOURCE.md").write_text(source, encoding="utf-8")
    return {"use": "vit3d", **options, "pretrained": str(folder)}


def read_tensors(file: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a file by their names; nothing in it is executed.

    Raises:
        DataError: if it is not there, or holds anything else than tensors and plain values.
    """
    refuse_substitute(file)
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as cause:
        raise unreadable(file, cause) from cause
    except Exception as cause:  # torch's words are left out: they advise to read it unsafely
        raise DataError(
            f"{file}: cannot be read as tensors alone ({type(cause).__name__}): it is damaged, or holds "
            "objects that would be executed. Get it anew, or a file of the encoder's state dict alone."
        ) from cause
    for key in HOLDERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise DataError(f"{file}: holds a {type(content).__name__}. Name a file with a state dict.")
    return {str(key): value for key, value in content.items() if isinstance(value, Tensor)}


def _encoder_part(tensors: Mapping[str, Tensor], file: Path, name: str) -> dict[str, Tensor]:
    """Return the encoder's tensors by its own names, wherever in a larger model it stands."""
    prefixes: dict[str, list[str]] = {}  # by layout, how the names of its encoders begin
    for key, layout in LAYOUTS.items():
        stem, token = _published_name("stem.weight", layout), _published_name("class_token", layout)
        starts = [given.removesuffix(stem) for given in tensors if f".{given}".endswith(f".{stem}")]
        prefixes[key] = [start for start in starts if f"{start}{token}" in tensors]
    if len(prefixes[name]) == 1:
        start = prefixes[name][0]
        return {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
    others = [key for key, starts in prefixes.items() if starts and key != name]
    raise DataError(
        f"{file}: holds {len(prefixes[name])} encoders of layout {name!r}; its names are "
        f"{', '.join([*tensors][:3])} … {f'Type --as {others[0]}.' if others else 'Name a file with one.'}"
    )


def _published_name(name: str, layout: Mapping[str, Any]) -> str:
    for ours, published in layout["names"].items():
        name = name.replace(ours, published)
    return name


def _turned(values: Tensor, sides_zyx: tuple[int, int, int], layout: Mapping[str, Any]) -> Tensor:
    """Return (width, place in the network's order) as (width, z, y, x)."""
    axes = layout["axes"]
    sides = [sides_zyx[axes.index(axis)] for axis in range(3)]
    turned = values.reshape(-1, *sides).permute(0, *(axis + 1 for axis in axes))
    return turned.flip([axis + 1 for axis in layout["reversed"]])
