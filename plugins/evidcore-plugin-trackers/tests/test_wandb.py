"""Figures in Weights & Biases, kept on this machine; skipped where its client is not installed."""

import importlib.util

import pytest
from evidcore_plugin_lab.plan.plan import sent
from evidcore_plugin_phantoms.testing import SMALL

from evidcore.hooks import Announcer
from evidcore.recipe import load
from evidcore.runs.read import refuse_strange


@pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason='pip install "evidcore-plugin-trackers[wandb]"'
)
def test_a_run_is_kept_offline_and_holds_numbers_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb/settings").write_text("[default]\nbase_url = http://127.0.0.1:9\n")
    monkeypatch.chdir(tmp_path)  # whose file is whoever's folder this is
    announcer = Announcer.from_names([], ["wandb"])
    folder = tmp_path / "runs/small/20260101-120000-0123abcd"
    for stage in ("01-sft", "02-sft"):
        announcer.stage_started(stage, folder / "working" / stage)
        announcer.step_finished(stage, 1, {"loss": 0.5})
        announcer.step_finished(stage, 2, {"loss": 0.25})
        announcer.stage_finished(stage, folder, {"took_s": 2.0, "note": "a patient's words"})
    assert not announcer.failed
    import wandb

    run = wandb.run
    assert (run.project, run.name, run.settings.base_url) == ("small", folder.name, "https://api.wandb.ai")
    assert run.summary["02-sft/loss"] == 0.25
    assert run.summary["01-sft/result/took_s"] == 2.0
    wandb.finish()
    refuse_strange(folder)  # none of wandb's links is left
    (kept,) = (folder / "wandb").glob("offline-run-*")
    held = b"".join(path.read_bytes() for path in kept.rglob("*") if path.is_file())
    assert b"a patient" not in held


def test_the_plan_says_what_leaves_the_machine(tmp_path):
    text = SMALL.read_text().replace("seed = 17", 'seed = 17\nobservers = ["tensorboard", "wandb"]', 1)
    (tmp_path / "small.toml").write_text(text)
    told = list(sent(load(tmp_path / "small.toml")))
    host = "https://api.wandb.ai"
    assert told == [f"the figures of each step and stage, to Weights & Biases at {host} (observer 'wandb')"]
