"""What a recipe says of the model between two stages."""

import pytest
import torch
from safetensors import torch as safetensors

from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore.runs.model import StageOutputs
from evidcore.volume.cache import fetch


@pytest.fixture
def asked(small_run):
    """Return a function that lets the small run's model answer, its features kept as `features` says."""

    def ask(features):
        assembly = Assembly(load(small_run / "recipe.toml", [f"features={features}"]))
        before = StageOutputs(model=small_run / "checkpoints" / "03-sft")
        policy = Context(assembly, "04-evaluate", before=before).own_policy()
        prompts = assembly.prompts(assembly.recipe.stages[-1].data[0])[:2]
        for _ in range(2):
            policy.generate(prompts, max_new_tokens=1)
        bank = policy.model.model.bank
        return len({crop for prompt in prompts for crop in prompt.crops()}), bank

    return ask


@pytest.mark.slow
def test_features_lie_in_the_folder_and_the_precision_that_a_recipe_names(asked, tmp_path):
    shown, bank = asked(f"{{ precision = 'float16', folder = '{tmp_path}', memory_gb = 0 }}")
    assert bank.encoded == shown
    files = list(tmp_path.rglob("*.features"))
    assert len(files) == shown
    assert {safetensors.load(fetch(file))["features"].dtype for file in files} == {torch.float16}
    assert asked(f"{{ precision = 'float16', folder = '{tmp_path}', memory_gb = 0 }}")[1].encoded == 0


def test_nothing_is_kept_between_runs_where_the_folder_has_no_room(asked, tmp_path):
    for _ in range(2):
        shown, bank = asked(f"{{ folder = '{tmp_path}', folder_gb = 0 }}")
        assert bank.encoded == shown
    assert list(tmp_path.iterdir()) == []
