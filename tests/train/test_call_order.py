"""docs/explanation/grpo_step.svg shows in which order a GRPO step enters functions."""

import importlib.util
import sys
from pathlib import Path

import pytest

from evidcore.train.trl import stage

PICTURE = Path(__file__).parents[2] / "docs" / "explanation" / "grpo_step.py"


def picture():
    spec = importlib.util.spec_from_file_location("grpo_step", PICTURE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["grpo_step"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def entered(work, names):
    """Return which of the named functions `work` enters, in order."""
    order = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_qualname in names:
            order.append(frame.f_code.co_qualname)

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return order


@pytest.mark.slow
def test_a_step_enters_the_functions_in_the_picture_s_order(bench):
    drawn = picture()
    changed = {"steps": 1, "prompts_per_forward": None, "trl": {"beta": 0.0, "num_iterations": 2}}
    trainer = bench.grpo_trainer(**changed)
    trainer._is_proven = True  # the proof enters steps 4 to 19 twice, before the first step
    wanted = [call.name for call in drawn.CALLS if call.is_traced]
    order = iter(entered(lambda: stage.train(trainer, bench.folder, resume=False), {*wanted}))
    for number, name in enumerate(wanted, start=1):
        assert name in order, f"{number}. {name} is not entered behind the call before it"


def test_the_picture_is_as_its_program_draws_it():
    drawn = picture()
    assert drawn.TARGET.read_text(encoding="utf-8") == drawn.svg(), "make docs"
