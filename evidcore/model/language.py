"""The language model: a tokenizer and a tiny model built here, or a pretrained one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from evidcore.errors import DataError, did_you_mean
from evidcore.model.template import read_turns
from evidcore.model.tiny import tiny_config, tiny_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

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

    forms = sorted({form.strip() for form in spellings(phrases)})
    forms.sort(key=len, reverse=True)  # "pleural effusion" before "effusion"
    pieces = "|".join([*(rf" ?{_escaped(form)}(?!\p{{L}})" for form in forms), _PIECES])
    splitter = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pieces), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    vocabulary = {token: index for index, token in enumerate(SPECIAL_TOKENS)}
    counted = Counter(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))
    frequent = sorted(counted, key=lambda piece: (-counted[piece], piece))[:words]
    named = [piece for text in spellings(phrases) for piece, _ in splitter.pre_tokenize_str(text)]
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


def spellings(phrases: Iterable[str]) -> list[str]:
    """Return each phrase at the start of a sentence and in its midst, without and with a space before it."""
    return [space + form for phrase in phrases for form in (phrase, _capital(phrase)) for space in ("", " ")]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _escaped(text: str) -> str:
    return re.escape(text).replace("\\ ", " ")


def load_language(
    source: Mapping[str, Any], *, texts: Iterable[str] = (), phrases: Sequence[str] = (), seed: int = 0
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load or build the language model that `model.language` of a recipe names.

    What is published as a vision-language model is returned whole; its decoder is the language model.

    Args:
        source: `{config = "tiny", width, layers, heads}` builds one with random weights, for a `fit` stage to
            train; `{id, revision}` comes from the Hugging Face Hub; `{folder}` was written by
            `save_pretrained`.
        texts: for "tiny": where the tokenizer counts words.
        phrases: for "tiny": names that become one token each.
        seed: for "tiny": of the random weights.

    Raises:
        DataError: if the table names no source or several, or what it names cannot be used.
        RunError: if the chat template loses something of what is said.
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
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

    said = f"{name!r} (revision {revision or 'newest'})"
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
        config = AutoConfig.from_pretrained(name, revision=revision)
    except (OSError, ValueError) as cause:
        raise _not_loaded(said, cause) from cause
    if tokenizer.chat_template is None:
        raise DataError(
            f"model.language: the tokenizer of {name!r} has no chat template, so prompts cannot be written; "
            "take the instruction-tuned version of the model, or put a chat_template.jinja beside its "
            "tokenizer."
        )
    read_turns(tokenizer, where=name)  # refused before its weights are read
    sees = getattr(config, "vision_config", None) is not None
    try:
        # safetensors only: a pickle may run code when it is read
        model = (AutoModelForImageTextToText if sees else AutoModelForCausalLM).from_pretrained(
            name, revision=revision, use_safetensors=True, dtype=torch.float32
        )
    except (OSError, ValueError) as cause:
        raise _not_loaded(said, cause) from cause
    return model, tokenizer


def _not_loaded(said: str, cause: Exception) -> DataError:
    return DataError(
        f"model.language: {said} could not be loaded: {str(cause).splitlines()[0]} Check the name, the "
        "network and that it has safetensors weights."
    )
