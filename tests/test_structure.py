"""The shape of the source tree, read from its import statements."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import evidcore

CORE = Path(evidcore.__file__).parent
PLUGINS = CORE.parent / "plugins"

# A room may import rooms before it.
ROOMS = (
    "errors",
    "registry",
    "case",
    "formats",
    "recipe",
    "hooks",
    "contracts",
    "volume",
    "geometry",
    "text",
    "case_reading",
    "compute",
    "fitting",
    "builtin",
    "model",
    "train",
    "evaluate",
    "audit",
    "page",
    "publish",
    "run",
    "data",
    "testing",
    "cli",
)
WITHOUT_TORCH = ("errors", "registry", "case", "formats", "recipe", "hooks")
SLOW = {
    "torch",
    "transformers",
    "trl",
    "monai",
    "timm",
    "torchvision",
    "sklearn",
    "matplotlib",
    "scipy",
    "datasets",
}
ALLOWED_UPWARD: set[tuple[str, str]] = set()
LONG_ON_PURPOSE = {"evaluate/bootstrap.py"}  # one idea, whole
OPEN_TO_COMMANDS = {"run", "recipe", "page", "cli"}  # what commands are made of, the core's own too
ALLOWED_TO_PACKAGES = {
    ("segmenters", "cli"),  # its command shares options and progress with the core's
    ("segmenters", "page"),  # the audit's page is drawn like a run's
    ("segmenters", "recipe"),  # a segmenter may be named as a service of a recipe
    ("tables", "recipe"),  # a command's target is a folder's table, or the data sets of a recipe
}
REFUSED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}


def modules(root):
    return sorted(path for path in root.rglob("*.py") if "__pycache__" not in path.parts)


def imports(path):
    """Yield each imported module, absolute, and whether it is imported as soon as the module is."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node, at_once in walk(tree, at_once=True):
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: line {node.lineno} imports relatively"
            yield from ((f"{node.module}.{alias.name}", at_once) for alias in node.names)


def walk(node, at_once):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue  # read by the type checker alone
        later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield child, at_once
        yield from walk(child, at_once and not later)


def room_of(path):
    return path.relative_to(CORE).with_suffix("").parts[0]


def imported_rooms(path):
    names = [name for name, _ in imports(path) if name.startswith("evidcore.")]
    return {name.split(".")[1] for name in names} & set(ROOMS)


def test_the_core_has_at_most_22_rooms_and_each_has_its_place():
    rooms = {room_of(path) for path in modules(CORE)} - {"__init__", "__main__"}
    assert rooms <= set(ROOMS), f"not placed in ROOMS: {sorted(rooms - set(ROOMS))}"
    assert len(rooms) <= 22


def test_rooms_import_one_way():
    upward = {
        (str(path.relative_to(CORE)), room)
        for path in modules(CORE)
        if room_of(path) in ROOMS
        for room in imported_rooms(path)
        if ROOMS.index(room) > ROOMS.index(room_of(path))
    }
    assert upward == ALLOWED_UPWARD


def test_the_core_imports_no_package():
    reaching = [
        f"{path.relative_to(CORE)}: {name}"
        for path in modules(CORE)
        for name, _ in imports(path)
        if name.startswith("evidcore_plugin_")
    ]
    assert reaching == []


def test_no_room_of_the_core_imports_a_component():
    importing = {
        str(path.relative_to(CORE))
        for path in modules(CORE)
        if room_of(path) != "builtin" and "builtin" in imported_rooms(path)
    }
    assert importing == set()


def test_the_lower_rooms_name_no_torch():
    slow = [
        f"{path.relative_to(CORE)}: {name}"
        for path in modules(CORE)
        if room_of(path) in WITHOUT_TORCH
        for name, _ in imports(path)
        if name.split(".")[0] in SLOW
    ]
    assert slow == []


def test_the_lower_rooms_load_no_torch():
    names = ", ".join(f"evidcore.{room}" for room in WITHOUT_TORCH)
    code = f"import sys, {names}; print(*sorted({SLOW!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_command_line_and_the_page_load_nothing_slow_at_once():
    slow = [
        f"{path.relative_to(CORE)}: {name}"
        for path in modules(CORE)
        if room_of(path) in {"cli", "__main__", "__init__"}
        for name, at_once in imports(path)
        if at_once and name.split(".")[0] in SLOW
    ]
    assert slow == []


def test_only_one_folder_imports_trl():
    outside = [
        str(path.relative_to(CORE))
        for path in modules(CORE)
        if path.relative_to(CORE).parts[:2] != ("train", "trl")
        and any(name.split(".")[0] == "trl" for name, _ in imports(path))
    ]
    assert outside == []


def has_commands_alone(package):
    """Tell whether all that a package offers are commands, so that no run can name it."""
    project = tomllib.loads((PLUGINS / package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["entry-points"]) == {"evidcore.command"}


def test_packages_build_on_public_rooms_and_not_on_the_trainer():
    refused = {"train", *OPEN_TO_COMMANDS}
    reaching = set()
    for path in modules(PLUGINS):
        package, *inside = path.relative_to(PLUGINS).parts
        if not inside or "tests" in inside:
            continue
        closed = refused - OPEN_TO_COMMANDS if has_commands_alone(package) else refused
        name = package.removeprefix("evidcore-plugin-")
        reaching |= {(name, room) for room in imported_rooms(path) & closed}
    assert reaching == ALLOWED_TO_PACKAGES


@pytest.mark.parametrize("root", [CORE, PLUGINS], ids=["core", "plugins"])
def test_modules_hold_one_idea(root):
    long = {
        str(path.relative_to(root)): len(path.read_text().splitlines())
        for path in modules(root)
        if "tests" not in path.relative_to(root).parts
    }
    long = {name: lines for name, lines in long.items() if name not in LONG_ON_PURPOSE}
    assert {name: lines for name, lines in long.items() if lines > 300} == {}


@pytest.mark.parametrize("root", [CORE, PLUGINS], ids=["core", "plugins"])
def test_no_module_is_named_after_nothing(root):
    named = [
        str(path.relative_to(root))
        for path in modules(root)
        if REFUSED_NAMES & set(path.with_suffix("").parts)
    ]
    assert named == []


def test_the_reader_of_imports_tells_now_from_later(tmp_path):
    path = tmp_path / "sample.py"
    path.write_text(
        "import torch\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import trl\n"
        "def late():\n    from evidcore.train import sft\n"
        "class Now:\n    import scipy.stats\n"
    )
    assert list(imports(path)) == [
        ("torch", True),
        ("typing.TYPE_CHECKING", True),
        ("evidcore.train.sft", False),
        ("scipy.stats", True),
    ]
