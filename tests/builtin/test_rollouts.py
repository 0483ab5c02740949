import pytest
from evidcore_testing.checks_rollout import check_rollout
from evidcore_testing.data import volume_case
from evidcore_testing.models import tiny_language
from evidcore_testing.sampler import TinySampler

from evidcore.api import Crop, Prompt, TextPart, VisualPart
from evidcore.builtin.rollouts import Plain


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    return tiny_language(tmp_path_factory.mktemp("language") / "tiny")


@pytest.fixture
def prompts(tmp_path):
    cases = [volume_case(tmp_path, seed) for seed in range(2)]
    return [
        Prompt(
            id=f"question-{case.id}",
            case=case,
            task="test",
            parts=(VisualPart(crop=Crop(volume=case.volumes[0])), TextPart(text="What is there?")),
        )
        for case in cases
    ]


def test_plain_keeps_the_contract(language, prompts):
    check_rollout(Plain(), TinySampler(language, budget_tokens=5), prompts, answers_per_prompt=3)
