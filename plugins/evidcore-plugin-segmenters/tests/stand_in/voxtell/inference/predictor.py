"""The part of voxtell 0.1.2 that the adapter asks, with halves of the body for a model."""

from pathlib import Path

import numpy as np


class VoxTellPredictor:
    def __init__(self, model_dir, device, text_encoding_model, embedding_bank, use_precomputed_embeddings):
        assert not use_precomputed_embeddings  # that would be a download
        (Path(model_dir) / "plans.json").read_text()
        self.text_encoding_model, self.bank = text_encoding_model, embedding_bank
        if isinstance(embedding_bank, str):
            with np.load(embedding_bank, allow_pickle=False) as data:
                self.bank = dict(zip(data["labels"].tolist(), data["embeddings"], strict=True))

    def list_available_embeddings(self):
        return sorted(self.bank)

    def predict_single_image(self, data, text_prompts):
        """Take (channel, z, y, x) in RAS: x rises to the right, y to the front, z to the head."""
        assert data.dtype == np.float32
        assert all(text.lower() in self.bank or self.text_encoding_model for text in text_prompts)
        halves = {"head": 0, "front": 1, "right": 2}
        masks = []
        for text in text_prompts:
            mask = np.zeros(data.shape[1:], dtype=np.uint8)
            upper = np.moveaxis(mask, halves[text.lower()], 0)
            upper[len(upper) // 2 :] = 1
            masks.append(mask & (data[0] > 0))
        return np.stack(masks)
