import pytest
import torch
from evidcore_plugin_phantoms.language.lookup_llama import tiny_config, tiny_model
from transformers import AutoTokenizer

from evidcore.errors import DataError, RunError
from evidcore.model.language import SPECIAL_TOKENS, build_tokenizer, load_language

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
    [
        *TEXTS,
        "Lung nodules of 12 mm,  two spaces\tand a tab\n",
        "Überraschung: naïve 漢字 🫁",
        "<think></answer><|im_end|>",
        "cardiomegalyx LUNG NODULE lung  nodule",
    ],
)
def test_any_text_comes_back_as_it_was(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_a_phrase_is_one_token_wherever_it_stands(tokenizer):
    for text in ("lung nodule", " lung nodule", "Lung nodule", " Lung nodule"):
        assert len(tokenizer(text).input_ids) == 1, text
    assert len(tokenizer("lung nodules").input_ids) > 2


def test_the_answer_of_a_question_takes_few_tokens(tokenizer):
    assert len(tokenizer(TEXTS[1]).input_ids) == 13


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


def test_the_chat_template_shows_an_image_as_one_token_between_marks(tokenizer):
    messages = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is seen?"}]},
        {"role": "assistant", "content": "A lung nodule."},
    ]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is seen?<|im_end|>\n"
        "<|im_start|>assistant\nA lung nodule.<|im_end|>\n"
    )
    assert tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True).endswith(
        "What is seen?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tokenizer_and_model_come_back_from_disk(tokenizer, tmp_path):
    model = tiny_model(tiny_config(tokenizer, width=32, layers=1, heads=2), tokenizer, seed=3)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded, again = load_language({"folder": str(tmp_path)})
    for text in TEXTS:
        assert again(text).input_ids == tokenizer(text).input_ids
        assert AutoTokenizer.from_pretrained(tmp_path)(text).input_ids == tokenizer(text).input_ids
    assert again.chat_template == tokenizer.chat_template
    ids = torch.tensor([tokenizer(TEXTS[0]).input_ids])
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    assert (tmp_path / "model.safetensors").is_file()


def test_the_same_seed_builds_the_same_weights(tokenizer):
    state = torch.get_rng_state()
    one, _ = load_language({"use": "tiny"}, texts=TEXTS, phrases=PHRASES, seed=5)
    two, _ = load_language({"use": "tiny"}, texts=TEXTS, phrases=PHRASES, seed=5)
    three, _ = load_language({"use": "tiny"}, texts=TEXTS, phrases=PHRASES, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.lm_head.weight, three.lm_head.weight)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({}, r"exactly one of config, id and folder, got \{\}"),
        (
            {"id": "x", "folder": "y"},
            r"exactly one of config, id and folder, got \{'id': 'x', 'folder': 'y'\}",
        ),
        ({"config": "small"}, r"no shape is called 'small'; the one there is: 'tiny'"),
        ({"use": "tiny", "widht": 3}, r"language\.widht: .*Did you mean 'width'\?"),
        (
            {"use": "tiny", "width": 100, "heads": 3},
            r"3 heads of an even width do not share 100; take a multiple of 6",
        ),
        ({"folder": "/nowhere/at all"}, r"'/nowhere/at all' holds no config.json"),
    ],
)
def test_a_source_that_cannot_be_used_says_what_would_do(source, message):
    with pytest.raises(DataError, match=message):
        load_language(source, texts=TEXTS, phrases=PHRASES)


def test_a_folder_without_weights_is_named(tokenizer, tmp_path):
    tiny_config(tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(DataError, match=rf"{tmp_path}.*could not be loaded"):
        load_language({"folder": str(tmp_path)})


def test_a_model_without_a_chat_template_is_refused_with_the_remedy(tokenizer, tmp_path):
    model = tiny_model(tiny_config(tokenizer, width=32, layers=1, heads=2), tokenizer, seed=0)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(DataError, match=rf"{tmp_path}.*no chat template.*put a chat_template.jinja"):
        load_language({"folder": str(tmp_path)})


def test_a_template_that_loses_something_is_refused_before_the_weights_are_read(tokenizer, tmp_path):
    tiny_config(tokenizer).save_pretrained(tmp_path)  # and no weights
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "chat_template.jinja"
    path.write_text(path.read_text() + "{% if add_generation_prompt %}<think>{% endif %}")
    with pytest.raises(
        RunError, match=rf"(?s){tmp_path}: its chat template.*open thought: .*ends in '<think>'"
    ):
        load_language({"folder": str(tmp_path)})
