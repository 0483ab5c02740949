"""What a run asks arrives with all its types, and prompts and cases are sent once."""

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_hub import isolated
from evidcore_plugin_hub.isolated import Decoder, Encoder

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
    result = Decoder()(Encoder()(value))
    assert (type(result), result, repr(result)) == (type(value), value, repr(value))
    if isinstance(value, ReadOnlyDict):
        assert [type(item) for item in result.values()] == [type(item) for item in value.values()]


def test_rollouts_of_a_prompt_share_it_and_cannot_be_written(rollouts):
    message = Encoder()(rollouts)
    result = Decoder()(message)
    assert result == rollouts
    assert len({id(item.prompt) for item in result}) == len({id(item.prompt) for item in rollouts})
    assert result[0].prompt.case is result[1].prompt.case
    assert message.count(rollouts[0].prompt.case.report.text.encode()) == 1
    with pytest.raises(TypeError, match="cannot be written"):
        result[0].prompt.reference["letter"] = "B"
    with pytest.raises(dataclasses.FrozenInstanceError):
        result[0].text = "B"


@pytest.mark.parametrize("value", [lambda: 0, (item for item in ())])
def test_what_cannot_cross_is_refused(value):
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        Encoder()(value)


def test_what_was_sent_is_known_on_both_sides(rollouts):
    encode, decode = Encoder(), Decoder()
    first, second = (encode(rollouts) for _ in range(2))
    case = rollouts[0].prompt.case
    assert case.report.text.encode() in first
    assert case.report.text.encode() not in second
    result, again = decode(first), decode(second)
    assert result == again == rollouts
    assert again[0].prompt is result[0].prompt
    other = dataclasses.replace(rollouts[0].prompt, id="other")
    assert decode(encode((other, case))) == (other, case)


def test_what_was_sent_is_bounded(rollouts, monkeypatch):
    monkeypatch.setattr(isolated, "MOST_SENT", 5)
    encode, decode = Encoder(), Decoder()
    for number in range(20):
        prompt = dataclasses.replace(rollouts[0].prompt, id=str(number))
        given = (prompt, rollouts[number % len(rollouts)], number)
        assert decode(encode(given)) == given
        assert len(encode.sent) == len(decode.received) <= 5 + 3
