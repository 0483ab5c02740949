"""Read a plugin's Python without running it: what it may reach, and what it runs as soon as it is loaded.

Code can hide what it reaches when it is called: `capabilities` tells honest authors what to declare. What is
loaded is held to a list of what is known to be harmless; a list of harmful acts had forty holes. No object of
a class of the package is made then, so operators, attributes and formats call none of its methods.
Annotations count, in texts too: whoever reads the options of a component evaluates them.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import resources

_TABLES = tomllib.loads((resources.files(__package__) / "code_look.toml").read_text(encoding="utf-8"))
CAPABILITIES: Mapping[str, str] = {name: table["about"] for name, table in _TABLES["reach"].items()}
_HARMLESS: Mapping[str, list[str]] = _TABLES["harmless"]
MOST_PARTS = 50  # of a dotted name
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_OF_TYPES = (
    ast.BinOp, ast.BitOr, ast.Constant, ast.List, ast.Load, ast.Subscript, ast.Tuple, ast.UnaryOp, ast.USub,
)  # fmt: skip
_PLAIN = (
    *_OF_TYPES, ast.BoolOp, ast.Compare, ast.Dict, ast.IfExp, ast.Name, ast.Set, ast.Slice, ast.Starred,
    ast.boolop, ast.cmpop, ast.keyword, ast.operator, ast.unaryop,
)  # fmt: skip


class CodeLook:
    """A module's code, with what its imports call what.

    Raises:
        SyntaxError: or ValueError, RecursionError, MemoryError, if it is no Python that can be read.
    """

    def __init__(self, text: str, tops: Collection[str] = ()) -> None:
        self._tree, self._tops = ast.parse(text), tops
        self._imports = {name: full for node in ast.walk(self._tree) for name, full in _imported(node)}
        self._meanings: dict[str, set[str]] = defaultdict(set)  # of names that are bound while it is loaded
        assigned, stores = defaultdict[str, list[ast.AST]](list), Counter[str]()
        for node in _loaded(self._tree.body):
            for name, full in _imported(node):
                self._meanings[name].add(full)
            if isinstance(node, (*_FUNCTION, ast.ClassDef)):
                self._meanings[node.name].add("class" if isinstance(node, ast.ClassDef) else "function")
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._meanings[node.id].add("value")
                stores[node.id] += 1
            elif isinstance(node, ast.ExceptHandler) and node.name:
                self._meanings[node.name].add("function")
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                assigned[node.targets[0].id].append(node.value)
        stores |= {name: -1 for name, what in self._meanings.items() if what != {"value"}}
        self._aliases = {name: each for name, each in assigned.items() if stores[name] == len(each)}
        # a package adds its others, and takes away what one of its modules binds otherwise
        self.classes = {name for name, what in self._meanings.items() if what == {"class"}}
        self.others = {name for name, what in self._meanings.items() if what & {"function", "value"}}

    def capabilities(self) -> Iterator[tuple[str, str]]:
        """Yield what it may reach, each with what shows it: ("network", "imports socket")."""
        written = set[str]()  # methods: to write each of a long chain anew takes minutes
        for node in ast.walk(self._tree):
            reached = [f"imports {full}" for _, full in _imported(node, is_whole=True)]
            first, *rest = _parts(node)
            if first in self._imports or hasattr(builtins, first):
                reached = [f"uses {'.'.join([self._imports.get(first, first), *rest])}"]
            for what in reached:
                name = what.partition(" ")[2]
                fitting = (key for key, row in _TABLES["reach"].items() if _is_below(name, row["names"]))
                if not _is_below(name, _TABLES["sound"]["names"]) and (key := next(fitting, None)):
                    yield key, what
            if isinstance(node, ast.Attribute) and node.attr not in written:
                written.add(node.attr)
                for key, row in _TABLES["reach"].items():
                    if node.attr in row["methods"]:
                        yield key, f"uses {ast.unparse(node)[-60:]}"

    def runs_when_loaded(self) -> Iterator[str]:
        """Yield what runs as soon as it is loaded and is not known to be harmless, each with its line."""
        for node in self._statements(self._tree.body, is_class=False):
            yield f"line {getattr(node, 'lineno', 1)}: {' '.join(ast.unparse(node).split())[:60]}"

    def _statements(self, body: Iterable[ast.stmt], *, is_class: bool) -> Iterator[ast.AST]:
        for node in body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                is_hook = any(name.startswith("__") for name, _ in _imported(node))  # as __init_subclass__
                if is_hook or not all(self._may_import(full) for _, full in _imported(node, is_whole=True)):
                    yield node
            elif isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                yield from (item for item in targets if item is not None and not _is_plain_target(item))
                yield from self._odd(node.value)
                yield from self._odd(getattr(node, "annotation", None), is_type=True)
            elif isinstance(node, ast.If) and (
                ast.unparse(node.test) == "__name__ == '__main__'"
                or self._full(node.test) == "typing.TYPE_CHECKING"
            ):
                yield from self._statements(node.orelse, is_class=is_class)
            elif isinstance(node, (*_FUNCTION, ast.ClassDef)):
                if node.name.startswith("__") and not (is_class and node.name in _HARMLESS["methods"]):
                    yield ast.copy_location(ast.Name(f"def {node.name}"), node)
                yield from getattr(node, "type_params", ())  # of Python 3.12: [T: open(1)]
                wraps = node.decorator_list
                yield from (item for item in wraps if not self._may_decorate(item, len(wraps) == 1))
                yield from self._class(node) if isinstance(node, ast.ClassDef) else self._function(node)
            elif not isinstance(node, ast.Pass):
                yield node

    def _class(self, node: ast.ClassDef) -> Iterator[ast.AST]:
        yield from (item.value for item in node.keywords)
        for base in node.bases:
            full = self._full(base.value if isinstance(base, ast.Subscript) else base)
            if not self._is_known_class(full) and not _is_among(full, _HARMLESS["bases"]):
                yield base
            yield from self._odd(base, is_type=True)
        yield from self._statements(node.body, is_class=True)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
        yield from self._odd(node.returns, is_type=True)
        for item in ast.iter_child_nodes(node.args):
            is_type = isinstance(item, ast.arg)
            yield from self._odd(item.annotation if isinstance(item, ast.arg) else item, is_type=is_type)

    def _odd(self, node: ast.AST | None, *, is_type: bool = False) -> Iterator[ast.AST]:
        """Yield what is not known to be harmless of an expression, or of an annotation."""
        below, is_harmless = list(ast.iter_child_nodes(node)) if node is not None else [], True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_type:
            with contextlib.suppress(SyntaxError, ValueError):  # nobody can evaluate it
                below = [ast.parse(node.value.strip(), mode="eval").body]
                for item in ast.walk(below[0]):
                    ast.copy_location(item, node)
        elif isinstance(node, ast.Subscript) and self._full(node.value) == "typing.Literal":
            below = []  # its texts are none of types
        elif isinstance(node, ast.Name) and is_type:
            full = self._full(node)
            is_harmless = (
                node.id not in self._meanings or not self._is_of_package(full) or self._is_known_class(full)
            )
            if node.id in self._aliases:  # looked at once
                is_harmless, below = True, self._aliases[node.id]
                self._aliases[node.id] = []
        elif isinstance(node, ast.Attribute):
            is_harmless = isinstance(node.ctx, ast.Load) and not node.attr.startswith("_")
            is_harmless &= not (is_type and self._is_of_package(self._full(node)))
        elif isinstance(node, ast.Call):
            is_harmless = self._may_call(node, _HARMLESS["marks"] + ([] if is_type else _HARMLESS["calls"]))
            is_type = self._full(node.func).startswith("typing.")  # a bound may be a text, which is evaluated
            below = [*node.args, *(item.value for item in node.keywords)]
        elif node is not None:
            is_harmless = isinstance(node, _OF_TYPES if is_type else _PLAIN)
        if node is not None and not is_harmless:
            yield node
        for item in below if is_harmless else ():
            yield from self._odd(item, is_type=is_type)

    def _may_import(self, full: str) -> bool:
        module, _, name = full.rpartition(".")
        is_hidden = any(part.startswith("_") for part in full.split(".")) and module != "__future__"
        is_known = any(_is_among(item, _HARMLESS["modules"]) for item in (full, module))
        return name != "*" and not is_hidden and (is_known or self._is_of_package(full))

    def _may_call(self, node: ast.Call, among: Iterable[str]) -> bool:
        """Tell a call that makes a value of a known kind, and calls nothing that it is given."""
        makes = [item.value for item in node.keywords if item.arg == "default_factory"]
        calls_back = any(item.arg in (None, "key", "out") for item in node.keywords)
        if calls_back or any(self._full(item) not in ("dict", "list", "set") for item in makes):
            return False
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Constant):
            return node.func.attr in _HARMLESS["of_literals"]
        return _is_among(self._full(node.func), among)

    def _may_decorate(self, node: ast.expr, is_alone: bool) -> bool:
        given = [*node.args, *(item.value for item in node.keywords)] if isinstance(node, ast.Call) else []
        full = self._full(node.func if isinstance(node, ast.Call) else node)
        if full == "classmethod" and not is_alone:  # @property below it would run where the class is asked
            return False
        return _is_among(full, _HARMLESS["decorators"]) and all(isinstance(x, ast.Constant) for x in given)

    def _is_of_package(self, full: str) -> bool:
        """Tell what is of the package, or cannot be told."""
        return full.startswith(".") or full.partition(".")[0] in {*self._tops, ""}

    def _is_known_class(self, full: str) -> bool:
        return bool(full) and self._is_of_package(full) and full.rpartition(".")[2] in self.classes

    def _full(self, node: ast.AST) -> str:
        """Return a dotted name by what its first part was imported as, `.name` of a class here, or ""."""
        first, *rest = _parts(node)
        meanings = self._meanings.get(first, set())
        if len(meanings) + hasattr(builtins, first) != 1 or meanings & {"function", "value"}:
            return ""  # it may stand for either of two
        full = next(iter(meanings), first)
        return ".".join([f".{first}" if full == "class" else full, *rest])


def _parts(node: ast.AST) -> list[str]:
    """Return the parts of a dotted name that is read; an empty item of what is none."""
    attributes = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
        if len(attributes) > MOST_PARTS:  # each is looked at with all before it
            raise ValueError(f"a name has more than {MOST_PARTS} parts")
    return [node.id if isinstance(node, ast.Name) else "", *reversed(attributes)]


def _loaded(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield nodes and all below them, without bodies of functions."""
    for node in nodes:
        yield node
        if isinstance(node, _FUNCTION):
            yield from _loaded([*node.decorator_list, node.args])
        else:
            yield from _loaded(ast.iter_child_nodes(node))


def _imported(node: ast.AST, *, is_whole: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the names that an import binds, each with what it stands for; `is_whole`: with all it imports."""
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        yield from ((item.asname or item.name, f"{module}.{item.name}") for item in node.names)
    elif isinstance(node, ast.Import):
        for item in node.names:
            first = item.name.partition(".")[0]
            yield item.asname or first, item.name if item.asname or is_whole else first


def _is_plain_target(target: ast.expr) -> bool:
    """Tell whether an assignment sets names of the module's own alone."""
    if isinstance(target, ast.Tuple):
        return all(_is_plain_target(item) for item in target.elts)
    return isinstance(target, ast.Name) and (
        not target.id.startswith("__") or target.id in _HARMLESS["names"]
    )


def _is_among(name: str, names: Iterable[str]) -> bool:
    """Tell whether a dotted name is one of several; `os.fork*` stands for all that begin so."""
    return any(name.startswith(item[:-1]) if item.endswith("*") else name == item for item in names)


def _is_below(name: str, names: Iterable[str]) -> bool:
    """Tell whether a dotted name is one of several, or below one."""
    return any(_is_among(name, [item, f"{item.rstrip('*')}.*"]) for item in names)
