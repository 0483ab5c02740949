"""What a run asks arrives with all its types."""

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_hub.worker import pickled

from evidcore.case import Action, Answer, Turn
from evidcore.case.read_only import ReadOnlyDict, ReadOnlyList, read_only


@pytest.mark.parametrize(
    "value",
    [
        ReadOnlyDict({"a": ReadOnlyList([1, (2,)])}),
        read_only({"boxes": [{"z": 1}]}),
        Answer(text="A", value={Path("a"): [np.float32(0.5), None, "half of one: \ud800"]}),
        Turn(text="zoom", actions=(Action(tool="zoom", arguments={"box": [1, 2]}),), reply=()),
    ],
    ids=repr,
)
def test_a_value_arrives_with_all_its_types(value):
    result = pickle.loads(pickled(value))
    assert (type(result), result, repr(result)) == (type(value), value, repr(value))
    if isinstance(value, ReadOnlyDict):
        assert [type(item) for item in result.values()] == [type(item) for item in value.values()]


def test_rollouts_of_a_prompt_share_it_and_cannot_be_written(rollouts):
    result = pickle.loads(pickled(rollouts))
    assert result == rollouts
    assert len({id(item.prompt) for item in result}) == len({id(item.prompt) for item in rollouts})
    assert result[0].prompt.case is result[1].prompt.case
    with pytest.raises(TypeError, match="cannot be written"):
        result[0].prompt.reference["letter"] = "B"
    with pytest.raises(dataclasses.FrozenInstanceError):
        result[0].text = "B"
