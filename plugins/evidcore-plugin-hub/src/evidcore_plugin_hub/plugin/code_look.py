"""Read a plugin's Python without running it: what it may reach, and what it would do as soon as imported.

Whoever wants to hide what code reaches when it is called can. What a module does at import is held to a short
list of calls, so that a module defines, and does nothing else.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence

CAPABILITIES = {
    "network": "opens connections",
    "processes": "starts programs, processes or threads of its own",
    "native": "calls compiled libraries by hand",
    "files": "opens files",
    "environment": "reads the variables of the environment",
    "evaluation": "runs text, unpickles bytes or imports by name",
    "gpu": "needs a GPU",
}
_MODULES = {
    "network": (
        "aiohttp antigravity asyncio ftplib http httpx huggingface_hub imaplib logging.handlers nntplib "
        "openai poplib requests smtplib socket socketserver ssl telnetlib urllib urllib3 webbrowser xmlrpc"
    ),
    "processes": "concurrent joblib multiprocessing pty signal subprocess threading",
    "native": "_ctypes cffi ctypes mmap",
    "evaluation": "cloudpickle code codeop dill importlib marshal pickle runpy shelve zipimport",
    "files": "dbm fileinput glob nibabel pandas pydicom shutil SimpleITK sqlite3 tempfile",
}
_NAMES = {
    "evaluation": "compile eval exec __import__ torch.hub.load",
    "files": (
        "open io.open numpy.fromfile numpy.load numpy.loadtxt numpy.memmap numpy.save numpy.savez torch.load "
        "torch.save safetensors.torch.load_file safetensors.torch.save_file"
    ),
    "environment": "os.environ os.getenv os.putenv os.environb",
    "network": "torch.hub",
}
_METHODS = {
    "files": "open read_bytes read_text rename rmdir touch unlink write_bytes write_text",
    "network": "from_pretrained urlopen",
    "evaluation": "import_module load_module exec_module",
}
_SOUND_MODULES = ("importlib.metadata", "importlib.resources", "multiprocessing.pool.ThreadPool")
_SOUND_OF_OS = {
    "PathLike", "cpu_count", "devnull", "fsdecode", "fsencode", "fspath", "linesep", "name", "path", "sep",
}  # fmt: skip
_PROCESS_OF_OS = ("exec", "spawn", "fork", "popen", "posix_spawn", "system", "kill", "wait", "startfile")

# what a module may call while it is imported: module by module, nothing that calls what it is given
_DEFINING = {
    "": (
        "abs bool bytes classmethod dict enumerate float frozenset int len list max min object property "
        "range round set sorted staticmethod str sum tuple zip"
    ),
    "abc": "abstractmethod",
    "click": "argument command group option pass_context version_option Choice IntRange Path",
    "collections": "Counter OrderedDict deque namedtuple",
    "contextlib": "contextmanager nullcontext suppress",
    "dataclasses": "dataclass field replace",
    "datetime": "date datetime time timedelta",
    "decimal": "Decimal",
    "enum": "auto unique",
    "evidcore.hooks": "observe",
    "evidcore_plugin_hub.trl_reward": "reward_of",
    "fractions": "Fraction",
    "functools": "cache cached_property lru_cache partial total_ordering wraps",
    "itertools": "chain combinations count permutations product repeat",
    "logging": "getLogger",
    "numpy": ("arange array asarray cos diag exp eye float32 float64 linspace log ones sin sqrt stack zeros"),
    "pathlib": "Path PurePath PurePosixPath",
    "pydantic": "ConfigDict Field StringConstraints field_validator model_validator",
    "re": "compile escape",
    "struct": "Struct",
    "torch": "arange device inference_mode no_grad ones tensor zeros",
    "types": "MappingProxyType SimpleNamespace",
    "typing": "NamedTuple NewType ParamSpec TypeVar TypedDict cast final overload override runtime_checkable",
    "typing_extensions": "override",
}
_DEFINING_MODULES = ("annotated_types", "math", "pytest.mark")
_MAKERS = ("bytes.fromhex", "dict.fromkeys", "int.from_bytes", "str.maketrans")
_LITERALS = (ast.Constant, ast.Dict, ast.List, ast.Set, ast.Tuple, ast.JoinedStr)
_RUN_AT_IMPORT = {
    "__class_getitem__", "__init_subclass__", "__mro_entries__", "__prepare__", "__set_name__",
    "_generate_next_value_",
}  # fmt: skip


class CodeLook:
    """A module's code, with what its imports call what."""

    def __init__(self, text: str) -> None:
        """Parse it.

        Args:
            text: of the module.

        Raises:
            SyntaxError: or ValueError, RecursionError, MemoryError, if it is no Python that can be read.
        """
        self._tree = ast.parse(text)
        # classes that keep what they are given; a package adds its others
        self.plain: set[str] = set()
        self._imports: dict[str, str] = {}
        self._own = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                for item in node.names:
                    first = item.name.partition(".")[0]
                    self._imports[item.asname or first] = item.name if item.asname else first
            elif isinstance(node, ast.ImportFrom):
                for item in node.names:
                    self._imports[item.asname or item.name] = f"{node.module or ''}.{item.name}"
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._own.add(node.name)
                if isinstance(node, ast.ClassDef) and _keeps(node):
                    self.plain.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._own.add(node.id)

    def capabilities(self) -> Iterator[tuple[str, str]]:
        """Yield what it may reach, each with what shows it: ("network", "imports socket")."""
        for node in ast.walk(self._tree):
            for module in _modules(node):
                for name, modules in _MODULES.items():
                    sound = any(_is_under(module, one) for one in _SOUND_MODULES)
                    if not sound and any(_is_under(module, one) for one in modules.split()):
                        yield name, f"imports {module}"
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                yield from self._reached(node)

    def _reached(self, node: ast.Name | ast.Attribute) -> Iterator[tuple[str, str]]:
        full = self._full(node)
        for name, names in _NAMES.items():
            if full in names.split():
                yield name, f"uses {full}"
        if full.startswith("os.") and full.count(".") == 1:
            rest = full.removeprefix("os.")
            if rest.startswith(_PROCESS_OF_OS):
                yield "processes", f"uses {full}"
            elif rest not in _SOUND_OF_OS and full not in _NAMES["environment"].split():
                yield "files", f"uses {full}"
        if isinstance(node, ast.Attribute):
            for name, methods in _METHODS.items():
                if node.attr in methods.split():
                    yield name, f"uses {ast.unparse(node)[-60:]}"

    def acts_at_import(self) -> Iterator[str]:
        """Yield what it does beside defining as soon as it is imported, each with its line."""
        yield from self._acts(self._tree.body)

    def _acts(self, body: list[ast.stmt], *, in_class: bool = False) -> Iterator[str]:
        """Walk the statements that run at import: of the module, its branches and bodies of classes."""
        for node in body:
            at = f"line {node.lineno}: "
            if isinstance(node, ast.Expr):
                if not isinstance(node.value, ast.Constant):
                    yield at + ast.unparse(node)[:60]
            elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if not all(map(_is_plain, targets)) or "__path__" in ast.unparse(targets[0]):
                    yield f"{at}sets {ast.unparse(targets[0])[:60]}"
                annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
                yield from self._calls(at, [node.value, annotation])
            elif isinstance(node, ast.ClassDef):
                if any(ast.unparse(base) in ("type", "builtins.type") for base in node.bases):
                    yield f"{at}makes a class of classes, whose methods run at import"
                yield from self._calls(at, [*node.bases, *(item.value for item in node.keywords)])
                yield from self._decorated(at, node.decorator_list)
                yield from self._acts(node.body, in_class=True)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name in _RUN_AT_IMPORT or (node.name == "__getattr__" and not in_class):
                    yield f"{at}defines {node.name}, which runs at import"
                yield from self._decorated(at, node.decorator_list)
                yield from self._calls(at, _signature(node.args, node.returns))
            elif isinstance(node, ast.If):
                yield from self._calls(at, [node.test])
                is_program = ast.unparse(node.test) == "__name__ == '__main__'"
                run = node.orelse if is_program else [*node.body, *node.orelse]
                yield from self._acts(run, in_class=in_class)
            elif isinstance(node, ast.Try):
                yield from self._calls(at, [handler.type for handler in node.handlers])
                handled = [one for handler in node.handlers for one in handler.body]
                run = [*node.body, *handled, *node.orelse, *node.finalbody]
                yield from self._acts(run, in_class=in_class)
            elif not isinstance(node, ast.Import | ast.ImportFrom | ast.Pass):
                yield at + ast.unparse(node)[:60]

    def _calls(self, at: str, parts: Sequence[ast.expr | None]) -> Iterator[str]:
        """Yield what expressions do beside making a value."""
        for part in parts:
            for node in ast.walk(part) if part is not None else ():
                if isinstance(node, ast.Call) and not self._defines(node):
                    yield f"{at}calls {ast.unparse(node.func)[:60]}"
                elif isinstance(node, ast.comprehension) and not _is_plain(node.target):
                    yield f"{at}sets {ast.unparse(node.target)[:60]}"
                elif isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
                    yield at + ast.unparse(node)[:60]

    def _decorated(self, at: str, decorators: list[ast.expr]) -> Iterator[str]:
        for one in decorators:
            called = one.func if isinstance(one, ast.Call) else one
            is_property = isinstance(called, ast.Attribute) and called.attr in ("setter", "getter", "deleter")
            if not is_property and not self._is_defining(called):
                yield f"{at}calls {ast.unparse(called)[:60]}"
            given = [*one.args, *(item.value for item in one.keywords)] if isinstance(one, ast.Call) else []
            yield from self._calls(at, given)

    def _defines(self, node: ast.Call) -> bool:
        """Tell a call that makes a value and does nothing else."""
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, _LITERALS):
            return True  # "a b".split()
        calls_back = any(item.arg == "key" for item in node.keywords)
        return self._is_defining(node.func) and not calls_back

    def _is_defining(self, called: ast.expr) -> bool:
        if not isinstance(called, ast.Name | ast.Attribute):
            return False
        full = self._full(called)
        module, _, name = full.rpartition(".")
        if isinstance(called, ast.Name) and called.id in self._own:
            return called.id in self.plain
        return (
            name in _DEFINING.get(module, "").split()
            or full in _MAKERS
            or name in self.plain
            or (full.startswith("evidcore.") and name[:1].isupper())
            or any(_is_under(full, one) for one in _DEFINING_MODULES)
        )

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


def _keeps(node: ast.ClassDef) -> bool:
    """Tell a data class without a method that Python calls by itself."""
    names = [ast.unparse(one.func if isinstance(one, ast.Call) else one) for one in node.decorator_list]
    methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    is_plain = not any(name.startswith("__") and name not in ("__str__", "__repr__") for name in methods)
    return bool(names) and {*names} <= {"dataclass", "dataclasses.dataclass"} and not node.bases and is_plain


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [item.name for item in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module or ''}.{item.name}" for item in node.names]
    return []


def _is_under(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def _is_plain(target: ast.expr) -> bool:
    """Tell names, and lists of names, from what belongs to something else."""
    if isinstance(target, ast.Tuple | ast.List):
        return all(map(_is_plain, target.elts))
    return isinstance(target, ast.Name)


def _signature(arguments: ast.arguments, returns: ast.expr | None) -> list[ast.expr | None]:
    """Return what a definition evaluates: defaults and annotations."""
    every = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ]
    annotations = [one.annotation for one in every if one is not None]
    return [*arguments.defaults, *arguments.kw_defaults, *annotations, returns]
