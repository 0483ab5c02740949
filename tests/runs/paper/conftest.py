"""A paper's recipe, which a test module names RECIPE, as published and with the module's SIZES.

`small` is the module's: `folder` with miniatures of the recipe's data sets and tiny models. CHANCE, where the
module has it, is the reward that takes the place of one that a model which knows nothing never earns. What
each recipe resolves to is held in tests/golden/resolved/paper.
"""

import json
import shutil
from pathlib import Path

import pytest
from evidcore_testing.fixtures import evid as evid
from evidcore_testing.models import tiny_vision_language
from transformers import AutoTokenizer, Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

from evidcore.runs.folder import RunFolder


def options(table):
    """Return what makes a recipe another one."""
    return [word for key, value in table.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def alone(request, tmp_path_factory):
    """The recipe in a folder without data and weights."""
    return Path(shutil.copy(request.module.RECIPE, tmp_path_factory.mktemp("alone")))


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory):
    """A folder with the recipe, to put data and weights beside it."""
    return Path(shutil.copy(request.module.RECIPE, tmp_path_factory.mktemp("small"))).parent


@pytest.fixture(scope="module")
def checked(evid, alone):
    """What `check` says of it."""
    return json.loads(evid("check", alone, "--json").stdout)


@pytest.fixture(scope="session")
def write_qwen3():
    """Return a function that writes a tiny Qwen3-VL with its processor into a folder."""

    def write(folder: Path) -> None:
        tiny_vision_language(folder, "qwen3_vl")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        Qwen3VLProcessor(
            Qwen2VLImageProcessor(patch_size=16), tokenizer, Qwen3VLVideoProcessor(), tokenizer.chat_template
        ).save_pretrained(folder)

    return write


@pytest.fixture(scope="module")
def check_small(evid, small, request):
    """Return a function that gives what `check` says in small, all checked but what is left out."""

    def check(more=(), without=()):
        sizes = {key: value for key, value in request.module.SIZES.items() if key not in without}
        words = [small / request.module.RECIPE.name, "--json", *options(sizes), *options(dict(more))]
        result = json.loads(evid("check", *words).stdout)
        assert [text.partition(":")[0] for text in result["unchecked"]] == [*without]
        return result

    return check


@pytest.fixture(scope="module")
def finished(evid, small, request):
    """The folder of a run of the recipe in small."""
    chance = getattr(request.module, "CHANCE", {"stage.grpo.reward[0]": '{use="random"}'})
    changes = options(request.module.SIZES | chance)
    words = [small / request.module.RECIPE.name, "--json", "--out", small / "runs", *changes]
    return Path(json.loads(evid("run", *words).stdout)["run"])


@pytest.fixture(scope="module")
def rewards_given(finished):
    """Return a function that gives the groups of a stage's rollouts and the names of their rewards."""

    def read(stage):
        lines = (finished / "rollouts" / f"{stage}.jsonl").read_text().splitlines()
        groups = [json.loads(line) for line in lines]
        return groups, {name for group in groups for item in group["rollouts"] for name in item["rewards"]}

    return read


@pytest.fixture(scope="module")
def results(finished):
    """Return a function that reads the result of a stage."""
    return RunFolder(finished).result
