"""Runs that are told to stop, and components that end, stop or hang the process that asks them."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

OURS = "their-rewards 1.2"
NAMES = (
    "told", "told_by_keys", "told_twice", "exits", "interrupts", "leaves", "quotes", "returns", "matches",
    "loops", "halves",
)  # fmt: skip


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> str:
    """A folder in which another package with rewards is installed."""
    folder = tmp_path_factory.mktemp("others")
    shutil.copyfile(Path(__file__).with_name("hostile.py"), folder / "hostile.py")
    info = folder / "their_rewards-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-rewards\nVersion: 1.2\n")
    lines = [f"{name} = hostile:{name}" for name in NAMES]
    (info / "entry_points.txt").write_text("\n".join(["[evidcore.reward]", *lines]))
    return str(folder)


@pytest.fixture
def judged_by(evid, done, others):
    """Return a function that runs the recipe, its stages before GRPO used again, with another reward."""

    def run(reward, exit_code, *arguments, at=1):
        recipe = evid.folder / f"{reward}.toml"
        text = evid.recipe.read_text().replace('use = "random"', f'use = "{reward}"')
        text = text.replace("steps = 6\n", "steps = 4\n").replace(
            '"choice-accuracy"\n', '"choice-accuracy"\nweight = 0.0\n'
        )
        recipe.write_text(text[: text.rindex("[[stage]]")])  # it ends with GRPO
        ended = evid(
            "run", recipe, "--out", "hostile", *arguments,
            exit_code=exit_code, PYTHONPATH=others, HOSTILE_AT=str(at),
        )  # fmt: skip
        folder = max((evid.folder / "hostile" / "tiny").glob("2*"), key=lambda path: path.stat().st_mtime)
        return folder, ended

    shutil.rmtree(evid.folder / "hostile", ignore_errors=True)
    (evid.folder / "hostile" / "tiny").mkdir(parents=True)
    shutil.copytree(done.parent / "stages", evid.folder / "hostile" / "tiny" / "stages")
    return run


def status(folder):
    return json.loads((folder / "STATUS").read_text())


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_run_that_is_told_to_stop_ends_its_step_saves_and_goes_on_with_the_same_bits(
    evid, judged_by, others
):
    folder, ended = judged_by("told", 143, at=3)  # the last save would be that of step 2
    assert status(folder)["state"] == "interrupted"
    assert status(folder)["message"] == "told to stop by SIGTERM"
    assert status(folder)["step"] == 3
    assert "told to stop: finishing this step and saving. Once more ends it at once." in ended.stderr
    assert "interrupted, told to stop by SIGTERM. Last checkpoint: " in ended.stderr
    assert "04-grpo/checkpoint/steps/checkpoint-3\n" in ended.stderr
    assert f"Go on with: evid resume {folder.relative_to(evid.folder)}" in ended.stderr
    evid("resume", folder, PYTHONPATH=others, HOSTILE_AT="100")
    assert status(folder)["state"] == "finished"
    name = "checkpoints/04-grpo/model.safetensors"
    interrupted = digest(folder / name)
    shutil.rmtree((folder / name).resolve().parents[1])  # so that it is computed again
    whole, _ = judged_by("told", 0, at=100)
    assert digest(whole / name) == interrupted
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if line["stage"] == "04-grpo"] == [1, 2, 3, 4]


def test_a_run_that_is_told_at_the_last_step_needs_no_step_more(evid, judged_by, others):
    folder, _ = judged_by("told", 143, at=4)
    evid("resume", folder, PYTHONPATH=others, HOSTILE_AT="100")
    assert status(folder)["state"] == "finished"
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if line["stage"] == "04-grpo"] == [1, 2, 3, 4]


def test_ctrl_c_saves_too(judged_by):
    folder, ended = judged_by("told_by_keys", 130, at=1)
    assert status(folder)["message"] == "told to stop by SIGINT"
    assert "04-grpo/checkpoint/steps/checkpoint-1\n" in ended.stderr


def test_a_run_that_is_told_twice_ends_at_once(judged_by):
    folder, ended = judged_by("told_twice", 143, at=3)
    assert status(folder)["state"] == "interrupted"
    assert status(folder)["step"] == 2
    assert "04-grpo/checkpoint/steps/checkpoint-2\n" in ended.stderr


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("exits", f"{OURS}: reward 'exits' tried to end the process with SystemExit"),
        ("interrupts", f"{OURS}: reward 'interrupts' tried to end the process with KeyboardInterrupt"),
        ("quotes", f"{OURS}: reward 'quotes' failed with ValueError"),
    ],
)
def test_whatever_a_component_raises_is_its_fault_and_not_a_word_of_it_is_kept(judged_by, reward, message):
    folder, ended = judged_by(reward, 2, at=2)
    assert status(folder)["state"] == "failed"
    assert status(folder)["message"] == message
    assert status(folder)["stage"] == "04-grpo"
    assert f"error: {message}: " in ended.stderr


def test_what_a_component_returns_is_not_kept(judged_by):
    folder, ended = judged_by("returns", 2)
    assert status(folder)["message"].endswith("must give a Score, an Unscored or None, got str")
    assert "got str 'nodule of Jane Doe'." in ended.stderr
    assert "Jane" not in (folder / "STATUS").read_text()


def test_a_half_character_in_a_reason_stops_nothing(judged_by):
    folder, _ = judged_by("halves", 0, at=2)
    lines = (folder / "rollouts" / "04-grpo.jsonl").read_text(encoding="utf-8")
    assert '"reason": "cut emoji \\ud83d"' in lines
    assert "cut emoji \\ud83d" in (folder / "page" / "index.html").read_text(encoding="utf-8")


def test_a_process_that_a_component_ended_is_said_to_be_gone(evid, judged_by, others):
    folder, _ = judged_by("leaves", 7, at=2)
    assert status(folder)["state"] == "running"
    said = f"process {status(folder)['pid']} is gone without a word: it was killed, or a component ended it"
    assert said in evid("page", folder).stderr
    page = (folder / "page" / "index.html").read_text(encoding="utf-8")
    assert said in page
    assert '<span class="state gone">gone</span>' in page
    assert said in evid("resume", folder, PYTHONPATH=others, HOSTILE_AT="100").stderr
    assert status(folder)["state"] == "finished"


@pytest.mark.parametrize("reward", ["matches", "loops"])
def test_a_call_that_never_ends_is_ended_at_its_limit_whatever_it_holds(judged_by, reward):
    """The expression holds the interpreter's lock; the loop of torch gives it back, but cannot be ended."""
    limit = "stage.grpo.reward_time_limit_s=2"
    folder, ended = judged_by(reward, 2, "--set", limit)
    message = f"{OURS}: reward '{reward}' has not answered for 2 s"
    assert status(folder)["state"] == "failed"
    assert status(folder)["stage"] == "04-grpo"
    assert status(folder)["message"] == message
    assert f"error: {message}" in ended.stderr
