"""`evid lint` tries what it is named in a process of its own, and tells of one that ends it."""

import re
from pathlib import Path

import pytest
from evidcore_plugin_hub.lint.target import lint_all, rewards_target, targets

from evidcore.errors import PluginError
from evidcore.registry import Offer

RECIPES = Path(__file__).parents[4] / "recipes"
in_repository = pytest.mark.skipif(not RECIPES.is_dir(), reason="needs the recipes of the repository")


ENDING = {  # source of a TRL function, and what is said of it
    "leaves": ("os._exit(0)", "ended its process with status 0"),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "ended its process by SIGKILL"),
    "faults": ("ctypes.string_at(0)", "ended its process by SIGSEGV"),
    "never answers": ("re.match(r'(a+)+$', 'a' * 40 + 'b')", "has not answered for 90 s"),
}
SOURCE = """
import ctypes, os, re, signal

def planted(completions, **columns):
    {act}
    return [0.0 for _ in completions]
"""


@pytest.mark.slow
def test_a_reward_that_ends_its_process_is_told_and_the_next_is_linted(tmp_path):
    sources = [SOURCE.format(act=act) for act, _ in ENDING.values()]
    sources.append(
        "def planted(completions, solution, **_):\n"
        "    return [float(a == b) for a, b in zip(completions, solution)]\n"
    )
    asked = []
    for number, source in enumerate(sources):
        file = tmp_path / f"ending_{number}.py"
        file.write_text(source)
        asked.append(rewards_target(functions=(f"{file}:planted",)))
    *ended, sound = lint_all(asked, time_limit_s=90.0)
    for (_, said), result in zip(ENDING.values(), ended, strict=True):
        assert result["outcome"] == "alarm"
        assert result["checks"][0]["says"].startswith(said)
    assert sound["name"] == f"{file}:planted"
    assert {item["check"] for item in sound["checks"]} > {"right over wrong", "contract", "process"}


def test_names_packages_and_folders_are_found(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "2"\n[project.entry-points."evidcore.reward"]\na = "m:A"\n'
        '[project.entry-points."evidcore.task"]\nb = "m:B"\n'
    )
    mine = {"package": "mine", "version": "2"}
    assert [item.offer for item in targets([str(tmp_path)])] == [
        Offer(kind="reward", name="a", target="m:A", **mine),
        Offer(kind="task", name="b", target="m:B", **mine),
    ]
    assert [item.offer.name for item in targets([str(tmp_path)], kind="task")] == ["b"]
    assert {item.offer.kind for item in targets(["choice"])} == {"task", "evaluation"}
    assert len(targets(["evidcore-plugin-emrl"], kind="reward")) == 2
    everything = {item.offer.kind for item in targets([])}
    assert {"reward", "task", "stage"} <= everything
    assert "command" not in everything
    with pytest.raises(PluginError, match="no reward is called 'acuracy'"):
        targets(["acuracy"])
    with pytest.raises(PluginError, match="offers no component of kind 'view'"):
        targets([str(tmp_path)], kind="view")
    (tmp_path / "pyproject.toml").write_text("x")
    with pytest.raises(PluginError, match="is no table of a project"):
        targets([str(tmp_path)])


@pytest.mark.slow
def test_a_package_without_a_card_is_noted(tmp_path):
    code = "from evidcore.builtin.rewards import Format\n\n\nclass Plain(Format):\n    pass\n"
    (tmp_path / "plain_module.py").write_text(code)
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "plain"\nversion = "1"\n[project.entry-points."evidcore.reward"]\n'
        'plain = "plain_module:Plain"\nlost = "plain_module:Lost"\n'
    )
    asked = targets([str(tmp_path)])
    plain, lost = lint_all(asked)
    (card,) = [item for item in plain["checks"] if item["check"] == "card"]
    assert (card["outcome"], card["says"]) == ("note", "its package has no `toml card` block in its README")
    assert plain["outcome"] == "note"
    assert lost["outcome"] == "alarm"
    assert "Lost" in lost["checks"][0]["says"]


@in_repository
@pytest.mark.slow
def test_rewards_of_a_recipe_are_tried_as_they_are_composed():
    (asked,) = targets([], recipe=str(RECIPES / "med3d_r1.toml"))
    results = {result["stage"]: result for result in lint_all([asked], time_limit_s=600.0)}
    assert len(results) == 2  # the blind arm has a stage too
    assert results["08-grpo"]["outcome"] == "note"
    assert len(results["08-grpo"]["checks"]) > 15


@in_repository
def test_the_fixtures_that_the_page_names_are_there():
    root = RECIPES.parent
    page = (root / "docs" / "howto" / "lint.md").read_text(encoding="utf-8")
    tables = page.partition("## Findings in released code")[2]
    places = re.findall(r"`((?:tests|plugins)/[\w/.-]+\.py)(?:::(\w+))?`((?:, \"[^\"]+\")*)", tables)
    assert len(places) == 24
    for file, name, quoted in places:
        text = (root / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"^(def )?{name}\b", text, re.MULTILINE), (file, name)
        for words in re.findall(r'"([^"]+)"', quoted):
            assert f'"{words}":' in text, (file, words)
