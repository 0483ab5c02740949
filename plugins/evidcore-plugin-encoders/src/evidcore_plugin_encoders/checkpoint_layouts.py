"""Published weights of 3D encoders as weights of our components; `checkpoint_layouts.toml` has the names.

What a network of `vit3d` does with the volume before its first layer goes into that layer: filters and
positions are turned to our axes, `(x - mean) / spread` of our input x is folded into filters and biases.
`ctvit` is CT-CLIP's network itself, and its weights get other names alone.
"""

import hashlib
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import torch as safetensors
from torch import Tensor, nn

from evidcore.api import DataError
from evidcore.cache import write_atomically
from evidcore.compute.loading import load_weights
from evidcore_plugin_encoders.ctvit import CTViT
from evidcore_plugin_encoders.vit3d import ViT3D
from evidcore_plugin_encoders.weight_files import WEIGHTS, read_tensors

LAYOUTS: Mapping[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SOURCE = """# Source

Written by `evid convert encoder` from `{file}` (sha256 {sha256}), read as layout `{name}`:
{published}.

{treatment} The file's licence holds for these weights too.
"""
FOLDED = """Folded into `stem` and `positions`: our axes z, y, x are the network's {axes};
reversed are our {reversed}; the network is given (x - {mean}) / {spread} of our input x."""
RENAMED = "Numbers are as published, under the names of `{use}`; what that does not compute is left out."


def convert_encoder(file: Path, name: str, folder: Path) -> dict[str, Any]:
    """Write a published encoder's weights into a folder for `pretrained`, and return the encoder's table.

    Args:
        file: safetensors, or what `torch.save` wrote; the encoder may be a part of a larger model.
        name: of the layout.
        folder: gets `SOURCE.md` and `weights.safetensors`.

    Raises:
        DataError: if the file cannot be read, or holds another encoder; if the folder has weights already.
    """
    if name not in LAYOUTS:
        raise DataError(f"--as {name}: is no layout that is known. Type one of {', '.join(LAYOUTS)}.")
    if (folder / WEIGHTS).exists():
        raise DataError(f"{folder / WEIGHTS}: is there already. Name another folder with --out.")
    layout = LAYOUTS[name]
    published = _encoder_part(read_tensors(file), file, name)
    options = dict(layout["encoder"])
    encoder: CTViT | ViT3D
    if layout["use"] == "ctvit":
        encoder = CTViT(**options)
        weights = _renamed(encoder, published, file, name)
    else:
        options["width"] = published[layout["known_by"][1]].shape[-1]  # of the class token
        options["layers"] = sum(key.endswith(".norm1.weight") for key in published)
        encoder = ViT3D(**options)
        weights = _folded(encoder, _renamed(encoder, published, file, name), options, file, layout)
    load_weights(encoder, file, f"Name a file of {layout['published']}.", weights)
    with file.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    origin = {"file": file.name, "sha256": sha256, "name": name, "published": layout["published"]}
    treatment = (FOLDED if layout["use"] == "vit3d" else RENAMED).format(**layout)
    source = SOURCE.format(treatment=treatment, **origin)
    other = "name another folder with --out"
    write_atomically(folder / "SOURCE.md", source.encode(), or_else=other)
    # the weights last: where they stand, all stands
    write_atomically(folder / WEIGHTS, safetensors.save(encoder.state_dict()), or_else=other)
    return {"use": layout["use"], **options, "pretrained": str(folder)}


def _renamed(encoder: nn.Module, published: Mapping[str, Tensor], file: Path, name: str) -> dict[str, Tensor]:
    """Return the weights by our names, zeros where the network has none.

    Raises:
        DataError: with the first names that are missing or have no place.
    """
    layout = LAYOUTS[name]
    weights = {key: torch.zeros_like(weight) for key, weight in encoder.state_dict().items()}
    present = (key for key in weights if not key.endswith(tuple(layout["absent"])))
    names = {_published_name(key, layout): key for key in present}
    wrong = [f"{key} is missing" for key in names if key not in published]
    wrong += [f"{key} has no place" for key in published if key not in names]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise DataError(
            f"{file}: is no encoder of layout {name!r}: {'; '.join(wrong[:3])}{more}. "
            f"Name a file of {layout['published']}."
        )
    return weights | {names[key]: weight.float() for key, weight in published.items()}


def _folded(
    encoder: ViT3D,
    weights: dict[str, Tensor],
    options: Mapping[str, Any],
    file: Path,
    layout: Mapping[str, Any],
) -> dict[str, Tensor]:
    """Return the weights for our axes and our input.

    Raises:
        DataError: if a weight is not for the patches or the size that are published.
    """
    width, patch_zyx, grid_zyx = encoder.width, options["patch_zyx"], encoder.grid(options["size_zyx"])
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
    return weights


def _encoder_part(tensors: Mapping[str, Tensor], file: Path, name: str) -> dict[str, Tensor]:
    """Return the encoder's tensors by its own names, wherever in a larger model it stands."""
    prefixes: dict[str, list[str]] = {}  # by layout, how the names of its encoders begin
    for key, layout in LAYOUTS.items():
        first, other = layout["known_by"]
        starts = [given.removesuffix(first) for given in tensors if f".{given}".endswith(f".{first}")]
        prefixes[key] = [start for start in starts if f"{start}{other}" in tensors]
    if len(prefixes[name]) == 1:
        start, unused = prefixes[name][0], LAYOUTS[name]["unused"]
        part = {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
        return {
            key: value
            for key, value in part.items()
            if value.numel() and not any(f".{words}" in f".{key}" for words in unused)
        }
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
