"""Evaluations, audits and predictions answer as the stage before them trained: with its rollout and tools."""

import dataclasses
import gc
import string

import pytest
import torch
from evidcore_plugin_audit.post_run import audit_run
from evidcore_plugin_phantoms.testing import SMALL
from evidcore_testing.recipes import stage_text

from evidcore.api import Episode, RolloutStrategy, TextPart, VisualPart, observe
from evidcore.model.policy import VLMPolicy
from evidcore.model.vlm import VolumeVLM
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.begin import run, start
from evidcore.runs.context import Context
from evidcore.runs.execute import outputs_of
from evidcore.runs.folder import read_lines
from evidcore.train.sampler import RolloutPolicy

pytestmark = pytest.mark.slow
GRPO = stage_text(
    kind="grpo", train=["bridge"], data=[{"dataset": "chest", "task": "choice"}], steps=1, prompts_per_step=1,
    answers_per_prompt=2, learning_rate=1e-3, max_new_tokens=4, reward=[{"use": "format"}],
    rollout={"use": "looks-once", "slices": 3},
)  # fmt: skip


class LooksOnce(RolloutStrategy):
    """After its first letter or end an answer is shown the first slices; remembers what was shown of what."""

    stop_texts = tuple(string.ascii_letters)
    shown: list = []  # noqa: RUF012  # of all: each stage has one of its own

    def __init__(self, *, slices: int = 2) -> None:
        self.slices = slices

    def __call__(self, sampler, prompts, answers_per_prompt):
        episodes = sampler.sample([Episode(prompt=one) for one in prompts for _ in range(answers_per_prompt)])
        for place, episode in enumerate(episodes):
            crop = dataclasses.replace(episode.prompt.crops()[0], box_zyx=(0, self.slices, 0, 16, 0, 16))
            going = dataclasses.replace(episode, finished=False)
            episodes[place] = sampler.extend(going, (TextPart(text="CLOSER"), VisualPart(crop=crop)))
            self.shown.append((episode.prompt, crop))
        return sampler.sample(episodes)


class Alive:
    """Counts the models that are held where a stage starts."""

    def __init__(self) -> None:
        self.found = {}

    @observe
    def stage_started(self, stage, folder):
        self.found[stage] = sum(type(one) is VolumeVLM for one in gc.get_objects())


@pytest.fixture
def alive():
    return Alive()


@pytest.fixture
def looking(offered, tmp_path, alive):
    """A finished run whose third stage, of four, is GRPO with a look."""
    offered("their-looks", "[evidcore.rollout]\nlooks-once = their_looks:LooksOnce\n", LooksOnce=LooksOnce)
    head, kind, tail = SMALL.read_text().rpartition('[[stage]]\nkind = "evaluate"')
    (tmp_path / "looking.toml").write_text(head + GRPO + kind + tail)
    LooksOnce.shown.clear()
    folder = start(load(tmp_path / "looking.toml"), tmp_path / "runs")
    run(folder, [alive])
    return folder


def test_a_stage_starts_without_the_models_of_those_before(looking, alive):
    assert len(alive.found) == 5
    assert len(set(alive.found.values())) == 1, alive.found


def test_a_policy_is_measured_with_products_of_the_type_that_trained_it(tmp_path, monkeypatch):
    real, seen = VLMPolicy.complete, []

    def noted(self, *args, **kwargs):
        seen.append(self.dtype)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(VLMPolicy, "complete", noted)
    run(start(load(SMALL, [f"stage.sft[{place}].trl={{ bf16 = true }}" for place in (0, 1)]), tmp_path))
    assert set(seen) == {torch.bfloat16}


def test_a_policy_is_measured_with_the_rollout_that_trained_it(looking):
    sealed = [(prompt, crop) for prompt, crop in LooksOnce.shown if prompt.case.id.startswith("case-")]
    answers = looking.path / "answers"
    lines = read_lines(answers / "05-evaluate.jsonl")
    assert len({prompt.id for prompt, _ in sealed}) == len(lines)  # the proof asks the first ones again
    assert all(crop.box_zyx == (0, 3, 0, 16, 0, 16) for _, crop in sealed)
    assert {crop.volume.path for _, crop in sealed} == {line["images"][0].partition("#")[0] for line in lines}
    assert not any("CLOSER" in line["text"] for line in lines)
    assert [line["turns"][0]["reply"] for line in lines] == ["CLOSER<image>"] * len(lines)
    assert not any("turns" in line for line in read_lines(answers / "02-evaluate.jsonl"))  # no call
    recipe = load(looking.path / "resolved.toml")
    context = Context(Assembly(recipe), "05-evaluate", before=outputs_of(looking, recipe, recipe.line))
    policy = context.policy()
    assert isinstance(policy, RolloutPolicy)
    assert policy.strategy.slices == 3
    # what the stages before trained answers in one turn
    before = dataclasses.replace(outputs_of(looking, recipe, recipe.line), trained_by=recipe.stages[2])
    assert type(Context(Assembly(recipe), "02-evaluate", before=before).policy()) is VLMPolicy


def test_a_tool_shows_what_the_prompt_shows_in_audits_and_predictions(looking, tmp_path):
    from evidcore_plugin_lab.predict import Inquiry, predict_scan

    LooksOnce.shown.clear()
    result = audit_run(looking)
    assert result["rows"]
    crops = [crop for _, crop in LooksOnce.shown]
    assert {crop.blank for crop in crops} == {False, True}
    assert {crop.change for crop in crops} > {""}
    for prompt, crop in LooksOnce.shown:
        whole = prompt.crops()[0]
        assert (crop.volume, crop.blank, crop.change) == (whole.volume, whole.blank, whole.change)
    lines = read_lines(looking.path / "answers" / "06-audit.jsonl")
    other = {line["images"][0].partition("#")[0] for line in lines if line["condition"] == "other-patient"}
    assert other <= {crop.volume.path for crop in crops}

    prompt = LooksOnce.shown[-1][0]
    scan = prompt.crops()[0].volume.path
    LooksOnce.shown.clear()
    asked = Inquiry(scan=scan, options=("emphysema", "lung nodule"))
    predict_scan(looking.path, asked, tmp_path / "out")
    assert [(crop.volume.path, crop.blank) for _, crop in LooksOnce.shown] == [(scan, False), (scan, True)]
