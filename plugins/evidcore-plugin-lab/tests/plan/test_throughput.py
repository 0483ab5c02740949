import json

import pytest
from evidcore_plugin_lab.plan.throughput import Throughput

from evidcore.api import DataError


def test_tokens_a_second_are_those_of_the_measured_step(tmp_path):
    file = tmp_path / "gpu.json"
    steps = {"sft": {"tokens": 300, "seconds": 1.5}}
    file.write_text(json.dumps({"device": "a card", "parameters": {"bridge": 7}, "steps": steps}))
    assert Throughput.read(file).tokens_per_s == {"sft": 200.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"device": "a card"}', r"gpu.json: holds no measured steps, 'steps' is missing"),
        ("{", r"gpu.json: holds no measured steps \(Expecting property name"),
        (
            '{"device": "", "parameters": {}, "steps": {"sft": {"tokens": 1, "seconds": 0}}}',
            "division by zero",
        ),
    ],
)
def test_a_file_that_holds_no_throughput_is_refused(tmp_path, text, said):
    file = tmp_path / "gpu.json"
    file.write_text(text)
    with pytest.raises(DataError, match=said):
        Throughput.read(file)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none.json: cannot be read \(No such file or directory\)"):
        Throughput.read(tmp_path / "none.json")
