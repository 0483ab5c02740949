"""What a second reader sees on the slices that arms cite, in the place of masks, worked by hand."""

import pytest

from evidcore.api import Crop, Reader, VolumeRef

SCRIPT = "second_reader"
SLICES = [Crop(volume=VolumeRef(path="scan.nii"), box_zyx=(z, z + 1, 0, 8, 0, 8)) for z in range(3)]


class Eyes(Reader):
    """Sees a cyst on slice 1 and nothing else."""

    deterministic = True

    def __call__(self, questions):
        return [
            "There is a cyst." if question.crops[0].box_zyx[0] == 1 else "No finding is seen."
            for question in questions
        ]


def line(number=0, affirmed=(), present=(), slices=None, malformed=None, by_masks=0.0):
    return {
        "prompt_id": str(number), "patient": f"patient-{number}", "case_id": f"case-{number}",
        "affirmed": list(affirmed), "present": list(present), "slices": slices or {}, "malformed": malformed,
        "images": [crop.uri() for crop in SLICES], "figures": {"grounded_accuracy": by_masks},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("told", "value"),
    [
        ({"affirmed": ["cyst"], "present": ["cyst"], "slices": {"": 1}}, 1.0),
        ({"affirmed": ["cyst"], "present": ["cyst"], "slices": {"": 2}}, 0.0),  # it sees none there
        ({"affirmed": ["cyst"], "present": ["cyst"]}, 0.0),
        ({"affirmed": ["cyst", "stone"], "present": ["cyst"], "slices": {"": 1}}, 1 / 2),
        ({"affirmed": ["cyst"], "present": ["stone"], "slices": {"": 1}}, 0.0),  # seen, and not present
        (
            {"affirmed": ["cyst", "stone"], "present": ["cyst", "stone"], "slices": {"cyst": 1, "stone": 0}},
            1 / 2,
        ),
        ({}, 1.0),
        ({"slices": {"": 0}}, 0.0),
        ({"affirmed": ["cyst"], "present": ["cyst"], "slices": {"": 1}, "malformed": "no end"}, 0.0),
    ],
)  # fmt: skip
def test_findings_count_that_are_right_and_seen_on_their_slice(script, told, value):
    item = line(**told)
    crops = list(script.cited(item).values())
    assert script.grounded(item, script.seen(Eyes(), crops, ["cyst", "stone"])) == pytest.approx(value)


def test_arms_are_compared_by_the_second_reader_and_by_masks(script):
    def arm(z, by_masks):
        some = [line(n, ["cyst"], ["cyst"], {"": z}, by_masks=by_masks) for n in range(30)]
        return {17: some, 18: some}

    rows = script.table({"text": arm(0, 0.25), "slice": arm(1, 0.75)}, Eyes(), "text").splitlines()
    assert [row.split()[:3] for row in rows] == [
        ["grounded", "accuracy", "by"],
        ["text", "0.000", "0.250"],
        ["slice", "1.000", "0.750"],
        ["slice", "minus", "text"],
    ]
    assert rows[-1].split()[3:] == ["+1.000", "+0.500"]
