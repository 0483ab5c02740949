"""Write a package with one component of a kind that works: a place to start from."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from evidcore.errors import RecipeError, did_you_mean
from evidcore.registry import KIND_NAMES
from evidcore_plugin_hub.plugin.code_look import CodeLook

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "evid-{kind}-{name}"
version = "0.1.0"
description = "A {kind} for evidcore: {name}."
readme = "README.md"
license = "Apache-2.0"
requires-python = ">=3.11"
dependencies = ["evidcore>=0.1,<0.2"{also}]

[project.optional-dependencies]
test = ["evidcore-plugin-hub[conformance]>=0.1,<0.2"]

[project.entry-points."evidcore.{kind}"]
{name} = "{module}:{attribute}"

[tool.setuptools]
package-dir = {{ "" = "src" }}
py-modules = ["{module}"]

[tool.pytest.ini_options]
pythonpath = ["src"]
testpaths = ["tests"]
"""

README = """\
# evid-{kind}-{name}

A {kind} for evidcore. Say here what it does, what it rests on and where it is known to fail.

```sh
pip install -e . && evid plugins {kind}
pytest --evid-conformance
```

```toml card
modality = ["ct"]
language = ["en"]
downloads = []
needs_network = false
needs_gpu = false
{reaches}intended_use = "research"
source = "this package"
```
"""


def write_package(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the package and return its files.

    Args:
        kind: of the component.
        name: of the component, kebab-case.
        folder: which is not there yet, or empty.

    Raises:
        RecipeError: if there is no such kind, the name is none, or something is in the way.
    """
    if kind not in KIND_NAMES:
        raise RecipeError(
            f"no kind is called {kind!r}.{did_you_mean(kind, KIND_NAMES)} Kinds: {', '.join(KIND_NAMES)}."
        )
    if not NAME.fullmatch(name):
        raise RecipeError(
            f"a component's name has small letters, digits and dashes, got {name!r}. Try 'my-{kind}'."
        )
    if folder.exists() and any(folder.iterdir()):
        raise RecipeError(f"{folder}: holds files already. Name another folder with --out.")
    module, title = f"evid_{kind}_{name.replace('-', '_')}", "".join(part.title() for part in name.split("-"))
    attribute = name.replace("-", "_") if kind == "command" else title
    code = _filled(f"{kind}.py.txt", attribute, name, module)
    reached = sorted({what for what, _ in CodeLook(code).capabilities()})
    also = ', "evidcore-testing>=0.1,<0.2"' if "evidcore_testing" in code else ""
    words = {"kind": kind, "name": name, "module": module, "attribute": attribute}
    texts = {
        "pyproject.toml": PYPROJECT.format(**words, also=also),
        "README.md": README.format(**words, reaches="".join(f"needs_{one} = true\n" for one in reached)),
        f"src/{module}.py": code,
        f"tests/test_{module}.py": _filled(f"test_{kind}.py.txt", attribute, name, module),
    }
    for place, text in texts.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, encoding="utf-8")
    return [folder / place for place in texts]


def _filled(template: str, attribute: str, name: str, module: str) -> str:
    """Return a template with the names of the component in it."""
    text = (resources.files("evidcore_plugin_hub.new") / "templates" / template).read_text(encoding="utf-8")
    text = text.replace("from my_component import", f"from {module} import").replace("MyComponent", attribute)
    return text.replace("my-component", name).replace("my_component", name.replace("-", "_"))
