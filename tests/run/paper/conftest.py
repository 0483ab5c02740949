"""A paper's recipe, which a test module names RECIPE, as published and with the module's SIZES."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from evidcore.cli import main


@pytest.fixture(scope="session")
def evid():
    """The command, in this process; it must succeed."""

    def call(*words):
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == 0, (result.output, result.stderr, result.exception)
        return result.stdout

    return call


@pytest.fixture(scope="module")
def alone(request, tmp_path_factory):
    """The recipe in a folder without data and weights."""
    recipe = request.module.RECIPE
    return Path(shutil.copy(recipe, tmp_path_factory.mktemp("alone") / recipe.name))


@pytest.fixture(scope="module")
def checked(evid, alone):
    """What `check` says of it."""
    return json.loads(evid("check", alone, "--json"))


@pytest.fixture(scope="module")
def changes(request):
    """What makes it small enough to run."""
    return [word for key, value in request.module.SIZES.items() for word in ("--set", f"{key}={value}")]
