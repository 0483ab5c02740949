"""Figures in TensorBoard, read back with its own reader."""

import pytest
from evidcore_plugin_phantoms.testing import SMALL
from evidcore_plugin_trackers.figures import numbers
from evidcore_plugin_trackers.to_tensorboard import TensorBoard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from evidcore.hooks import Announcer
from evidcore.recipe import load
from evidcore.runs.begin import run, start


def told(folder):
    """Return tag -> step -> value of what was written to a folder."""
    result = EventAccumulator(str(folder)).Reload()
    return {tag: {item.step: item.value for item in result.Scalars(tag)} for tag in result.Tags()["scalars"]}


@pytest.mark.slow
def test_a_run_is_in_tensorboard(tmp_path):
    text = SMALL.read_text().replace("seed = 17", 'seed = 17\nobservers = ["tensorboard"]', 1)
    (tmp_path / "small.toml").write_text(text)
    begun = start(load(tmp_path / "small.toml"), tmp_path / "runs")
    run(begun)
    folder = begun.path / "tensorboard"
    assert {path.name for path in folder.iterdir()} == {"01-sft", "02-evaluate", "03-sft", "04-evaluate"}
    result = told(folder / "03-sft")
    assert list(result["loss"]) == list(range(1, 13))
    assert result["loss"][12] < result["loss"][1]
    assert "result/choice/strict_accuracy" in told(folder / "04-evaluate")


def test_a_step_that_comes_again_replaces_what_was_written(tmp_path):
    for steps, shift in (((1, 2, 3), 0.0), ((2, 3), 10.0)):
        again = Announcer(observers={"tensorboard": TensorBoard()})
        again.stage_started("01-sft", tmp_path / "run/working/01-sft")
        for step in steps:
            again.step_finished("01-sft", step, {"loss": step + shift})
        assert not again.failed
    assert told(tmp_path / "run/tensorboard/01-sft")["loss"] == {1: 1.0, 2: 12.0, 3: 13.0}


def test_a_stage_that_is_used_again_shows_its_result_where_the_run_is_known(tmp_path):
    announcer = Announcer(observers={"tensorboard": TensorBoard()})
    announcer.stage_finished("01-fit", tmp_path / "stages/a", {"took_s": 3.0})
    announcer.stage_started("02-sft", tmp_path / "run/working/02-sft")
    announcer.stage_finished("02-sft", tmp_path / "stages/b", {"took_s": 2.0})
    announcer.stage_finished("03-evaluate", tmp_path / "stages/c", {"took_s": 1.0})
    assert not announcer.failed
    assert {path.name for path in (tmp_path / "run/tensorboard").iterdir()} == {"02-sft", "03-evaluate"}
    assert told(tmp_path / "run/tensorboard/03-evaluate")["result/took_s"] == {0: 1.0}


def test_numbers_alone_are_told():
    rows = [
        {"name": "choice", "metric": "accuracy", "value": 0.5, "note": "words"},
        {"name": "choice", "metric": "none", "value": None},
        {"name": "choice", "metric": "word", "value": "a patient's"},
    ]
    figures = {"rows": rows, "took_s": 2, "kind": "evaluate", "fine": True, "lost": float("nan")}
    assert dict(numbers(figures)) == {"choice/accuracy": 0.5, "took_s": 2.0}
