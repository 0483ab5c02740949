"""Whatever judges texts is asked what it lacks before anything is trained, wherever a recipe names it."""

import pytest
from evidcore_testing.recipes import recipe_text

from evidcore.api import DataError, Reward, Scorer
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context

MODEL = {"use": "MODEL", "model": {"folder": "nowhere"}}
ASKED = {task: [{"dataset": "chest", "task": task, "split": "test"}] for task in ("choice", "report")}
STAGES = {
    "rescue": {"kind": "evaluate", "data": ASKED["choice"], "rescue": MODEL},
    "metric": {"kind": "evaluate", "data": ASKED["report"], "metric": [{"use": "scorer", "scorer": MODEL}]},
    "reward": {"kind": "grpo", "train": ["bridge"], "data": [{"dataset": "chest", "task": "choice"}],
               "steps": 1, "learning_rate": 1e-4, "reward": [{"use": "agrees", "scorer": MODEL}]},
    "nothing": {"kind": "evaluate", "data": ASKED["report"]},
}  # fmt: skip


def text_of(stage):
    fit = {"kind": "fit", "component": "model.language", "data": [{"dataset": "chest", "task": "report"}]}
    return recipe_text(fit, STAGES[stage], name="judged")


class Agrees(Reward):
    def __init__(self, *, scorer: Scorer) -> None:
        self.scorer = scorer

    def ready(self):
        self.scorer.ready()

    def __call__(self, rollouts, earlier):
        return [None] * len(rollouts)


def check(path):
    """Ask every stage of a recipe as a run does before the first."""
    assembly = Assembly(load(path))
    for index, stage in enumerate(assembly.recipe.stages):
        context = Context(assembly, assembly.recipe.stage_name(index))
        stage.check(context)


@pytest.mark.parametrize("stage", ["rescue", "metric", "reward"])
@pytest.mark.parametrize("model", ["embedding", "embedding-f1", "reward-model"])
def test_a_model_that_is_not_there_is_named(stage, model, tmp_path, offered):
    offered("evid-agrees", "[evidcore.reward]\nagrees = evid_agrees:It\n", It=Agrees)
    (tmp_path / "judged.toml").write_text(text_of(stage).replace("MODEL", model))
    with pytest.raises(DataError, match=rf"scorer '{model}' \(nowhere\): '{tmp_path}/nowhere' holds no conf"):
        check(tmp_path / "judged.toml")


def test_components_that_need_nothing_are_ready(tmp_path):
    (tmp_path / "judged.toml").write_text(text_of("nothing"))
    check(tmp_path / "judged.toml")
