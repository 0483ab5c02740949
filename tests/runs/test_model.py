"""What a recipe says of the model between two stages."""

import pytest
import torch
from safetensors import torch as safetensors

from evidcore.api import Cache
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context, StageOutputs, current_model


@pytest.fixture
def asked(small_run):
    """Return a function that lets the small run's model answer, its features kept as `features` says."""

    def ask(features):
        assembly = Assembly(load(small_run / "recipe.toml", [f"features={features}"]))
        before = StageOutputs(model=small_run / "checkpoints" / "03-sft")
        policy = Context(assembly, "04-evaluate", before=before).local_policy()
        prompts = assembly.prompts(assembly.recipe.stages[-1].data[0])[:2]
        for _ in range(2):
            policy.generate(prompts, max_new_tokens=1)
        bank = policy.model.model.bank
        return len({crop for prompt in prompts for crop in prompt.crops()}), bank

    return ask


@pytest.mark.slow
def test_features_lie_in_the_cache_in_the_precision_that_a_recipe_names(asked, tmp_path, monkeypatch):
    monkeypatch.setenv("EVID_CACHE", str(tmp_path))
    features = "{ precision = 'float16', memory_gb = 0 }"
    shown, bank = asked(features)
    assert bank.encoded == shown
    names = [path.name for path in (tmp_path / "features").glob("*-*")]
    assert len(names) == shown
    kept = [safetensors.load(Cache("features").get(name)) for name in names]
    assert {tensors["features"].dtype for tensors in kept} == {torch.float16}
    assert asked(features)[1].encoded == 0


def test_features_of_a_checkpoint_are_a_new_encoder_s_and_not_those_of_other_options(small_run):
    def made_by(before, *overrides):
        model, _ = current_model(Assembly(load(small_run / "recipe.toml", overrides)), before)
        return model.model.bank._made_by(model.model.encoder)

    new = made_by(StageOutputs())
    assert made_by(StageOutputs(model=small_run / "checkpoints" / "03-sft")) == new
    assert made_by(StageOutputs(), "model.encoder.heads=2") != new  # which has the same weights
