import pytest
from evidcore_plugin_phantoms.language.word_tokenizer import SPECIAL_TOKENS, build_tokenizer

PHRASES = ("lung nodule", "cardiomegaly", "pleural effusion")
TEXTS = (
    "Which finding is present?\nA) lung nodule\nB) cardiomegaly\nThink, then answer.",
    "<think>A lung nodule present. B cardiomegaly absent.</think><answer>A</answer>",
    "There is left pleural effusion. No cardiomegaly.",
)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(TEXTS, PHRASES)


@pytest.mark.parametrize(
    "text",
    [*TEXTS, "Lung nodules of 12 mm,  two spaces\tand a tab\n", "Überraschung: naïve 漢字 🫁",
     "<think></answer><|im_end|>", "cardiomegalyx LUNG NODULE lung  nodule"],
)  # fmt: skip
def test_any_text_comes_back_as_it_was(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_a_phrase_is_one_token_wherever_it_stands(tokenizer):
    for text in ("lung nodule", " lung nodule", "Lung nodule", " Lung nodule"):
        assert len(tokenizer(text).input_ids) == 1, text
    assert len(tokenizer("lung nodules").input_ids) > 2
    assert len(tokenizer(TEXTS[1]).input_ids) == 13  # so that an answer takes few


def test_offsets_point_at_the_characters(tokenizer):
    text = TEXTS[2]
    encoded = tokenizer(text, return_offsets_mapping=True)
    pieces = [text[start:end] for start, end in encoded.offset_mapping]
    assert pieces == [tokenizer.decode([token]) for token in encoded.input_ids]
    assert " pleural effusion" in pieces


def test_special_tokens_come_first_and_are_single(tokenizer):
    assert [tokenizer(token).input_ids for token in SPECIAL_TOKENS] == [
        [i] for i in range(len(SPECIAL_TOKENS))
    ]
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
