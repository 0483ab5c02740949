import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
)

from evidcore.model.architecture import Architecture, shipped

QWEN, JUDGE = "Qwen/Qwen2.5-3B-Instruct", "weqweasdas/RM-Mistral-7B"


def parameters(id, auto):
    with torch.device("meta"):
        model = auto.from_config(AutoConfig.from_pretrained(shipped()[id].folder))
    return sum(weight.numel() for weight in model.parameters())


def test_the_language_model_has_the_parameters_of_the_formula_and_of_the_published_files():
    h, k, f, layers, words = 2048, 2 * 128, 11008, 36, 151936
    attention = (h * h + h) + 2 * (h * k + k) + h * h  # queries, keys and values with biases; the output
    by_hand = layers * (attention + 3 * h * f + 2 * h) + h + words * h  # MLP, two norms; norm; tied embedding
    assert by_hand == 3_085_938_688
    assert parameters(QWEN, AutoModelForCausalLM) == by_hand
    assert shipped()[QWEN].weights_bytes == 2 * by_hand  # as the index of the published files says


def test_the_reward_model_has_the_parameters_of_the_formula():
    h, k, f, layers, words = 4096, 8 * 128, 14336, 32, 32001
    by_hand = layers * (2 * h * h + 2 * h * k + 3 * h * f + 2 * h) + h + words * h + h  # the head: one number
    assert parameters(JUDGE, AutoModelForSequenceClassification) == by_hand
    assert shipped()[JUDGE].weights_bytes == 2 * by_hand


@pytest.mark.parametrize("id", sorted(shipped()))
def test_a_shape_has_the_parameters_of_the_published_files(id):
    config = AutoConfig.from_pretrained(shipped()[id].folder)
    auto = AutoModelForCausalLM
    if getattr(config, "vision_config", None) is not None:
        auto = AutoModelForImageTextToText
    elif "SequenceClassification" in config.architectures[0]:
        auto = AutoModelForSequenceClassification
    assert 2 * parameters(id, auto) == shipped()[id].weights_bytes


def test_no_weights_are_shipped():
    for known in shipped().values():
        assert {path.name for path in known.folder.iterdir()} == {"config.json", "source.toml"}


def test_tokens_of_a_text_are_estimated_upwards_from_its_letters():
    assert shipped()[QWEN].text_tokens("") == 0
    assert shipped()[QWEN].text_tokens("a" * 8) == 2
    assert shipped()[QWEN].text_tokens("a" * 9) == 3


def test_nothing_is_estimated_for_a_model_whose_vocabulary_is_not_known():
    with pytest.raises(ValueError, match="nothing is known of the vocabulary of weqweasdas/RM-Mistral-7B"):
        shipped()[JUDGE].text_tokens("some words")
    assert isinstance(shipped()[JUDGE], Architecture)
