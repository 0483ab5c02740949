"""A tiny reward model, in the layout of a published one, and a tiny text encoder; random weights."""

from __future__ import annotations

from pathlib import Path

import torch
from evidcore_testing import SPECIAL_TOKENS, tiny_tokenizer


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


def tiny_text_encoder(folder: Path, *, places: int = 64, seed: int = 0) -> Path:
    """Write a two-layer BERT with random weights that reads bytes as a transformers folder; return it.

    Args:
        folder: where to.
        places: most tokens that it reads at once, the two special ones among them.
        seed: of the weights.
    """
    from tokenizers import processors
    from transformers import BertConfig, BertModel

    tokenizer = tiny_tokenizer()
    first, last = SPECIAL_TOKENS[1:3]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in (first, last)],
    )
    tokenizer.model_max_length = places
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=places, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
