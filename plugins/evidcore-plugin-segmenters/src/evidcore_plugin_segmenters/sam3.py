"""Segmenter `sam3`: words to masks over the slices of a volume, with transformers' `Sam3VideoModel`.

The slices are the frames of a video, from z = 0 upwards, as greys of one CT window. On each the model looks
for what the words name, and it follows what it found through the slices above. All objects that it finds are
OR-ed. Boxes, points and masks are refused: in transformers they belong to another class.

It was run here with small random weights of the same classes alone, never with published ones: what SAM 3
finds in CT is not known here, and it was not trained on CT. transformers' suppression of
doubles and filling of holes need code that it fetches from the Hub; both are left out.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Literal

import numpy as np
from evidcore_plugin_reports.text_models import Pretrained, TextModel

from evidcore.api import DataError, VolumeRef
from evidcore.data import Mask, volume_cache
from evidcore.errors import RecipeError
from evidcore_plugin_segmenters.texts import MASKS, TextSegmenter


class Sam3(TextSegmenter):
    """Find and follow what words name through the slices of a volume, with SAM 3.

    Each text of a volume passes all slices once; its mask is kept for later windows.

    Args:
        folder: a `Sam3VideoModel` with its processor, as `save_pretrained` writes them; relative paths start
            at the recipe.
        id: such a model on the Hugging Face Hub, in place of a folder.
        revision: its commit. Weights must be safetensors.
        window_hu: what becomes black and white, in HU. Values of arbitrary intensity are shown from the 0.5th
            to the 99.5th percentile.
        dtype: what it computes in.
        device: "auto" is the accelerator where there is one, else the CPU.

    Source:
        Carion et al. 2025, SAM 3: Segment Anything with Concepts, arXiv:2511.16719; transformers' sam3_video.
    """

    audit_exemption = "SAM 3 looks at every slice for every text"

    def __init__(
        self,
        recipe_folder: Path,
        *,
        folder: str = "",
        id: str = "",
        revision: str = "",
        window_hu: tuple[float, float] = (-160.0, 240.0),
        dtype: Literal["float32", "bfloat16"] = "float32",
        device: str = "auto",
    ) -> None:
        if window_hu[0] >= window_hu[1]:
            raise RecipeError(f"sam3: window_hu is [low, high], low below high; got {list(window_hu)}.")
        try:
            named = Pretrained(folder=folder, id=id, revision=revision, dtype=dtype, device=device)
        except ValueError as cause:
            raise RecipeError(f"sam3: {cause}. Name a folder, or id and revision.") from cause
        self._loaded = TextModel(named, recipe_folder, "sam3", kind="Sam3VideoModel")
        self._place = str(recipe_folder / folder) if folder else id
        self._revision, self.window_hu = revision or None, window_hu
        self.find = functools.lru_cache(maxsize=MASKS)(self._find)

    def _find(self, key: str, volume: VolumeRef, words: str) -> Mask:
        model, processor = self.model, self.processor
        most = model.config.detector_config.text_config.max_position_embeddings
        count = len(processor.tokenizer(words).input_ids)
        if count > most:
            why = f"{words!r} has {count} tokens, and sam3 reads {most}"
            raise ValueError(f"{volume.path}: {why}. Say it shorter.")
        is_hu, array = volume.intensity == "hu", volume_cache.read(volume).array
        low, high = self.window_hu if is_hu else volume_cache.percentile_ends(volume)
        greys = np.rint(255 * np.clip((array - low) / max(high - low, 1e-6), 0, 1)).astype(np.uint8)
        state = processor.init_video_session(
            video=np.repeat(greys[..., None], 3, axis=-1),
            inference_device=model.device,
            processing_device="cpu",
            video_storage_device="cpu",
            dtype=model.dtype,
        )
        processor.add_text_prompt(state, words)
        result = np.zeros(greys.shape, dtype=np.bool_)
        for output in model.propagate_in_video_iterator(state):
            objects = processor.postprocess_outputs(state, output)["masks"]
            result[output.frame_idx] = objects.any(dim=0).cpu().numpy()
        return result

    @property
    def model(self) -> Any:
        """The model, loaded when it is first asked for; weights that lack a part of it are refused."""
        from transformers.models.sam3_video import modeling_sam3_video

        modeling_sam3_video.cv_utils_kernel = False  # else `kernels`, where installed, fetches code to run
        return self._loaded.model

    @functools.cached_property
    def processor(self) -> Any:
        """What prepares slices and texts, as it was saved with the model."""
        import transformers

        try:
            return transformers.Sam3VideoProcessor.from_pretrained(self._place, revision=self._revision)
        except (OSError, ValueError, TypeError) as cause:
            text = f"sam3: {self._place!r} holds no processor of a Sam3VideoModel"
            raise DataError(f"{text} ({cause}). Name a model that was saved with its processor.") from cause
