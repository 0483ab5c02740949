"""What a recipe's key stands for is said in one place."""

import ast
import dataclasses
import inspect

import pytest

from evidcore.recipe import shape
from evidcore.recipe.trl_fields import DEFAULTS
from evidcore.train import settings
from evidcore.train.trl import grpo


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (shape.TrainingKeys, settings.StageSettings),
        (shape.Sft, settings.SftSettings),
        (shape.Grpo, settings.GrpoSettings),
        (shape.RewardKeys, settings.NamedReward),
    ],
)
def test_a_key_has_one_default(keys, told):
    said = {item.name: item.default for item in dataclasses.fields(keys)}
    shared = [item for item in dataclasses.fields(told) if item.name in said and item.name != "name"]
    assert {item.name: item.default for item in shared} == {item.name: said[item.name] for item in shared}
    names = {item.name for item in shared}
    [stated] = ast.parse(inspect.getsource(told)).body
    again = [
        line.target.id
        for line in stated.body
        if isinstance(line, ast.AnnAssign) and line.target.id in names
        if isinstance(line.value, ast.Constant) and line.value.value is not None
    ]
    assert again == []


def test_the_losses_of_the_papers_are_those_of_the_recipe():
    assert settings.Lora is shape.Lora
    assert grpo.DEFAULTS is DEFAULTS
