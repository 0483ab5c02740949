"""A byte-level tokenizer whose words are counted in a recipe's own texts, with a chat template."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
)  # fmt: skip
# ChatML as Qwen2-VL writes it, without its default system turn
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8").removesuffix("\n")
_WORDS = 2048  # so many of the most frequent ones (tags, numbers, signs) become tokens
# An option's letter with its bracket, a tag, a word or a number with the space before it, one white
# space, one sign.
_PIECES = r"\p{Lu}\)|</?[\p{L}_]+>| ?\p{L}+| ?\p{N}+|\s|[^\s\p{L}\p{N}]"


def build_tokenizer(texts: Iterable[str], phrases: Sequence[str]) -> PreTrainedTokenizerFast:
    """Give a byte-level tokenizer in which each phrase and each frequent word is one token.

    Every text tokenizes and decodes to itself: what is no phrase and no known word goes byte by byte. A
    phrase is one token at the start of a sentence, in its midst and after a space, as merges over a large
    corpus would make it.

    Args:
        texts: where words are counted.
        phrases: names of findings, in lower case.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    forms = sorted({form.strip() for form in spellings(phrases)})
    forms.sort(key=len, reverse=True)  # "pleural effusion" before "effusion"
    escaped = [re.escape(form).replace("\\ ", " ") for form in forms]
    pieces = "|".join([*(rf" ?{form}(?!\p{{L}})" for form in escaped), _PIECES])
    splitter = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pieces), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    vocabulary = {token: index for index, token in enumerate(SPECIAL_TOKENS)}
    counted = Counter(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))
    frequent = sorted(counted, key=lambda piece: (-counted[piece], piece))[:_WORDS]
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
    both = [(phrase, phrase[:1].upper() + phrase[1:]) for phrase in phrases]
    return [space + form for forms in both for form in forms for space in ("", " ")]
