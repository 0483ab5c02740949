"""The language model: a tokenizer and a tiny model built here, or a pretrained one."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from evidcore.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
)
IMAGE_TOKEN = "<|image_pad|>"
CHAT_TEMPLATE = (  # ChatML as Qwen2-VL writes it, without its default system turn
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# An option's letter with its bracket, a tag, a word or a number with the space before it, one white
# space, one sign.
_PIECES = r"\p{Lu}\)|</?\p{L}+>| ?\p{L}+| ?\p{N}+|\s|[^\s\p{L}\p{N}]"
_LOOKING_BACK = 2  # an option's letter stands one token before its name and two before "present"
_SOURCES: Mapping[str, frozenset[str]] = {
    "config": frozenset({"config", "width", "layers", "heads"}),
    "id": frozenset({"id", "revision"}),
    "folder": frozenset({"folder"}),
}


def build_tokenizer(
    texts: Iterable[str], phrases: Sequence[str], *, words: int = 2048
) -> PreTrainedTokenizerFast:
    """Give a byte-level tokenizer in which each phrase and each frequent word is one token.

    Every text tokenizes and decodes to itself: what is no phrase and no known word goes byte by byte. A
    phrase is one token at the start of a sentence, in its midst and after a space, as merges over a large
    corpus would make it.

    Args:
        texts: where words are counted.
        phrases: names of findings, in lower case.
        words: how many of the most frequent words (tags, numbers, signs) become tokens.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    forms = sorted({form for phrase in phrases for form in (phrase, _capital(phrase))})
    forms.sort(key=len, reverse=True)  # "pleural effusion" before "effusion"
    pieces = "|".join([*(rf" ?{_escaped(form)}(?!\p{{L}})" for form in forms), _PIECES])
    splitter = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pieces), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    vocabulary = {token: index for index, token in enumerate(SPECIAL_TOKENS)}
    counted = Counter(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))
    frequent = sorted(counted, key=lambda piece: (-counted[piece], piece))[:words]
    spaced = [text for form in forms for text in (form, " " + form)]
    named = [piece for text in spaced for piece, _ in splitter.pre_tokenize_str(text)]
    for piece in [*sorted(pre_tokenizers.ByteLevel.alphabet()), *named, *frequent]:
        vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _escaped(text: str) -> str:
    return re.escape(text).replace("\\ ", " ")


def tiny_config(
    tokenizer: PreTrainedTokenizerBase, *, width: int = 128, layers: int = 3, heads: int = 4
) -> LlamaConfig:
    """Give the shape of a Llama that is fitted in minutes on a CPU: 0.6 million weights.

    Not a Qwen2, which it else resembles: for that name transformers 5.23 puts Qwen's own splitting of words
    in place of the one in `tokenizer.json`.

    Raises:
        DataError: if the heads do not share the width evenly.
    """
    from transformers import LlamaConfig

    if width % (2 * heads):
        raise DataError(
            f"model.language.width: {heads} heads of an even width do not share {width}; "
            f"take a multiple of {2 * heads}."
        )
    return LlamaConfig(
        vocab_size=8 * math.ceil(len(tokenizer) / 8),
        hidden_size=width,
        intermediate_size=width * 5 // 2,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=4096,
        attention_bias=True,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def tiny_model(config: LlamaConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """Give a Llama with random weights that is ready to look words up.

    A model this small does not find out in minutes that a word in the question can be looked up in what
    stands before it, so it starts near that. Queries match keys of the same token (`k_proj` begins as
    `q_proj`). Two heads of the first layer look one and two tokens back, and the first layer passes on
    what it looks at (`o_proj` begins as `v_proj` transposed). Spellings of a word that differ in a
    capital letter or in the space before it begin with one embedding plus a small vector for the
    difference. Nothing says what any word means.

    It helps and does not suffice: in trials with varying documents, four of nine fits from this start
    learned to read. `fit.json` says whether one did.
    """
    from transformers import LlamaForCausalLM

    model: Any
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        capital, space = 0.05 * torch.randn(2, config.hidden_size)
    with torch.no_grad():
        for layer in model.model.layers:
            attention = layer.self_attn
            attention.q_proj.weight.mul_(4.0)
            attention.k_proj.weight.copy_(attention.q_proj.weight)
            attention.v_proj.weight.mul_(3.0)
            attention.o_proj.weight.mul_(3.0)
        first = model.model.layers[0].self_attn
        first.v_proj.weight.mul_(2.0 / 3.0)
        first.o_proj.weight.copy_(first.v_proj.weight.T)
        for head in range(min(_LOOKING_BACK, config.num_attention_heads)):
            _look_back(first, head, head + 1, config)
        rows = model.get_input_embeddings().weight
        rows.mul_(2.5)
        shared: dict[str, torch.Tensor] = {}
        for index in range(len(SPECIAL_TOKENS), len(tokenizer)):
            text = str(tokenizer.decode([index]))
            word = text.strip().removesuffix(")") or text.strip()  # "A)" marks the option that "A" names
            if not word:
                continue
            single = len(word) == 1  # "A" and "a" are no spellings of each other
            row = shared.setdefault(word if single else word.lower(), rows[index].clone())
            rows[index] = row + (text[0] == " ") * space / 2 + (word[0].isupper() and not single) * capital
    built: PreTrainedModel = model
    return built


def _look_back(attention: Any, head: int, tokens: int, config: LlamaConfig) -> None:
    """Let a head look `tokens` back, whatever stands there.

    A constant key u and a constant query that is u turned back by `tokens` positions: rotary embedding turns
    them by their distance, and their product is greatest where the two turns cancel.
    """
    width = config.hidden_size // config.num_attention_heads
    pairs = min(4, width // 2)  # the fastest turning pairs; slower ones would blur the place
    base = float(config.rope_parameters["rope_theta"])
    angles = tokens * base ** (-2.0 * torch.arange(pairs) / width)
    rows = slice(head * width, (head + 1) * width)
    key, query = torch.zeros(2, width)
    key[:pairs] = math.sqrt(17.0)
    query[:pairs] = math.sqrt(17.0) * angles.cos()
    query[width // 2 : width // 2 + pairs] = -math.sqrt(17.0) * angles.sin()
    attention.q_proj.weight[rows] *= 0.1
    attention.k_proj.weight[rows] *= 0.1
    attention.q_proj.bias[rows] = query
    attention.k_proj.bias[rows] = key


def load_language(
    source: Mapping[str, Any], *, texts: Iterable[str] = (), phrases: Sequence[str] = (), seed: int = 0
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load or build the language model that `model.language` of a recipe names.

    Args:
        source: `{config = "tiny", width, layers, heads}` builds one with random weights, for a `fit` stage to
            train; `{id, revision}` comes from the Hugging Face Hub; `{folder}` was written by
            `save_pretrained`.
        texts: for "tiny": where the tokenizer counts words.
        phrases: for "tiny": names that become one token each.
        seed: for "tiny": of the random weights.

    Raises:
        DataError: if the table names no source or several, or what it names cannot be used.
    """
    kinds = [kind for kind in _SOURCES if kind in source]
    if len(kinds) != 1:
        raise DataError(
            f"model.language: must hold exactly one of config, id and folder, got {dict(source)!r}; write "
            'for example { config = "tiny" } or { id = "Qwen/Qwen2.5-0.5B-Instruct", revision = "main" }.'
        )
    kind = kinds[0]
    if unknown := sorted(set(source) - _SOURCES[kind]):
        raise DataError(
            f"model.language.{unknown[0]}: no such key beside {kind}."
            f"{did_you_mean(unknown[0], _SOURCES[kind])} Known: {', '.join(sorted(_SOURCES[kind]))}."
        )
    if kind == "config":
        if source["config"] != "tiny":
            raise DataError(
                f"model.language.config: no shape is called {source['config']!r}; the one there is: 'tiny'."
            )
        tokenizer = build_tokenizer(texts, phrases)
        shape = {key: source[key] for key in ("width", "layers", "heads") if key in source}
        return tiny_model(tiny_config(tokenizer, **shape), tokenizer, seed), tokenizer
    if kind == "folder":
        folder = Path(source["folder"])
        if not (folder / "config.json").is_file():
            raise DataError(
                f"model.language.folder: {str(folder)!r} holds no config.json; name a folder that "
                "save_pretrained wrote, or use { id = … } for a model on the Hub."
            )
        return _pretrained(str(folder), None)
    return _pretrained(source["id"], source.get("revision"))


def _pretrained(name: str, revision: str | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
        # safetensors only: a pickle may run code when it is read
        model = AutoModelForCausalLM.from_pretrained(
            name, revision=revision, use_safetensors=True, dtype=torch.float32
        )
    except (OSError, ValueError) as cause:
        raise DataError(
            f"model.language: {name!r} (revision {revision or 'newest'}) could not be loaded: "
            f"{str(cause).splitlines()[0]} Check the name, the network and that it has safetensors weights."
        ) from cause
    if tokenizer.chat_template is None:
        raise DataError(
            f"model.language: the tokenizer of {name!r} has no chat template, so prompts cannot be written; "
            "take the instruction-tuned version of the model, or put a chat_template.jinja beside its "
            "tokenizer."
        )
    return model, tokenizer
