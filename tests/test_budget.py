"""The size of the core, held to [tool.evidcore.budget] of pyproject.toml, whose sums only fall."""

import collections
import subprocess
import tomllib
from pathlib import Path

import pytest

import evidcore

CORE = Path(evidcore.__file__).parent
ROOT = CORE.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BUDGET = PROJECT["tool"]["evidcore"]["budget"]


def lines_by_room():
    """Return the lines of each room, docstrings counted."""
    counts = collections.Counter()
    for path in sorted(CORE.rglob("*.py")):
        room = path.relative_to(CORE).with_suffix("").parts[0]
        counts[room] += len(path.read_text(encoding="utf-8").splitlines())
    return counts


def test_every_room_keeps_to_its_lines():
    counts = lines_by_room()
    listed = [room for rooms in BUDGET["lines"] for room in rooms.split()]
    assert sorted(listed) == sorted(counts), "rooms of the core, and rooms with a budget"
    over = {
        rooms: f"{sum(counts[room] for room in rooms.split())} of {most}"
        for rooms, most in BUDGET["lines"].items()
        if sum(counts[room] for room in rooms.split()) > most
    }
    assert over == {}


def test_modules_and_dependencies_keep_to_their_number():
    assert len(list(CORE.rglob("*.py"))) <= BUDGET["modules"]
    assert len(PROJECT["project"]["dependencies"]) <= BUDGET["dependencies"]


def git(*words):
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def test_no_commit_raises_the_sum_of_a_budget():
    """A room may take lines that another gives up in the same commit; no sentence lifts the sum."""
    first = git("log", "--format=%h", "-S", "[tool.evidcore.budget]", "--", "pyproject.toml").split()
    if not first:
        pytest.skip("no history of git")
    commits = git("log", "--reverse", "--format=%h", f"{first[-1]}..", "--", "pyproject.toml").split()
    states = [
        (commit, sum_of(tomllib.loads(git("show", f"{commit}:pyproject.toml"))))
        for commit in (first[-1], *commits)
    ]
    lowest, raised = {}, []
    for commit, sums in [*states, ("now", sum_of(PROJECT))]:
        raised += [
            f"{name} in {commit}: {count}" for name, count in sums.items() if count > lowest.get(name, count)
        ]
        lowest |= {name: min(count, lowest.get(name, count)) for name, count in sums.items()}
    assert raised == []


def sum_of(project):
    """Return the sum of the lines and each count of a pyproject.toml; nothing where it has no budget."""
    budget = project.get("tool", {}).get("evidcore", {}).get("budget", {})
    return {name: sum(value.values()) if isinstance(value, dict) else value for name, value in budget.items()}
