import itertools
import math
from typing import ClassVar

import pytest
from evidcore_testing import check_tool, volume_case

from evidcore.api import Crop, Prompt, TextPart, Tool, VisualPart, VolumeRef


class Slice(Tool):
    """Show one slice."""

    name: ClassVar[str] = "slice"
    description: ClassVar[str] = "Show the slice with this index."
    schema: ClassVar[dict] = {
        "type": "object",
        "properties": {"z": {"type": "integer"}},
        "required": ["z"],
        "additionalProperties": False,
    }

    def __call__(self, arguments, prompt):
        return self.show(self.checked(arguments), prompt)

    def show(self, z, prompt):
        crop = Crop(volume=prompt.case.volumes[0], box_zyx=(z, z + 1, 0, 16, 0, 16))
        return (TextPart(text=f"slice {z}:"), VisualPart(crop=crop))

    def checked(self, arguments):
        z = arguments.get("z")
        if set(arguments) != {"z"} or type(z) is not int or not 0 <= z < 12:
            raise ValueError(f"z must be one of 0..11, got {arguments}")
        return z


def mutant(**members):
    return type("Mutant", (Slice,), members)


def of_schema(**keys):
    return mutant(schema={"type": "object", **keys})


def showing(show):
    return mutant(show=lambda self, z, prompt: show(z, prompt))


def checking(change):
    return mutant(checked=lambda self, arguments: Slice.checked(self, change(arguments)))


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
SCHEMA, BAD = "a JSON schema of an object.", "a bad call raises a ValueError with a message."
MUTANTS = {
    "Mutant breaks its contract: a model can write its name. got name 'show sl": mutant(name="show slice"),
    "it has a description. got ' '": mutant(description=" "),
    f"{SCHEMA} got type None": mutant(schema={"z": "int"}),
    rf"{SCHEMA} property 'z' has no type: \{{\}}": of_schema(properties={"z": {}}),
    "it cannot be written as JSON: Object of type set": of_schema(x={1, 2}),
    r"a good call gives parts. got \(\) for \{'z': 6\}": showing(lambda z, prompt: ()),
    "equal calls give equal parts. .*'0'.*, then .*'1'": showing(
        lambda z, prompt: (TextPart(text=str(next(COUNT))),)
    ),
    r"inside the case's own volumes. got 'other\.nii\.gz#intensity=hu' for case 'case-0'": showing(
        lambda z, prompt: (VisualPart(crop=Crop(volume=VolumeRef(path="other.nii.gz"))),)
    ),
    rf"{BAD} \{{\}} was accepted": checking(lambda arguments: {"z": arguments.get("z", 0)}),
    rf"{BAD} \{{'z': None\}} raised TypeError: must be real": checking(not_a_number),
    rf"{BAD} \{{'z': 12\}} raised a ValueError without a message": mutant(checked=says_nothing),
}


@pytest.fixture(scope="module")
def prompt(tmp_path_factory):
    case = volume_case(tmp_path_factory.mktemp("case"))
    return Prompt(id="p", case=case, task="t", parts=(TextPart(text="?"),))


def test_a_sound_tool_passes(prompt):
    check_tool(Slice(), prompt, [{"z": 6}], bad=[{"z": 12}, {"z": -1}])


@pytest.mark.parametrize("message", MUTANTS)
def test_a_tool_that_breaks_a_clause_is_caught(message, prompt):
    with pytest.raises(AssertionError, match=message):
        check_tool(MUTANTS[message](), prompt, [{"z": 6}], bad=[{"z": 12}])
