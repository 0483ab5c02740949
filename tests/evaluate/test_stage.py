"""An evaluate stage measures reports and thinking by its metrics, and what it lacks is said at once."""

import json

import pytest
from evidcore_plugin_lab.ablation.items import row_items
from evidcore_plugin_reports.testing import Reply, chat_server
from evidcore_testing import TinyDataset, tiny_language
from evidcore_testing.recipes import recipe_text

from evidcore.errors import RecipeError
from evidcore.recipe import load
from evidcore.runs.begin import run, start
from evidcore.runs.folder import read_lines

GRADES = {name: 2 for name in ("correctness", "clarity", "differential", "concision")}


class Chests(TinyDataset):
    """Four test cases, written beside the recipe."""

    def __init__(self, recipe_folder):
        super().__init__(recipe_folder, train=4, test=4)


@pytest.fixture
def recipe(tmp_path, offered, monkeypatch):
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "cache"))
    offered("evid-tiny-chests", "[evidcore.dataset]\ntiny-chests = evid_tiny_chests:It\n", It=Chests)
    language = tiny_language(tmp_path / "language")

    def make(*metrics):
        encoder = {"size_zyx": [12, 16, 16], "patch_zyx": [4, 8, 8], "width": 24, "layers": 1, "heads": 2}
        asked = [{"dataset": "chest", "task": task, "split": "test"} for task in ("report", "choice")]
        text = recipe_text(
            {"kind": "evaluate", "data": asked, "max_new_tokens": 4, "metric": metrics},
            name="measured",
            dataset={"chest": {"use": "tiny-chests"}},
            model={"language": {"folder": str(language)}, "encoder": {"use": "vit3d", **encoder}},
        )
        (tmp_path / "measured.toml").write_text(text)
        return load(tmp_path / "measured.toml")

    return make


@pytest.mark.slow
def test_rows_and_lines_of_a_stage_hold_what_its_metrics_say(recipe, tmp_path):
    with chat_server(lambda body, number: Reply(content=json.dumps(GRADES))) as server:
        endpoint = {"url": server.url, "model": "tiny", "sends_text_away": True}
        metrics = {"use": "rouge-l"}, {"use": "judge", "endpoint": endpoint}
        folder = start(recipe(*metrics), tmp_path / "runs")
        run(folder)
    result = json.loads((folder.path / "results" / "01-evaluate.json").read_text())
    rows = {(row["name"], row["metric"]): row for row in result["rows"]}
    assert rows["report", "rouge_l"]["questions"] == 4
    assert rows["report", "judge_clarity"]["value"] == 2.0
    assert ("report", "bleu_4_corpus") not in rows  # a stage that names metrics has those alone
    assert ("choice", "rouge_l") not in rows
    assert ("choice", "judge_clarity") not in rows  # four tokens are no thinking
    lines = [
        line for line in read_lines(folder.path / "answers" / "01-evaluate.jsonl") if line["task"] == "report"
    ]
    assert all("judge_concision" in line["figures"] for line in lines)
    items = row_items(lines, rows["report", "rouge_l"])
    assert sum(item.sums.numbers[0] for item in items.values()) / len(items) == pytest.approx(
        rows["report", "rouge_l"]["value"]
    )
    assert all("<report" in body["messages"][1]["content"] for body in server.requests)


def test_what_a_metric_lacks_is_said_before_anything_runs(recipe, tmp_path):
    lacking = recipe({"use": "meteor", "nltk_data": "nowhere"})
    said = f"nltk_data: {tmp_path}/nowhere holds no WordNet"
    folder = start(lacking, tmp_path / "runs")
    with pytest.raises(RecipeError, match=said):
        run(folder)
    assert folder.status()["state"] == "failed"
    assert list((folder.path / "answers").iterdir()) == []
