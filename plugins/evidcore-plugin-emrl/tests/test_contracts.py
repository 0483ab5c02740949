"""The reward over readers, the evaluation of evidence and the policy as a reader keep their contracts."""

import pytest
from evidcore_plugin_emrl.model_reader import PolicyReader
from evidcore_testing import answer_group, check_evaluation, check_reader, check_reward, volume_case
from evidcore_testing.data import FINDINGS

from evidcore.api import Crop, Policy
from evidcore.builtin.views import Slices
from evidcore.contracts import ImageQuestion
from evidcore.registry.factory import build


class Affirming(Policy):
    """Affirms every finding, wherever it is shown something."""

    def generate(self, prompts, *, max_new_tokens, temperature=0.0):
        every = " ".join(f"There is a {name}." for name in FINDINGS)
        return [every if prompt.crops() else "" for prompt in prompts]

    def log_likelihoods(self, prompts, completions):
        return [[0.0] * len(some) for some in completions]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """The task `report-evidence`, and a prompt about each of four cases."""
    folder = tmp_path_factory.mktemp("cases")
    given = {"view": Slices(), "recipe_folder": folder, "cache_folder": folder / "cache"}
    task = build("task", {"use": "report-evidence"}, given=given, where="test")
    cases = [volume_case(folder, seed) for seed in range(4)]
    return task, [prompt for case in cases for prompt in task.prompts(case, Slices(), 0)]


def test_the_policy_as_a_reader(asked, tmp_path):
    [volume, *_] = asked[1][0].case.volumes
    crops = [Crop(volume=volume), Crop(volume=volume, blank=True)]
    questions = [ImageQuestion(crops=(crop,), text="Which finding is present?") for crop in crops]
    check_reader(PolicyReader(Affirming(), Affirming()), questions, tmp_path)


def test_the_evaluation_of_evidence(asked, tmp_path):
    given = {"recipe_folder": tmp_path, "cache_folder": tmp_path}
    check_evaluation(build("evaluation", {"use": "report-evidence"}, given=given, where="test"), *asked)


def test_consistent_evidence_pays_the_slice_that_shows_it(asked, tmp_path):
    task, prompts = asked
    good, bad = [], []
    for group, prompt in enumerate(prompts):
        gold, _ = task.gold(prompt)
        report = gold.split("<evidence>")[0]
        good += answer_group(task, prompt, [gold, gold], group)
        bad += answer_group(task, prompt, [f"{report}<evidence>null</evidence>", report], group)
    given = {
        "policy": Affirming(), "start_policy": Affirming(), "cache_folder": tmp_path,
        "cases": lambda: [prompt.case for prompt in prompts],
    }  # fmt: skip
    check_reward(build("reward", {"use": "consistent-evidence"}, given=given, where="test"), good, bad)
