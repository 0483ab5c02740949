"""No code of an isolated component is loaded in the run's process; it may have an environment of its own."""

import json
import subprocess
import sys
from pathlib import Path

import evidcore_plugin_phantoms
import pytest
from evidcore_plugin_hub import isolation
from evidcore_testing.recipes import stage_text
from pydantic import TypeAdapter, ValidationError

import evidcore.reward
from evidcore.errors import RecipeError
from evidcore.recipe import load
from evidcore.registry import factory
from evidcore.runs.inputs import drift, lock_table

pytestmark = pytest.mark.slow
SMALL = Path(evidcore_plugin_phantoms.__file__).with_name("small.toml").read_text()
GRPO = {
    "kind": "grpo", "train": ["bridge"], "data": [{"dataset": "chest", "task": "report"}], "steps": 1,
    "prompts_per_step": 1, "answers_per_prompt": 2, "learning_rate": 1e-3, "max_new_tokens": 128,
}  # fmt: skip
ACTING = Path(__file__).with_name("acting.py").read_text()
COMMANDS = {
    "check": ["check", "RECIPE"], "plan": ["plan", "RECIPE"], "run": ["run", "RECIPE", "--out", "runs"],
    "list": ["plugins"], "try": ["plugins", "--check"], "show": ["show", "acting"],
    "print": ["show", "acting-scorer", "--json"], "describe": ["show", "--schema"],
}  # fmt: skip


def install(folder, text=ACTING, version="2.0"):
    info = folder / f"acting-{version}.dist-info"
    info.mkdir(parents=True)
    (folder / "acting.py").write_text(text)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acting\nVersion: {version}\n")
    points = "[evidcore.reward]\nacting = acting:Acting\n[evidcore.scorer]\nacting-scorer = acting:Equal\n"
    (info / "entry_points.txt").write_text(points)


@pytest.fixture
def acting(tmp_path, monkeypatch):
    """Install the package that acts, and return a function that writes a recipe which isolates it."""
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACTING_TRACE", str(tmp_path / "trace"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    def write(isolated=True, **options):
        above = SMALL.partition('[[stage]]\nkind = "evaluate"')[0]
        reward = {"use": "acting", "isolated": isolated, **options}
        (tmp_path / "r.toml").write_text(above + stage_text(**GRPO, reward=[reward]))
        return tmp_path / "r.toml"

    yield write
    sys.modules.pop("acting", None)
    vars(evidcore.reward).pop("patched", None)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_code_of_an_isolated_component_runs_in_the_process_of_the_run(command, acting, evid, tmp_path):
    recipe = acting()
    told = evid(*(str(recipe) if word == "RECIPE" else word for word in COMMANDS[command])).output
    assert "acting" not in sys.modules
    assert not hasattr(evidcore.reward, "patched")
    assert not (tmp_path / "trace").exists()
    assert ("share: float, from 0 to 1 = 0.5" in told) == (command == "show")


def test_its_process_checks_the_table_by_its_own_types(acting):
    table = {"use": "acting", "isolated": True, "weight": -1.0, "share": 2.0, "pairs": 3, "x": 1}
    wrong = [str(item) for item in factory.check("reward", table | {"scorer": {"use": "nowhere"}}, "r")]
    assert [text.partition(",")[0] for text in wrong] == [
        "r.pairs: Value error", "r.scorer.use: no scorer is called 'nowhere'. Installed: acting-scorer",
        "r.share: must be less than or equal to 1", "r.weight: must be greater than or equal to 0",
        "r.x: unknown key. Keys here: pairs",
    ]  # fmt: skip
    full = factory.Components().table("reward", {"use": "acting", "isolated": True})
    assert (full["share"], full["scorer"]) == (0.5, {"use": "acting-scorer", "power": 1})
    assert "acting" not in sys.modules


@pytest.fixture
def other(tmp_path, settings):
    """The interpreter of another environment, with an older version of the package first; it is trusted."""
    settings.write_text(f'python = ["{tmp_path}/other/bin/python"]')
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "other"], check=True)
    (site,) = (tmp_path / "other").glob("lib/python*/site-packages")
    install(site, ACTING.replace('VERSION = "2"', 'VERSION = "1"').replace("pairs", "twos"), "1.0")
    paths = [path for path in sys.path if "site-packages" in path or path.endswith("src")]
    (site / "these.pth").write_text("\n".join([*paths, str(Path(evidcore.__file__).parents[1])]))
    return site, "other/bin/python"


def test_a_component_has_an_environment_of_its_own(acting, other, evid, tmp_path):
    recipe = load(acting({"python": other[1], "memory_gb": 8.0}, twos=4))
    table = recipe.stages[-1].reward[0]
    assert (table["twos"], table["isolated"]["python"]) == (4, str(tmp_path / other[1]))
    reward = factory.build("reward", table, given={}, where="r")
    assert str(reward.evid_offer) == "reward 'acting' from acting 1.0"
    assert [one.reason for one in reward([None], {})] == ["1"]
    lock = lock_table(recipe, {})
    entry = lock["package"]["acting isolated"]
    assert (entry["version"], entry["environment"]["torch"]) == ("1.0", lock["versions"]["torch"])
    evid("plan", tmp_path / "r.toml")
    (other[0] / "acting.py").write_text("\n" + (other[0] / "acting.py").read_text())
    isolation._describe.cache_clear()
    assert any("acting isolated.code" in line for line in drift(lock, lock_table(recipe, {})))
    assert "acting" not in sys.modules


def test_an_interpreter_that_the_user_does_not_name_is_not_started(acting, other, tmp_path):
    program, ran = tmp_path / "bin/python", tmp_path / "ran"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    says = (
        rf"isolated.python: {program} would be run, .* If it is yours, write python = \[\"{program}\"\] in "
    )
    with pytest.raises(RecipeError, match=says):
        load(acting({"python": "bin/python"}))
    assert not ran.exists()


def other_version(site):
    info = site / "evidcore-0.0.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: evidcore\nVersion: 0.0.9\n")


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda site: (site.parents[2] / "bin/python").unlink(), "status 1, FileNotFoundError"),
        (lambda site: (site / "these.pth").unlink(), "No module named 'evidcore_plugin_hub'"),
        (other_version, "speaks protocol 1 of evidcore 0.0.9, and was asked for 1 of evidcore "),
        (lambda site: (site / "acting.py").write_text("import nothing"), "acting 1.0 could not be imported"),
    ],
    ids=["missing", "bare", "another version", "no package"],
)
def test_an_environment_that_cannot_serve_is_named(act, says, acting, other):
    act(other[0])
    with pytest.raises(RecipeError, match=says) as caught:
        load(acting({"python": other[1]}))
    assert "acting 1.0" in says or "bin/python -m pip install evidcore-plugin-hub==" in str(caught.value)


def test_what_it_tells_is_bounded():
    form = TypeAdapter(isolation.Description)
    sound = {
        "package": "a", "version": "1", "target": "a:b", "code": "", "versions": {}, "asks": [], "form": {},
        "options": {}, "listing": {"about": "", "options": [], "fit_options": []}, "wrong": [], "table": {},
    }  # fmt: skip
    form.validate_json(json.dumps(sound))
    for key, value in {"package": "a" * 301, "asks": ["a"] * 101, "wrong": [[["a"], "b" * 4001]]}.items():
        with pytest.raises(ValidationError):
            form.validate_json(json.dumps(sound | {key: value}))
