"""Encoder `stored`: features that another program computed, found by the hash of what the encoder is given.

`evid convert inputs` writes what a recipe gives its encoder, volumes of the pixel-flow proof in it. Another
program writes features of each under the same name: those of another image or preparation are not taken.
Features of another encoder are told by what it made of a pattern, which is one of the inputs.
"""

import dataclasses
import hashlib
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor, nn

from evidcore.api import DataError, EncoderInput, Patches, VisualPart, prepare
from evidcore.audit.stage import POLICY, AuditStage
from evidcore.cache import write_atomically
from evidcore.data import arrays
from evidcore.errors import EvidError, RecipeError
from evidcore.proof.places import probe_volumes
from evidcore.recipe import Recipe
from evidcore.recipe.load import read_toml
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore_plugin_encoders.patch_centres import PatchEncoder

Count = Annotated[int, Ge(1)]
Pixels = Float[Tensor, "channel z y x"]


class Stored(PatchEncoder):
    """What another encoder made of each input; no stage trains it."""

    is_batch_invariant: ClassVar[bool] = True
    caveat = "Features were stored: that the pixels of these volumes reached the model was not checked here."
    mark: Tensor  # tells these features from others, in a model that is read back and in a feature bank

    def __init__(
        self,
        recipe_folder: Path = Path(),
        *,
        features: str,
        size_zyx: tuple[Count, Count, Count],
        patch_zyx: tuple[Count, Count, Count],
        width: Count,
        spacing_mm_zyx: tuple[float, float, float] | None = None,
        windows: tuple[tuple[float, float], ...] = (),
    ) -> None:
        """Declare what the other encoder is given, and what it gives; no file is read.

        Args:
            recipe_folder: where a relative `features` starts; without a recipe the working directory.
            features: `features.toml` in their folder: `made_by`, in words, `patch_zyx` and `width`.
            size_zyx: input size in voxels, a multiple of the patch.
            patch_zyx: voxels that one patch stands for.
            width: features per patch.
            spacing_mm_zyx: spacing that volumes are resampled to; left out, the field of view is resized.
            windows: (low, high) in HU, one channel each; empty: one channel, scaled by percentiles.
        """
        spec = EncoderInput(size_zyx=size_zyx, spacing_mm_zyx=spacing_mm_zyx, windows=windows)
        super().__init__(spec, patch_zyx, width, None)
        self.recipe_folder, self.features, self._is_known = recipe_folder, features, False
        self.nothing = nn.Parameter(torch.zeros(1), requires_grad=False)  # a model asks for device and type
        self.register_buffer("mark", torch.zeros(16, dtype=torch.uint8))

    @property
    def folder(self) -> Path:
        return (self.recipe_folder / self.features).parent

    def forward(self, volumes: Float[Tensor, "volume channel z y x"]) -> Patches:
        size = self.input.size_zyx
        if self.nothing.requires_grad:
            raise RecipeError("model.encoder: what is stored cannot be trained. Take 'encoder' out of train.")
        if type(volumes) is not Tensor:  # a plan's have no values
            return self.placed(volumes.new_zeros(len(volumes), math.prod(self.grid(size)), self.width), size)
        if not self._is_known:
            self.reopen(self.recipe_folder)
        features = torch.stack([self.read(input_hash(item)) for item in volumes])
        return self.placed(features.to(volumes.device), size)

    def read(self, name: str) -> Float[Tensor, "patch width"]:
        """Return the features of an input.

        Raises:
            DataError: if there are none, or not of what was declared; names the file.
        """
        file, expected = self.folder / f"{name}.npy", (math.prod(self.grid(self.input.size_zyx)), self.width)
        if not file.is_file():
            raise DataError(f"{file}: no such features. `evid convert inputs RECIPE` writes what lacks them.")
        values = arrays.read_array(str(file), None)
        if values.dtype.kind != "f" or values.shape != expected or not np.isfinite(values).all():
            text = f"must hold finite features {expected} (patch, width), got {values.dtype} {values.shape}"
            raise DataError(f"{file}: {text}. Compute them anew, or correct patch_zyx and width.")
        return torch.from_numpy(values.astype(np.float32))

    def identity(self) -> list[int]:
        """Return a hash of what is declared of the features and of those of the pattern."""
        text, table = read_toml(self.recipe_folder / self.features)
        wanted = {"made_by": table.get("made_by") or "…", "patch_zyx": [*self.patch_zyx], "width": self.width}
        if {key: table.get(key) for key in wanted} != wanted:
            text = f"{self.features} must say {wanted}, as the recipe does; it says {table}"
            raise DataError(f"{self.folder}: {text}. Correct one of them.")
        sample = self.read(input_hash(pattern(self.input))).numpy().tobytes()
        return [*hashlib.blake2b(text.encode() + sample, digest_size=16).digest()]

    def missing_weights(self) -> str:
        """Say how many of the inputs that were written have no features, or what else is wrong."""
        names = sorted(path.name for path in (self.folder / "inputs").glob("*.npy"))
        if lacking := [name for name in names if not (self.folder / name).is_file()]:
            text = f"{len(lacking)} of the {len(names)} inputs have no features, such as {lacking[0]}"
            return f"{self.folder}: {text}. Compute them; `evid convert inputs RECIPE` counts again."
        try:
            self.identity()
        except EvidError as cause:
            return str(cause)
        return ""

    def load_pretrained(self) -> None:
        """Refuse a folder that lacks features; remember which these are."""
        if missing := self.missing_weights():
            raise DataError(f"model.encoder.features: {missing}")
        self.mark.copy_(torch.tensor(self.identity()))

    def reopen(self, recipe_folder: Path) -> None:
        """Refuse other features than those that the model was trained on."""
        self.recipe_folder = recipe_folder
        if self.mark.tolist() != self.identity():
            text = "holds other features than the model was trained on"
            raise DataError(f"{self.folder}: {text}. Bring those back, or change made_by and train anew.")
        self._is_known = True


def input_hash(pixels: Pixels) -> str:
    """Return the name of an input: a hash of its shape and of every bit."""
    values = pixels.cpu().contiguous().numpy()
    return hashlib.blake2b(f"{values.shape}".encode() + values.tobytes(), digest_size=16).hexdigest()


def pattern(spec: EncoderInput) -> Pixels:
    """Return the input that tells encoders apart; it looks otherwise when it is turned or reversed."""
    shape = (spec.channels, *spec.size_zyx)
    return (torch.arange(math.prod(shape), device="cpu") % 251 / 125 - 1).reshape(shape)


def inputs(assembly: Assembly, spec: EncoderInput) -> Iterator[Pixels]:
    """Yield what a recipe gives its encoder: all that stages and audits show, air, and the proof's volumes.

    Crops that a tool chooses, and what other audits than `policy` show, are not known before.
    """
    parts, recipe = [], assembly.recipe
    for name, stage in zip(recipe.stage_names, recipe.stages, strict=True):
        context = Context(assembly, name)
        for use in stage.data_uses():
            prompts = context.prompts(use) if use.task else []
            if isinstance(stage, AuditStage) and stage.audit == POLICY:
                audit = context.component("audit", stage.table("audit", POLICY), "audit")
                asking = dataclasses.replace(stage.asking(context), dataset=context.dataset(use.dataset))
                prompts += [prompt for *_, some in audit.showings(prompts, asking) for prompt in some]
            parts += [part for case in context.cases(use) for part in context.view.render(case)]
            parts += [part for prompt in prompts for part in prompt.parts]
    crops = [*dict.fromkeys(part.crop for part in parts if isinstance(part, VisualPart))]
    yield pattern(spec)
    for crop in [*crops, *(dataclasses.replace(crop, blank=True) for crop in crops[:1])]:
        yield prepare(crop, spec)
    for intensity in {crop.volume.intensity for crop in crops}:
        with probe_volumes(spec, spec.size_zyx, intensity) as probes:
            yield from (prepare(crop, spec) for crop in probes.crops)


def write_inputs(recipe: Recipe) -> dict[str, Any]:
    """Write each input that has no features as `inputs/HASH.npy` (channel, z, y, x); count them."""
    assembly, lacking = Assembly(recipe), dict[str, bool]()
    encoder: Any = Context(assembly, "inputs").encoder()
    if not isinstance(encoder, Stored):
        raise RecipeError(f"{recipe.path}: model.encoder.use must be 'stored'.")
    for pixels in inputs(assembly, encoder.input):
        name = f"{input_hash(pixels)}.npy"
        lacking[name] = not (encoder.folder / name).is_file()
        if lacking[name]:
            np.save(content := io.BytesIO(), pixels.numpy())
            write_atomically(encoder.folder / "inputs" / name, content.getvalue(), or_else="delete others")
    return {"folder": str(encoder.folder), "inputs": len(lacking), "lacking": sum(lacking.values())}
