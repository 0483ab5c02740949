"""The task of boxes and its evaluation keep their contracts on the kit's cases."""

import pytest
from evidcore_testing import check_evaluation, check_task, volume_case

from evidcore.builtin.views import Slices
from evidcore.registry.factory import build


@pytest.fixture
def cases(tmp_path):
    return [volume_case(tmp_path, seed) for seed in range(4)]


def test_the_task_and_the_evaluation_of_masks(cases, tmp_path):
    given = {"view": Slices(), "recipe_folder": tmp_path, "cache_folder": tmp_path / "cache"}
    task = build("task", {"use": "reasoning-segmentation", "ask": "masks"}, given=given, where="test")
    check_task(task, Slices(), cases)
    prompts = [prompt for case in cases for prompt in task.prompts(case, Slices(), 0)]
    given = {"recipe_folder": tmp_path, "cache_folder": tmp_path / "cache"}
    check_evaluation(build("evaluation", {"use": "segmentation"}, given=given, where="test"), task, prompts)
