"""What is measured between steps: which model is left, when a stage ends, and what is said of a collapse."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from evidcore.api import Reward, Score
from evidcore.errors import RecipeError
from evidcore.evaluate.choice import ChoiceEvaluation
from evidcore.recipe.schema import DataUse
from evidcore.reward.composer import NamedReward
from evidcore.train.settings import Evaluating, Lora, TrainingStage
from evidcore.train.sft import Sft
from evidcore.train.trl.trainer import collapsed

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def asked(**changed):
    data = (DataUse(dataset="chest", task="choice", split="validation"),)
    return Evaluating(data=data, every_steps=2, **changed)


class Measured:
    """Trains fresh models, and gives each a figure by how far it has been trained."""

    def __init__(self, bench, kind, values, **options):
        self.bench, self.values = bench, values
        self.train = bench.grpo if kind == "grpo" else bench.sft
        self.options = {"save_every_steps": 3, "learning_rate": 1e-2, **options}
        if kind == "lora":
            self.options |= {"train": ("language",), "lora": Lora(rank=2)}
        self.met = {}  # what a model gave when it was measured, and its figure

    def __call__(self, name="whole", heard=None, **changed):
        model, processor = self.bench.model()
        prompt = self.bench.source()[0].prompt

        def gives():
            return tuple(self.bench.log_probs(model, processor, prompt, (20, 21, 22)).tolist())

        def measure():
            return {"choice/accuracy": self.met.setdefault(gives(), self.values[len(self.met) :][:1])[0]}

        heard = heard or self.bench.heard()
        options = {"measure": measure, **self.options, **changed}
        figures = self.train(model=(model, processor), heard=heard, folder=name, **options)
        return gives(), figures, heard


@pytest.mark.parametrize("kind", ["sft", pytest.param("lora", marks=pytest.mark.slow), "grpo"])
def test_the_best_is_left_also_where_training_was_killed_and_goes_on(bench, kind):
    run = Measured(bench, kind, [0.1, 0.6, 0.3, 0.2], steps=8, evaluate=asked(keep="best"))
    left, figures, heard = run()
    named = {item["step"]: item["eval/choice/accuracy"] for item in heard.steps if "evaluate_s" in item}
    assert named == {2: 0.1, 4: 0.6, 6: 0.3, 8: 0.2}
    assert figures["best_step"] == 4
    assert left == pytest.approx([*run.met][1], abs=1e-5)  # adapters are merged
    with pytest.raises(bench.Stopped):
        run("cut", bench.stopping(7))
    again, figures, heard = run("cut", resume=True)
    assert heard.steps[0]["step"] == 7
    assert figures["best_step"] == 4
    assert again == left


@pytest.mark.parametrize("kind", ["sft", "grpo"])
def test_a_model_is_trained_as_if_it_were_not_measured(bench, kind):
    run = Measured(bench, kind, [0.1, 0.6, 0.3], steps=5, evaluate=asked())
    left, figures, heard = run()
    assert [item["step"] for item in heard.steps if "eval/choice/accuracy" in item] == [2, 4, 5]
    assert left == [*run.met][2]
    assert left == run("plain", measure=None, evaluate=None)[0]
    assert "best_step" not in figures


def test_a_stage_ends_after_so_many_measurements_without_gain(bench):
    run = Measured(bench, "sft", [0.2, 0.5, 0.5, 0.4, 0.9], steps=20, evaluate=asked(stop_after=2))
    left, _, heard = run()
    assert heard.steps[-1]["step"] == 8
    assert left == [*run.met][3]


def test_the_best_is_told_by_the_headline_of_a_task_that_is_asked():
    stage = Sft(kind="sft", data=(), train=("bridge",), steps=1, learning_rate=1, evaluate=asked(figure="f1"))
    recipe = SimpleNamespace(evaluation_of=lambda use: "choice")
    context = SimpleNamespace(where="02-sft", recipe=recipe, component=lambda *_: ChoiceEvaluation)
    with pytest.raises(RecipeError, match=r"-sft\.evaluate\.figure: must be one of choice/str.*, got 'f1'"):
        TrainingStage.check(stage, context)


@pytest.mark.parametrize("case", TABLE["collapse"])
def test_what_is_said_of_a_collapse(case):
    rows = zip(*case["figures"].values(), strict=True)
    history = [dict(zip(case["figures"], row, strict=True)) for row in rows]
    assert collapsed(history, ["format"]) == case["said"]


class ShortFromStepTen(Reward):
    """Pays nothing, and from the tenth step on answers that are short."""

    bounds, calls = (-999.0, 0.0), 0

    def __call__(self, rollouts, earlier):
        self.calls += 1
        return [Score(value=-float(len(item.text)) * (self.calls >= 10)) for item in rollouts]


@pytest.mark.slow
@pytest.mark.parametrize("collapse", ["warn", "stop"])
def test_a_reward_that_comes_to_pay_short_answers_is_told_within_five_steps(bench, caplog, collapse):
    heard = bench.heard()
    bench.grpo(
        model=bench.model(1.0), heard=heard, collapse=collapse, steps=16, learning_rate=2e-2,
        rewards=[NamedReward(name="planted", reward=ShortFromStepTen())], max_new_tokens=48,
        answers_per_prompt=16, trl={"lr_scheduler_type": "constant"},
    )  # fmt: skip
    (said,) = [item.getMessage() for item in caplog.records if "answers have" in item.getMessage()]
    step = int(said.partition("step ")[2].partition(":")[0])
    assert 10 < step <= 15
    assert heard.steps[-1]["step"] == (step if collapse == "stop" else 16)
