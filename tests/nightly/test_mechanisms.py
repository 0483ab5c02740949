"""Figures of mechanisms: their numbers by another way, and each on its page with the command for it."""

import importlib
import re
import sys
from pathlib import Path

import pytest
from evidcore_testing.recipes import phantoms, recipe_text
from PIL import Image

from evidcore.errors import RunError
from evidcore.recipe import load
from evidcore.runs.begin import run, start

FOLDER = Path(__file__).parents[2] / "docs" / "explanation"
MOST_BYTES = 120_000
RECIPE = recipe_text(
    {"kind": "sft", "train": ["bridge", "language"], "data": [{"dataset": "chest", "task": "report"}],
     "steps": 2, "rows_per_step": 2, "learning_rate": 1e-2,
     "reweighter": {"use": "abnormality", "gain": 1.5}},
    {"kind": "grpo", "train": ["bridge"], "data": [{"dataset": "chest", "task": "choice"}], "steps": 1,
     "prompts_per_step": 2, "answers_per_prompt": 4, "learning_rate": 1e-3, "max_new_tokens": 8,
     "reward": [{"use": "format", "weight": 0.3}, {"use": "random", "weight": 0.5}]},
    name="mechanisms",
    dataset={"chest": phantoms(4, 1, 2)},
    task={name: {"use": name} for name in ("choice", "report")},
    model={"bridge": {"use": "residual-alignment"}},
)  # fmt: skip
BOXES = recipe_text(
    {"kind": "fit", "component": "model.language", "data": [{"dataset": "abdomen", "task": "choice"}]},
    name="boxes",
    service={"grower": {"kind": "segmenter", "use": "region-growing"}},
    task={"choice": {"use": "choice"}},
    dataset={"abdomen": {**phantoms(0, 0, 1), "use": "phantom-abdomen", "size_zyx": [20, 48, 64]}},
    model={"encoder": {"use": "vit3d"}},
)


@pytest.fixture(scope="module")
def script():
    """The program, importable as it is when it is run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("mechanisms")


@pytest.fixture(scope="module")
def tiny(script, tmp_path_factory):
    """A run of Med3D-R1's parts in seconds."""
    folder = tmp_path_factory.mktemp("mechanisms")
    (folder / "mechanisms.toml").write_text(RECIPE, encoding="utf-8")
    begun = start(load(folder / "mechanisms.toml"), folder / "runs")
    run(begun)
    return script.opened(begun.path)


def is_small(path):
    with Image.open(path) as image:
        width, _ = image.size
    return path.stat().st_size < MOST_BYTES and width >= 800


def test_every_figure_stands_on_a_page_beside_the_command_that_draws_it(script):
    pages = {path: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    for figure, (_, name) in script.FIGURES.items():
        (page,) = [text for text in pages.values() if f"({name})" in text]
        shown = re.search(rf"!\[([^\]]+)\]\({re.escape(name)}\)\n\n\*([^*]+)\*\n", page)
        assert shown, name
        assert f"mechanisms.py {figure} " in shown[2]
        assert "phantom" in shown[2]
        assert is_small(FOLDER / name), name
    drawn = {path.name for path in FOLDER.glob("*.png") if not path.stem.endswith("_view")}
    assert drawn == {name for _, name in script.FIGURES.values()}


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["gate", "weights", "group"])
def test_a_run_s_figures_are_drawn_by_the_command(script, tiny, tmp_path, monkeypatch, figure):
    monkeypatch.setattr(sys, "argv", ["mechanisms.py", figure, str(tiny.folder.path), "--out", str(tmp_path)])
    script.main()
    assert is_small(tmp_path / script.FIGURES[figure][1])


@pytest.mark.slow
def test_the_weighted_tokens_are_those_of_abnormal_sentences(script, tiny):
    found = script.token_weights.measure(tiny)
    (case,) = [one for one in tiny.assembly.split("chest", "train") if one.id == found.case]
    text = "".join(found.tokens)
    assert text == case.report.text
    heavy = "".join(token for token, weight in zip(found.tokens, found.weights, strict=True) if weight == 1.5)
    abnormal = [span for span in case.report.spans if span.label == "abnormal"]
    said = "".join(case.report.text[span.start : span.end] for span in abnormal)
    assert heavy.replace(" ", "") == said.replace(" ", "")
    with pytest.raises(RunError, match=r"the first 1 rows of 01-sft hold none of case 'train-99999'"):
        script.token_weights.measure(tiny, "train-99999", rows=1)


@pytest.mark.slow
def test_a_group_s_weighted_rewards_add_up_to_its_totals_and_its_advantages_to_nothing(script, tiny):
    found = script.scored_group.measure(tiny)
    assert sum(one.times for one in found.completions) == 4
    for one in found.completions:
        assert sum(value or 0.0 for value in one.paid.values()) == pytest.approx(one.total)
    assert sum(one.times * one.advantage for one in found.completions) == pytest.approx(0.0, abs=1e-5)
    assert sum(found.totals.values()) == found.groups == 2
    assert len({round(one.total, 6) for one in found.completions}) == max(found.totals)
    with pytest.raises(RunError, match=r"no group of 02-grpo is about case 'train-99999'"):
        script.scored_group.measure(tiny, "train-99999")


@pytest.mark.slow
def test_the_segmenter_of_a_recipe_is_followed(script, tmp_path):
    (tmp_path / "boxes.toml").write_text(BOXES, encoding="utf-8")
    found = script.followed_boxes.measure(tmp_path / "boxes.toml")
    assert found.told.endswith("region-growing, phantom data: phantom-abdomen")
    example = found.example
    both = 2 * (example.truth & example.found).sum() / (example.truth.sum() + example.found.sum())
    assert example.dice == pytest.approx(both)
    figure = script.followed_boxes.draw(found)
    script.save(figure, tmp_path / "boxes.png")
    assert is_small(tmp_path / "boxes.png")
