"""The committed results are what their scripts make of them, and the scripts run."""

import dataclasses
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.stats import binomtest

from evidcore.case import Answer, Box, Evidence

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "results" / "med3d_r1"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["med3d_r1", "medvol_r1"])
def test_the_tables_are_made_from_the_kept_results(benchmark, recipe):
    study = benchmark({"med3d_r1": "phantom_learning", "medvol_r1": "phantom_boxes"}[recipe]).STUDY
    kept = ROOT / "docs" / "results" / recipe
    places = sorted(kept.glob("seed-*.json"))
    assert places
    page = (kept / "README.md").read_text(encoding="utf-8")
    assert page == study.page(kept)
    assert page.endswith(f"\n\n{study.tables(places)}\n")
    assert (kept / "summary.txt").read_text(encoding="utf-8") == study.summary(places)
    assert (kept / "over_seeds.txt").read_text(encoding="utf-8") == study.over_all(places)
    assert (kept / "by_group.txt").read_text(encoding="utf-8") == study.groups(places)
    assert study.again(places) == "".join(item.read_text(encoding="utf-8") for item in kept.glob("again.txt"))


def test_no_answer_and_no_report_is_kept():
    kept = {file.name for file in KEPT.rglob("*") if file.is_file()}
    kept -= {"README.md", "summary.txt", "over_seeds.txt", "by_group.txt", "again.txt"}
    assert {Path(name).suffix for name in kept} == {".json"}
    for file in KEPT.glob("seed-*.json"):
        for line in json.loads(file.read_text(encoding="utf-8")).get("questions", []):
            assert not re.search(r"<(think|answer|image)>|present|absent", line)


def test_a_kept_run_is_one_file_of_results_and_lock(benchmark, tmp_path):
    script = benchmark("phantom_learning")
    columns = {"own": script.Column(script.AUDIT, "own"), "twin": script.Column(script.AUDIT, "twin")}
    study = dataclasses.replace(script.STUDY, more=lambda _: {"rows": ["lift"]}, columns=columns)
    run = tmp_path / "run"
    for folder in ("results", "answers", "rollouts", "checkpoints"):
        (run / folder).mkdir(parents=True)
        (run / folder / "03-sft.jsonl").write_text("a report")
    (run / "results" / "03-sft.json").write_text('{"rows": []}')
    line = {
        "patient": "p", "case_id": "c", "task": "choice", "answer": "A", "finding": "nodule", "text": "told",
        "malformed": None,
    }  # fmt: skip
    asked = [("q0", "own", "A"), ("q0", "twin", "B"), ("q1", "own", "C")]
    lines = (
        {**line, "prompt_id": prompt, "condition": shown, "choice": said} for prompt, shown, said in asked
    )
    (run / "answers" / f"{script.AUDIT}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "lock.toml").write_text(f'path = "{ROOT}/recipes/x.toml"\nfolder = "{ROOT}"\n')
    study.keep(run, tmp_path / "kept" / "seed-1.json")
    kept = json.loads((tmp_path / "kept" / "seed-1.json").read_text(encoding="utf-8"))
    assert re.fullmatch(r"[0-9a-f]{10,}(-dirty)?", kept.pop("commit"))
    assert kept.pop("recipe") == study.recipe_hash()
    asked = ["patient,question,finding,own,twin", "p,q0,nodule,1,0", "p,q1,nodule,0,"]
    assert kept.pop("questions") == asked
    assert kept == {
        "results": {"03-sft": {"rows": []}, "learned": {"rows": ["lift"]}},
        "lock": {"path": "recipes/x.toml", "folder": "."},
    }
    again = tmp_path / "kept" / "seed-1-threads-2.json"
    study.keep(run, again)
    assert "questions" not in json.loads(again.read_text(encoding="utf-8"))  # in no figure over seeds
    assert study.is_kept(again)


@pytest.fixture
def seeds(benchmark, tmp_path):
    """A study, and a writer of kept runs of it with the same value in every line."""
    study = benchmark("phantom_learning").STUDY

    def write(name, value, spread=0.02):
        results = {line.file: {"rows": []} for line in study.lines}
        for line in study.lines:
            row = {"value": value, "low": value - spread, "high": value + spread}
            results[line.file]["rows"].append({"name": line.name, "metric": line.metric, **row})
        lock = {"hardware": {"torch_threads": 2}}
        made = {"results": results, "lock": lock, "commit": "0123456789", "recipe": study.recipe_hash()}
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({**made, "questions": ["patient,question"]}))
        return file

    return study, write


def test_a_seed_that_leaves_what_is_kept_is_named_and_one_inside_is_not(seeds):
    study, write = seeds
    kept = [write("seed-17", 0.60), write("seed-18", 0.66)]
    assert study.leaves(write("fresh", 0.63), kept) == []
    left = study.leaves(write("fresh", 0.70), kept)
    assert len(left) == sum(line.is_main for line in study.lines)
    assert "own minus twins: 70.0 [68.0, 72.0], kept runs 58.0 to 68.0" in left


def test_a_seed_under_a_bound_is_named_though_it_is_as_kept(seeds):
    study, write = seeds
    (said,) = study.leaves(write("fresh", 0.31), [write("seed-17", 0.31)])
    assert said == "own minus twins: 31.0 [29.0, 33.0], at least 30.0 is wanted"


def test_a_kept_run_of_another_recipe_is_run_again(seeds, tmp_path):
    study, write = seeds
    file = write("seed-17", 0.6)
    assert study.is_kept(file)
    assert not study.is_kept(file.with_name("seed-18.json"))
    made = json.loads(file.read_text())
    del made["questions"]
    file.write_text(json.dumps(made))
    assert not study.is_kept(file)
    write("seed-17", 0.6)
    file.write_text(file.read_text().replace('"recipe": "', '"recipe": "0'))
    assert not study.is_kept(file)


def test_a_recipe_that_names_finished_stages_is_the_recipe_it_was(seeds, tmp_path):
    study, _ = seeds
    text = study.recipe.read_text(encoding="utf-8")
    changed = (
        (f"{text}# a comment\n", True),
        (text.replace('fitted = "fitted/med3d_r1"', ""), True),
        (text.replace("seed = 17", "seed = 3", 1), False),
    )
    for other_text, is_same in changed:
        file = tmp_path / "other.toml"
        file.write_text(other_text)
        assert other_text != text
        other = dataclasses.replace(study, recipe=file)
        assert (other.recipe_hash() == study.recipe_hash()) is is_same


def test_at_most_a_hundred_files_of_results_are_committed():
    listed = ["git", "-C", str(ROOT), "ls-files", "docs/results"]
    done = subprocess.run(listed, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("no git here")
    assert len(done.stdout.splitlines()) <= 100


def test_the_page_of_benchmarks_is_made_from_the_kept_results(benchmark):
    made = benchmark("run_all")
    assert {*made.NAMES, *made.ELSEWHERE} - {"grpo_step_gpu"} == {  # the same script on another device
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if re.search(r"from side_by_side import .*\btell\b", path.read_text())  # others keep their own
    }
    results = made.kept()
    if not results:
        pytest.skip("no results are kept yet")
    assert made.PAGE.read_text(encoding="utf-8") == made.page(results)


def test_a_figure_is_the_median_with_its_quartiles_held_against_its_limit(benchmark):
    side = benchmark("side_by_side")
    samples = [5.0, 1.0, 3.0, 2.0, 4.0]
    result = side.figure("x", samples, "s", at_most=2.9)
    assert result.value == statistics.median(samples) == 3.0
    assert (result.low, result.high) == (2.0, 4.0)
    assert (result.needed, result.is_met) == ("at most 2.9", False)
    assert side.figure("x", samples, "s", at_least=3).is_met
    assert side.figure("x", [1.0], "s").is_met is None
    assert "needed at most 2.9: NO" in result.line()


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


def printed(name, *words):
    """Run a benchmark and return its lines; more than a warning on its way is a fault."""
    command = [sys.executable, ROOT / "benchmarks" / f"{name}.py", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["startup", "rewards", "grpo_step", "sft_step", "propagation", "plan_memory"]
)
def test_a_benchmark_runs(name):
    said = "\n".join(printed(name, "--quick", "--json"))
    result = json.loads(said[said.index("{") :])
    assert result["command"] == f"python benchmarks/{name}.py --quick"
    assert {"processor", "cores", "versions"} <= result["machine"].keys()
    assert result["figures"]
    assert all(math.isfinite(row["value"]) for row in result["figures"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"), [("gpu_step", "grpo: a step"), ("step_graph", "64 of 64 rows alike")]
)
def test_what_a_gpu_measures_runs_here_in_small(name, said):
    assert said in "\n".join(printed(name, "--quick", "--device", "cpu"))


@pytest.mark.slow
def test_what_a_gpu_runs_of_a_vision_language_model_runs_here_in_small():
    lines = printed("gpu_vlm", "--quick", "--device", "cpu")
    stages = [line.split()[0] for line in lines if "GB planned" in line]
    assert stages == ["01-sft", "02-evaluate", "03-grpo", "04-evaluate", "05-audit"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words", "policies"),
    [("rendered_policies", "--seeds 2 --pool 40 --training 60 --workers 1",
      {"Histogram": "own minus blind  +0.0", "Company": "own minus twin  +0.0"}),
     ("rendered_boxes", "--seeds 1 --pool 30 --training 60 --workers 1 --share 1",
      {"Registered": "own minus blind  +0.0", "Memory": "see   0.0 %", "Looker": "see 100.0 %"})],
)  # fmt: skip
def test_planted_policies_are_audited_over_scans_and_boxes(name, words, policies):
    some = [word for policy in policies for word in ("--only", policy)]
    lines = printed(name, *words.split(), *some)
    assert [line.split()[0] for line in lines] == [*policies]
    assert [said in line for said, line in zip(policies.values(), lines, strict=True)] == [True] * len(lines)


@pytest.mark.slow
def test_encoders_of_overviews_are_compared(tmp_path):
    words = ["--train", "64", "--test", "16", "--steps", "2", "--keep", str(tmp_path / "kept.txt")]
    printed("overview_encoder", *words)
    _, _, *rows = (tmp_path / "kept.txt").read_text(encoding="utf-8").splitlines()
    assert [row[:52].strip() for row in rows] == [
        "the patch that most lesions lie in",
        "halved at once, taught by patch",
        "full resolution first, taught by patch",
        "full resolution first, taught by voxel",
    ]


def test_an_interval_of_a_share_is_wilsons(benchmark):
    script = benchmark("zoom_bounds")
    for right, asked in ((0, 12), (7, 12), (570, 600), (600, 600)):
        known = binomtest(right, asked).proportion_ci(method="wilson")
        assert script.wilson(right, asked) == pytest.approx((known.low, known.high), abs=1e-4)


def test_the_kept_bounds_of_a_zoom_are_those_that_the_data_set_promises():
    text = (ROOT / "docs" / "results" / "zoom_bounds.txt").read_text(encoding="utf-8")
    result = re.findall(r"^ *(\S.*?)  +([\d.]+)   [\d.]+ to [\d.]+$", text, re.MULTILINE)
    shares = {name: float(share) for name, share in result}
    assert shares["the lesion's box"] >= 90
    assert shares["any box"] <= 32
    blind = [share for name, share in shares.items() if name.startswith("no box: ")]
    assert len(blind) == 3
    assert all(20 <= share <= 30 for share in blind)
    assert shares["radius 4 to 5 pixels"] <= 32
    assert shares["radius 6 to 6 pixels"] > 32  # why it is refused


def test_boxes_are_made_smaller_on_each_side_as_long_as_a_voxel_is_left(benchmark):
    rule = benchmark("shrunk_boxes")
    box = Box(z=3, y0=10, y1=20, x0=5, x1=8)
    assert rule.shrunk(box, 0) == box
    assert rule.shrunk(box, 2) == Box(z=3, y0=12, y1=18, x0=6, x1=7)
    assert rule.shrunk(box, 9) == Box(z=3, y0=14, y1=16, x0=6, x1=7)
    given = Answer(text="", evidence=Evidence(slice=3, boxes=(box,)))
    assert rule.smaller(given, 2).evidence == Evidence(slice=3, boxes=(rule.shrunk(box, 2),))
    assert rule.smaller(Answer(text="x"), 2) == Answer(text="x")
