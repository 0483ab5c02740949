"""The committed results are what their scripts make of them, and the scripts run."""

import dataclasses
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "phantom_learning.py"
KEPT = ROOT / "docs" / "results" / "med3d_r1"

learned = pytest.mark.skipif(not KEPT.is_dir(), reason="no results are committed yet")


@learned
def test_the_tables_are_made_from_the_kept_results(benchmark):
    made = benchmark("phantom_learning")
    places = sorted(KEPT.glob("seed-*.json"))
    assert places
    printed = subprocess.run(
        [sys.executable, SCRIPT, "--read", KEPT], capture_output=True, text=True, check=True
    ).stdout
    page = (KEPT / "README.md").read_text(encoding="utf-8")
    assert page == made.STUDY.page(KEPT)
    assert page.endswith(
        f"Tables without answers: intervals cannot be recomputed from this folder.\n\n{printed}"
    )
    assert (KEPT / "summary.txt").read_text(encoding="utf-8") == made.STUDY.summary(places)


@learned
def test_no_answer_and_no_report_is_kept():
    kept = {file.name for file in KEPT.rglob("*") if file.is_file()}
    seeds = {f"seed-{seed}.json" for seed in (17, 18, 19)}
    assert kept == {"README.md", "summary.txt", *seeds}


def test_a_kept_run_is_one_file_of_results_and_lock(benchmark, tmp_path):
    study = dataclasses.replace(benchmark("phantom_learning").STUDY, more=lambda _: {"rows": ["lift"]})
    run = tmp_path / "run"
    for folder in ("results", "answers", "rollouts", "checkpoints"):
        (run / folder).mkdir(parents=True)
        (run / folder / "03-sft.jsonl").write_text("a report")
    (run / "results" / "03-sft.json").write_text('{"rows": []}')
    (run / "lock.toml").write_text(f'path = "{ROOT}/recipes/x.toml"\nfolder = "{ROOT}"\n')
    study.keep(run, tmp_path / "kept" / "seed-1.json")
    assert json.loads((tmp_path / "kept" / "seed-1.json").read_text(encoding="utf-8")) == {
        "results": {"03-sft": {"rows": []}, "learned": {"rows": ["lift"]}},
        "lock": {"path": "recipes/x.toml", "folder": "."},
    }


def test_what_is_told_beside_a_kept_run_can_be_kept(benchmark, tmp_path):
    answer = {
        "patient": "p", "case_id": "c", "prompt_id": "q", "answer": "A", "choice": "A",
        "log_likelihood_choice": "B", "verdict_log_likelihood_choice": "B",
    }  # fmt: skip
    lines = "".join(json.dumps({**answer, "task": task}) + "\n" for task in ("choice", "choice-direct"))
    (tmp_path / "answers").mkdir()
    for stage in ("04-evaluate", "06-evaluate"):
        (tmp_path / "answers" / f"{stage}.jsonl").write_text(lines)
    kept = json.loads(json.dumps(benchmark("phantom_learning").learned(tmp_path)))
    assert [row["value"] for row in kept["rows"]] == [1.0, 1.0]


def test_at_most_a_hundred_files_of_results_are_committed():
    listed = ["git", "-C", str(ROOT), "ls-files", "docs/results"]
    done = subprocess.run(listed, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("no git here")
    assert len(done.stdout.splitlines()) <= 100


def test_the_page_of_benchmarks_is_made_from_the_kept_results(benchmark):
    made = benchmark("run_all")
    assert {*made.NAMES, *made.ELSEWHERE} == {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if "from side_by_side import" in path.read_text()  # others keep results and pages of their own
    }
    results = made.kept()
    if not results:
        pytest.skip("no results are kept yet")
    assert made.PAGE.read_text(encoding="utf-8") == made.page(results)


def row(name, value, low=None, high=None, *, unit="s", needed="", is_met=None):
    spread = {"low": low, "high": high}
    return {"name": name, "value": value, **spread, "unit": unit, "needed": needed, "is_met": is_met}


def test_a_line_of_the_page_gives_median_quartiles_and_what_is_needed(benchmark):
    result = {
        "claim": "It is fast.",
        "command": "python benchmarks/x.py",
        "machine": {"processor": "A chip", "cores": "2 in use", "versions": "Python 3"},
        "figures": [
            row("a", 2.5, 2.25, 12345.6, unit="x trl", needed="at least 2", is_met=True),
            row("b", 0.16, needed="at most 0.15", is_met=False),
            row("c", 3),
        ],
    }
    page = benchmark("run_all").page({"some_name": result})
    assert "## some name\n\nIt is fast.\n\n    python benchmarks/x.py\n" in page
    assert "| a | 2.5 | 2.25 to 12,346 | x trl | at least 2: met |" in page
    assert "| b | 0.16 |  | s | at most 0.15: **not met** |" in page
    assert "| c | 3 |  | s |  |" in page
    assert "Measured on A chip, 2 in use; Python 3." in page


def test_a_figure_is_the_median_with_its_quartiles_held_against_its_limit(benchmark):
    side = benchmark("side_by_side")
    samples = [5.0, 1.0, 3.0, 2.0, 4.0]
    found = side.figure("x", samples, "s", at_most=2.9)
    assert found.value == statistics.median(samples) == 3.0
    assert (found.low, found.high) == (2.0, 4.0)
    assert (found.needed, found.is_met) == ("at most 2.9", False)
    assert side.figure("x", samples, "s", at_least=3).is_met
    assert side.figure("x", [1.0], "s").is_met is None
    assert "needed at most 2.9: NO" in found.line()


def test_arms_go_on_in_turn_and_each_step_is_timed_by_itself(benchmark):
    side, ticks, order = benchmark("side_by_side"), itertools.count(), []

    def arm(name, steps, cost):
        def loop(step_done):
            for _ in range(steps):
                order.append(name)
                for _ in range(cost):
                    next(ticks)
                step_done()

        return loop

    arms = {"one": arm("one", 3, 5), "two": arm("two", 2, 11)}
    seconds = side.Turns(arms, ticks.__next__).run()
    assert order == ["one", "two", "one", "two", "one"]
    assert seconds == {"one": [6, 6, 6], "two": [12, 12]}  # what a step takes, and a look at the clock


def test_an_arm_that_fails_stops_the_others(benchmark):
    side = benchmark("side_by_side")

    def fails(step_done):
        step_done()
        raise ValueError("no volume 7")

    def goes_on(step_done):
        while True:
            step_done()

    with pytest.raises(ValueError, match="no volume 7"):
        side.Turns({"bad": fails, "good": goes_on}, itertools.count().__next__).run()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["startup", "rewards", "grpo_step", "sft_step", "propagation"])
def test_a_benchmark_runs(name):
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / f"{name}.py", "--quick", "--json"],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout[done.stdout.index("{") :])
    assert result["command"] == f"python benchmarks/{name}.py --quick"
    assert {"processor", "cores", "versions"} <= result["machine"].keys()
    assert result["figures"]
    assert all(math.isfinite(row["value"]) for row in result["figures"])


@pytest.mark.slow
def test_planted_policies_are_audited_over_rendered_scans():
    script = ROOT / "benchmarks" / "rendered_policies.py"
    words = ["--seeds", "2", "--pool", "40", "--training", "60", "--workers", "1"]
    some = [word for name in ("Histogram", "Company") for word in ("--only", name)]
    done = subprocess.run([sys.executable, script, *words, *some], capture_output=True, text=True, check=True)
    histogram, company = done.stdout.splitlines()
    assert histogram.startswith("Histogram")
    assert "own minus blind  +0.0" in histogram
    assert company.startswith("Company")
    assert "own minus twin  +0.0" in company


@pytest.mark.slow
def test_planted_policies_are_audited_over_boxes():
    script = ROOT / "benchmarks" / "rendered_boxes.py"
    words = ["--seeds", "1", "--pool", "30", "--training", "60", "--workers", "1", "--share", "1"]
    some = [word for name in ("Registered", "Memory", "Looker") for word in ("--only", name)]
    done = subprocess.run([sys.executable, script, *words, *some], capture_output=True, text=True, check=True)
    registered, memory, looker = done.stdout.splitlines()
    assert registered.startswith("Registered")
    assert "own minus blind  +0.0" in registered
    assert memory.startswith("Memory")
    assert "told to see   0.0 %" in memory
    assert looker.startswith("Looker")
    assert "told to see 100.0 %" in looker
