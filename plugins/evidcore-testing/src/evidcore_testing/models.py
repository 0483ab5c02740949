"""Tiny models that are real: random weights, real files, milliseconds a pass."""

from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from evidcore.api import Encoder, EncoderInput, Patches
from evidcore.contracts import Grid
from evidcore.train.tiny_model import SPECIAL_TOKENS, tiny_decoder, tiny_tokenizer

QwenVL = Literal["qwen2_5_vl", "qwen3_vl"]


def tiny_language(folder: Path, seed: int = 0) -> Path:
    """Write a two-layer Qwen2 with random weights and its tokenizer as a transformers folder; return it."""
    tokenizer = tiny_tokenizer()
    tiny_decoder(tokenizer, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_vision(kind: QwenVL) -> dict[str, Any]:
    """Give the configuration of a two-layer vision tower, as `tiny_vision_language` has it."""
    seen = {"model_type": kind, "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2}
    seen |= {"out_hidden_size": 64}
    if kind == "qwen3_vl":
        return seen | {"patch_size": 16, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64}
    return seen | {"patch_size": 14, "fullatt_block_indexes": [1], "window_size": 56}


def tiny_vision_language(folder: Path, kind: QwenVL) -> Path:
    """Write a Qwen-VL of three layers that sees, random weights and its tokenizer, as a transformers folder.

    A token is 28 (Qwen2.5-VL) or 32 (Qwen3-VL) pixels wide. Return the folder.
    """
    from transformers import AutoConfig, AutoModelForImageTextToText

    tokenizer = tiny_tokenizer()
    ids = dict(zip(SPECIAL_TOKENS, tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)), strict=True))
    rope: dict[str, Any] = {"mrope_section": [2, 3, 3]}
    if kind == "qwen3_vl":
        rope = {"mrope_section": [3, 3, 2], "mrope_interleaved": True}
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **rope}, "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    seen = {key: value for key, value in tiny_vision(kind).items() if key != "model_type"}
    config = AutoConfig.for_model(
        kind, text_config=text, vision_config=seen, tie_word_embeddings=False,
        image_token_id=ids["<|image_pad|>"], video_token_id=len(tokenizer) - 1,
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config)
        for weight in model.model.language_model.parameters():
            if weight.dim() > 1:
                weight.mul_(4)  # random weights of the usual size say nearly the same whatever they see
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class TinyEncoder(Encoder):
    """A two-layer transformer over patches of 4 x 8 x 8 voxels, with random weights."""

    patch_zyx: Grid = (4, 8, 8)

    def __init__(self, *, width: int = 32, seed: int = 0) -> None:
        super().__init__()
        self.width = width
        self.input = EncoderInput(size_zyx=(12, 16, 16), spacing_mm_zyx=None, windows=((-1000.0, 400.0),))
        patches = self.grid(self.input.size_zyx)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Conv3d(1, width, self.patch_zyx, stride=self.patch_zyx)
            self.position = nn.Parameter(0.1 * torch.randn(patches[0] * patches[1] * patches[2], width))
            layer = nn.TransformerEncoderLayer(
                width, nhead=4, dim_feedforward=2 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)

    def grid(self, size_zyx: Grid) -> Grid:
        z, y, x = (size // patch for size, patch in zip(size_zyx, self.patch_zyx, strict=True))
        return z, y, x

    def forward(self, volumes: Float[Tensor, "volume channel z y x"]) -> Patches:
        z, y, x = volumes.shape[2:]
        grid = self.grid((z, y, x))
        features = self.layers(self.embed(volumes).flatten(2).transpose(1, 2) + self.position)
        axes = [
            (torch.arange(count, device=volumes.device) + 0.5) * patch - count * patch / 2
            for count, patch in zip(grid, self.patch_zyx, strict=True)
        ]
        return Patches(features, grid, torch.cartesian_prod(*axes))
