"""Read a plugin's Python without running it: what it may reach, and what it would do as soon as imported.

Code can hide what it reaches when it is called: `capabilities` tells honest authors what to declare. What a
module does at import is held to a short list of calls, so that a module defines, and does nothing else.
"""

from __future__ import annotations

import ast
import builtins
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources

_TABLES = tomllib.loads((resources.files(__package__) / "code_look.toml").read_text(encoding="utf-8"))
CAPABILITIES: Mapping[str, str] = {name: table["about"] for name, table in _TABLES["reach"].items()}
_DEFINING = [  # calls that are allowed: a list of harmful ones had forty holes
    name if module == "builtins" else f"{module}.{name}"
    for module, names in _TABLES["defining"].items()
    for name in names
]
_DEFINING_MODULES = tuple(name.removesuffix("*") for name in _DEFINING if name.endswith("*"))
_LITERALS = (ast.Constant, ast.Dict, ast.List, ast.Set, ast.Tuple, ast.JoinedStr)
_RUN_AT_IMPORT = {
    "__class_getitem__", "__init_subclass__", "__mro_entries__", "__prepare__", "__set_name__",
    "_generate_next_value_",
}  # fmt: skip
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_STATEMENTS = (
    *_FUNCTION, ast.ClassDef, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.Try, ast.Import,
    ast.ImportFrom, ast.Pass,
)  # fmt: skip


class CodeLook:
    """A module's code, with what its imports call what.

    Raises:
        SyntaxError: or ValueError, RecursionError, MemoryError, if it is no Python that can be read.
    """

    def __init__(self, text: str) -> None:
        self._tree = ast.parse(text)
        self.plain: set[str] = set()  # classes that keep what they are given; a package adds its others
        self._imports: dict[str, str] = {}
        self._defined: set[str] = set()
        self._methods: set[ast.AST] = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                for item in node.names:
                    first = item.name.partition(".")[0]
                    self._imports[item.asname or first] = item.name if item.asname else first
            elif isinstance(node, ast.ImportFrom):
                for item in node.names:
                    self._imports[item.asname or item.name] = f"{node.module or ''}.{item.name}"
            elif isinstance(node, (*_FUNCTION, ast.ClassDef)):
                self._defined.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._defined.add(node.id)
            if isinstance(node, ast.ClassDef):
                self._methods.update(node.body)
                if _is_plain(node):
                    self.plain.add(node.name)

    def capabilities(self) -> Iterator[tuple[str, str]]:
        """Yield what it may reach, each with what shows it: ("network", "imports socket")."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                reached = [f"imports {item.name}" for item in node.names]
            elif isinstance(node, ast.ImportFrom):
                reached = [f"imports {node.module or ''}.{item.name}" for item in node.names]
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                reached = [f"uses {self._full(node)}"]
            else:
                continue
            for what in reached:
                name = what.partition(" ")[2]
                fitting = (key for key, row in _TABLES["reach"].items() if _is_among(name, row["names"]))
                if not _is_among(name, _TABLES["sound"]["names"]) and (key := next(fitting, None)):
                    yield key, what
            if isinstance(node, ast.Attribute):
                for key, row in _TABLES["reach"].items():
                    if node.attr in row["methods"]:
                        yield key, f"uses {ast.unparse(node)[-60:]}"

    def acts_at_import(self) -> Iterator[str]:
        """Yield what it does beside defining as soon as it is imported, each with its line."""
        line = 1
        for node in _run_at_import(self._tree.body):
            line = getattr(node, "lineno", line)
            yield from (f"line {line}: {act}" for act in self._acts(node))

    def _acts(self, node: ast.AST) -> Iterator[str]:
        """Yield what a node does that runs at import; what is below it is looked at by itself."""
        if isinstance(node, ast.Call):
            is_method = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, _LITERALS)
            calls_back = any(item.arg == "key" for item in node.keywords)
            if not is_method and (calls_back or not self._is_defining(node.func)):  # "a b".split() is fine
                yield f"calls {ast.unparse(node.func)[:60]}"
        elif isinstance(node, (*_FUNCTION, ast.ClassDef)):
            for one in node.decorator_list:
                is_property = isinstance(one, ast.Attribute) and one.attr in ("setter", "getter", "deleter")
                if not isinstance(one, ast.Call) and not is_property and not self._is_defining(one):
                    yield f"calls {ast.unparse(one)[:60]}"
            is_lookup = node.name == "__getattr__" and node not in self._methods
            if isinstance(node, ast.ClassDef):
                if {"type", "builtins.type"} & {ast.unparse(base) for base in node.bases}:
                    yield "makes a class of classes, whose methods run at import"
            elif is_lookup or node.name in _RUN_AT_IMPORT:
                yield f"defines {node.name}, which runs at import"
        elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            if not isinstance(node, ast.Name) or node.id == "__path__":
                yield f"sets {ast.unparse(node)[:60]}"
        elif isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom) or (
            isinstance(node, ast.stmt) and not isinstance(node, _STATEMENTS)
        ):
            yield ast.unparse(node)[:60]

    def _is_defining(self, called: ast.expr) -> bool:
        """Tell what makes a value and does nothing else."""
        if isinstance(called, ast.Name) and called.id in self._defined:
            return called.id in self.plain
        full = self._full(called)
        name = full.rpartition(".")[2]
        is_ours = full.startswith("evidcore.") and name[:1].isupper()
        return is_ours or name in self.plain or full in _DEFINING or full.startswith(_DEFINING_MODULES)

    def _full(self, node: ast.expr) -> str:
        """Return a dotted name with what its first part was imported as; empty for what is none."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        if node.id in self._imports:
            return ".".join([self._imports[node.id], *parts])
        return ".".join([node.id, *parts]) if hasattr(builtins, node.id) else ""


def _run_at_import(nodes: Iterable[ast.AST | None]) -> Iterator[ast.AST]:
    """Yield nodes and all below them, without bodies of functions and of `if __name__ == "__main__"`."""
    for node in nodes:
        if node is None:
            continue
        yield node
        if isinstance(node, _FUNCTION):
            yield from _run_at_import([*node.decorator_list, node.args, node.returns])
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            yield from _run_at_import(node.orelse)
        else:
            yield from _run_at_import(ast.iter_child_nodes(node))


def _is_plain(node: ast.ClassDef) -> bool:
    """Tell a data class without a method that Python calls by itself."""
    names = {ast.unparse(one.func if isinstance(one, ast.Call) else one) for one in node.decorator_list}
    methods = {one.name for one in node.body if isinstance(one, _FUNCTION)} - {"__str__", "__repr__"}
    calls = any(name.startswith("__") for name in methods)
    return bool(names) and names <= {"dataclass", "dataclasses.dataclass"} and not node.bases and not calls


def _is_among(name: str, names: Iterable[str]) -> bool:
    """Tell whether a dotted name is one of several, or below one; `os.*` stands for all that begin so."""
    return any(
        name.startswith(one[:-1]) if one.endswith("*") else f"{name}.".startswith(f"{one}.") for one in names
    )
