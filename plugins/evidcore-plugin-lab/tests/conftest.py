import tomllib

import pytest
from evidcore_plugin_phantoms.testing import SMALL
from evidcore_plugin_phantoms.testing import copied_run as copied_run
from evidcore_plugin_phantoms.testing import small_run as small_run
from evidcore_testing.fixtures import evid as evid
from evidcore_testing.fixtures import offered as offered
from evidcore_testing.fixtures import real_data as real_data

import evidcore

GRPO = {
    "kind": "grpo", "train": ["bridge", "language"], "data": [{"dataset": "chest", "task": "choice"}],
    "steps": 2, "prompts_per_step": 4, "answers_per_prompt": 4, "max_new_tokens": 16, "learning_rate": 1e-4,
    "reward": [{"use": "format", "weight": 0.5}, {"use": "random"}],
}  # fmt: skip


@pytest.fixture(scope="session")
def with_grpo() -> dict[str, object]:
    """The tables of a recipe of a fit, GRPO and an evaluation."""
    given = tomllib.loads(SMALL.read_text(encoding="utf-8"))
    return {**given, "name": "trained", "stage": [*given["stage"][2:3], GRPO, given["stage"][3]]}


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, with_grpo: dict[str, object]) -> evidcore.Run:
    """A run from tables, with rollouts."""
    return evidcore.run(with_grpo, out=tmp_path_factory.mktemp("trained"), progress=False)
