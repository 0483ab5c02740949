"""Where the weights come from: a checkpoint on the Hub or at hand, or a model in transformers' format."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from evidcore.api import DataError
from evidcore.cache import plain_file
from evidcore.errors import RecipeError
from evidcore_plugin_medsam2.checkpoint import fill, read_checkpoint

if TYPE_CHECKING:
    from transformers import Sam2VideoConfig, Sam2VideoModel

SIZE_PX = 512  # MedSAM2 sees slices of 512 x 512; sam2/configs/sam2.1_hiera_t512.yaml
OFFLINE = (
    "Without network: `hf download {id} {name}--revision {revision} --local-dir FOLDER` elsewhere, and "
    "{local} here."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """One place of weights: `file`, `folder`, or `id` at a revision; see `MedSam2`."""

    file: str = ""
    folder: str = ""
    id: str = ""
    revision: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        """Refuse two places, and a repository without its commit."""
        if self.file and self.folder:
            raise RecipeError(f"medsam2: file or folder, not both; got {self.file!r} and {self.folder!r}.")
        if not (self.file or self.folder) and not (self.id and self.revision):
            why = "the weights need a file, a folder, or id and revision"
            raise RecipeError(f"medsam2: {why}; got id = {self.id!r}, revision = {self.revision!r}.")

    def __str__(self) -> str:
        return self.file or self.folder or "/".join(filter(None, (f"{self.id}@{self.revision}", self.name)))

    def load(self, recipe_folder: Path) -> Sam2VideoModel:
        """Return the model with its weights, in float32, for reading; random numbers stay where they are.

        Raises:
            DataError: if the weights cannot be had, or are not those of the model; says what to do.
        """
        if self.folder or not (self.file or self.name):
            return self._pretrained(recipe_folder)
        path = recipe_folder / self.file if self.file else self._fetched()
        tensors = read_checkpoint(path)
        model = bare_model(published_config())
        fill(model, tensors, path)
        return model

    def _fetched(self) -> Path:
        """Return a checkpoint of the repository, from the cache of huggingface_hub or the network."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError

        try:
            return Path(hf_hub_download(self.id, self.name, revision=self.revision))
        except (OSError, ValueError, HfHubHTTPError) as cause:
            raise DataError(self._not_had(cause)) from cause

    def _pretrained(self, recipe_folder: Path) -> Sam2VideoModel:
        """Return a model that `save_pretrained` wrote."""
        import transformers
        from huggingface_hub.errors import HfHubHTTPError
        from safetensors import SafetensorError

        if self.folder and not (recipe_folder / self.folder / "config.json").is_file():
            why = f"{recipe_folder / self.folder}: holds no config.json"
            raise DataError(f"{why}. Name a folder that save_pretrained wrote, or a checkpoint as `file`.")
        place = str(plain_file(recipe_folder / self.folder)) if self.folder else self.id
        revision = self.revision or None
        try:
            config = transformers.AutoConfig.from_pretrained(place, revision=revision)
            if not isinstance(config, transformers.Sam2VideoConfig):
                why = f"is a model of type {config.model_type!r}, and medsam2 tracks with 'sam2_video'"
                raise DataError(f"{self}: {why}. Name one such as facebook/sam2.1-hiera-tiny.")
            with torch.random.fork_rng(devices=[]):
                model, result = transformers.Sam2VideoModel.from_pretrained(
                    place, config=config, revision=revision, dtype=torch.float32, use_safetensors=True,
                    output_loading_info=True,
                )  # fmt: skip
        except (OSError, ValueError, RuntimeError, HfHubHTTPError, SafetensorError) as cause:
            raise DataError(self._not_had(cause)) from cause
        wrong = [
            f"{len(result[key])} {key.removesuffix('_keys')}: {', '.join(sorted(map(str, result[key]))[:12])}"
            for key in ("missing_keys", "unexpected_keys", "mismatched_keys")
            if result[key]
        ]
        if wrong:
            why = f"its tensors are not those of a Sam2VideoModel of its config. {'; '.join(wrong)}"
            raise DataError(f"{self}: {why}. Name another folder.")
        return cast("Sam2VideoModel", model)

    def _not_had(self, cause: BaseException) -> str:
        reason = f"{self}: cannot be loaded: {str(cause).splitlines()[0]}"
        if self.folder:
            return f"{reason} Write the folder again with save_pretrained."
        name = f"{self.name} " if self.name else ""
        local = f"file = 'FOLDER/{self.name}'" if self.name else "folder = 'FOLDER'"
        return f"{reason} {OFFLINE.format(id=self.id, name=name, revision=self.revision, local=local)}"


def published_config() -> Sam2VideoConfig:
    """Return the configuration of MedSAM2: SAM 2.1 Hiera-T at 512 px.

    transformers knows the size in several places; where one is forgotten, it runs at wrong positions.
    """
    import transformers

    vision = transformers.Sam2VisionConfig(
        backbone_config=transformers.Sam2HieraDetConfig(image_size=[SIZE_PX, SIZE_PX]),
        backbone_feature_sizes=[[SIZE_PX // stride] * 2 for stride in (4, 8, 16)],
    )
    return transformers.Sam2VideoConfig(
        vision_config=vision,
        prompt_encoder_config=transformers.Sam2VideoPromptEncoderConfig(image_size=SIZE_PX),
        image_size=SIZE_PX,
        memory_attention_rope_feat_sizes=[SIZE_PX // 16] * 2,
    )


def bare_model(config: Sam2VideoConfig) -> Sam2VideoModel:
    """Return a model whose weights are still to be given; random numbers stay where they are."""
    from transformers import Sam2VideoModel

    with torch.random.fork_rng(devices=[]):
        return Sam2VideoModel(config).eval().requires_grad_(False)
