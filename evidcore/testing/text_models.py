"""Tiny text models with random weights, in the layouts of published ones."""

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


def tiny_text_encoder(folder: Path, seed: int = 0) -> Path:
    """Write a two-layer BERT that reads letter by letter, with its tokenizer; return its folder."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,:;!?()-"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{one}" for one in letters)]
    tokenizer = BertTokenizerFast(
        vocab={piece: number for number, piece in enumerate(pieces)}, model_max_length=512
    )
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = BertModel(config)
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(10)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
