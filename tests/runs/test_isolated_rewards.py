"""Runs whose rewards have a process of their own: the same bits, and a whole run folder where one fails."""

import tomllib

import pytest
from evidcore_plugin_hub.isolation import blocked

from evidcore.runs.folder import RunFolder

pytestmark = pytest.mark.slow


@pytest.fixture
def isolated(evid, install_hostile, begin_from_grpo, tmp_path):
    """Return a function that runs the recipe to the end of GRPO with another table of its first reward."""
    install_hostile(tmp_path, ("leaves", "matches", "quotes", "told"))
    begin_from_grpo("apart")

    def run(table, exit_code=0, **options):
        text = evid.recipe.read_text()
        recipe = evid.folder / "isolated.toml"
        recipe.write_text(text[: text.rindex("[[stage]]")].replace('use = "random"', table))
        ended = evid(
            "run", recipe, "--out", "apart", exit_code=exit_code, PYTHONPATH=str(tmp_path), **options
        )
        return evid.newest("apart"), ended

    return run


def test_an_isolated_reward_trains_the_same_model(isolated, done):
    folder, _ = isolated('use = "random"\nisolated = true')
    for name in ("checkpoints/04-grpo/model.safetensors", "rollouts/04-grpo.jsonl"):
        assert (folder / name).read_bytes() == (done / name).read_bytes(), name
    lock = tomllib.loads((folder / "lock.toml").read_text())
    assert lock["isolation"] == blocked()
    assert "isolation" not in tomllib.loads((done / "lock.toml").read_text())
    assert "isolated" not in (done / "resolved.toml").read_text()


def test_a_run_that_was_stopped_goes_on_with_its_isolated_reward(isolated, evid, done, tmp_path):
    told = '[[stage.reward]]\nuse = "told"\nweight = 0.0'
    folder, _ = isolated(f'use = "random"\nisolated = true\n{told}', 143, HOSTILE_AT="3")
    evid("resume", folder, PYTHONPATH=str(tmp_path), HOSTILE_AT="100")
    name = "checkpoints/04-grpo/model.safetensors"
    assert (folder / name).read_bytes() == (done / name).read_bytes()


def test_each_of_two_processes_has_an_isolated_reward_of_its_own(isolated, done):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "evidcore"]
    folder, _ = isolated('use = "random"\nisolated = true', program=launch)
    assert tomllib.loads((folder / "lock.toml").read_text())["hardware"]["processes"] == 2
    name = "rollouts/04-grpo.jsonl"
    assert (folder / name).read_text() == (done / name).read_text()


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        ("matches", "has not answered in its own process for 2 s and was ended"),
        ("leaves", "ended its process with status "),
        ("quotes", "failed in its own process: ValueError"),
    ],
)
def test_a_run_whose_isolated_reward_fails_is_whole(reward, says, isolated):
    folder, ended = isolated(f'use = "{reward}"\nisolated = {{ time_limit_s = 2.0 }}', 2)
    result = RunFolder(folder).status()
    assert result["state"] == "failed"
    assert result["message"].startswith(f"reward '{reward}' from their-rewards 1.2 {says}")
    assert "Jane Doe" not in result["message"]
    assert f"reward '{reward}' from their-rewards 1.2 {says}" in ended.stderr
    assert (folder / "lock.toml").is_file()
    assert (folder / "results" / "03-sft.json").is_file()
