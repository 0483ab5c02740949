"""Runs that are told to stop, and components that end, stop or hang the process that asks them."""

import json
import shutil

import pytest

from evidcore.runs.folder import RunFolder

pytestmark = pytest.mark.slow

OURS = "their-rewards 1.2"
NAMES = (
    "told", "told_by_keys", "told_twice", "exits", "interrupts", "leaves", "quotes", "returns", "matches",
    "loops", "halves",
)  # fmt: skip


@pytest.fixture(scope="module")
def others(tmp_path_factory, install_hostile) -> str:
    """A folder in which another package with rewards is installed."""
    return install_hostile(tmp_path_factory.mktemp("others"), NAMES)


@pytest.fixture
def judged_by(evid, begin_from_grpo, others):
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
        return evid.newest("hostile"), ended

    begin_from_grpo("hostile")
    return run


def test_a_run_that_is_told_to_stop_ends_its_step_saves_and_goes_on_with_the_same_bits(
    evid, judged_by, others
):
    folder, ended = judged_by("told", 143, at=3)  # the last save would be that of step 2
    assert RunFolder(folder).status()["state"] == "interrupted"
    assert RunFolder(folder).status()["message"] == "told to stop by SIGTERM"
    assert RunFolder(folder).status()["step"] == 3
    assert "told to stop: finishing this step and saving. Once more ends it at once." in ended.stderr
    assert "interrupted, told to stop by SIGTERM. Last checkpoint: " in ended.stderr
    assert "04-grpo/checkpoint/steps/checkpoint-3\n" in ended.stderr
    assert f"Go on with: evid resume {folder.relative_to(evid.folder)}" in ended.stderr
    evid("resume", folder, PYTHONPATH=others, HOSTILE_AT="100")
    assert RunFolder(folder).status()["state"] == "finished"
    name = "checkpoints/04-grpo/model.safetensors"
    interrupted = (folder / name).read_bytes()
    shutil.rmtree((folder / name).resolve().parents[1])  # so that it is computed again
    whole, _ = judged_by("told", 0, at=100)
    assert (whole / name).read_bytes() == interrupted
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if line["stage"] == "04-grpo"] == [1, 2, 3, 4]


def test_a_run_that_is_told_at_the_last_step_needs_no_step_more(evid, judged_by, others):
    folder, _ = judged_by("told", 143, at=4)
    evid("resume", folder, PYTHONPATH=others, HOSTILE_AT="100")
    assert RunFolder(folder).status()["state"] == "finished"
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if line["stage"] == "04-grpo"] == [1, 2, 3, 4]


def test_ctrl_c_saves_too(judged_by):
    folder, ended = judged_by("told_by_keys", 130, at=1)
    assert RunFolder(folder).status()["message"] == "told to stop by SIGINT"
    assert "Traceback" not in ended.stderr
    assert "04-grpo/checkpoint/steps/checkpoint-1\n" in ended.stderr


def test_a_run_that_is_told_twice_ends_at_once(judged_by):
    folder, ended = judged_by("told_twice", 143, at=3)
    assert RunFolder(folder).status()["state"] == "interrupted"
    assert RunFolder(folder).status()["step"] == 2
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
    assert RunFolder(folder).status()["state"] == "failed"
    assert RunFolder(folder).status()["message"] == message
    assert RunFolder(folder).status()["stage"] == "04-grpo"
    assert f"error: {message}: " in ended.stderr


def test_what_a_component_returns_is_not_kept(judged_by):
    folder, ended = judged_by("returns", 2)
    assert RunFolder(folder).status()["message"].endswith("must give a Score, an Unscored or None, got str")
    assert "got str 'nodule of Jane Doe'." in ended.stderr
    assert "Jane" not in (folder / "STATUS").read_text()


def test_a_half_character_in_a_reason_stops_nothing(judged_by):
    folder, _ = judged_by("halves", 0, at=2)
    lines = (folder / "rollouts" / "04-grpo.jsonl").read_text(encoding="utf-8")
    assert '"reason": "cut emoji \\ud83d"' in lines
    assert "cut emoji \\ud83d" in (folder / "page" / "index.html").read_text(encoding="utf-8")


def test_a_process_that_a_component_ended_is_said_to_be_gone(evid, judged_by, others):
    folder, _ = judged_by("leaves", 7, at=2)
    assert RunFolder(folder).status()["state"] == "running"
    number = RunFolder(folder).status()["pid"]
    said = f"process {number} is gone without a word: it was killed, or a component ended it"
    assert said in evid("page", folder).stderr
    page = (folder / "page" / "index.html").read_text(encoding="utf-8")
    assert said in page
    assert '<span class="state gone">gone</span>' in page
    assert said in evid("resume", folder, PYTHONPATH=others, HOSTILE_AT="100").stderr
    assert RunFolder(folder).status()["state"] == "finished"
