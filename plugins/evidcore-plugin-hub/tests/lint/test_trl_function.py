from __future__ import annotations

import bad_rewards as bad
import pytest
from evidcore_plugin_hub.lint.reward_audit import audit_rewards
from evidcore_plugin_hub.trl_reward import read_function

from evidcore.builtin.choice import Choice
from evidcore.errors import RecipeError

SOURCE = """
from __future__ import annotations
import dataclasses
import functools
import re

@dataclasses.dataclass
class Known:
    words: int = 0

def accuracy(completions, answer, **columns):
    found = [re.fullmatch(r".*<answer>(.)</answer>", text, re.DOTALL) for text in completions]
    return [float(bool(one) and one.group(1) == right) for one, right in zip(found, answer)]

def like_solution(prompts, completions, solution):
    return [float(text.split("<answer>")[-1] == right.split("<answer>")[-1]) for text, right in zip(completions, solution)]

def long(completions, **columns):
    return [len(text) / 100 for text in completions]

def talk(completions, prompts, letter, **columns):
    said = [(one[0]["role"], two[0]["role"]) for one, two in zip(completions, prompts)]
    assert set(said) == {("assistant", "user")}
    return [float(f"<answer>{right}<" in one[0]["content"]) for one, right in zip(completions, letter)]

def nobody(completions, **columns):
    return [None for _ in completions]

def wants(completions, masks, **columns):
    return [0.0] * len(completions)

partly = functools.partial(wants)
"""  # noqa: E501


@pytest.fixture
def audited(tmp_path):
    file = tmp_path / "rewards.py"
    file.write_text(SOURCE)

    def audit(*names, is_chat=False):
        tasks = {"choice": Choice()}
        rewards = [read_function(f"{file}:{name}", tasks, is_chat=is_chat) for name in names]
        result = audit_rewards(rewards, bad.rows())
        return {item.check for item in result if item.outcome == "alarm"}

    return audit


def test_columns_of_the_data_reach_a_function_as_trl_gives_them(audited):
    assert audited("accuracy") == set()


@pytest.mark.parametrize(
    ("name", "is_chat", "is_wrong"),
    [("talk", True, False), ("like_solution", False, False), ("nobody", False, True)],
)
def test_messages_are_given_to_a_chat_and_a_function_is_given_what_it_takes(audited, name, is_chat, is_wrong):
    assert ("right over wrong" in audited(name, is_chat=is_chat)) == is_wrong


def test_functions_are_summed(audited):
    assert audited("accuracy", "long") >= {"length"}
    assert "length" not in audited("accuracy")


@pytest.mark.parametrize("name", ["wants", "partly"])
def test_a_column_that_is_not_there_is_named(audited, name):
    with pytest.raises(
        RecipeError, match=rf"{name}: asks for 'masks', which the prompts do not have.*letter"
    ):
        audited(name)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere.py:long", r"there is no file 'nowhere.py'"),
        ("long", r"there is no file 'long'. Write it as file.py:function"),
        ("{file}:lnog", r"no such function. Did you mean 'long'\? There: accuracy, "),
    ],
)
def test_a_place_that_names_nothing_is_refused(tmp_path, place, message):
    file = tmp_path / "rewards.py"
    file.write_text(SOURCE)
    with pytest.raises(RecipeError, match=message):
        read_function(place.format(file=file), {}, is_chat=False)


@pytest.mark.parametrize("source", ["def f(:", "import nowhere_at_all", "raise SystemExit(0)"])
def test_a_file_that_cannot_be_run_is_refused(tmp_path, source):
    file = tmp_path / "rewards.py"
    file.write_text(source)
    with pytest.raises(RecipeError, match=r"the file cannot be run: \w+: "):
        read_function(f"{file}:f", {}, is_chat=False)
