"""Figures of mechanisms: their numbers by another way, and each on its page with the command for it."""

import dataclasses
import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evidcore.errors import RunError
from evidcore.recipe import load
from evidcore.runs import run, start

FOLDER = Path(__file__).parents[2] / "docs" / "explanation"
MOST_BYTES = 120_000
RECIPE = """
schema = 1
name = "mechanisms"
seed = 17
dataset.chest = { use = "phantom-chest", train_cases = 4, validation_cases = 1, test_cases = 2 }
task = { choice = { use = "choice" }, report = { use = "report" } }

[model]
language = { use = "tiny", width = 32, layers = 1 }
view = { use = "volume" }
encoder = { use = "vit3d", width = 48, layers = 1, heads = 4, patch_zyx = [8, 16, 16] }
bridge = { use = "residual-alignment" }

[[stage]]
kind = "sft"
train = ["bridge", "language"]
data = [{ dataset = "chest", task = "report" }]
steps = 2
rows_per_step = 2
learning_rate = 1e-2
reweighter = { use = "abnormality", gain = 1.5 }

[[stage]]
kind = "grpo"
train = ["bridge"]
data = [{ dataset = "chest", task = "choice" }]
steps = 1
prompts_per_step = 2
answers_per_prompt = 4
learning_rate = 1e-3
max_new_tokens = 8
[[stage.reward]]
use = "format"
weight = 0.3
[[stage.reward]]
use = "random"
weight = 0.5
"""
BOXES = """
schema = 1
name = "boxes"
seed = 17
service.grower = { kind = "segmenter", use = "region-growing" }
task.choice = { use = "choice" }
[dataset.abdomen]
use = "phantom-abdomen"
train_cases = 0
validation_cases = 0
test_cases = 1
size_zyx = [20, 48, 64]
[model]
language = { use = "tiny" }
view = { use = "volume" }
encoder = { use = "vit3d" }
bridge = { use = "projection" }
[[stage]]
kind = "fit"
component = "model.language"
data = [{ dataset = "abdomen", task = "choice" }]
"""


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
def test_tokens_behind_the_gate_are_the_mixture_that_the_paper_writes(script, tiny):
    found = script.gate_map.measure(tiny)
    model, _ = tiny.context(tiny.trained, after=True).model()
    bridge = model.model.bridge
    anchor = (bridge.anchor / bridge.scale).numpy()
    assert found.gate.shape == (2 * 2 * 2, 32)  # patches of 8 x 16 x 16 in 32 x 64 x 64, pooled by two
    heard = {}
    hook = bridge.projection.register_forward_hook(lambda _, __, given: heard.update(tokens=given))
    with torch.no_grad():
        model.model.get_image_features(torch.tensor(found.scan[None]))
    hook.remove()
    tokens = heard["tokens"][0].numpy()
    mixed = found.gate * anchor + (1 - found.gate) * tokens
    for cosines, values in ((found.before, tokens), (found.after, mixed)):
        expected = values @ anchor / np.linalg.norm(values, axis=1) / np.linalg.norm(anchor)
        np.testing.assert_allclose(cosines, expected, atol=1e-3)


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


def test_shares_of_the_loss_with_and_without_the_reweighter(script):
    weighted = script.token_weights.Weighted("one", "sft", 0, ["a", " b", ".", ""], [1.5, 1.0, 1.0, 1.0])
    assert weighted.unweighted_share == pytest.approx(1 / 4)
    assert weighted.share == pytest.approx(1.5 / 4.5)


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


def answer(parent, *, turns, tokens, length, total=0.0):
    rewards = {"parent": parent, "length": length, "tokens": tokens, "total": total}
    crops = [f"/scan.nii#intensity=hu&box=1,2,{10 + turns},60,20,70"]
    return {**rewards, "text": "<answer>ring</answer>", "turns": [{"crops": crops}] * turns}


def test_forks_stand_below_what_they_leave_and_replies_where_the_model_paused(script, tmp_path):
    rollouts = [
        answer(None, turns=1, tokens=46, length=160),
        answer(None, turns=0, tokens=5, length=5, total=1.0),
        answer([0, 31], turns=1, tokens=46, length=160, total=1.0),
        answer([2, 31], turns=1, tokens=46, length=160),
    ]
    branches = [script.fork_tree._branch(one, [42] * len(one["turns"])) for one in rollouts]
    assert branches[0].replies == [(42, 42 + 160 - 46)]
    assert branches[0].box_zyx == (1, 2, 11, 60, 20, 70)
    assert branches[1].replies == []
    lesion = np.zeros((512, 512), bool)
    lesion[30:40, 30:40] = True
    tree = script.fork_tree.ForkTree(
        step=1, case="one", question="Which?", right="ring", shared="[", branches=branches,
        slice_hu=np.zeros((512, 512)), lesion=lesion, pixel_mm=0.7, fresh_total=0.5, fork_total=0.5,
        fresh=2, forks=2,
    )  # fmt: skip
    assert tree.rows() == [0, 2, 3, 1]
    script.save(script.fork_tree.draw(tree, "told"), tmp_path / "forks.png")
    assert is_small(tmp_path / "forks.png")


def test_what_slices_are_paid_is_drawn(script, tmp_path):
    citing = script.slice_pay.Citing("before GRPO", 0, np.array([0.75, 0.25, 0.0]), 0.5)
    picture = np.zeros((40, 60)), np.zeros((40, 60), bool)
    pay = script.slice_pay.SlicePay(
        case="one", slices=[0, 1, 2], slice_mm=12.5, areas_cm2={"gallstone": [0.0, 2.0, 0.0]},
        shown=[frozenset(), frozenset({"gallstone"}), frozenset()],
        seen=[frozenset({"liver cyst"}), frozenset({"gallstone"}), frozenset()], paid=[-0.1, 0.4, 0.0],
        agreement=[0.0, 1.0, 0.0], before=citing,
        after=dataclasses.replace(citing, name="after GRPO", slice=1), pictures={0: picture, 1: picture},
    )  # fmt: skip
    assert script.slice_pay._names(pay) == ["gallstone", "liver cyst"]
    script.save(script.slice_pay.draw(pay, "told"), tmp_path / "slices.png")
    assert is_small(tmp_path / "slices.png")
