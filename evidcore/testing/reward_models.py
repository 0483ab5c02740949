"""A tiny reward model with random weights, in the layout of a published one."""

from __future__ import annotations

from pathlib import Path

import torch

from evidcore.testing.models import tiny_tokenizer


def tiny_reward_model(folder: Path, seed: int = 0, *, labels: int = 1) -> Path:
    """Write a two-layer Mistral that classifies sequences, as RM-Mistral-7B is laid out; return its folder.

    Weights are ten times the usual ones, so that texts differ in their scores.
    """
    from transformers import MistralConfig, MistralForSequenceClassification

    tokenizer = tiny_tokenizer()
    config = MistralConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        sliding_window=None,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        num_labels=labels,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = MistralForSequenceClassification(config)
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(10)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
