"""A mistake in a recipe is told from what earlier processes noted, with the sentence that it has anyway."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evidcore.api import find
from evidcore.errors import RecipeError
from evidcore.recipe import check, load, signatures
from evidcore.recipe.load import read_toml
from evidcore.recipe.signatures import CachedSignatures, CacheMiss

RECIPES = Path(__file__).parents[2] / "recipes"
COMMITTED = [path for folder in (RECIPES, RECIPES / "paper") for path in sorted(folder.glob("*.toml"))]
SMALL = """schema = 1
name = "small"
dataset.chest = { use = "phantom-chest", train_cases = 4 }
task.choice.use = "choice"

[model]
language = { use = "tiny" }
view = { use = "volume" }
encoder = { use = "vit3d" }
bridge = { use = "projection" }

[[stage]]
kind = "sft"
train = ["bridge", "language"]
data = [{ dataset = "chest", task = "choice" }]
steps = 2
learning_rate = 1e-2

[[stage]]
kind = "grpo"
train = ["bridge"]
data = [{ dataset = "chest", task = "choice" }]
steps = 2
answers_per_prompt = 4
learning_rate = 1e-2

[[stage.reward]]
use = "format"
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "cache"))
    return signatures.SIGNATURES


def problems(tables):
    return check.check(tables, CachedSignatures())[1]


def first_problems(tables):
    return check.first_problems(tables, CachedSignatures())


def raw(text, tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(text, encoding="utf-8")
    return read_toml(path)[1]


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_nothing_is_wrong_with_a_right_recipe(path):
    tables = read_toml(path)[1]
    assert first_problems(tables) == []  # nothing was read before
    told = problems(tables)
    first = first_problems(tables)
    assert [item for item in first if item not in told] == []
    assert first == []


CHANGES = {
    "a component's name": ('task.choice.use = "choice"', 'task.choice.use = "choise"'),
    "an option's name": ("train_cases = 4", "train_case = 4"),
    "an option's type": ("train_cases = 4", 'train_cases = "4"'),
    "an option's bound": ("train_cases = 4", "train_cases = -4"),
    "a stage's kind": ('kind = "grpo"', 'kind = "gpro"'),
    "a stage's key": ("answers_per_prompt = 4", "answer_per_prompt = 4"),
    "a key of another table": ("train_cases = 4", "answers_per_prompt = 4"),
    "a value of a stage": ("steps = 2\nanswers", "steps = 0\nanswers"),
    "a missing key": ("steps = 2\nanswers", "answers"),
    "a literal": ('train = ["bridge"]\ndata = [{ dataset = "chest", task = "choice" }]\nsteps = 2\nanswers',
                  'train = ["bridges"]\ndata = [{ dataset = "chest", task = "choice" }]\nsteps = 2\nanswers'),
    "a key of the top": ('name = "small"', 'nam = "small"'),
    "a table of the model": ('view = { use = "volume" }\n', ""),
    "no table": ('bridge = { use = "projection" }', 'bridge = "projection"'),
    "a key of a reward": ('use = "format"', 'use = "format"\nweigth = 2.0'),
    "a data entry": ('task = "choice" }]\nsteps = 2\nanswers', 'taks = "choice" }]\nsteps = 2\nanswers'),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_mistake_is_told_in_the_same_words_without_an_import(name, tmp_path):
    problems(raw(SMALL, tmp_path))
    changed = raw(SMALL.replace(*CHANGES[name]), tmp_path)
    assert changed != raw(SMALL, tmp_path)
    told, first = problems(changed), first_problems(changed)
    assert first
    assert {(item.key, item.text) for item in first} <= {(item.key, item.text) for item in told}


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


def test_a_mistake_is_told_before_torch_is_imported(tmp_path):
    problems(raw(SMALL, tmp_path))
    (tmp_path / "small.toml").write_text(SMALL.replace("train_cases", "train_case"), encoding="utf-8")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "small.toml")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ}).stdout
    assert "unknown key. Did you mean 'train_cases'?" in said
    assert said.endswith("\n[]\n")


def test_every_mistake_that_needs_the_code_is_told_as_before(tmp_path):
    problems(raw(SMALL, tmp_path))
    path = tmp_path / "small.toml"
    path.write_text(SMALL.replace('dataset = "chest"', 'dataset = "abdomen"'), encoding="utf-8")
    with pytest.raises(RecipeError, match="2 mistakes") as raised:
        load(path)
    assert str(raised.value).count("no dataset is called 'abdomen'. This recipe has: [dataset.chest].") == 2


def test_a_damaged_entry_is_as_none(cache, tmp_path):
    path = cache.path(signatures._packages())
    path.parent.mkdir(parents=True)
    path.write_text("{", encoding="utf-8")
    assert first_problems(raw(SMALL.replace("train_cases", "train_case"), tmp_path)) == []
    problems(raw(SMALL, tmp_path))
    assert first_problems(raw(SMALL.replace("train_cases", "train_case"), tmp_path))


def test_what_was_noted_of_other_files_does_not_count(cache, tmp_path):
    problems(raw(SMALL, tmp_path))
    CachedSignatures().form(find("encoder", "vit3d"))
    mine = cache.path(signatures._packages())
    mine.rename(mine.with_name("others"))
    with pytest.raises(CacheMiss):
        CachedSignatures().form(find("encoder", "vit3d"))


def test_another_environment_with_the_same_cache_keeps_its_own(cache, tmp_path, monkeypatch):
    problems(raw(SMALL, tmp_path))
    mine = signatures._packages()
    noted = cache.get(mine)
    monkeypatch.setattr(signatures, "_packages", lambda: "others")
    assert first_problems(raw(SMALL.replace("train_cases", "train_case"), tmp_path)) == []
    problems(raw(SMALL, tmp_path))
    assert cache.get("others") is not None
    assert cache.get(mine) == noted


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "file"))
    assert problems(raw(SMALL, tmp_path)) == []


class Zero:
    """A reward with an option."""

    def __init__(self, *, level: int = 1) -> None:
        self.level = level


def test_a_changed_file_of_any_package_ends_what_was_noted(offered, tmp_path):
    module = offered("one-file", "[evidcore.reward]\nzero = one_file:Zero\n", Zero=Zero)
    tables = raw(SMALL.replace('use = "format"', 'use = "zero"'), tmp_path)
    assert problems(tables) == []
    assert CachedSignatures().form(find("reward", "zero")).known.keys() == {"level"}
    Path(module.__file__).write_text("# other code\n", encoding="utf-8")
    with pytest.raises(CacheMiss):
        CachedSignatures().form(find("reward", "zero"))
