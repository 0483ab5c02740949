import ast
import subprocess
import sys

import pytest

from evidcore.recipe.trl_fields import CONFIGS, OWNED, fields, problems


@pytest.mark.slow
def test_the_fields_read_from_the_source_are_those_of_the_classes():
    code = "import dataclasses as d, trl; print(*[[f.name for f in d.fields(c)] for c in ({})], sep='\\n')"
    code = code.format(", ".join(f"trl.{name}" for name in CONFIGS.values()))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    for stage, line in zip(CONFIGS, done.stdout.splitlines()[-2:], strict=True):
        assert set(ast.literal_eval(line)) == set(fields(stage))


def test_an_int_is_a_float():
    assert problems("grpo", {"beta": 0, "epsilon_high": 0.28, "loss_type": "dr_grpo"}) == []


def test_what_the_core_owns_exists():
    assert OWNED.keys() <= fields("grpo").keys() | fields("sft").keys()
