"""A mistake in a recipe is found by what earlier processes noted; its words are held in tests/golden."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evidcore.api import find
from evidcore.recipe import check, signatures
from evidcore.recipe.load import read_toml
from evidcore.recipe.signatures import CachedSignatures, CacheMiss
from evidcore.registry import places

WRONG = 'use = "phantom-chest"', 'use = "phantom-chest", train_case = 4'


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "cache"))
    return signatures.SIGNATURES


def problems(path):
    return check.check(read_toml(path)[1], CachedSignatures())[1]


def first_problems(path):
    return check.first_problems(read_toml(path)[1], CachedSignatures())


PROGRAM = """
import sys
from evidcore.errors import RecipeError
from evidcore.recipe import load
try:
    load(sys.argv[1])
except RecipeError as cause:
    print(cause)
print(sorted({"torch", "transformers", "numpy"} & sys.modules.keys()))
"""


def test_a_mistake_is_told_before_torch_is_imported(write):
    problems(write())
    command = [sys.executable, "-c", PROGRAM, str(write(WRONG))]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ}).stdout
    assert "unknown key. Did you mean 'train_cases'?" in said
    assert said.endswith("\n[]\n")


def test_a_damaged_entry_is_as_none(cache, write):
    path = cache.path(signatures._packages(places()))
    path.parent.mkdir(parents=True)
    path.write_text("{", encoding="utf-8")
    assert first_problems(write(WRONG)) == []
    problems(write())
    assert first_problems(write()) == []
    assert first_problems(write(WRONG))


def test_another_environment_with_the_same_cache_keeps_its_own(cache, write, monkeypatch):
    problems(write())
    mine = signatures._packages(places())
    noted = cache.get(mine)
    assert CachedSignatures().form(find("encoder", "vit3d"))
    monkeypatch.setattr(signatures, "_packages", lambda _: "others")
    with pytest.raises(CacheMiss):
        CachedSignatures().form(find("encoder", "vit3d"))
    assert first_problems(write(WRONG)) == []
    problems(write())
    assert cache.get("others") is not None
    assert cache.get(mine) == noted


def test_a_cache_that_cannot_be_written_stops_nothing(write, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "file"))
    assert problems(write()) == []


class Zero:
    """A reward with an option."""

    def __init__(self, *, level: int = 1) -> None:
        self.level = level


def test_a_changed_file_of_any_package_ends_what_was_noted(offered, write):
    module = offered("one-file", "[evidcore.reward]\nzero = one_file:Zero\n", Zero=Zero)
    assert problems(write(('use = "format"', 'use = "zero"'), ('gate = "format"', 'gate = "zero"'))) == []
    assert CachedSignatures().form(find("reward", "zero")).known.keys() == {"level"}
    Path(module.__file__).write_text("# other code\n", encoding="utf-8")
    signatures._packages.cache_clear()  # as in the next process
    with pytest.raises(CacheMiss):
        CachedSignatures().form(find("reward", "zero"))
