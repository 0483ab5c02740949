"""A task, an evaluation, an audit and a stage that others wrote: trained, measured, audited, drawn."""

import html
import json
import os
import re

import pytest
from evidcore_plugin_lab.ablation.items import row_items
from evidcore_testing import check_audit, check_evaluation, check_stage, check_task, volume_case
from evidcore_testing.recipes import phantoms, recipe_text

from evidcore.builtin.views import Volume
from evidcore.cli.summary import summary
from evidcore.contracts.stage import NullSink
from evidcore.recipe import load
from evidcore.registry.factory import build
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore.runs.folder import RunFolder, read_lines

pytestmark = pytest.mark.slow
TRAINING = [{"dataset": "chest", "task": "count"}]
TEST = [{"dataset": "chest", "task": "count", "split": "test"}]
RECIPE = recipe_text(
    {"kind": "sft", "train": ["bridge", "language"], "data": TRAINING, "steps": 20, "rows_per_step": 4,
     "learning_rate": 2e-2},
    {"kind": "oracle", "data": TEST},
    {"kind": "evaluate", "data": TEST, "max_new_tokens": 12},
    {"kind": "audit", "audit": "own-against-blank", "data": TEST, "max_new_tokens": 12},
    name="counting",
    dataset={"chest": phantoms(12, 1, 22)},
    task={"count": {"use": "count-findings"}},
)  # fmt: skip


@pytest.fixture(scope="module")
def evid(warm, example_site, tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    (folder / "counting.toml").write_text(RECIPE, encoding="utf-8")

    def run(*words):
        process = warm("-m", "evidcore", *words, folder=folder, PYTHONPATH=os.fspath(example_site))
        out, err = process.communicate()
        assert process.returncode == 0, out + err
        return out

    run.folder = folder
    return run


@pytest.fixture(scope="module")
def done(evid):
    """A run of the recipe through the command."""
    return evid.folder / json.loads(evid("run", "counting.toml", "--json"))["run"]


def rows_of(done, stage):
    return {(row["name"], row["metric"]): row for row in RunFolder(done).result(stage)["rows"]}


def lines_of(done, stage):
    return read_lines(done / "answers" / f"{stage}.jsonl")


def text_of(section):
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", section)))


def test_the_evaluation_measures_what_was_trained_beside_its_blind_rule(done):
    rows = rows_of(done, "03-evaluate")
    lines = lines_of(done, "03-evaluate")
    said = [re.fullmatch(r"\s*<answer>\s*(\d+)\s*</answer>\s*", line["text"]) for line in lines]
    hits = [line["figures"]["exact_match"] for line in lines]
    assert rows["count", "exact_match"]["value"] == pytest.approx(sum(hits) / len(hits))
    assert (rows["count", "exact_match"]["questions"], rows["count", "exact_match"]["headline"]) == (22, True)
    assert rows["count", "absolute_error"]["questions"] == sum(item is not None for item in said) > 0
    assert rows["count", "absolute_error"]["unit"] == "plain"
    assert re.fullmatch(r"says \d each time", rows["count", "training_median_exact_match"]["note"])
    assert rows["count", "training_median_absolute_error"]["value"] > 0
    median = rows["count", "training_median_exact_match"]["value"]
    assert RunFolder(done).result("03-evaluate")["reference_lines"] == {"count": {"training_median": median}}


def test_its_rows_can_be_paired_by_question_as_ablations_do(done):
    lines = lines_of(done, "03-evaluate")
    for metric in ("exact_match", "absolute_error"):
        row = rows_of(done, "03-evaluate")["count", metric]
        sums = [item.sums.numbers for item in row_items(lines, row).values() if item.sums is not None]
        assert sum(above for above, _ in sums) / sum(below for _, below in sums) == pytest.approx(
            row["value"]
        )


def test_the_audit_of_the_recipe_is_theirs_with_its_verdict(done):
    result, rows = RunFolder(done).result("04-audit"), rows_of(done, "04-audit")
    own, blank = (rows[f"{side} volumes", "exact_match"]["value"] for side in ("own", "blank"))
    assert own == rows_of(done, "03-evaluate")["count", "exact_match"]["value"]
    assert rows["count", "own_minus_blank"]["value"] == pytest.approx(own - blank)
    assert result["verdict"]["count"].endswith(
        f"{100 * (own - blank):+.1f} points over own volumes against air."
    )
    assert {line["condition"] for line in lines_of(done, "04-audit")} == {"own", "blank"}


def test_the_stage_measures_gold_answers(done):
    rows = rows_of(done, "02-oracle")
    assert rows["count", "exact_match"]["value"] == 1.0
    assert rows["count", "absolute_error"]["value"] == 0.0


def test_the_core_s_own_audit_asks_their_questions_too(done, evid):
    said = evid("audit", "policy", done)
    assert "grounding margin" in said
    assert "other patient minus training median" in said
    rows = rows_of(done, "05-audit")
    margin = rows["count", "grounding_margin"]
    differences = [item.sums.numbers for item in row_items(lines_of(done, "05-audit"), margin).values()]
    assert sum(moved for moved, _ in differences) / 22 == pytest.approx(margin["value"])
    assert rows["another patient's volumes", "exact_match"]["questions"] == 22
    assert "No sign that looking helps" in said or "The volume is used" in said or "Undecided" in said
    assert "own volumes" in text_of((done / "page" / "index.html").read_text())


def test_they_keep_the_contracts_of_their_kinds(example_site, done, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(example_site)
    task, evaluation, audit = (
        build(kind, {"use": name}, given={}, where="test")
        for kind, name in (
            ("task", "count-findings"),
            ("evaluation", "count"),
            ("audit", "own-against-blank"),
        )
    )
    cases = [volume_case(tmp_path, seed) for seed in range(3)]
    prompts = [prompt for case in cases for prompt in task.prompts(case, Volume(), 0)]
    check_task(task, Volume(), cases, garbage=["three"])
    check_evaluation(evaluation, task, prompts)
    check_audit(audit, evaluation, task, prompts)
    recipe = load(done / "resolved.toml")
    context = Context(Assembly(recipe), "02-oracle", folder=tmp_path, announce=NullSink())
    check_stage(recipe.stages[1], context)


def test_the_run_is_said_drawn_listed_and_locked_without_knowing_their_names(done, evid):
    page = (done / "page" / "index.html").read_text(encoding="utf-8")
    result, looking, tables = (
        text_of(page[page.index(f'<section id="{name}">') :].split("</section>")[0])
        for name in ("result", "looking", "tables")
    )
    said = "\n".join(summary(RunFolder(done))["lines"])
    assert RunFolder(done).result("04-audit")["verdict"]["count"] in looking
    assert all("No sign that looking helps: +0.0 points over the best" in text for text in (result, said))
    assert "reference lines: training median" in said
    assert all(f"{stage}, after sft" in result for stage in ("02-oracle", "03-evaluate"))
    error = rows_of(done, "03-evaluate")["count", "absolute_error"]["value"]
    assert f"count absolute error {error:.4g}" in result
    assert "own minus blank" in looking
    assert "training median exact match" in tables
    lock = (done / "lock.toml").read_text(encoding="utf-8")
    assert all(package in lock for package in ("evid-evaluation-count", "evid-stage-oracle"))
    listed = json.loads(evid("plugins", "audit", "--json"))["components"]
    assert {row["name"] for row in listed} == {"policy", "own-against-blank"}
