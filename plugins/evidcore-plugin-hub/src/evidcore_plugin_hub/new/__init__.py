"""Write a package with one component of a kind that works: a place to start from."""

import re
from importlib import resources
from pathlib import Path

from evidcore.errors import RecipeError, did_you_mean
from evidcore.registry import KIND_NAMES
from evidcore_plugin_hub.plugin.code_look import CodeLook
from evidcore_plugin_hub.plugin.publishing import write

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def write_package(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the package to a folder that is not there yet, or empty, and return its files.

    Raises:
        RecipeError: if there is no such kind, or the name is none.
        PluginError: if something is in the way.
    """
    if kind not in KIND_NAMES:
        hint = did_you_mean(kind, KIND_NAMES)
        raise RecipeError(f"no kind is called {kind!r}.{hint} Kinds: {', '.join(KIND_NAMES)}.")
    if not NAME.fullmatch(name):
        must = "a component's name has small letters, digits and dashes"
        raise RecipeError(f"{must}, got {name!r}. Try 'my-{kind}'.")
    module, title = f"evid_{kind}_{name.replace('-', '_')}", "".join(part.title() for part in name.split("-"))
    words = {
        "kind": kind, "name": name, "module": module,
        "attribute": name.replace("-", "_") if kind == "command" else title,
    }  # fmt: skip
    code = _component(f"{kind}.py", words)
    reached = sorted({what for what, _ in CodeLook(code).capabilities()})
    reaches = "".join(f"needs_{item} = true\n" for item in reached)
    also = ', "evidcore-testing>=0.1,<0.2"' if "evidcore_testing" in code else ""
    texts = {
        "pyproject.toml": _template("pyproject.toml").format(**words, also=also),
        "README.md": _template("README.md").format(**words, reaches=reaches),
        f"src/{module}.py": code,
        f"tests/test_{module}.py": _component(f"test_{kind}.py", words),
    }
    write({path: text.encode() for path, text in texts.items()}, folder)
    return [folder / path for path in texts]


def _template(name: str) -> str:
    return (resources.files(__package__) / "templates" / f"{name}.txt").read_text(encoding="utf-8")


def _component(template: str, words: dict[str, str]) -> str:
    """Return a template of code, which runs as it is, with the names of a component in it."""
    text = _template(template).replace("from my_component import", f"from {words['module']} import")
    text = text.replace("MyComponent", words["attribute"]).replace("my-component", words["name"])
    return text.replace("my_component", words["name"].replace("-", "_"))
