"""The shape of the source tree, read from its import statements."""

import ast
import functools
import graphlib
import importlib
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import evidcore.api
from evidcore.contracts import KINDS

CORE = Path(evidcore.__file__).parent
PLUGINS = CORE.parent / "plugins"
PACKAGES = sorted(path.parent.name for path in PLUGINS.glob("*/pyproject.toml"))

ORDER = """errors cache registry case data recipe hooks contracts text compute builtin model prompts proof
reward train evaluate audit runs cli api"""
ROOMS = ORDER.split()  # a room may import rooms before it
WITHOUT_TORCH = ("errors", "cache", "registry", "case", "recipe", "hooks")
SLOW = {"torch", "transformers", "trl", "monai", "timm", "torchvision"}
SLOW |= {"sklearn", "matplotlib", "scipy", "datasets"}
EVERY_INSTALLED = {"condition", "stage"}  # which one test of the core checks
CHECKED = {*KINDS} - EVERY_INSTALLED
REFUSED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}


@functools.cache
def modules(root):
    return sorted(path for path in root.rglob("*.py") if "__pycache__" not in path.parts)


@functools.cache
def imports(path):
    """Return each imported module, absolute, and whether it is imported as soon as the module is.

    What only the type checker reads counts: it ties two modules together as any import does.
    """
    result = []
    for node, at_once in walk(ast.parse(path.read_text(encoding="utf-8")), at_once=True):
        if isinstance(node, ast.Import):
            result += [(alias.name, at_once) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: line {node.lineno} imports relatively"
            result += [(f"{node.module}.{alias.name}", at_once) for alias in node.names]
    return result


def walk(node, at_once):
    for child in ast.iter_child_nodes(node):
        later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield child, at_once
        yield from walk(child, at_once and not later)


def room_of(path):
    return path.relative_to(CORE).with_suffix("").parts[0]


def imported_rooms(path):
    names = [name for name, _ in imports(path) if name.startswith("evidcore.")]
    return {name.split(".")[1] for name in names} & set(ROOMS)


def test_each_room_of_the_core_has_its_place():
    rooms = {room_of(path) for path in modules(CORE)} - {"__init__", "__main__"}
    assert rooms <= set(ROOMS), f"not placed in ROOMS: {sorted(rooms - set(ROOMS))}"


def test_rooms_import_one_way():
    upward = {
        (str(path.relative_to(CORE)), room)
        for path in modules(CORE)
        if room_of(path) in ROOMS
        for room in imported_rooms(path)
        if ROOMS.index(room) > ROOMS.index(room_of(path))
    }
    assert upward == set()


@pytest.mark.parametrize("room", sorted(path.parent.name for path in CORE.glob("*/__init__.py")))
def test_each_room_tells_who_may_import_it(room):
    tree = ast.parse((CORE / room / "__init__.py").read_text(encoding="utf-8"))
    said = ast.get_docstring(tree) or ""
    assert re.search(r"mported by|No room of the core imports it|`evid` command", said)


def test_the_core_names_no_package_nor_a_package_s_figures_and_data():
    words = "dsc|evr|m3d|med3d|medvol|medvr|emrl|medsam|merlin|kits|ct.?rate|radgraph|registration|zoom"
    named = re.compile(rf"(from|import) evidcore_|\b({words})(\b|_)", re.IGNORECASE)
    lines = [line for path in modules(CORE) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if named.search(line) and "arXiv" not in line] == []


BARRED = {  # which modules of the core, from importing what, and whether within functions too
    "components": (lambda path: room_of(path) != "builtin", {"evidcore.builtin"}, True),
    "torch in lower rooms": (lambda path: room_of(path) in WITHOUT_TORCH, SLOW, True),
    "what is slow, at once": (lambda path: room_of(path) in {"cli", "__main__", "__init__"}, SLOW, False),
    "trl": (lambda path: path.relative_to(CORE).parts[:2] != ("train", "trl"), {"trl"}, True),
}


@pytest.mark.parametrize("what", BARRED)
def test_modules_of_the_core_import_nothing_from_which_they_are_barred(what):
    is_barred, names, within_functions = BARRED[what]
    found = [
        f"{path.relative_to(CORE)}: {name}"
        for path in modules(CORE)
        if is_barred(path)
        for name, at_once in imports(path)
        if (at_once or within_functions) and any(f"{name}.".startswith(f"{one}.") for one in names)
    ]
    assert found == []


def test_the_lower_rooms_load_no_torch():
    names = ", ".join(f"evidcore.{room}" for room in WITHOUT_TORCH)
    code = f"import sys, {names}; print(*sorted({SLOW!r} & sys.modules.keys()))"
    code += "; import evidcore.data; print({'torch'} & sys.modules.keys() or '')"  # `prepare` alone needs it
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def is_for_tests(path):
    """Tell whether a module of a package is its `testing`: fixtures and tiny models."""
    return "testing" in path.with_suffix("").parts


def test_no_package_builds_on_the_trainer():
    """But the kit, whose tiny models are those of a dry run; test_budget.py counts what else is private."""
    reaching = {
        path.relative_to(PLUGINS).parts[0]
        for path in modules(PLUGINS)
        if "src" in path.parts and not is_for_tests(path) and "train" in imported_rooms(path)
    }
    assert reaching == {"evidcore-testing"}


def test_every_distribution_that_the_core_imports_is_declared():
    assert undeclared(modules(CORE), names_of(project()["dependencies"])) == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_distribution_that_a_package_or_its_tests_import_is_declared(package):
    extras = project(package)["optional-dependencies"]
    declared = {package} | names_of([*project()["dependencies"], *project(package)["dependencies"]])
    offered = names_of(name for extra, names in extras.items() if extra != "test" for name in names)
    files = [path for path in modules(PLUGINS / package / "src") if not is_for_tests(path)]
    assert undeclared(files, declared | offered) == set()
    tests = modules(PLUGINS / package / "tests")
    planted = (CORE.parent / "benchmarks").glob("planted*.py")
    beside = {path.stem.replace("_", "-") for path in (*tests, *planted)}
    assert undeclared(tests, declared | offered | names_of(extras["test"]) | beside) == set()


def names_of(requirements):
    return {re.split(r"[<>=\[ ]", item)[0].lower() for item in requirements}


owners_of_modules = functools.cache(metadata.packages_distributions)


def undeclared(files, declared):
    """Return the modules of other distributions that files import and no declared one brings."""
    owners = {**owners_of_modules(), "pydantic_core": ["pydantic"]}  # which pins it to one version
    outside = {
        name.split(".")[0]
        for path in files
        for name, _ in imports(path)
        if name.split(".")[0] not in sys.stdlib_module_names and not re.match(r"evidcore\b", name)
    }
    return {
        name
        for name in outside
        if not {owner.lower().replace("_", "-") for owner in owners.get(name, ())} & declared
        and name.replace("_", "-") not in declared
    }


def test_modules_of_the_core_form_no_circle():
    graph = {module_name(path): imported_modules(path) for path in modules(CORE)}
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1]))


def project(package=""):
    folder = PLUGINS / package if package else CORE.parent
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def module_name(path):
    parts = path.relative_to(CORE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path):
    """Return the modules of the core that are imported as soon as this one is; a package is not its own."""
    names = {module_name(other) for other in modules(CORE)}
    result = set()
    for name, at_once in imports(path):
        if at_once and name.startswith("evidcore."):
            result.add(name if name in names else name.rpartition(".")[0])
    return {name for name in result if name in names and not module_name(path).startswith(f"{name}.")} - {
        module_name(path)
    }


def test_every_module_of_the_core_has_a_file_of_tests():
    here = Path(__file__).parent
    fenced = (here / "README.md").read_text(encoding="utf-8").split("```")[1]
    listed = [line for line in fenced.splitlines()[1:] if line]
    places = dict(line.split() for line in listed)
    assert len(places) == len(listed), "a module is listed twice"
    owed = {}
    for path in modules(CORE):
        module = path.relative_to(CORE)
        own = here / Path(*module.parts[:-1][:1]) / f"test_{path.name}"
        if path.name != "__init__.py" and not own.exists():
            owed[str(module)] = own.relative_to(here)
    stale = [line for line in listed if line.split()[0] not in owed or not (here / line.split()[1]).is_file()]
    result = [f"- {line}" for line in stale]
    result += [f"+ {module:<28}{own}" for module, own in owed.items() if module not in places]
    assert not result, "in tests/README.md, or write the file:\n" + "\n".join(result)


@pytest.mark.parametrize("package", ["", *PACKAGES])
def test_every_component_is_held_to_its_contract_by_the_tests_of_its_package(package):
    """A file of its tests calls the check of the kind and names the component or its class."""
    tests = CORE.parent / "tests" if not package else PLUGINS / package / "tests"
    texts = [path.read_text(encoding="utf-8") for path in modules(tests)]
    unchecked = [
        f"{kind} {name}"
        for group, names in project(package).get("entry-points", {}).items()
        if (kind := group.removeprefix("evidcore.")) in CHECKED
        for name, target in names.items()
        if not any(
            re.search(rf"check_({kind}|written)\(", text)
            and re.search(rf'"{name}"|\b{target.partition(":")[2]}\b', text)
            for text in texts
        )
    ]
    assert unchecked == []


@pytest.mark.parametrize("root", [CORE, PLUGINS], ids=["core", "plugins"])
def test_no_module_is_named_after_nothing(root):
    named = [
        str(path.relative_to(root))
        for path in modules(root)
        if REFUSED_NAMES & set(path.relative_to(root).with_suffix("").parts)
    ]
    assert named == []


def test_the_reader_of_imports_tells_now_from_later_and_counts_what_is_for_types(tmp_path):
    path = tmp_path / "sample.py"
    path.write_text(
        "import torch\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import trl\n"
        "def late():\n    from evidcore.train import sft\n"
        "class Now:\n    import scipy.stats\n"
    )
    assert imports(path) == [
        ("torch", True),
        ("typing.TYPE_CHECKING", True),
        ("trl", True),
        ("evidcore.train.sft", False),
        ("scipy.stats", True),
    ]


@pytest.mark.parametrize("pattern", ["examples/*/*.py", "plugins/*/src/*/new/templates/*.txt", "docs/*/*.md"])
def test_a_stranger_s_code_imports_the_public_surface_alone(pattern):
    private = {
        f"{path.name}: {result}"
        for path in CORE.parent.glob(pattern)
        if path.parent.name != "reference" and path.stem != "predict"
        for block in re.findall(r"```python\n(.*?)```|\A([^#].*)", path.read_text("utf-8"), re.DOTALL)
        for result in re.findall(r"^(?:from|import) (evidcore\.[\w.]*)", "".join(block), re.MULTILINE)
        if result != "evidcore.api"
    }
    assert private == set()


def test_the_public_surface_is_what_it_lists():
    tree = ast.parse((CORE / "api.py").read_text(encoding="utf-8"))
    rooms = [
        node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "evidcore." in node.module
    ]
    typed = {alias.name: node.module for node in rooms for alias in node.names}
    assert sorted(typed) == sorted(evidcore.api.__all__)
    for name, room in typed.items():
        assert getattr(evidcore.api, name) is getattr(importlib.import_module(room), name)
