"""Drawn answers crash no reader and earn what they may; what holds them to that sees mutants."""

import random

import pytest

from evidcore.api import Answer, Prompt, Reward, Score, Task, TextPart
from evidcore.builtin.rewards import Format
from evidcore.registry import offers
from evidcore.reward.composer import NamedReward

SCRIPT = "fuzz_answers"


@pytest.mark.slow
def test_2000_drawn_answers_show_no_fault(script, tmp_path):
    said, faults = script.fuzz(2000, 24, tmp_path)
    assert faults.lines() == []
    assert said[0].startswith("seed 24: 2,000 answers, each read by ")


def test_everything_that_is_installed_goes_through(script, tmp_path):
    world = script.installed(tmp_path)
    result = {
        "task": {item.label.partition(" ")[0] for item in world.asked},
        "rollout": {label.partition(" ")[0] for label in world.strategies},
        "reward": {item.name for item in world.rewards} - {"lenient-accuracy"} | {*world.left_out},
    }
    assert result == {kind: {offer.name for offer in offers(kind)} for kind in result}
    tools = {offer.name for offer in offers("tool")}
    assert [{*item.tools} for item in world.strategies.values() if hasattr(item, "tools")].count(tools) >= 3


@pytest.mark.parametrize(
    "bad",
    [
        '"slice": true', "NaN", "1e999", "9" * 400, "[[[[[[[[[[", '"name": "zom"', "\\ud800", "<|im_end|>",
        "<think><tool_call>",
        "</tool_call><answer>", "<ANSWER>", "<answer<", "</answer></answer>", "<answer><answer>", "\ud800",
        "1e-320",
    ],
)  # fmt: skip
def test_bad_input_of_every_kind_is_drawn(script, bad):
    drawing = script.Drawing(random.Random(0), ["zoom", "crop"])
    assert any(
        bad in turn for _ in range(4000) for turn in drawing.turns("<think>a</think><answer>A</answer>")
    )


GOLD = "<think>a</think><answer>A</answer>"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (GOLD, None),
        ("\n<think> b<c 7>2 </think>\t<answer>Q</answer> ", None),
        ("<think>a</think><answer>A</answer", "has the tags ['<think>', '</think>', '<answer>'], gold has"),
        (f"{GOLD}<answer>A</answer>", "has the tags"),
        (f"{GOLD} B", "has 'B' outside the tags, gold has ''"),
        (f"a {GOLD}", "has 'a' outside the tags"),
        ("<think>a</think> so <answer>A</answer>", "has 'so' outside the tags"),
    ],
)
def test_the_second_reader_knows_gold_s_form(script, text, fault):
    result = script.form_fault(text, GOLD)
    assert result is None if fault is None else fault in result


class Mutant(Task):
    """Takes anything as well-formed, and falls over what begins with an x."""

    def prompts(self, case, view, seed):
        return ()

    def gold(self, prompt):
        return GOLD, ()

    def parse(self, prompt, completion):
        if completion.startswith("x"):
            raise IndexError("x")
        return Answer(text=completion.strip(), malformed=" " if completion.startswith("y") else None)


@pytest.fixture
def asked(script, tmp_path):
    def of(task):
        prompt = Prompt(id="p", case=script.volume_case(tmp_path), task="t", parts=(TextPart(text="?"),))
        return script.Asked(label="t", task=task, prompt=prompt, gold=GOLD)

    return of


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (GOLD, []),
        ("x", ["task t raises IndexError in test_fuzz_answers.py:parse: x"]),
        ("y", ["task t: malformed without a reason"]),
        ("<answer>A</answer>", ["task t: well-formed, but not in gold's form"]),
        (f" {GOLD}", ["task t: an answer does not hold the text as written"]),
    ],
)
def test_a_task_that_reads_wrongly_is_seen(script, asked, text, kinds):
    faults = script.Faults()
    script.read_by_all([asked(Mutant())], [text], faults)
    assert [*faults.counts] == kinds


class Pays(Reward):
    """Pays every answer the same."""

    judges = frozenset({"correctness"})

    def __call__(self, rollouts, earlier):
        return [Score(value=0.5)] * len(rollouts)


def test_a_reward_that_pays_malformed_answers_is_seen(script):
    scores, malformed = [Score(value=0.5), Score(value=0.5), Score(value=0.4)], [False, True, True]

    def found(reward, name="pays"):
        return list(script.overpaid(NamedReward(name=name, reward=reward), scores, malformed))

    assert found(Pays()) == [(1, "pays a malformed answer as much as the best well-formed one")]
    lenient, control, lowest = Pays(), Pays(), Pays()
    lenient.declared = {"malformed": "reads leniently"}
    control.judges = frozenset()
    lowest.bounds = (0.5, 1.0)
    assert found(lenient) == found(control) == found(lowest) == []
    assert [place for place, what in found(Format(), "format") if what == "pays a malformed answer"] == [1, 2]


@pytest.mark.parametrize(("power", "is_slow"), [(1.0, False), (1.2, False), (2.0, True)])
def test_time_that_grows_with_the_square_is_seen(script, power, is_slow):
    now = [0.0]

    def read(text):
        now[0] += 1e-5 * len(text) ** power  # at 10,000 characters far above what is too short to tell

    result = script.growth(read, "x".__mul__, clock=lambda: now[0])
    assert (result is not None) == is_slow
    assert not is_slow or result == "1000.000 s for 10,000 characters, 10.00000 s for 1,000"
