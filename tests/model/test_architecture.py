import pytest
import torch
import transformers

from evidcore.model.architecture import shipped

QWEN, JUDGE = "Qwen/Qwen2.5-3B-Instruct", "weqweasdas/RM-Mistral-7B"


def parameters(id, auto):
    with torch.device("meta"):
        model = auto.from_config(transformers.AutoConfig.from_pretrained(shipped()[id].folder))
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("id", sorted(shipped()))
def test_a_shape_has_the_parameters_of_the_published_files(id):
    config = transformers.AutoConfig.from_pretrained(shipped()[id].folder)
    auto = transformers.AutoModelForCausalLM
    if getattr(config, "vision_config", None) is not None:
        auto = transformers.AutoModelForImageTextToText
    elif "SequenceClassification" in config.architectures[0]:
        auto = transformers.AutoModelForSequenceClassification
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
