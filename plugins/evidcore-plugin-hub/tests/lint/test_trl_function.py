import re
import tomllib
from pathlib import Path

import bad_rewards as bad
import pytest
from evidcore_plugin_hub.lint.reward_audit import audit_rewards
from evidcore_plugin_hub.trl_reward import read_function

from evidcore.builtin.choice import Choice
from evidcore.errors import RecipeError

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@pytest.fixture
def file(tmp_path):
    (tmp_path / "rewards.py").write_text(TABLE["source"])
    return tmp_path / "rewards.py"


def read(file, name, *, is_chat=False):
    return read_function(f"{file}:{name}", {"choice": Choice()}, is_chat=is_chat)


def alarms(file, *names):
    found = audit_rewards([read(file, name) for name in names], bad.rows(prompts=4))
    return {one.check for one in found if one.outcome == "alarm"}


def test_columns_reach_a_function_as_trl_gives_them_and_functions_are_summed(file):
    assert alarms(file, "accuracy") == set()
    assert alarms(file, "accuracy", "long") >= {"length"}


@pytest.mark.parametrize(
    ("name", "is_chat", "is_wrong"),
    [("talk", True, False), ("like_solution", False, False), ("nobody", False, True)],
)
def test_messages_are_given_to_a_chat_and_a_function_is_given_what_it_takes(file, name, is_chat, is_wrong):
    found = audit_rewards([read(file, name, is_chat=is_chat)], bad.rows(prompts=4))
    assert ("right over wrong", "fine") in {(one.check, one.outcome) for one in found} or is_wrong
    assert ("judged" in {one.check for one in found}) == is_wrong


@pytest.mark.parametrize("name", ["wants", "partly"])
def test_a_column_that_is_not_there_is_named(file, name):
    (found,) = audit_rewards([read(file, name)], bad.rows(prompts=4))
    assert (found.check, found.outcome) == ("judged", "alarm")
    assert re.search(rf"{name}: asks for 'masks', which the prompts do not have.*letter", found.says)


@pytest.mark.parametrize(("place", "message"), TABLE["places"])
def test_a_place_that_names_nothing_is_refused(file, place, message):
    with pytest.raises(RecipeError, match=message):
        read_function(place.format(file), {}, is_chat=False)


@pytest.mark.parametrize("source", ["def f(:", "import nowhere_at_all", "raise SystemExit(0)"])
def test_a_file_that_cannot_be_run_is_refused(file, source):
    file.write_text(source)
    with pytest.raises(RecipeError, match=r"the file cannot be run: \w+: "):
        read_function(f"{file}:f", {}, is_chat=False)
