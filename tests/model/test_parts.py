"""Frozen weights in 16 and 4 bits: their products are autocast's, and what adapters learn is not rounded."""

import copy
import sys

import pytest
import torch
from torch import nn
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

from evidcore.errors import RecipeError
from evidcore.model.parts import AdaptedLinear, keep_in_bfloat16, quantise, unpacked


def test_matrices_are_rounded_and_vectors_are_not():
    part = nn.Sequential(nn.Conv3d(1, 4, 2), nn.LayerNorm(4), nn.Linear(4, 3), nn.Embedding(5, 4))
    assert keep_in_bfloat16("encoder", part) == 4 * 8 + 3 * 4
    kinds = {name: weight.dtype for name, weight in part.named_parameters()}
    assert {name for name, kind in kinds.items() if kind == torch.bfloat16} == {"0.weight", "2.weight"}
    assert keep_in_bfloat16("language", part) == 3 * 4 + 5 * 4
    assert part[3].weight.dtype == torch.bfloat16


def test_tied_weights_stay_tied_and_count_once():
    part = nn.ModuleList([nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)])
    part[1].weight = part[0].weight
    assert keep_in_bfloat16("language", part) == 20
    assert part[1].weight is part[0].weight


def test_what_adapters_learn_adds_up_without_being_rounded():
    torch.manual_seed(0)
    layer, given = nn.Linear(16, 8).bfloat16().float(), torch.randn(3, 16, dtype=torch.float64)
    small = [(torch.randn(2, 16) * 3e-5, torch.randn(8, 2)) for _ in range(2)]
    adapted = AdaptedLinear(AdaptedLinear(layer, *small[0]), *small[1])
    assert adapted.down.shape == (4, 16)
    assert adapted.weight is layer.weight
    merged = layer.weight + sum(up @ down for down, up in small)
    wanted = given @ merged.double().T + layer.bias.double()
    torch.testing.assert_close(adapted.double()(given), wanted, rtol=0, atol=1e-6)
    is_lost = merged.bfloat16() == layer.weight  # where the sum would be rounded
    assert is_lost.double().mean() > 0.8


@pytest.mark.slow
def test_4_bits_are_those_of_transformers_and_compute_as_the_matrices_that_they_stand_for(tmp_path):
    pytest.importorskip("bitsandbytes", reason="pip install 'evidcore[quantization]'")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 50}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2))
    keep_in_bfloat16("language", model)
    model.save_pretrained(tmp_path)
    nf4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
    lying = {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, **nf4), "device_map": "cpu"}
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, **lying, dtype="auto").train()
    plain = copy.deepcopy(model)
    quantise(model.model)
    plain.load_state_dict(unpacked(model))
    quantise((again := copy.deepcopy(plain)).model)
    names = [name for name, weight in model.named_parameters() if weight.dtype == torch.uint8]
    assert len(names) == 2 * 7  # attention's four and the MLP's three: neither embeddings nor head
    for other in (theirs, again):
        assert all(torch.equal(model.get_parameter(name), other.get_parameter(name)) for name in names)
    ids, result = torch.arange(12).reshape(2, 6), []
    for one in (model, plain, theirs):
        embeds = one.get_input_embeddings()(ids).detach().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            logits = one(inputs_embeds=embeds).logits
        result.append([logits, *torch.autograd.grad(logits.sum(), embeds)])
    assert all(map(torch.equal, result[0], result[1]))
    assert torch.equal(result[0][0], result[2][0])


def test_4_bits_are_refused_by_name_where_bitsandbytes_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # Python then refuses to import it
    with pytest.raises(RecipeError, match=r"load_in_4bit: bitsandbytes cannot be .*evidcore\[quantization\]"):
        quantise(nn.Sequential(nn.Linear(64, 4)))
