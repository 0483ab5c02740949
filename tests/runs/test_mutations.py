"""What `evid check` passes, runs: single values of a shortened recipe are changed, each in a few ways."""

import re
import shutil
from pathlib import Path

import pytest

from evidcore.errors import EvidError
from evidcore.recipe import load
from evidcore.runs.begin import run, start
from evidcore.runs.dry_run import dry_run

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "med3d_r1.toml"
# one step a stage on a few phantoms; small parts
SHORT = (
    'fitted=""', "dataset.chest.train_cases=12", "dataset.chest.validation_cases=4",
    "dataset.chest.test_cases=6", "dataset.chest.questions_per_finding=1", "model.language.width=32",
    "model.language.layers=1", "model.encoder.width=48", "model.encoder.layers=1", "model.encoder.heads=4",
    "model.encoder.patch_zyx=[8,16,16]", "stage.fit[0].options.steps=1",
    "stage.fit[0].options.cases_per_step=4", "stage.fit[1].options.steps=2", "stage.sft.steps=1",
    "stage.sft.rows_per_step=4", "stage.longer.sft.steps=1", "stage.longer.sft.rows_per_step=4",
    "stage.grpo.steps=1", "stage.grpo.prompts_per_step=2", "stage.grpo.answers_per_prompt=2",
    "stage.grpo.max_new_tokens=32", "stage.grpo.replay.rows_per_step=2", "arms=false",
)  # fmt: skip
REFUSED = {
    "stage.sft.rows_per_forward=3": "4 rows cannot be dealt to 1 processes of 3 rows",
    "stage.sft.trl={ lr_scheduler_type = 'cosin' }": "cosin is not a valid SchedulerType",
    "stage.sft.trl={ optim = 'adam' }": "adam is not a valid OptimizerNames",
    "stage.grpo.prompts_per_forward=3": "2 prompts cannot be dealt in whole groups",
    "stage.grpo.trl.loss_type='gpro'": "Unknown loss type: gpro",
    "stage.grpo.trl.scale_rewards='batchh'": "Invalid value for scale_rewards: batchh",
    "stage.grpo.trl.importance_sampling_level='tokn'": "Unknown importance sampling level: tokn",
    "stage.grpo.max_new_tokens=100000": "but the language model's context holds",
    "stage.audit.max_new_tokens=1": "max_new_tokens = 1 cuts the gold answer",
    "model.encoder.heads=5": "heads",
    "seed=-1": "seed: must be greater than or equal to 0, got -1",
}
PASSED = (
    "seed=0", "stage.sft.loss_per='row'", "stage.sft.learning_rate=1e9",
    "stage.sft.trl={ weight_decay = -1.0, max_grad_norm = -1.0 }", "stage.grpo.trl.beta=-1.0",
    "stage.grpo.trl={ loss_type = 'dapo', scale_rewards = 'batch', num_iterations = 2 }",
    "stage.grpo.trl={ loss_type = 'luspo', importance_sampling_level = 'sequence' }",
    "stage.grpo.trl={ top_p = 3.0, mask_truncated_completions = true }", "stage.grpo.temperature=1e-9",
    "stage.evaluate[1].prompts_per_batch=1",
)  # fmt: skip
# a run may end with a sentence that needs the weights as they are then
MAY_END = ("stage.sft.learning_rate=1e9", "stage.grpo.temperature=1e-9")


@pytest.mark.slow
@pytest.mark.parametrize(("mutation", "said"), REFUSED.items())
def test_a_value_that_would_end_a_stage_is_refused_before(mutation, said):
    with pytest.raises(EvidError, match=re.escape(said)):
        dry_run(load(RECIPE, [*SHORT, mutation]))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("mutations")


@pytest.mark.slow
@pytest.mark.parametrize("mutation", PASSED)
def test_what_is_passed_runs_a_step_of_every_stage(mutation, store):
    recipe = load(RECIPE, [*SHORT, mutation])
    dry_run(recipe)
    folder = start(recipe, store / "runs")
    try:
        run(folder)
    except EvidError:
        assert mutation in MAY_END
    else:
        assert folder.status()["state"] == "finished"
    shutil.rmtree(folder.path)
