import itertools

import pytest
import torch
from evidcore_plugin_reports.testing import tiny_reward_model, tiny_text_encoder
from evidcore_plugin_reports.text_models import Pretrained, TextModel, passes
from evidcore_testing import tiny_language

from evidcore.errors import DataError, RunError


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tiny_text_encoder(folder / "encoder")
    tiny_language(folder / "language")
    tiny_reward_model(folder / "pickled")
    (folder / "pickled" / "model.safetensors").unlink()
    torch.save({}, folder / "pickled" / "pytorch_model.bin")
    tiny_reward_model(folder / "broken")
    (folder / "broken" / "model.safetensors").write_bytes(b"no weights")
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one alone, not neither"),
        ({"folder": "a", "id": "b", "revision": "c"}, "one alone, not folder and id"),
        ({"id": "them/theirs"}, "id = 'them/theirs', revision = ''"),
        ({"folder": "a", "revision": "c"}, "id = '', revision = 'c'"),
        ({"folder": "a", "device": "gpu"}, "not 'gpu'"),
    ],
)
def test_a_model_is_named_once_and_with_its_commit(options, message):
    with pytest.raises(ValueError, match=message):
        Pretrained(**options)


@pytest.mark.parametrize(
    ("folder", "message"),
    [("nowhere", "scorer x: '.*nowhere' holds no config.json"),
     ("pickled", "scorer x: '.*pickled' holds no weights as safetensors, and a pickle may run code"),
     ("broken", "scorer x: cannot be loaded: "),
     ("language", "ForSequenceClassification: its weights leave the model random: score.weight is missing")],
)  # fmt: skip
def test_what_cannot_be_used_is_named(models, folder, message):
    kind = "AutoModelForSequenceClassification"
    named = TextModel(Pretrained(folder=folder), models, "scorer x", kind=kind)
    with pytest.raises(DataError, match=message):
        named.model  # noqa: B018
    if folder in ("nowhere", "pickled"):  # known before any weight is read
        with pytest.raises(DataError, match=message):
            named.settings  # noqa: B018


def test_a_hub_model_that_cannot_be_had_is_named(models, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    named = Pretrained(id="them/no-such-model-402", revision="0" * 40)
    with pytest.raises(DataError, match=r"scorer x \(them/no-such-model-402@0{40}\): cannot be loaded: "):
        TextModel(named, models, f"scorer x ({named})").settings  # noqa: B018


def test_a_device_that_is_not_there_is_named(models):
    with pytest.raises(RunError, match="device 'cuda:99' is not there"):
        TextModel(Pretrained(folder="encoder", device="cuda:99"), models, "scorer x").settings  # noqa: B018


def test_loading_moves_no_random_number_of_training(models):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    TextModel(Pretrained(folder="encoder"), models, "scorer x", unused=["pooler."]).model  # noqa: B018
    assert torch.equal(torch.rand(3), wanted)


def test_the_dtype_is_the_recipes(models):
    model = TextModel(Pretrained(folder="encoder", dtype="bfloat16"), models, "scorer x").model
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert not model.training


@pytest.mark.parametrize("budget", [0, 1, 7, 20, 1000])
def test_passes_hold_every_text_once_within_the_budget(budget):
    lengths = [5, 3, 9, 3, 1, 12, 4, 4]
    groups = list(passes(lengths, budget))
    assert sorted(itertools.chain(*groups)) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[place] for place in group) <= budget
    assert budget > 0 or len(groups) == len(lengths)
    if budget == 20:
        assert groups == [[4, 1, 3, 6, 7], [0, 2], [5]]  # 5 texts of at most 4, 2 of at most 9, one of 12
    assert list(passes([], budget)) == []
