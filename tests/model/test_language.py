import json

import pytest
import torch
from evidcore_plugin_encoders.testing import tiny_vlm
from evidcore_plugin_phantoms.language.lookup_llama import tiny_config, tiny_model
from evidcore_testing import tiny_language, tiny_vision_language
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from evidcore.errors import DataError, RunError
from evidcore.model import assemble
from evidcore.model.language import INDEX, Pretrained
from evidcore.registry import factory

TEXTS = ("Which finding is present? A lung nodule.", "<think>Absent.</think><answer>A</answer>")


def saved(tokenizer, folder):
    model = tiny_model(tiny_config(tokenizer, width=32, layers=1, heads=2), tokenizer, seed=3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def test_tokenizer_and_model_come_back_from_disk(tokenizer, tmp_path):
    model = saved(tokenizer, tmp_path)
    loaded, again = Pretrained(folder=str(tmp_path)).load()
    for text in TEXTS:
        assert again(text).input_ids == tokenizer(text).input_ids
        assert AutoTokenizer.from_pretrained(tmp_path)(text).input_ids == tokenizer(text).input_ids
    assert again.chat_template == tokenizer.chat_template
    ids = torch.tensor([tokenizer(TEXTS[0]).input_ids])
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    assert (tmp_path / "model.safetensors").is_file()


def published(folder):
    tiny_vision_language(folder, "qwen2_5_vl")
    return lambda: Pretrained(folder=str(folder)).load()


def trained(folder):
    assemble.save(*tiny_vlm(tiny_language(folder.with_name("language"))), folder)
    return lambda: assemble.load(folder)


PARTS = {
    published: ("merger", "visual.blocks", "layers.1", "norm.weight"),
    trained: ("model.bridge", "model.encoder", "lm_head", "language_model.norm"),
}


@pytest.mark.parametrize("damage", ["missing", "doubled"])
@pytest.mark.parametrize(("write", "part"), [(write, part) for write in PARTS for part in PARTS[write]])
def test_a_part_that_would_be_random_is_refused_by_name(write, part, damage, tmp_path):
    load, file = write(tmp_path / "model"), tmp_path / "model" / "model.safetensors"
    load()
    weights = load_file(file)
    for name in [name for name in weights if part in name]:
        value = weights.pop(name)
        if damage == "doubled" and value.dim():
            weights[name] = torch.cat([value, value])
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(DataError, match=rf"{tmp_path}.* leave the model random: \S*{part}\S* is "):
        load()


def test_a_relative_folder_starts_at_the_recipes(tmp_path):
    table = {"use": "pretrained", "folder": "small"}
    result = factory.build("language", table, given={"recipe_folder": tmp_path}, where="model.language")
    assert result.folder == str(tmp_path / "small")


def test_a_model_without_a_chat_template_is_refused_with_the_remedy(tokenizer, tmp_path):
    saved(tokenizer, tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(DataError, match=rf"{tmp_path}.*no chat template.*put a chat_template.jinja"):
        Pretrained(folder=str(tmp_path)).load()


def test_a_template_that_loses_something_is_refused_before_the_weights_are_read(tokenizer, tmp_path):
    tiny_config(tokenizer).save_pretrained(tmp_path)  # and no weights
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "chat_template.jinja"
    path.write_text("{{ strftime_now('%d %b') }}" + path.read_text())
    with pytest.raises(RunError, match=rf"(?s){tmp_path}: its chat template.*date: It writes today's date"):
        Pretrained(folder=str(tmp_path)).load()


@pytest.mark.parametrize(("key", "value"), [("num_hidden_layers", 50_000_000), ("hidden_size", 1e9)])
def test_a_configuration_beyond_every_published_model_is_refused_by_its_number(tmp_path, key, value):
    (tmp_path / "config.json").write_text(f'{{"num_labels": 2, "text_config": [{{"{key}": {value}}}]}}')
    with pytest.raises(DataError, match=f"{tmp_path}: {key} of its config.json is {value}, at most 10000"):
        Pretrained(folder=str(tmp_path)).vision()


def configured(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def cut_off(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


def in_eight_bits(folder):
    weights = load_file(folder / "model.safetensors")
    some = next(iter(weights))
    save_file({**weights, some: weights[some].to(torch.int8)}, folder / "model.safetensors", {"format": "pt"})


def with_turns(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|turn|>", "<|unwritten|>"]})
    tokenizer.chat_template = "<|turn|>" + tokenizer.chat_template
    tokenizer.save_pretrained(folder)


def with_a_word(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["zebra"])
    tokenizer.save_pretrained(folder)


def holding(name, text):
    return lambda folder: (folder / name).write_text(text)


SPOILED = [
    (holding("adapter_config.json", "{}"), "holds an adapter .* merge_and_unload"),
    (lambda folder: configured(folder, quantization_config={"quant_method": "awq"}), "has quantised weights"),
    (holding("model.safetensors", "version https://git-lfs"), "git-lfs left a po"),
    (cut_off, r"model.safetensors holds no weights \(.*not fully covered\). Get it anew"),
    (
        holding(INDEX, '{"weight_map": {"a": "model-2.safetensors"}}'),
        "lacks model-2.safetensors, which its index lists. Get it anew",
    ),
    (holding(INDEX, "{}"), r"lists no files of weights \(KeyError\). Get it anew"),
    (
        holding("tokenizer.json", '{"version": "9", "model": {"type": "New"}}'),
        "holds no model that can be read|could not be loaded",
    ),
    (in_eight_bits, "model.safetensors has quantised weights. Name the model they are of"),
    (with_a_word, "none for 1 of its tokenizer's tokens, as 'zebra'"),
    (with_turns, "none for 1 of its tokenizer's tokens, as '<\\|turn\\|>'"),
]


@pytest.mark.parametrize(("spoil", "says"), SPOILED)
def test_what_would_train_another_model_is_refused_before_a_run_and_in_it(tokenizer, tmp_path, spoil, says):
    saved(tokenizer, tmp_path)
    spoil(tmp_path)
    language = Pretrained(folder=str(tmp_path))
    with pytest.raises(DataError, match=says):
        (language.vision(), language.tokenizer(), language.missing_weights())
    with pytest.raises(DataError, match=says):
        language.load()


@pytest.mark.parametrize("kernel", ["flash_attention_2", "someone/kernel"])
def test_no_file_chooses_the_code_that_attends(tokenizer, tmp_path, kernel):
    saved(tokenizer, tmp_path)
    configured(tmp_path, _attn_implementation=kernel, attn_implementation=kernel)
    language = Pretrained(folder=str(tmp_path))
    assert language.vision()._attn_implementation is None
    assert language.load()[0].config._attn_implementation == "sdpa"


def test_what_a_source_lacks_is_named(tokenizer, tmp_path):
    ((_, text),) = Pretrained.problems({"folder": "y", "revision": "abc"})
    assert text.startswith("goes with id only, got 'abc'.")
    with pytest.raises(DataError, match=r"'/nowhere/at all' holds no model"):
        Pretrained(folder="/nowhere/at all").load()
    tiny_config(tokenizer).save_pretrained(tmp_path)  # and no weights
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(DataError, match=rf"{tmp_path}.*could not be loaded"):
        Pretrained(folder=str(tmp_path)).load()


SHAPES = {
    "gemma2": ({"final_logit_softcapping": 30.0}, None, 30.0),
    "cohere": ({"logit_scale": 0.0625}, 0.0625, None),
    "granite": ({"logits_scaling": 8.0}, 0.125, None),
    "llama": ({"final_logit_softcapping": 30.0, "logit_scale": 0.5}, 1.0, None),  # its class applies neither
}


def random_language(kind, tokenizer, folder, **stated):
    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    heads = {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": len(tokenizer), "pad_token_id": 0}
    config = AutoConfig.for_model(kind, **sizes, **heads, **stated, initializer_range=1e-3)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", SHAPES)
def test_small_first_logits_hide_neither_factor_nor_cap(kind, tokenizer, tmp_path):
    stated, scale, cap = SHAPES[kind]
    model, _ = tiny_vlm(random_language(kind, tokenizer, tmp_path, **stated))
    text = model.config.text_config
    assert (text.logit_scale or 1.0, text.final_logit_softcapping) == (scale or 1.0, cap)


def test_logits_that_are_no_multiple_of_a_head_are_refused_by_name(tokenizer, tmp_path):
    folder = random_language("roberta", tokenizer, tmp_path, is_decoder=True)
    with pytest.raises(RunError, match="RobertaForCausalLM makes logits in a way that is not known here"):
        tiny_vlm(folder)
