"""A Llama small enough to be fitted on a CPU in minutes, with weights that start ready to look words up.

A model this small often does not find out in minutes that a word in the question can be looked up in what
stands before it. So it starts near that. Nothing here says what any word means, nor knows of a volume.

- Spellings of a word that differ in a capital letter or in the space before it begin with one embedding plus
  a vector for the difference.
- Half of the width, `identity`, holds the embeddings alone: the layers begin by writing into the other half,
  and the vectors for spelling lie there too.
- In every layer but the first, half of the heads look at tokens whose identity is theirs, however far away.
- Two heads of the first layer look one and two tokens back, and pass on what they look at.
- Where it is asked for, numbers are like their neighbours: 17 is nearer to 18 than to 40, as in models that
  have read much (Wallace et al., EMNLP 2019). Numbers told from labels alone take an example each.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from evidcore.api import DataError

if TYPE_CHECKING:
    from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase

ROPE_THETA = 1e6  # as Qwen2.5: in half of the rotary pairs, words some hundred tokens apart still match
EMBEDDING = 5.0  # embeddings, in units of transformers' own random weights: large beside what layers add
SPELLING = 0.05  # size of the vectors for a capital letter and a space
ALIKE = 14.0  # attention logit of two equal words
VALUES = 1.25  # what heads pass on, in units of transformers' own random weights
WAVES = 1000.0  # of the embeddings of numbers: the longest, in units of the shortest
LOOKING_BACK = 2  # an option's letter stands one token before its name and two before "present"


def tiny_config(
    tokenizer: PreTrainedTokenizerBase, *, width: int = 128, layers: int = 4, heads: int = 4
) -> LlamaConfig:
    """Give the shape: 0.7 million weights with a vocabulary of some hundred words.

    Not a Qwen2, which it else resembles: for that name transformers 5.23 puts Qwen's own splitting of words
    in place of the one in `tokenizer.json`.

    Raises:
        DataError: if the heads do not share the width evenly.
    """
    from transformers import LlamaConfig

    if width % (2 * heads):
        why = f"{heads} heads of an even width do not share {width}"
        raise DataError(f"model.language.width: {why}; take a multiple of {2 * heads}.")
    return LlamaConfig(
        vocab_size=8 * math.ceil(len(tokenizer) / 8),
        hidden_size=width,
        intermediate_size=width * 5 // 2,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=4096,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def tiny_model(
    config: LlamaConfig, tokenizer: PreTrainedTokenizerBase, seed: int, *, ordered_numbers: bool = False
) -> PreTrainedModel:
    """Give the model with random weights, arranged as this module's docstring says."""
    from transformers import LlamaForCausalLM

    model: Any
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        identity = torch.linalg.qr(torch.randn(config.hidden_size, config.hidden_size // 2)).Q
        for layer in model.model.layers:
            attention = layer.self_attn
            attention.q_proj.weight.mul_(4.0)
            attention.k_proj.weight.copy_(attention.q_proj.weight)
            attention.v_proj.weight.mul_(VALUES)
            attention.o_proj.weight.mul_(VALUES)
        first, *others = (layer.self_attn for layer in model.model.layers)
        first.o_proj.weight.copy_(first.v_proj.weight.T)
        for head in range(min(LOOKING_BACK, config.num_attention_heads)):
            _look_back(first, head, head + 1, config)
        for attention in others:
            for head in range(config.num_attention_heads // 2):
                _look_alike(attention, head, config, identity)
        for layer in model.model.layers:
            for written in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
                written -= identity @ (identity.T @ written)
        capital, space = SPELLING * torch.randn(2, config.hidden_size)
        capital, space = (item - identity @ (identity.T @ item) for item in (capital, space))
        rows = model.get_input_embeddings().weight
        if ordered_numbers:  # sines and cosines of their value, turned at random, as long as they were
            turned = torch.linalg.qr(torch.randn(rows.shape[1], rows.shape[1])).Q
            speeds = WAVES ** -torch.linspace(0.0, 1.0, rows.shape[1] // 2)
            for index in range(len(tokenizer)):
                word = str(tokenizer.decode([index])).strip()
                if word.isdecimal():
                    angles = int(word) * speeds
                    row = turned @ torch.cat([angles.sin(), angles.cos()])
                    rows[index] = row * rows[index].norm() / row.norm()
        _spell_alike(rows, tokenizer, capital, space)
    built: PreTrainedModel = model
    return built


def _spell_alike(
    rows: torch.Tensor, tokenizer: PreTrainedTokenizerBase, capital: torch.Tensor, space: torch.Tensor
) -> None:
    """Give the spellings of a word one embedding plus the vectors for how it is spelled."""
    rows.mul_(EMBEDDING)
    shared: dict[str, torch.Tensor] = {}
    special = set(tokenizer.all_special_ids)
    for index in range(len(tokenizer)):
        text = str(tokenizer.decode([index]))
        word = text.strip().removesuffix(")") or text.strip()  # "A)" marks the option that "A" names
        if not word or index in special:
            continue
        single = len(word) == 1  # "A" and "a" are no spellings of each other
        row = shared.setdefault(word if single else word.lower(), rows[index].clone())
        rows[index] = row + (text[0] == " ") * space / 2 + (word[0].isupper() and not single) * capital


def _look_alike(attention: Any, head: int, config: LlamaConfig, identity: torch.Tensor) -> None:
    """Let a head look at tokens like its own: queries equal keys and read the subspace `identity`.

    Only the slowly turning half of the rotary pairs is used, so that distance does not count.
    """
    width = config.hidden_size // config.num_attention_heads
    slow = torch.arange(width) % (width // 2) >= width // 4
    # the logit is a sum over width / 2 rows of spread² · hidden_size / 2, over sqrt(width)
    spread = math.sqrt(ALIKE * math.sqrt(width) / (width / 2 * config.hidden_size / 2))
    rows = slice(head * width, (head + 1) * width)
    weight = slow.unsqueeze(1) * spread * torch.randn(width, config.hidden_size)
    attention.q_proj.weight[rows] = weight @ identity @ identity.T
    attention.k_proj.weight[rows] = attention.q_proj.weight[rows]


def _look_back(attention: Any, head: int, tokens: int, config: LlamaConfig) -> None:
    """Let a head look `tokens` back, whatever stands there.

    A constant key u and a constant query that is u turned back by `tokens` positions: rotary embedding turns
    them by their distance, and their product is greatest where the two turns cancel.
    """
    width = config.hidden_size // config.num_attention_heads
    pairs = min(4, width // 2)  # the fastest turning pairs; slower ones would blur the place
    angles = tokens * ROPE_THETA ** (-2.0 * torch.arange(pairs) / width)
    rows = slice(head * width, (head + 1) * width)
    key, query = torch.zeros(2, width)
    key[:pairs] = math.sqrt(17.0)
    query[:pairs] = math.sqrt(17.0) * angles.cos()
    query[width // 2 : width // 2 + pairs] = -math.sqrt(17.0) * angles.sin()
    attention.q_proj.weight[rows] *= 0.1
    attention.k_proj.weight[rows] *= 0.1
    attention.q_proj.bias[rows] = query
    attention.k_proj.bias[rows] = key
