"""`evid new`: every kind's package has tests that pass as it was generated, and lints without an alarm."""

import json
import subprocess
import sys

import pytest
from evidcore_plugin_hub.new import write_package
from evidcore_plugin_hub.plugin.code_look import CodeLook

from evidcore.errors import RecipeError
from evidcore.registry import KIND_NAMES, card_in

BROKEN = "return Score(value=min(1.0, len(rollout.text) / 5000)"


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    root = tmp_path_factory.mktemp("packages")
    for kind in KIND_NAMES:
        write_package(kind, "first-try", root / kind)
    return root


@pytest.mark.slow
def test_the_tests_of_every_kind_pass_as_generated(packages):
    places = [str(packages / kind / "tests") for kind in KIND_NAMES]
    sources = [str(packages / kind / "src") for kind in KIND_NAMES]
    words = [*places, "-q", "--import-mode=importlib", "-p", "no:cacheprovider", f"--rootdir={packages}"]
    code = f"import sys, pytest; sys.path[:0] = {sources!r}; sys.exit(pytest.main({words!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=packages)
    assert done.returncode == 0, done.stdout
    assert f"{len(KIND_NAMES) + 1} passed" in done.stdout  # a command has two


def test_every_package_has_its_entry_point_its_card_and_no_word_of_the_template(packages):
    for kind in KIND_NAMES:
        folder = packages / kind
        card = card_in((folder / "README.md").read_text(), kind)
        assert card["intended_use"] == "research"
        (module,) = (folder / "src").glob("*.py")
        look = CodeLook(module.read_text())
        needed = {key.removeprefix("needs_") for key, value in card.items() if value is True}
        assert {name for name, _ in look.capabilities()} <= needed, kind
        assert list(look.runs_when_loaded()) == [], kind
        project = (folder / "pyproject.toml").read_text()
        title = "first_try" if kind == "command" else "FirstTry"
        entry = f'first-try = "evid_{kind}_first_try:{title}"'
        assert f'[project.entry-points."evidcore.{kind}"]\n{entry}' in project
        text = "".join(path.read_text() for path in folder.rglob("*.py"))
        assert "first-try" in text
        assert "MyComponent" not in text
        assert "my-component" not in text


def test_generated_code_is_as_ruff_has_it(packages):
    words = ["ruff", "check", "--select", "F,E9,B,UP", "--no-cache", str(packages)]
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_generated_reward_lints_without_an_alarm_and_what_a_broken_one_fails_is_named(evid, packages):
    folder = packages / "reward"
    assert "1 linted: 0 with alarms" in evid("lint", folder).output
    module = folder / "src" / "evid_reward_first_try.py"
    text = module.read_text()
    module.write_text(text.replace("return Score(value=float(answer.choice == right)", BROKEN))
    said = evid("lint", folder, exit_code=1).output
    module.write_text(text)
    assert "right over wrong" in said
    assert "guards against: Med3D-R1" in said


def test_new_says_what_it_wrote(evid, tmp_path):
    result = json.loads(evid("new", "scorer", "first-try", "--out", tmp_path / "it", "--json").output)
    assert result["folder"] == str(tmp_path / "it")
    assert len(result["files"]) == 4
    assert "holds files already" in evid("new", "scorer", "x", "--out", tmp_path / "it", exit_code=2).stderr


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("rewrad", "x", r"no kind is called 'rewrad'\. Did you mean 'reward'\?"),
        ("reward", "My Reward", r"dashes, got 'My Reward'\. Try 'my-reward'"),
    ],
)
def test_a_kind_or_name_that_is_none_is_refused(tmp_path, kind, name, message):
    with pytest.raises(RecipeError, match=message):
        write_package(kind, name, tmp_path / "new")
