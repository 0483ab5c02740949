import dataclasses
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_hub.isolation import messages
from evidcore_plugin_hub.isolation.messages import Encoder, decode

from evidcore.case import Action, Answer, Turn
from evidcore.case.read_only import ReadOnlyDict, ReadOnlyList, read_only


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    """A value of a task in a package."""

    names: list[str]
    other: object = None


@dataclasses.dataclass
class Empty:
    """A value without fields."""


def crossed(value):
    return decode(Encoder()(value))


def same(one, other):
    """Tell whether two values are equal with all types in them."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return same(list(one), list(other)) and same(list(one.values()), list(other.values()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return one == other


@pytest.mark.parametrize(
    "value",
    [
        None, True, 7, 2**70, -0.5, "ü\u2028", "half of one: \ud800", (), [], {}, (1, [2, (3,)], {"a": (4,)}),
        {1: "a", (2, "b"): None}, {Path("a"): [Path("b")]}, frozenset({1, 2}), {"x"}, b"\x00\xff",
        Path("/data/a.nii.gz"), (None, 2, "a", [None], [()], {"a": {"b": ()}}, np.float32(0.5).item()),
        ReadOnlyDict({"a": ReadOnlyList([1, (2,)])}), read_only({"boxes": [{"z": 1}]}),
        np.arange(6, dtype=np.int16).reshape(2, 3), np.ones((2, 2), bool), np.array(1.5),
        Slotted(names=["a"], other=Slotted(names=[])), Empty(), Answer(text="A", value=Slotted(names=["b"])),
        Turn(text="zoom", actions=(Action(tool="zoom", arguments={"box": [1, 2]}),), reply=()),
    ],
    ids=repr,
)  # fmt: skip
def test_a_value_arrives_with_all_its_types(value):
    assert same(crossed(value), value)


def test_numbers_that_are_none_arrive():
    assert math.isnan(crossed(float("nan")))
    assert crossed((math.inf, -math.inf)) == (math.inf, -math.inf)


def test_numbers_of_numpy_arrive_as_they_are():
    assert same(
        crossed((np.float32(0.5), np.int64(3), np.bool_(True))), (np.float32(0.5), np.int64(3), np.True_)
    )


def test_rollouts_of_a_prompt_share_it_and_cannot_be_written(rollouts):
    found = crossed(rollouts)
    assert found == rollouts
    assert len({id(one.prompt) for one in found}) == len({id(one.prompt) for one in rollouts})
    assert found[0].prompt.case is found[1].prompt.case
    with pytest.raises(TypeError, match="cannot be written"):
        found[0].prompt.reference["letter"] = "B"
    with pytest.raises(dataclasses.FrozenInstanceError):
        found[0].text = "B"


def test_a_prompt_is_sent_once(rollouts):
    message = Encoder()(rollouts)
    for prompt in {one.prompt.id: one.prompt for one in rollouts}.values():
        assert message.count(prompt.case.report.text.encode()) == 1


@pytest.mark.parametrize("value", [lambda: 0, (one for one in ())])
def test_what_cannot_cross_is_refused(value):
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        Encoder()(value)


def test_what_was_sent_is_kept_on_both_sides(rollouts):
    encode = Encoder()
    first, second = (encode(rollouts) for _ in range(2))
    case = rollouts[0].prompt.case
    assert case.report.text.encode() in first
    assert case.report.text.encode() not in second
    found, again = decode(first), decode(second)
    assert found == again == rollouts
    assert again[0].prompt is found[0].prompt
    other = dataclasses.replace(rollouts[0].prompt, id="other")
    assert decode(encode((other, case))) == (other, case)


def test_what_is_kept_is_bounded(rollouts, monkeypatch):
    monkeypatch.setattr(messages, "MOST_KEPT", 5)
    encode = Encoder()
    for number in range(20):
        prompt = dataclasses.replace(rollouts[0].prompt, id=str(number))
        given = (prompt, rollouts[number % len(rollouts)], number)
        assert decode(encode(given)) == given
        assert len(encode.kept) == len(messages._store) <= 5 + 3
