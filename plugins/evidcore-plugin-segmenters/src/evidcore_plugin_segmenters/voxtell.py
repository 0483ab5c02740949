"""Segmenter `voxtell`: words to 3D masks with VoxTell, a package of its own that brings nnU-Net.

VoxTell sees the body in RAS, as nnU-Net's reader gives it: y and x are reversed for it and for its mask. Its
decoder lets the texts of one call see each other, so each is asked alone. Its classes would download a model,
embeddings and a text model by themselves; here each is a file or folder that the recipe names.

Run with voxtell 0.1.2 and small random weights, its masks were those that nnU-Net's reader and writer give.
The published weights were never run here.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evidcore.api import DataError, VolumeRef
from evidcore.compute.loading import device_of
from evidcore.data import Mask, volume_cache
from evidcore.data.stored import unreadable
from evidcore.errors import PluginError
from evidcore_plugin_segmenters.texts import MASKS, TextSegmenter


class VoxTell(TextSegmenter):
    """Find what words name in a whole volume, with VoxTell, which is installed apart.

    Args:
        folder: a model of VoxTell, with plans.json and fold_0/checkpoint_final.pth; relative paths start at
            the recipe.
        sha256: of that checkpoint. VoxTell reads it as a pickle, which may run code: name one that you trust.
        embeddings: an .npz of texts and their embeddings, as VoxTell publishes; "" for none.
        text_model: a folder with the text model (Qwen3-Embedding-4B), for texts that have no embedding; "" to
            refuse such texts.
        device: "auto" is the accelerator where there is one, else the CPU.

    Source:
        Rokuss et al. 2025, VoxTell: Free-Text Promptable Universal 3D Medical Image Segmentation,
        arXiv:2511.11450; the package voxtell 0.1.2.
    """

    audit_exemption = "VoxTell looks at the whole volume for every text"

    def __init__(
        self,
        recipe_folder: Path,
        *,
        folder: str,
        sha256: str,
        embeddings: str = "",
        text_model: str = "",
        device: str = "auto",
    ) -> None:
        self._folder, self._sha256, self._device = recipe_folder / folder, sha256, device
        self._embeddings = str(recipe_folder / embeddings) if embeddings else {}
        self._text_model = str(recipe_folder / text_model) if text_model else ""
        self.find = functools.lru_cache(maxsize=MASKS)(self._find)

    def _find(self, key: str, volume: VolumeRef, words: str) -> Mask:
        if not self._text_model and words.lower() not in self.predictor.list_available_embeddings():
            raise ValueError(
                f"{volume.path}: voxtell has no embedding of {words!r}. Name embeddings that hold it, or the "
                "folder of a text_model."
            )
        array = volume_cache.read(volume).array
        data = np.ascontiguousarray(array[None, :, ::-1, ::-1], dtype=np.float32)  # LPS to RAS
        (mask,) = self.predictor.predict_single_image(data, [words])
        result: Mask = mask[:, ::-1, ::-1] > 0
        return result

    @functools.cached_property
    def predictor(self) -> Any:
        """VoxTell's predictor, loaded when it is first asked for.

        Raises:
            PluginError: if voxtell is not installed.
            DataError: if the checkpoint is missing, or is not the one that the recipe trusts.
        """
        try:
            from voxtell.inference.predictor import VoxTellPredictor
        except ImportError as cause:
            raise PluginError(
                f"segmenter 'voxtell' needs the package voxtell, which cannot be imported ({cause}). "
                'Install it: pip install "evidcore-plugin-segmenters[voxtell]".'
            ) from cause
        checkpoint = self._folder / "fold_0" / "checkpoint_final.pth"
        if not checkpoint.is_file():
            raise unreadable(checkpoint, remedy="Name the folder of a VoxTell model, with its plans.json.")
        with checkpoint.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != self._sha256.lower():
            raise DataError(
                f"voxtell: {checkpoint} has the sha256 {digest}, not {self._sha256!r}. Reading it may run "
                "code. Write the sha256 of the file that you trust."
            )
        benchmark = torch.backends.cudnn.benchmark  # VoxTell sets it for the whole process
        with torch.random.fork_rng(devices=[]):
            result = VoxTellPredictor(
                model_dir=str(self._folder),
                device=device_of(self._device, "voxtell"),
                text_encoding_model=self._text_model,
                embedding_bank=self._embeddings,
                use_precomputed_embeddings=False,
            )
        torch.backends.cudnn.benchmark = benchmark
        return result
