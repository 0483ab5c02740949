"""Write reference/reference.md and gallery.md from signatures, docstrings and cards: `make docs`."""

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import evidcore_testing
from evidcore_plugin_hub.isolation import Isolated
from evidcore_plugin_pages.document import write_page

from evidcore import case, contracts, errors, hooks
from evidcore.cli import main
from evidcore.recipe import schema
from evidcore.registry import KIND_NAMES, Offer, card, downloads, offers
from evidcore.registry.factory import flat_forms, options
from evidcore.registry.signature import DatasetKeys, Kind, MetricKeys, RewardKeys
from evidcore.train import settings

TARGET = Path(__file__).parent / "reference" / "reference.md"
HEAD = """# Reference

Written from the code by `make docs`; do not edit. Components of other packages: `evid plugins`,
`evid show NAME`.

[Commands](#commands) · [Recipe](#recipe) · [Components](#components) · [Contracts](#contracts) ·
[Data](#data) · [Checks for authors](#checks-for-authors) · [Observers](#observers) · [Errors](#errors) ·
[Page](#page)
"""
GALLERY = TARGET.with_name("gallery.md")
GALLERY_HEAD = """# Gallery

What this repository's packages bring, by kind; each name leads to its options. What others published:
`evid search`, [and how to publish yours](../howto/publish.md). Written from docstrings and cards by
`make docs`; do not edit.
"""
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_SECTIONS = ("Args", "Returns", "Raises", "Example", "Source", "Yields")


def reference() -> str:
    """Return the whole page."""
    parts = [HEAD, *commands(), *recipe(), *components(), *kinds(), *data(), *checks(), *observers()]
    parts += ["## Errors\n", *(entry(item, "###") for item in classes(errors))]
    parts += ["## Page\n", entry(write_page, "###")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


def commands() -> Iterator[str]:
    """Describe `evid` from its own help."""
    yield "## Commands\n"
    for words, command in _commands(main, ["evid"]):
        arguments = [item for item in command.params if isinstance(item, click.Argument)]
        named = " ".join(
            item.make_metavar(click.Context(command)) if item.required else f"[{(item.name or '').upper()}]"
            for item in arguments
        )
        yield f"### `{' '.join([*words, named]).strip()}`"
        yield f"\n{command.help}\n"
        rows = [
            [f"`{item.opts[-1]}`", item.help or "", _plain(item.default)]
            for item in command.params
            if isinstance(item, click.Option)
        ]
        yield table(["option", "what it does", "default"], rows)


def _commands(group: click.Group, words: list[str]) -> Iterator[tuple[list[str], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, [*words, name])
        else:
            yield [*words, name], command


def recipe() -> Iterator[str]:
    """Describe the keys of a recipe from the classes that hold it."""
    yield "## Recipe\n\nUnknown keys are mistakes. Keys of components are under [Components](#components).\n"
    tables = {
        "top level": schema.Top,
        "[model]": schema.Model,
        "an entry of `data`": schema.DataUse,
        **{f'[[stage]] kind = "{row.name}"': row.load() for row in offers("stage")},
        "[dataset.NAME], beside the component's own keys": DatasetKeys,
        "[[stage.reward]], beside the component's own keys": RewardKeys,
        "`isolated` of a reward, a scorer or a reader": Isolated,
        "[[stage.metric]], beside the component's own keys": MetricKeys,
        "stage.lora": settings.Lora,
        "[stage.replay] of a grpo stage": settings.Replay,
    }
    for title, form in tables.items():
        hints = typing.get_type_hints(form, include_extras=True)
        notes = _field_notes(form)
        rows = [
            [f"`{item.name}`", kind_of(hints[item.name]), default_of(item), notes.get(item.name, "")]
            for item in dataclasses.fields(form)
            if item.name != "kind" and not item.metadata.get("open")
        ]
        yield f"### {title}\n\n{first_paragraph(form)}\n"
        yield table(["key", "type", "default", ""], rows)


def components() -> Iterator[str]:
    """Describe what this repository's packages offer."""
    yield "## Components\n"
    for kind in [name for name in KIND_NAMES if name not in ("command", "stage")]:
        result = [offer for offer in offers(kind) if offer.package.startswith("evidcore")]
        if result:
            yield f"### Kind {kind}\n"
        for target in dict.fromkeys(
            offer.target for offer in result
        ):  # a file format has a name for each ending
            same = [offer for offer in result if offer.target == target]
            yield _component(same[0], ", ".join(f"`{offer.name}`" for offer in same))


def gallery() -> str:
    """Return the page that lists every component with what it is and needs."""
    parts = [GALLERY_HEAD]
    for kind in [name for name in KIND_NAMES if name not in ("command", "stage")]:
        result = [offer for offer in offers(kind) if offer.package.startswith("evidcore")]
        rows = []
        for target in dict.fromkeys(offer.target for offer in result):
            same = [offer for offer in result if offer.target == target]
            names = ", ".join(f"`{offer.name}`" for offer in same)
            anchor = re.sub(r"[^\w -]", "", names).replace(" ", "-")
            about = " ".join(prose(inspect.getdoc(same[0].load())).split("\n\n")[0].split())
            rows.append([f"[{names}](reference.md#{anchor})", about, f"`{same[0].package}`", _needs(same)])
        if rows:
            parts += [f"## {kind}\n", table(["component", "what it is", "package", "needs"], rows)]
    return "\n".join(parts)


def _needs(same: list[Offer]) -> str:
    """Return what the card of a component's package says that it needs."""
    result = card(same[0].package)
    fetched = downloads(result, {offer.name for offer in same})
    asked = [
        name.removeprefix("needs_") for name, value in result.items() if name.startswith("needs_") and value
    ]
    return "; ".join([*asked, *fetched])


def _component(offer: Offer, names: str) -> str:
    factory = offer.load()
    about = inspect.getdoc(factory) or ""
    notes = _shared_notes(factory)
    for form in reversed(getattr(factory, "__mro__", (factory,))):
        notes |= _notes(inspect.getdoc(form) or "")
    notes |= _notes(inspect.getdoc(getattr(factory, "__init__", None)) or "")
    parts = [f"#### {names}", f"\n{_without_sections(about)}\n"]
    if offer.package != "evidcore":
        parts.append(f"From `{offer.package}`.\n")
    parts.append(_options(factory, offer.kind, notes))
    fit = getattr(factory, "fit", None)
    if fit is not None and options(fit):
        fit_notes = _shared_notes(fit) | _notes(inspect.getdoc(fit) or "")
        parts += ["Options of its `fit` stage:\n", _options(fit, None, fit_notes)]
    source = re.search(r"^Source:\n((?:    .*\n?)+)", about, re.MULTILINE)
    if source:
        parts.append(f"Source: {' '.join(source.group(1).split())}\n")
    return "\n".join(parts)


def _options(factory: Callable[..., Any], kind: str | None, notes: Mapping[str, str]) -> str:
    rows = [
        [
            f"`{item.name}`",
            f"a {item.kind}" if item.kind else kind_of(item.type),
            "required" if item.is_required else _plain(item.default),
            notes.get(item.name, ""),
        ]
        for item in options(factory, kind).values()
    ]
    return table(["key", "type", "default", ""], rows) if rows else "No options.\n"


def kinds() -> Iterator[str]:
    """Describe the contracts: what a component must do."""
    yield "## Contracts\n\n" + (inspect.getdoc(contracts) or "") + "\n"
    yield from entries(contracts)


def data() -> Iterator[str]:
    """Describe the frozen data that passes between components."""
    yield "## Data\n\n" + (inspect.getdoc(case) or "") + "\n"
    yield from entries(case)


def checks() -> Iterator[str]:
    """Describe the kit for authors."""
    yield "## Checks for authors\n\n" + (inspect.getdoc(evidcore_testing) or "") + "\n"
    yield from entries(evidcore_testing)


def observers() -> Iterator[str]:
    """Describe the events of a run."""
    yield "## Observers\n\n" + (inspect.getdoc(hooks) or "") + "\n"
    yield entry(hooks.Events, "###")


def entries(package: types.ModuleType) -> Iterator[str]:
    """Describe the classes and functions that a package offers."""
    for name in sorted(getattr(package, "__all__", vars(package))):
        item = getattr(package, name)
        if inspect.isclass(item) or inspect.isfunction(item):
            yield entry(item, "###")


def classes(module: types.ModuleType) -> list[type]:
    """Return the classes that a module defines, in its order."""
    own = [item for item in vars(module).values() if inspect.isclass(item)]
    return [item for item in own if item.__module__ == module.__name__]


def entry(item: Callable[..., Any], level: str) -> str:
    """Return a function or class with its signature and docstring, and a class's own public methods."""
    parts = [f"{level} `{item.__name__}`\n"]
    if inspect.isfunction(item):
        parts.append(_signature(item, item.__name__))
    elif dataclasses.is_dataclass(item):
        parts.append(_fields(item))
    parts.append(prose(inspect.getdoc(item)))
    if inspect.isclass(item):
        for name, member in vars(item).items():
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            is_shown = not name.startswith("_") or name == "__call__"
            if inspect.isfunction(function) and is_shown and function.__module__.startswith("evidcore"):
                parts.append(f"\n{_signature(function, name)}\n{prose(inspect.getdoc(function))}")
    return "\n".join(parts) + "\n"


def _signature(function: Callable[..., Any], name: str) -> str:
    node = _node(function)
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    line = f"{name}({ast.unparse(node.args)}){returns}"
    if len(line) > 100:
        arguments = re.sub(r", (?=\w+:|\*)", ",\n    ", ast.unparse(node.args))
        line = f"{name}(\n    {arguments},\n){returns}"
    return f"```py\n{line}\n```"


def _fields(form: type) -> str:
    lines = [f"class {form.__name__}:"]
    for statement in _node(form).body:
        if isinstance(statement, ast.AnnAssign):
            lines.append(f"    {ast.unparse(statement)}")
    return "```py\n" + "\n".join(lines) + "\n```"


def _node(item: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(item))).body[0]


def _field_notes(form: type) -> dict[str, str]:
    """Return the comment behind each field of a class."""
    sources = "".join(inspect.getsource(part) for part in form.__mro__ if dataclasses.is_dataclass(part))
    result = re.findall(r"^    (\w+):[^#\n]*(?:\(\n[^#\n]*)?#\s*(.+)$", sources, re.MULTILINE)
    return dict(result)


def _notes(docstring: str) -> dict[str, str]:
    """Return what the Args section says of each parameter."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", docstring, re.MULTILINE)
    if section is None:
        return {}
    result = re.findall(r"^    (\w+): ((?:.*)(?:\n {6,}.*)*)", section.group(1), re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in result}


def _shared_notes(factory: Callable[..., Any]) -> dict[str, str]:
    """Return what the dataclasses say of the options that `factory` shares with others."""
    forms = flat_forms(factory)
    return {name: note for form in forms for name, note in _notes(inspect.getdoc(form) or "").items()}


def _without_sections(docstring: str) -> str:
    return re.split(rf"^(?:{'|'.join(_SECTIONS)}):$", docstring, maxsplit=1, flags=re.MULTILINE)[0].strip()


def prose(docstring: str | None) -> str:
    """Return a docstring as markdown: its sections as lists."""
    text = docstring or ""
    for name in _SECTIONS:
        result = re.search(rf"^{name}:\n((?: {{4}}.*\n?|\n)+)", text, re.MULTILINE)
        if result is None:
            continue
        inner = textwrap.dedent(result.group(1)).strip()
        if name in ("Args", "Raises"):
            items = re.split(r"\n(?=\S)", inner)
            body = "\n".join(f"- {' '.join(item.split())}" for item in items)
            body = re.sub(r"^- (\w+): ", r"- `\1`: ", body, flags=re.MULTILINE)
        else:
            body = f"```py\n{inner}\n```" if name == "Example" else inner
        text = f"{text[: result.start()]}{name}:\n\n{body}\n\n{text[result.end() :]}"
    return text.strip()


def first_paragraph(item: object) -> str:
    """Return the first paragraph of a docstring."""
    return (inspect.getdoc(item) or "").split("\n\n")[0]


def kind_of(hint: Any) -> str:
    """Return a type with its bounds in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        base, *marks = arguments
        named = [mark.name for mark in marks if isinstance(mark, Kind)]
        if named:
            return f"a {named[0]}: `{{ use = … }}`"
        bounds = [
            f"{sign} {getattr(mark, field)}"
            for mark in marks
            for field, sign in _BOUNDS.items()
            if getattr(mark, field, None) is not None
        ]
        return ", ".join([kind_of(base), *bounds])
    if origin is typing.Literal:
        return " or ".join(f'`"{value}"`' if isinstance(value, str) else f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(kind_of(item) for item in arguments if item is not type(None)))
    if origin is tuple or origin is list:
        inner = [kind_of(item) for item in arguments if item is not Ellipsis]
        return f"list of {inner[0]}" if len(set(inner)) == 1 else f"list: {', '.join(inner)}"
    if origin is not None and issubclass(origin, Mapping):
        return "table" if arguments[-1] is Any else f"table of {kind_of(arguments[-1])}"
    if dataclasses.is_dataclass(hint):
        return "table"
    return {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}.get(
        getattr(hint, "__name__", ""), str(hint)
    )


def default_of(item: dataclasses.Field[Any]) -> str:
    """Return the default of a field."""
    if item.default_factory is not dataclasses.MISSING:
        return _plain(item.default_factory())
    return "required" if item.default is dataclasses.MISSING else _plain(item.default)


def _plain(value: Any) -> str:
    if value is None or value == () or value == {} or "UNSET" in repr(value):
        return ""
    if isinstance(value, Mapping):
        return "`{ " + ", ".join(f"{key} = {_plain(item).strip('`')}" for key, item in value.items()) + " }`"
    if isinstance(value, list | tuple):
        return "`[" + ", ".join(_plain(item).strip("`") for item in value) + "]`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a table."""
    if not rows:
        return ""
    lines = [heads, ["---"] * len(heads), *rows]
    return (
        "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        + "\n"
    )


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
    GALLERY.write_text(gallery(), encoding="utf-8")
