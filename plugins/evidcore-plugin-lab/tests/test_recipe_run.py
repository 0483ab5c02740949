"""A recipe that is run from Python gives the run that the command gives, and goes on after an interrupt."""

import json
import signal
import subprocess
import sys

import pandas as pd
import pytest
from evidcore_plugin_phantoms.testing import SMALL

import evidcore
from evidcore.api import observe
from evidcore.errors import RunError
from evidcore.recipe import load


def untimed(frame):
    return frame[[name for name in frame.columns if not name.endswith("_s") and "_s/" not in name]]


@pytest.mark.slow
def test_the_package_is_imported_in_an_instant_and_its_runs_without_torch(small_run):
    code = (
        "import sys, evidcore\n"
        "assert not {'torch', 'pandas', 'evidcore_plugin_lab'} & sys.modules.keys()\n"
        f"run = evidcore.Run({str(small_run)!r})\n"
        "run.results, run.answers, run.rollouts, run.metrics, run._repr_html_()\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_of_the_package_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'evidcore' has no attribute 'rum'"):
        _ = evidcore.rum
    assert not hasattr(evidcore, "__wrapped__")


def test_without_the_package_that_has_it_the_name_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    for name, package in (("run", "lab"), ("Run", "audit")):
        says = rf"evidcore\.{name} comes .* install evidcore-plugin-{package}"
        for code in (f"import evidcore; evidcore.{name}", f"from evidcore import {name}"):
            with pytest.raises(ImportError, match=says):
                exec(code, {})


def test_a_package_of_others_cannot_take_the_name(offered):
    offered("their-package", "[evidcore_python]\nrun = their_package:stolen\n", stolen=print)
    assert evidcore.run.__module__ == "evidcore_plugin_lab.recipe_run"


@pytest.mark.slow
def test_a_run_from_python_is_the_run_of_the_command(small_run, tmp_path, capfd):
    run = evidcore.run(load(SMALL), out=tmp_path, fresh=True)
    theirs = evidcore.Run(small_run)
    assert run.status["state"] == "finished"
    pd.testing.assert_frame_equal(run.results, theirs.results)
    pd.testing.assert_frame_equal(run.answers, theirs.answers)
    pd.testing.assert_frame_equal(untimed(run.metrics), untimed(theirs.metrics))
    assert run.page.is_file()
    assert "01-sft: started" in capfd.readouterr().out


@pytest.mark.slow
def test_overrides_and_place_are_those_of_the_call(trained, with_grpo, tmp_path):
    shorter = {"stage.evaluate.max_new_tokens": 3}
    run = evidcore.run(with_grpo, overrides=shorter, out=tmp_path, progress=False)
    assert run.folder.parent == tmp_path / "trained"
    assert run.recipe["stage"][2]["max_new_tokens"] == 3
    assert trained.recipe["stage"][2]["max_new_tokens"] == 24


@pytest.mark.slow
def test_rollouts_have_a_row_each_and_a_column_a_reward(trained):
    result = trained.rollouts
    assert result.groupby(["stage", "step", "group"]).size().tolist() == [4] * 8  # steps times prompts
    (file,) = (trained.folder / "rollouts").glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    item, row = lines[-1]["rollouts"][-1], result.iloc[-1]
    assert (row["text"], row["total"], row["advantage"]) == (item["text"], item["total"], item["advantage"])
    assert (row["step"], row["group"], row["prompt_id"]) == (2, 3, lines[-1]["prompt_id"])
    assert row["reward/random"] == item["rewards"]["random"]["value"]
    assert row["reason/format"] == item["rewards"]["format"]["reason"]
    mean = result.groupby("step")["reward/random"].mean()
    steps = trained.metrics[trained.metrics["stage"].str.endswith("grpo")].set_index("step")
    assert mean.tolist() == pytest.approx(steps["reward/random"].tolist())


class Interrupter:
    """Presses Ctrl-C in the first step of GRPO, once."""

    pressed = False

    @observe
    def rollouts_judged(self, stage, step, groups):
        if not Interrupter.pressed:
            Interrupter.pressed = True
            signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_an_interrupt_leaves_a_run_that_goes_on_to_the_same_end(trained, with_grpo, tmp_path, offered):
    offered("their-observers", "[evidcore.observer]\nctrl-c = their_observers:Pressed\n", Pressed=Interrupter)
    with pytest.raises(KeyboardInterrupt) as stopped:
        evidcore.run({**with_grpo, "observers": ["ctrl-c"]}, out=tmp_path, progress=False)
    (folder,) = (tmp_path / "trained").glob("2*")
    assert stopped.value.__notes__ == [f"Go on with: evidcore.Run({str(folder)!r}).resume()"]
    run = evidcore.Run(folder)
    assert run.status["state"] == "interrupted"
    before = run.answers
    assert before.empty
    with pytest.raises(RunError, match="has no finished evaluation"):
        run.compare()
    assert run.resume(progress=False).folder == folder
    assert run.status["state"] == "finished"
    pd.testing.assert_frame_equal(run.answers, trained.answers)  # read anew
    pd.testing.assert_frame_equal(run.rollouts, trained.rollouts)
    assert "trained</b> finished" in run._repr_html_()
