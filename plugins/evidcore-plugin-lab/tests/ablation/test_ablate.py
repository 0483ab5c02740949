"""`evid ablate` from end to end: whole, again, killed, changed, failing."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
import types

import numpy as np
import pytest
import torch
from evidcore_plugin_lab.ablation import runner
from evidcore_plugin_lab.ablation.tables import read, written
from filelock import FileLock

from evidcore.contracts.stage import NullSink
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore.runs.folder import read_lines

pytestmark = pytest.mark.slow

ONE_SEED = ("seeds = [17, 18]", "seeds = [17]")
CELLS = ["projection/seed-17", "alignment/seed-17", "projection/seed-18", "alignment/seed-18"]


def cells(desk):
    """Return cell -> its run folder."""
    known = json.loads((desk.home / "cells.json").read_text(encoding="utf-8"))
    return {name: (desk.home / entry["run"]).resolve() for name, entry in known.items()}


def started(desk, *words):
    """Start the command in a process that listens to Ctrl-C, as a shell's background job does not."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from evidcore.cli import main; main(prog_name='evid')"
    )
    with (desk.folder / "said.txt").open("w", encoding="utf-8") as said:
        program = [sys.executable, "-c", code, "ablate", *words]
        return subprocess.Popen(program, cwd=desk.folder, stdout=said, stderr=said)


def accuracy(run):
    rows = json.loads((run / "results" / "04-evaluate.json").read_text(encoding="utf-8"))["rows"]
    return next(row["value"] for row in rows if row["metric"] == "log_likelihood_accuracy")


def test_every_cell_is_a_run_of_its_own(done):
    runs = cells(done)
    assert list(runs) == CELLS
    assert sorted(runs.values()) == done.runs
    for name, run in runs.items():
        assert json.loads((run / "STATUS").read_text())["state"] == "finished"
        assert (run / "page" / "index.html").is_file()
        lock = tomllib.loads((run / "lock.toml").read_text())
        assert f"seed={name[-2:]}" in lock["recipe"]["overrides"]
    assert "alignment/seed-18 (4/4) 03-sft: done" in done.said
    assert (done.home / "ablation.toml").read_text() == done.file.read_text()


def test_shared_stages_are_computed_once(done):
    kinds = [
        json.loads(file.read_text(encoding="utf-8"))["stage"]
        for file in (done.folder / "runs" / "tiny" / "stages").glob("*/result.json")
    ]
    counted = {kind: kinds.count(kind) for kind in set(kinds)}
    assert counted == {"01-fit-encoder": 2, "02-fit-language": 2, "03-sft": 4, "04-evaluate": 4}
    assert done.said.count("02-fit-language: unchanged, used again") == 2


def test_the_language_fit_is_the_same_to_the_bit_whatever_bridge_comes_later(done, tmp_path):
    """So that its hash may leave the bridge out."""
    result = set()
    for name in ("projection", "residual-alignment"):
        recipe = load(done.folder / "tiny.toml", [f'model.bridge={{use="{name}"}}'])
        torch.manual_seed(recipe.seed)
        np.random.seed(recipe.seed)
        work = tmp_path / name
        work.mkdir()

        context = Context(Assembly(recipe), "02-fit-language", folder=work, announce=NullSink())
        recipe.stages[1].run(context)
        result.add(hashlib.sha256((work / "checkpoint" / "model.safetensors").read_bytes()).hexdigest())
    assert len(result) == 1


def test_the_tables_say_what_the_runs_found(done):
    result = read(done.home)
    by_cell = {name: accuracy(run) for name, run in cells(done).items()}
    arms = {row["arm"]: row for row in result["rows"] if row["metric"] == "log_likelihood_accuracy"}
    for arm, row in arms.items():
        own = [by_cell[f"{arm}/seed-{seed}"] for seed in (17, 18)]
        assert row["value"] == pytest.approx(sum(own) / 2)
        assert list(row["by_seed"].values()) == pytest.approx(own)
        assert row["low"] <= row["value"] <= row["high"]
        assert row["patients"] == sum(  # each seed has patients of its own
            len({line["patient"] for line in read_lines(run / "answers" / "04-evaluate.jsonl")})
            for name, run in cells(done).items()
            if name.startswith(arm)
        )
    difference = result["differences"][0]
    moved = [by_cell[f"alignment/seed-{seed}"] - by_cell[f"projection/seed-{seed}"] for seed in (17, 18)]
    assert difference["value"] == pytest.approx(sum(moved) / 2)
    assert (difference["arm"], difference["against"]) == ("alignment", "projection")
    row = next(row for row in result["rows"] if row["metric"] == "perfect_perception")
    assert (row["value"], row["low"], row["note"]) == (1.0, None, "no interval: no sum over answers")
    assert result["phantoms"] == ["chest"]
    assert result["missing"] == result["accepted"] == result["failed"] == []
    lines = {row["line"]: row["value"] for row in result["reference_lines"]}
    assert lines["uniform_chance"] == 0.25
    text = (done.home / "README.md").read_text(encoding="utf-8")
    assert text in done.said
    assert text.startswith("# What the bridge is worth\n\nPhantom numbers: `chest` holds generated scans")
    assert "Made by `evid ablate bridges.toml`." in text
    assert f"| projection (reference) | {100 * arms['projection']['value']:.1f} [" in text
    assert (done.home / "summary.txt").read_text().startswith("phantom numbers, What the bridge is")
    assert "phantom numbers" in (done.home / "table.tex").read_text(encoding="utf-8").lower()


def test_a_folder_is_printed_again(done):
    assert done.evid(done.home).stdout == (done.home / "README.md").read_text(encoding="utf-8")
    assert json.loads(done.evid(done.home, "--json").stdout) == read(done.home)
    shown = done.evid(done.folder, exit_code=2).stderr
    assert f"{done.folder}: holds no ablation.json. Give the folder that `evid ablate FILE`" in shown


def test_what_is_kept_holds_no_answer_and_no_path_of_this_machine(copied):
    copied.evid("bridges.toml", "--keep", "kept")
    kept = copied.folder / "kept"
    files = [file for file in kept.rglob("*") if file.is_file()]
    assert {file.name for file in files} == {"README.md", "ablation.json", "summary.txt"}
    locks = read(kept)["locks"]
    assert set(locks) == set(CELLS)
    for lock in locks.values():
        assert {"evidcore"} <= set(lock["code"])
        assert set(lock["data"]) == {"chest"}
        assert len(lock["recipe"]) == 64
    text = (kept / "README.md").read_text(encoding="utf-8")
    assert "Tables without answers: intervals cannot be recomputed from this folder." in text
    for file in files:
        assert str(copied.folder) not in file.read_text(encoding="utf-8"), file
    assert text == written(read(kept))
    assert read(kept)["command"] == "evid ablate bridges.toml"
    assert read(kept)["definition"] == copied.file.read_text(encoding="utf-8")
    copied.evid("bridges.toml", "--keep", "kept")  # replaces what it wrote
    (copied.folder / "mine").mkdir()
    (copied.folder / "mine" / "notes.txt").write_text("mine")
    shown = copied.evid("bridges.toml", "--keep", "mine", exit_code=2).stderr
    assert "mine: holds no ablation, and nothing is overwritten." in shown


def test_a_plan_says_what_is_there_and_writes_nothing(done, desk):
    said = desk.evid("bridges.toml", "--plan").stdout
    assert said.splitlines()[:2] == ["projection/seed-17: to do", "alignment/seed-17: to do"]
    assert "16 stages in 4 cells; 12 distinct, of which 0 are there and 12 to compute" in said
    assert not (desk.folder / "runs").exists()
    result = json.loads(done.evid("bridges.toml", "--plan", "--only", "alignment", "--json").stdout)
    assert [cell["state"] for cell in result["cells"]] == ["finished", "finished"]
    assert (result["stages"], result["distinct"], result["there"]) == (8, 8, 8)


def test_a_changed_file_is_refused_with_what_to_type(copied):
    copied.edit(("alignment = ['", "alignment = ['stage.sft.learning_rate=1e-3', '"))
    shown = copied.evid("bridges.toml", exit_code=2).stderr
    assert "2 cells have changed since they ran" in shown
    assert "  alignment/seed-17: 03-sft, stage.learning_rate: 0.02 -> 0.001\n" in shown
    assert "again: evid ablate bridges.toml --rerun\n" in shown
    assert "as they began: evid ablate bridges.toml --accept-changes" in shown
    assert len(copied.runs) == 4
    copied.evid("bridges.toml", "--accept-changes")
    page = (copied.home / "README.md").read_text(encoding="utf-8")
    assert "- alignment/seed-17: 03-sft, stage.learning_rate: 0.02 -> 0.001" in page
    said = copied.evid("bridges.toml", "--rerun", "--seeds", "17").stdout
    assert said.count("03-sft: started") == 1
    assert said.count("02-fit-language: unchanged, used again") == 1
    assert len(copied.runs) == 5
    assert read(copied.home)["missing"] == ["alignment/seed-18"]  # made otherwise, so it does not count


def test_what_no_stage_reads_may_change_and_finished_cells_are_not_run_again(copied):
    before = {run: (run / "STATUS").read_text() for run in copied.runs}
    copied.edit(("What the bridge is worth", "Bridges"), ("log_likelihood_accuracy", "strict_accuracy"))
    assert "started" not in copied.evid("bridges.toml").stdout
    assert {run: (run / "STATUS").read_text() for run in copied.runs} == before
    result = read(copied.home)
    assert (result["about"], result["metrics"][0]["metric"]) == ("Bridges", "strict_accuracy")


def test_a_metric_that_is_no_row_is_named_with_the_nearest(copied):
    copied.edit(("log_likelihood_accuracy", "log_likelyhood_accuracy"))
    shown = copied.evid("bridges.toml", exit_code=2).stderr
    assert "metrics[0]: 04-evaluate of projection/seed-17 has no metric 'log_likelyhood_accuracy'." in shown
    assert "Did you mean 'log_likelihood_accuracy'? It has: " in shown
    copied.edit(("log_likelyhood_accuracy", "strict_accuracy"), ('name = "choice"', 'name = "choise"'))
    shown = copied.evid("bridges.toml", exit_code=2).stderr
    assert "has no row called 'choise'. Did you mean 'choice'? It has: choice." in shown


def test_any_evaluation_s_own_reference_lines_stand_beside_its_accuracies(copied):
    for run in copied.runs:
        file = run / "results" / "04-evaluate.json"
        text = json.dumps({**json.loads(file.read_text()), "reference_lines": {"choice": {"by_rote": 0.2}}})
        file.unlink()  # it may be a link into the store
        file.write_text(text, encoding="utf-8")
    assert "| by rote | 20.0 |" in copied.evid("bridges.toml").stdout
    assert {row["line"] for row in read(copied.home)["reference_lines"]} == {"by_rote"}


def test_unknown_arms_and_seeds_are_named(done):
    shown = done.evid("bridges.toml", "--only", "alinment", exit_code=2).stderr
    assert "no arm is called 'alinment'. Did you mean 'alignment'? Arms: projection, alignment." in shown
    shown = done.evid("bridges.toml", "--seeds", "19", exit_code=2).stderr
    assert "19 is none of its seeds (17, 18). Add it to `seeds` there." in shown


def test_two_at_once_are_refused(copied):
    with FileLock(copied.home / ".lock"):
        shown = copied.evid("bridges.toml", exit_code=2).stderr
    assert "another process is running this ablation. Wait for it; then `evid ablate bridges.toml`" in shown


@pytest.mark.parametrize("words", [(), ("--workers", "2")])
def test_cells_that_fail_leave_the_others(copied, words):
    arms = {"empty": "test_cases", "untaught": "train_cases"}
    listed = "".join(f'{arm} = ["dataset.chest.{key}=0"]\n' for arm, key in arms.items())
    copied.edit(ONE_SEED, ("[arm]\n", f"[arm]\n{listed}"))
    result = copied.evid("bridges.toml", *words, exit_code=2)
    assert "failed: empty/seed-17: dataset.chest: the test split has no cases." in result.stderr
    assert "failed: untaught/seed-17: dataset.chest: the train split has no cases." in result.stderr
    assert "2 cells failed; the others are kept." in result.stderr
    assert " ".join(("go on with: evid ablate bridges.toml", *words)) in result.stderr
    results = read(copied.home)
    assert set(results["missing"]) == {item["cell"] for item in results["failed"]}
    assert set(results["missing"]) == {"empty/seed-17", "untaught/seed-17"}
    known = [row["arm"] for row in results["rows"] if row["value"] is not None]
    assert known[:2] == ["projection", "alignment"]
    assert json.loads((cells(copied)["empty/seed-17"] / "STATUS").read_text())["state"] == "failed"


def test_a_changed_cell_that_cannot_begin_anew_does_not_count_as_it_was(copied):
    copied.edit(ONE_SEED, ("alignment = ['", "alignment = ['dataset.chest.test_cases=0', '"))
    before = cells(copied)["alignment/seed-17"]
    shown = copied.evid("bridges.toml", exit_code=2).stderr
    assert "alignment/seed-17: 01-fit-encoder, dataset.chest.fingerprint: " in shown
    result = copied.evid("bridges.toml", "--rerun", exit_code=2)
    assert "failed: alignment/seed-17: dataset.chest: the test split has no cases." in result.stderr
    assert read(copied.home)["missing"] == ["alignment/seed-17"]
    assert cells(copied)["alignment/seed-17"] != before


def test_a_killed_ablation_goes_on_where_it_was(done, desk):
    process = started(desk, "bridges.toml")
    steps = "working/03-sft/checkpoint/steps/checkpoint-*/complete"
    while process.poll() is None:
        if len(desk.runs) == 2 and list(desk.runs[1].glob(steps)):
            process.kill()
        time.sleep(0.01)
    assert process.wait() == -signal.SIGKILL, (desk.folder / "said.txt").read_text()
    first, second = desk.runs
    before = (first / "STATUS").read_text()
    half = json.loads((second / "STATUS").read_text())
    assert half["state"] == "running"
    said = desk.evid("bridges.toml").stdout
    assert "projection/seed-17 (1/4) 03-sft" not in said
    assert desk.runs[:2] == [first, second]
    assert len(desk.runs) == 4
    assert (first / "STATUS").read_text() == before
    lines = [json.loads(line) for line in (second / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["stage"] == "03-sft"] == [1, 2, 3]
    ours, theirs = read(desk.home), read(done.home)
    assert [row["by_seed"] for row in ours["rows"]] == [row["by_seed"] for row in theirs["rows"]]


def test_workers_find_the_same_and_compute_shared_stages_once(done, desk):
    said = desk.evid("bridges.toml", "--workers", "2").stdout
    pids = {json.loads((run / "STATUS").read_text())["pid"] for run in desk.runs}
    assert len(pids) == 4
    assert os.getpid() not in pids
    assert "alignment/seed-18 (4/4) 03-sft: done" in said
    stages = list((desk.folder / "runs" / "tiny" / "stages").glob("*/result.json"))
    assert len(stages) == 12
    assert said.count("02-fit-language: started") == 2
    ours, theirs = read(desk.home), read(done.home)
    assert [row["by_seed"] for row in ours["rows"]] == [row["by_seed"] for row in theirs["rows"]]
    assert ours["command"] == "evid ablate bridges.toml --workers 2"
    again = desk.evid("bridges.toml", "--workers", "2").stdout
    assert "started" not in again
    known = json.loads((desk.home / "cells.json").read_text(encoding="utf-8"))
    assert all(entry["seconds"] > 0 for entry in known.values())


def test_an_ablation_is_refused_where_a_launcher_has_started_several(copied, monkeypatch):
    monkeypatch.setattr(runner, "processes", lambda: types.SimpleNamespace(count=2))
    shown = copied.evid("bridges.toml", exit_code=2).stderr
    assert "an ablation starts its runs itself: leave the launcher out. --workers runs several." in shown


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_workers_stop_and_go_on(done, desk, told):
    process = started(desk, "bridges.toml", "--workers", "2", "--seeds", "17")
    steps = "working/03-sft/checkpoint/steps/checkpoint-*/complete"
    while process.poll() is None:
        if any(list(run.glob(steps)) for run in desk.runs):
            os.kill(process.pid, told)
            break
        time.sleep(0.01)
    assert process.wait() == 128 + told, (desk.folder / "said.txt").read_text()
    assert any(json.loads((run / "STATUS").read_text())["state"] == "interrupted" for run in desk.runs)
    desk.evid("bridges.toml", "--seeds", "17")
    ours, theirs = read(desk.home), read(done.home)
    assert [row["by_seed"]["17"] for row in ours["rows"]] == [row["by_seed"]["17"] for row in theirs["rows"]]
