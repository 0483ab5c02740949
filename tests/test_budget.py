"""The size of the core, held to [tool.evidcore.budget] of pyproject.toml, whose sums only fall."""

import ast
import collections
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import evidcore.api
from evidcore.registry import KIND_NAMES

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


def python(*patterns):
    """Return the files of Python below folders of the repository."""
    return [path for pattern in patterns for path in ROOT.glob(pattern) if "/." not in str(path)]


def lines(paths):
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def holding(pattern, paths):
    return [path for path in paths if re.search(pattern, path.read_text(encoding="utf-8"), re.IGNORECASE)]


def private_names():
    """Return what packages import of the core beside `evidcore.api`: (room and module, name)."""
    return {
        (node.module, alias.name)
        for path in python("plugins/*/src/**/*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and re.match(r"evidcore(\.(?!api$)|$)", str(node.module))
        for alias in node.names
    }


WORDS = {"told", "said", "kept", "held", "stand", "bring", "settle", "shown", "found", "one", "own"}


def private_words():
    """Return the identifiers in which a word stands that a reader of the field could not search for."""
    nodes = (node for path in SOURCES for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [
        (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id)
        or (isinstance(node, ast.arg) and node.arg)
        or (isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name)
        or ""
        for node in nodes
    ]
    return [name for name in names if WORDS & {*name.lower().split("_")}]


SOURCES = python("evidcore/**/*.py", "plugins/*/src/**/*.py")
COUNTS = {
    "modules": lambda: len(python("evidcore/**/*.py")),
    "dependencies": lambda: len(PROJECT["project"]["dependencies"]),
    "kinds": lambda: len(KIND_NAMES),
    "cache_namespaces": lambda: len({
        name for path in SOURCES for name in re.findall(r'\bCache\("([\w-]+)"', path.read_text("utf-8"))
    }),
    "files_that_start_processes": lambda: len(
        holding(r"subprocess\.(run|Popen|check)|multiprocessing|ProcessPoolExecutor|os\.fork\(", SOURCES)
    ),
    "html_bases": lambda: len(holding("<!doctype html", [*SOURCES, *ROOT.glob("plugins/*/src/**/*.html")])),
    "identifiers_of_private_words": lambda: len(private_words()),
    "public_names": lambda: len(evidcore.api.__all__),
    "private_names_of_packages": lambda: len(private_names()),
    "lines_of_packages": lambda: lines(python("plugins/*/src/**/*.py")),
    "lines_of_tests": lambda: lines(python("tests/**/*.py", "plugins/*/tests/**/*.py")),
}


@pytest.mark.parametrize("name", COUNTS)
def test_what_is_counted_keeps_to_its_number(name):
    assert COUNTS[name]() <= BUDGET[name]


def test_everything_with_a_budget_is_counted():
    assert set(BUDGET) == {"lines", *COUNTS}


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
