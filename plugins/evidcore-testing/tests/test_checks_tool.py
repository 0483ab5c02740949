import itertools
import math
from typing import ClassVar

import pytest
from evidcore_testing import check_tool
from mutants import altered, caught, changing

from evidcore.api import Crop, Prompt, TextPart, Tool, VisualPart, VolumeRef


class Slice(Tool):
    name: ClassVar[str] = "slice"
    description: ClassVar[str] = "Show the slice with this index."
    schema: ClassVar[dict] = {"type": "object", "properties": {"z": {"type": "integer"}}, "required": ["z"]}

    def __call__(self, arguments, prompt):
        z = self.checked(arguments)
        crop = Crop(volume=prompt.case.volumes[0], box_zyx=(z, z + 1, 0, 16, 0, 16))
        return (TextPart(text=f"slice {z}:"), VisualPart(crop=crop))

    def checked(self, arguments):
        z = arguments.get("z")
        if set(arguments) != {"z"} or type(z) is not int or not 0 <= z < 12:
            raise ValueError(f"z must be one of 0..11, got {arguments}")
        return z


def showing(parts):
    return changing(Slice, "__call__", lambda _: parts())


def checking(change):
    return altered(Slice, checked=lambda self, arguments: Slice.checked(self, change(arguments)))


def not_a_number(arguments):
    if math.isnan(arguments.get("z", 0)):
        raise ValueError("z is not a number")
    return arguments


def says_nothing(self, arguments):
    try:
        return Slice.checked(self, arguments)
    except ValueError:
        raise ValueError from None


COUNT = itertools.count()
ELSEWHERE = VisualPart(crop=Crop(volume=VolumeRef(path="other.nii.gz")))
SCHEMA, BAD = "a JSON schema of an object.", "a bad call raises a ValueError with a message."
MUTANTS = {
    "a model can write its name. got name 'show sl": altered(Slice, name="show slice"),
    "it has a description. got ' '": altered(Slice, description=" "),
    f"{SCHEMA} got type None": altered(Slice, schema={"z": "int"}),
    rf"{SCHEMA} property 'z' has no type: \{{\}}": altered(
        Slice, schema={**Slice.schema, "properties": {"z": {}}}
    ),
    f"{SCHEMA} required but not .*'y'": altered(Slice, schema={**Slice.schema, "required": ["y"]}),
    f"{SCHEMA} it cannot be written as JSON: Object of type set": altered(Slice, schema={"x": {1, 2}}),
    r"a good call gives parts. got \(\) for \{'z': 6\}": showing(tuple),
    "equal calls give equal parts. .*'0'.*, then .*'1'": showing(lambda: (TextPart(text=str(next(COUNT))),)),
    r"inside the case's own volumes. got 'other\.nii\.gz#.* for case 'case-0'": showing(lambda: (ELSEWHERE,)),
    rf"{BAD} \{{\}} was accepted": checking(lambda arguments: {"z": arguments.get("z", 0)}),
    rf"{BAD} \{{'z': None\}} raised TypeError: must be real": checking(not_a_number),
    rf"{BAD} \{{'z': 12\}} raised ValueError: $": altered(Slice, checked=says_nothing),
}


@pytest.fixture(scope="module")
def prompt(cases):
    return Prompt(id="p", case=cases[0], task="t", parts=(TextPart(text="?"),))


def test_a_sound_tool_passes(prompt):
    check_tool(Slice(), prompt, [{"z": 6}], bad=[{"z": 12}, {"z": -1}])


@pytest.mark.parametrize("message", MUTANTS)
def test_a_tool_that_breaks_a_clause_is_caught(message, prompt):
    with caught(message):
        check_tool(MUTANTS[message](), prompt, [{"z": 6}], bad=[{"z": 12}])
