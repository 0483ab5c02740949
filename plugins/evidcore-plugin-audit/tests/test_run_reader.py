"""What a run wrote, read as tables, whatever state it was left in."""

import json

import numpy as np
import pandas as pd
import pytest

import evidcore
from evidcore.errors import RunError


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="nowhere: not a run folder"):
        evidcore.Run(tmp_path / "nowhere")
    with pytest.raises(RunError, match="not a run folder"):
        evidcore.Run(tmp_path)
    with pytest.raises(TypeError):
        evidcore.Run(None)


@pytest.mark.slow
def test_results_are_those_of_the_files(small_run):
    run = evidcore.Run(str(small_run))
    result = run.results
    files = sorted((small_run / "results").glob("*.json"))
    rows = [(path.stem, row) for path in files for row in json.loads(path.read_text())["rows"]]
    assert len(result) == len(rows) > 0
    for (stage, row), (_, line) in zip(rows, result.iterrows(), strict=True):
        assert (line["stage"], line["name"], line["metric"]) == (stage, row["name"], row["metric"])
        assert line["value"] == row["value"]
        assert pd.isna(line["low"]) == (row["low"] is None)
    assert result["value"].dtype == float
    assert run.results is result  # read once
    assert repr(run) == f"Run({str(small_run)!r})"
    assert run.verdict == {}
    assert run.recipe["name"] == "small"


def test_the_mean_of_the_answers_is_the_figure_of_the_results(small_run):
    run = evidcore.Run(small_run)
    of_stage = run.answers.groupby("stage")["correct"].mean()
    figures = run.results[run.results["metric"] == "strict_accuracy"].set_index("stage")["value"]
    assert of_stage.to_dict() == pytest.approx(figures.to_dict())


def test_a_comparison_is_that_of_the_command(small_run, evid):
    run = evidcore.Run(small_run)
    told = json.loads(evid("compare", small_run, "--json").stdout)
    frame = run.compare().frame()
    assert frame["of"].tolist() == ["task"] * len(told["tasks"]) + ["finding"] * len(told["findings"])
    both = told["tasks"] + told["findings"]
    for key in ("name", "change", "low"):
        assert frame[key].replace(np.nan, None).tolist() == [item[key] for item in both]
    first, second = run.results["stage"].unique()
    for other in (run, small_run, str(small_run)):
        again = run.compare(other, stage=second, before=first)
        pd.testing.assert_frame_equal(again.frame(), run.compare(stage=second, before=first).frame())


def test_a_run_that_was_killed_half_way_is_read_as_far_as_it_came(copied_run):
    status = {"state": "running", "stage": "03-sft", "step": 4, "message": "", "time": "", "pid": 1}
    (copied_run / "STATUS").write_text(json.dumps(status))
    (copied_run / "results" / "04-evaluate.json").unlink()
    (copied_run / "page" / "index.html").unlink(missing_ok=True)
    with (copied_run / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "03-sft", "st')  # cut short
    whole = len((copied_run / "metrics.jsonl").read_text().splitlines()) - 1
    run = evidcore.Run(copied_run)
    assert run.status["state"] == "gone"
    assert len(run.metrics) == whole
    assert run.results["stage"].unique().tolist() == ["02-evaluate"]
    assert "small</b> gone 03-sft" in run._repr_html_()
    assert run.page.is_file()


def test_a_run_that_has_only_begun_has_empty_tables_with_their_columns(copied_run):
    for name in ("results", "answers", "rollouts"):
        for path in (copied_run / name).iterdir():
            path.unlink()
    (copied_run / "metrics.jsonl").unlink()
    (copied_run / "STATUS").unlink()
    run = evidcore.Run(copied_run)
    assert [len(frame) for frame in (run.results, run.answers, run.rollouts, run.metrics)] == [0] * 4
    assert {"stage", "name", "metric", "value", "low", "high"} <= set(run.results.columns)
    assert {"step", "group", "text", "total", "advantage"} <= set(run.rollouts.columns)
    assert "not begun" in run._repr_html_()
    assert run.status == {}


def test_a_table_is_read_again_after_its_files_have_changed(copied_run):
    run = evidcore.Run(copied_run)
    before = run.metrics
    with (copied_run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"stage": "05-sft", "step": 1, "time_s": 1.0, "loss": 2.0}) + "\n")
    assert len(run.metrics) == len(before) + 1
    assert run.metrics["loss"].iloc[-1] == 2.0


def test_words_of_patients_and_names_are_escaped_in_a_notebook(copied_run):
    evil = "<script>alert(1)</script>"
    file = copied_run / "results" / "04-evaluate.json"
    result = json.loads(file.read_text())
    result["rows"][0]["name"] = evil
    result["verdict"] = {evil: evil}
    file.write_text(json.dumps(result))
    status = json.loads((copied_run / "STATUS").read_text())
    (copied_run / "STATUS").write_text(json.dumps({**status, "message": evil}))
    answers = copied_run / "answers" / "04-evaluate.jsonl"
    lines = [{**json.loads(line), "text": evil} for line in answers.read_text().splitlines()]
    answers.unlink()  # a link to what all runs share
    answers.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = evidcore.Run(copied_run)
    shown = run._repr_html_()
    assert evil not in shown
    assert shown.count("&lt;script&gt;") == 4
    assert run.answers["text"].iloc[-1] == evil
    assert evil not in run.answers._repr_html_()
