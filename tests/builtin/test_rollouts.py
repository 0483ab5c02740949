from evidcore_testing.checks_rollout import check_rollout
from evidcore_testing.data import volume_case
from evidcore_testing.models import tiny_language
from evidcore_testing.sampler import TinySampler

from evidcore.builtin.choice import Choice
from evidcore.builtin.rollouts import Plain
from evidcore.builtin.views import Volume


def test_plain_keeps_the_contract(tmp_path):
    cases = [volume_case(tmp_path, seed) for seed in range(2)]
    prompts = [prompt for case in cases for prompt in Choice().prompts(case, Volume(), 0)]
    sampler = TinySampler(tiny_language(tmp_path / "tiny"), budget_tokens=5)
    check_rollout(Plain(), sampler, prompts, answers_per_prompt=3)
