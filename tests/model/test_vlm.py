import dataclasses

import pytest
import torch
from evidcore_plugin_encoders.testing import BRIDGE, ENCODER, VIEW, tiny_vlm
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor

from evidcore.api import Bridge
from evidcore.errors import ContractError, RunError
from evidcore.model import assemble
from evidcore.model.language import Pretrained
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.registry import factory


def inputs_of(small, prompts=None, *, pixels=False):
    encoded = [small.processor.encode(prompt) for prompt in prompts or small.prompts]
    longest, pad = max(len(item.ids) for item in encoded), small.processor.tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (longest - len(item.ids)) + list(item.ids) for item in encoded])
    images = small.processor.image_processor
    crops = [crop for item in encoded for crop in item.crops]
    values = torch.tensor([images.handle(crop) for crop in crops]).reshape(-1, 1)
    if pixels:
        values = small.model.model.bank.pixels(values.flatten().tolist())
    return {"input_ids": ids, "attention_mask": (ids != pad).long(), "pixel_values": values}


def test_logits_are_the_same_however_they_are_asked_for(small):
    inputs = inputs_of(small)
    with torch.no_grad():
        every = small.model(**inputs).logits
        by_pixels = small.model(**inputs_of(small, pixels=True)).logits
        last = small.model(**inputs, logits_to_keep=2).logits
        listed = small.model(**inputs, logits_to_keep=torch.tensor([5, 3])).logits
        alone = small.model(**inputs_of(small, small.prompts[:1])).logits[0, -3:]
    # the bank encodes each volume once, so in other batches: the last bits may differ
    torch.testing.assert_close(every, by_pixels, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last, every[:, -2:])
    torch.testing.assert_close(listed, every[:, [5, 3]])
    torch.testing.assert_close(every[0, -3:], alone, rtol=1e-4, atol=1e-4)  # without padding


def test_a_folder_gives_back_the_same_model_through_every_door(small, tmp_path):
    with torch.no_grad():
        expected = small.model(**inputs_of(small)).logits
        assemble.save(small.model, small.processor, tmp_path / "model")
        model, processor = assemble.load(tmp_path / "model")
        again = dataclasses.replace(small, model=model, processor=processor)
        torch.testing.assert_close(model(**inputs_of(again)).logits, expected, rtol=1e-5, atol=1e-5)
        for door in (AutoModelForImageTextToText, AutoModelForCausalLM):
            loaded = door.from_pretrained(tmp_path / "model")
            assert isinstance(loaded, VolumeVLM)
            torch.testing.assert_close(
                loaded(**inputs_of(small, pixels=True)).logits, expected, rtol=1e-5, atol=1e-5
            )
    assert isinstance(AutoProcessor.from_pretrained(tmp_path / "model"), VolumeProcessor)


def test_what_the_bridge_took_from_the_embeddings_survives_a_folder(small, tmp_path):
    bridge = small.model.model.bridge
    spread = small.model.get_input_embeddings().weight.std()
    torch.testing.assert_close(bridge.scale, spread.reshape(1))
    with torch.no_grad():
        small.model.get_input_embeddings().weight.mul_(2)  # training moves the embeddings, not what was taken
    assemble.save(small.model, small.processor, tmp_path / "model")
    model, _ = assemble.load(tmp_path / "model")
    torch.testing.assert_close(model.model.bridge.scale, bridge.scale, rtol=0, atol=0)


def test_saving_over_a_model_replaces_it(small, tmp_path):
    assemble.save(small.model, small.processor, tmp_path / "model")
    with torch.no_grad():
        small.model.lm_head.weight.zero_()
    assemble.save(small.model, small.processor, tmp_path / "model")
    model, _ = assemble.load(tmp_path / "model")
    assert not model.lm_head.weight.any()
    assert not list(tmp_path.glob(".*partial"))


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(RunError, match=f"{tmp_path}: holds no model"):
        assemble.load(tmp_path)


def test_generate_of_transformers_encodes_a_prompt_once_for_all_its_answers(small):
    inputs = inputs_of(small, small.prompts[:2])
    calls = []
    small.model.model.encoder.register_forward_hook(lambda *_: calls.append(1))
    small.model.model.encoder.requires_grad_(True)  # nothing is kept, so each run of the encoder is counted
    small.model.generate(
        **inputs, num_return_sequences=3, do_sample=True, max_new_tokens=3, suppress_tokens=[5]
    )
    assert len(calls) == 1


def test_a_lost_image_stops_the_model(small):
    inputs = inputs_of(small)
    with pytest.raises(RunError, match="16 image tokens in the text but 12 from the images"):
        small.model(**{**inputs, "pixel_values": inputs["pixel_values"][:3]})
    with pytest.raises(RunError, match="16 image tokens in the text but 0 from the images"):
        small.model(**{**inputs, "pixel_values": None})
    small.model.model.bank = None
    with pytest.raises(RunError, match="given image handles but has no feature bank"):
        small.model(**inputs)


class Narrow(Bridge):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(24, 60)

    def tokens(self, grid_zyx):
        return grid_zyx[0] * grid_zyx[1] * grid_zyx[2]

    def forward(self, patches):
        return self.line(patches.features)


def test_a_bridge_of_the_wrong_width_is_named_with_both_shapes(small):
    inputs = inputs_of(small)
    small.model.model.bridge = Narrow()
    with pytest.raises(ContractError, match=r"gave tokens of shape \(4, 8, 60\).*must be \(4, 8, 64\)"):
        small.model(**inputs)


def test_parts_are_trained_as_named(small):
    small.model.train_only(["bridge"])
    trained = {name.split(".")[1] for name, weight in small.model.named_parameters() if weight.requires_grad}
    assert trained == {"bridge"}
    small.model.train()
    assert small.model.model.bridge.training
    assert not small.model.model.encoder.training  # which is frozen
    small.model.train_only(["language", "encoder"])
    trained = {name.split(".")[1] for name, weight in small.model.named_parameters() if weight.requires_grad}
    assert trained == {"language_model", "encoder", "weight"}  # lm_head.weight


def seeing(language, tokenizer):
    encoder = factory.build("encoder", ENCODER, given={}, where="test")
    tables = {"encoder_table": ENCODER, "bridge_table": BRIDGE, "view_table": VIEW}
    return assemble.assemble(language, tokenizer, encoder, **tables)[0]


def test_words_that_a_language_model_has_not_learnt_get_the_mean_of_those_it_has(language_folder):
    language, tokenizer = Pretrained(folder=str(language_folder)).load()
    language.resize_token_embeddings(len(tokenizer) - 3)
    layers = "get_input_embeddings", "get_output_embeddings"
    known = [getattr(language, layer)().weight.detach().clone() for layer in layers]
    model = seeing(language, tokenizer)
    for layer, before in zip(layers, known, strict=True):
        result = getattr(model, layer)().weight
        assert torch.equal(result[:-3], before)
        torch.testing.assert_close(result[-3:], before.mean(0).expand(3, -1))


def test_penalties_of_a_published_model_are_neither_asked_with_nor_exported(language_folder):
    language, tokenizer = Pretrained(folder=str(language_folder)).load()
    language.generation_config.repetition_penalty, ends = 1.8, language.generation_config.eos_token_id
    model = seeing(language, tokenizer)
    assert model.generation_config.repetition_penalty in (None, 1.0)
    assert model.generation_config.eos_token_id == ends


def test_rows_of_a_pass_do_not_meet_in_an_encoder_that_is_trained(language_folder):
    model, _ = tiny_vlm(language_folder, stem="convolution")
    model.train_only(["encoder", "bridge"])
    model.train()
    assert any(isinstance(item, torch.nn.BatchNorm3d) for item in model.model.encoder.modules())
    assert model.model.encoder.training
    volumes = torch.randn(3, 3, 8, 16, 16)
    together = model.get_image_features(volumes).pooler_output
    alone = model.get_image_features(volumes[:1]).pooler_output
    torch.testing.assert_close(together[0], alone[0])
