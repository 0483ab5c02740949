"""SmolLM2 from its GGUF file to `recipes/smollm2.toml`, and a small model of the same layout all the way."""

import hashlib
import re
import tomllib
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from evidcore.model.language import Pretrained
from evidcore.model.template import round_trip
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly

SCRIPT = "smollm2"
TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

RECIPE = Path(__file__).parents[2] / "recipes" / "smollm2.toml"
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
WEIGHTS = "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd"  # that `make smollm2` writes
HEADS, KEY_HEADS, WIDTH = 6, 2, 96
Q4, Q8 = GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0


@pytest.fixture(scope="module")
def words():
    """A byte-level tokenizer that sets each digit apart, with words of the phantoms' reports."""
    made = Tokenizer(models.BPE())
    apart = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    made.pre_tokenizer = pre_tokenizers.Sequence(apart)
    assembly = Assembly(load(RECIPE, TABLE["few"]))
    texts = [case.report.text for case in assembly.split("chest", "train")]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=CONTROL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([*texts, "                 <think></think><answer></answer>"], trainer)
    return made


@pytest.fixture(scope="module")
def small(words):
    """A Llama with tied embeddings and fewer key heads than heads, as SmolLM2 is."""
    config = LlamaConfig(
        vocab_size=words.get_vocab_size(), hidden_size=WIDTH, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, max_position_embeddings=2048,
        rms_norm_eps=1e-5, rope_theta=100000.0, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
        pad_token_id=2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


def in_pairs(weight, heads):
    """Lay rows as llama.cpp rotates them: (half, pair) of a head becomes (pair, half)."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(file, model, words, pre="smollm"):
    config, weights = model.config, {name: item.numpy() for name, item in model.state_dict().items()}
    writer = GGUFWriter(file, "llama")
    said = {
        "context_length": config.max_position_embeddings, "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size,
        "head_count": HEADS, "head_count_kv": KEY_HEADS, "rope_freq_base": 100000.0,
        "rope_dimension_count": WIDTH // HEADS, "layer_norm_rms_eps": 1e-5, "vocab_size": config.vocab_size,
        "tokenizer_model": "gpt2", "tokenizer_pre": pre, "bos_token_id": 1, "eos_token_id": 2,
        "unk_token_id": 0, "pad_token_id": 2, "chat_template": TABLE["template"],
    }  # fmt: skip
    for name, value in said.items():
        getattr(writer, f"add_{name}")(value)
    tokens = [words.id_to_token(at) for at in range(words.get_vocab_size())]
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in CONTROL else 1 for token in tokens])
    merges = re.findall(r'\[\s*"((?:[^"\\]|\\.)*)",\s*"((?:[^"\\]|\\.)*)"\s*\]', words.to_str())
    writer.add_token_merges([f"{item} {other}" for item, other in merges])
    writer.add_tensor(
        "token_embd.weight", quants.quantize(weights["model.embed_tokens.weight"], Q8), raw_dtype=Q8
    )
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    for layer in range(config.num_hidden_layers):
        own = f"model.layers.{layer}."
        for ours, theirs in {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}.items():
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", weights[f"{own}{ours}.weight"])
        named = {
            "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        }  # fmt: skip
        for ours, theirs in named.items():
            weight = weights[f"{own}{ours}.weight"]
            if theirs in {"attn_q", "attn_k"}:
                weight = in_pairs(weight, HEADS if theirs == "attn_q" else KEY_HEADS)
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", quants.quantize(weight, Q4), raw_dtype=Q4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def folder(script, small, words, tmp_path_factory):
    place = tmp_path_factory.mktemp("smollm2")
    write_gguf(place / "small.gguf", small, words)
    script.write(place / "small.gguf", place / "small")
    return place / "small"


def test_weights_come_back_within_half_a_step_of_their_quantisation(folder, small):
    loaded, _ = Pretrained(folder=str(folder)).load()
    assert loaded.config.tie_word_embeddings
    read = loaded.state_dict()
    assert read.keys() == small.state_dict().keys()
    for name, weight in small.state_dict().items():
        if weight.ndim == 1:
            assert torch.equal(read[name], weight)
            continue
        blocks = weight.reshape(-1, 32)  # each has a smallest value and a step of its own
        low, high = blocks.amin(1, keepdim=True), blocks.amax(1, keepdim=True)
        most = torch.maximum(high, -low)
        step = most / 127 if "embed" in name or "lm_head" in name else (high - low) / 15
        off = (read[name].reshape(-1, 32) - blocks).abs()
        assert (off <= 0.5 * step + 2e-3 * most).all(), name  # 2e-3: step and smallest value have 16 bits
        assert off.max() > 0


def test_text_is_read_as_the_model_has_learnt_it(folder, words):
    _, tokenizer = Pretrained(folder=str(folder)).load()
    for text in ("No lung nodule. Slice 12,\n\n   3.5 x   40 mm", "naïve <|im_end|>", " <repo_name> "):
        assert tokenizer(text).input_ids == words.encode(text).ids
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    ends = tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token
    assert ends == ("<|im_start|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>")
    assert tokenizer.chat_template == TABLE["template"]
    assert round_trip(tokenizer)[1] == ()


def test_a_folder_says_where_it_comes_from_and_is_never_written_over(script, folder, tmp_path, monkeypatch):
    assert "Apache-2.0" in (folder / "SOURCE.md").read_text()
    assert "written as float32: they are\nthose of that file" in (folder / "SOURCE.md").read_text()
    monkeypatch.setattr("sys.argv", ["smollm2.py", str(folder)])
    with pytest.raises(SystemExit, match=rf"{folder}: is there already\. Remove it to have it written anew"):
        script.main()
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    monkeypatch.setattr("sys.argv", ["smollm2.py", str(tmp_path / "new"), "--gguf", str(other)])
    with pytest.raises(SystemExit, match=rf"{other}: has the sha256 [0-9a-f]{{64}}, and b179c9523d0e"):
        script.main()
    assert not (tmp_path / "new").exists()


def test_a_tokenizer_that_cuts_text_in_another_way_is_refused(script, small, words, tmp_path):
    write_gguf(tmp_path / "other.gguf", small, words, pre="llama-bpe")
    with pytest.raises(SystemExit, match=r"the kind \('gpt2', 'llama-bpe'\), and only \('gpt2', 'smollm'\)"):
        script.write(tmp_path / "other.gguf", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_the_recipe_fits_the_encoder_of_another():
    own, other = load(RECIPE), load(RECIPE.with_name("med3d_r1.toml"))
    assert own.stages[0] == other.stages[0]
    assert (own.seed, own.datasets, own.model.encoder) == (other.seed, other.datasets, other.model.encoder)


def shortened(folder, *more):
    named = [f'model.language.folder="{folder}"', *TABLE["few"], *more]
    return [word for item in named for word in ("--set", item)]


@pytest.mark.slow
def test_the_recipe_runs_on_a_small_model_of_the_same_layout(evid, folder, tmp_path):
    result = evid("check", RECIPE, *shortened(folder))
    assert result.output.endswith(f"{RECIPE}: nothing wrong found\n")
    run = evid("run", RECIPE, "--out", tmp_path, *shortened(folder))
    assert "07-audit" in run.output


@pytest.mark.slow
def test_the_recipe_runs_on_smollm2_itself(script, evid, tmp_path):
    if not script.FOLDER.is_dir():
        pytest.skip("SmolLM2 is not here: `make smollm2` gets it")
    with (script.FOLDER / "model.safetensors").open("rb") as weights:
        assert hashlib.file_digest(weights, "sha256").hexdigest() == WEIGHTS
    tokenizer = AutoTokenizer.from_pretrained(script.FOLDER)
    assert tokenizer.tokenize("  12 mm") == ["ĠĠ", "1", "2", "Ġmm"]
    model, _ = Pretrained(folder=str(script.FOLDER)).load()
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True,
        return_tensors="pt", return_dict=True,
    )  # fmt: skip
    told = model.generate(**asked, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(told[0, asked["input_ids"].shape[1] :])
    run = evid("run", RECIPE, "--out", tmp_path, *shortened(script.FOLDER, "stage.evaluate.data[0].limit=2"))
    assert "07-audit" in run.output
