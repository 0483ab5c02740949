import itertools
import math
from typing import ClassVar

import pytest
from evidcore_testing import check_tool, volume_case

from evidcore.case import Crop, Prompt, TextPart, VisualPart, VolumeRef
from evidcore.contracts import Tool


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
        z = self.checked(arguments)
        crop = Crop(volume=prompt.case.volumes[0], box_zyx=(z, z + 1, 0, 16, 0, 16))
        return (TextPart(text=f"slice {z}:"), VisualPart(crop=crop))

    def checked(self, arguments):
        z = arguments.get("z")
        if set(arguments) != {"z"} or type(z) is not int or not 0 <= z < 12:
            raise ValueError(f"z must be one of 0..11, got {arguments}")
        return z


def named(title, /, **attributes):
    return type(title, (Slice,), attributes)


class Nothing(Slice):
    def __call__(self, arguments, prompt):
        return ()[: self.checked(arguments)]


class Moody(Slice):
    turns = itertools.count()

    def __call__(self, arguments, prompt):
        return (*super().__call__(arguments, prompt), TextPart(text=str(next(self.turns))))


class Breaks(Slice):
    def __call__(self, arguments, prompt):
        raise FileNotFoundError("weights.bin")


class SomebodyElse(Slice):
    def __call__(self, arguments, prompt):
        self.checked(arguments)
        return (VisualPart(crop=Crop(volume=VolumeRef(path="other.nii.gz"))),)


class BeyondTheEdge(Slice):
    def __call__(self, arguments, prompt):
        z = self.checked(arguments)
        return (VisualPart(crop=Crop(volume=prompt.case.volumes[0], box_zyx=(z, z + 9, 0, 16, 0, 16))),)


class Forgiving(Slice):
    def checked(self, arguments):
        return super().checked({"z": arguments.get("z", 0)})


class RaisesKeyError(Slice):
    def checked(self, arguments):
        return super().checked({"z": arguments["z"]})


class RaisesTypeError(Slice):
    def checked(self, arguments):
        if not math.isnan(arguments.get("z", 0)):
            return super().checked(arguments)
        raise ValueError("z is not a number")


class SaysNothing(Slice):
    def checked(self, arguments):
        try:
            return super().checked(arguments)
        except ValueError:
            raise ValueError from None


@pytest.fixture(scope="module")
def prompt(tmp_path_factory):
    case = volume_case(tmp_path_factory.mktemp("case"))
    return Prompt(id="p", case=case, task="t", parts=(TextPart(text="?"),))


def test_a_sound_tool_passes(prompt):
    check_tool(Slice(), prompt, [{"z": 6}], bad=[{"z": 12}, {"z": -1}])


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (
            named("Named", name="show slice"),
            "Named breaks its contract: a model can write its name. got name 'show sl",
        ),
        (named("Mute", description=" "), "it has a description. got ' '"),
        (named("Bare", schema={"z": "int"}), "a JSON schema of an object. got type None"),
        (
            named("List", schema={"type": "object", "properties": ["z"]}),
            r"schema of an object. got properties \['z'\]",
        ),
        (
            named("Loose", schema={"type": "object", "properties": {"z": {}}}),
            r"a JSON schema of an object. property 'z' has no type: \{\}",
        ),
        (
            named("Phantom", schema={"type": "object", "properties": {}, "required": ["z"]}),
            r"schema of an object. required but not among the properties: \['z'\]",
        ),
        (
            named("Live", schema={"type": "object", "x": {1, 2}}),
            "it cannot be written as JSON: Object of type set",
        ),
        (Nothing, r"a good call gives parts. got \(\) for \{'z': 6\}"),
        (Moody, "equal calls give equal parts. .*'0'.*, then .*'1'"),
        (Breaks, r"a good call gives parts. \{'z': 6\} raised FileNotFoundError: weights\.bin"),
        (SomebodyElse, r"inside the case's own volumes. got 'other\.nii\.gz#intensity=hu' for case 'case-0'"),
        (BeyondTheEdge, r"inside the case's own volumes. got \(6, 15, 0, 16, 0, 16\) in a volume of \(12, "),
        (Forgiving, r"a bad call raises a ValueError with a message. \{\} was accepted"),
        (RaisesKeyError, r"a bad call raises a ValueError with a message. \{\} raised KeyError: 'z'"),
        (RaisesTypeError, r"a bad call raises a ValueError .* \{'z': None\} raised TypeError: must be real"),
        (SaysNothing, r"a bad call raises .* \{'z': 12\} raised a ValueError without a message"),
    ],
)
def test_a_tool_that_breaks_a_clause_is_caught(mutant, message, prompt):
    with pytest.raises(AssertionError, match=message):
        check_tool(mutant(), prompt, [{"z": 6}], bad=[{"z": 12}])
