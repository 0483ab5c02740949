"""What `evid check` passes, runs: single values of a shortened recipe are changed, each in a few ways."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from evidcore.errors import EvidError
from evidcore.recipe import load
from evidcore.runs.begin import run, start
from evidcore.runs.dry_run import dry_run

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "med3d_r1.toml"
# a run may end with a sentence that needs the weights as they are then
MAY_END = ("stage.sft.learning_rate=1e9", "stage.grpo.temperature=1e-9")


@pytest.mark.slow
@pytest.mark.parametrize(("mutation", "said"), TABLE["refused"].items())
def test_a_value_that_would_end_a_stage_is_refused_before(mutation, said):
    with pytest.raises(EvidError, match=re.escape(said)):
        dry_run(load(RECIPE, [*TABLE["short"], mutation]))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("mutations")


@pytest.mark.slow
@pytest.mark.parametrize("mutation", TABLE["passed"])
def test_what_is_passed_runs_a_step_of_every_stage(mutation, store):
    recipe = load(RECIPE, [*TABLE["short"], mutation])
    dry_run(recipe)
    folder = start(recipe, store / "runs")
    try:
        run(folder)
    except EvidError:
        assert mutation in MAY_END
    else:
        assert folder.status()["state"] == "finished"
    shutil.rmtree(folder.path)
