"""Find everything that is wrong with a recipe's tables, before anything is built."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from evidcore.errors import PluginError, did_you_mean
from evidcore.recipe import order, schema
from evidcore.recipe.kept import Imported, Kept, NotKept
from evidcore.registry import find, offers
from evidcore.registry.factory import SERVICE_KINDS, Option, check, check_options, own_keys, show, validate

Path = tuple[str | int, ...]
_HOMES: Sequence[tuple[type, str]] = (
    (schema.Top, "the top of the file, above every [section]"),
    (schema.Model, "[model]"),
    (schema.Features, "[features]"),
    (schema.DataUse, "an entry of a stage's data"),
    (schema.RewardKeys, "[[stage.reward]]"),
    (schema.MetricKeys, "[[stage.metric]]"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One mistake: the path of its value in the recipe, and the sentence about it."""

    path: Path
    text: str


def first_problems(raw: Mapping[str, Any]) -> list[Problem]:
    """Return the mistakes of a recipe that can be told without importing anything, as far as that can be.

    They are of names, keys, types and bounds. None are told where a component was never read here before.
    """
    found = Walk(raw, sight=Kept())
    try:
        found.table(schema.Top, raw, ())
    except NotKept:
        return []
    return found.add


def problems(raw: Mapping[str, Any]) -> list[Problem]:
    """Return every mistake of a recipe that was read; imports the components that it names."""
    sight = Imported()
    found = Walk(raw, sight=sight)
    found.table(schema.Top, raw, ())
    across = order.problems(raw, found.services, found.stages)
    sight.keep()
    return [*found.add, *(Problem(path=path, text=text) for path, text in across)]


def stage_class(kind: str) -> Any:
    """Return the class of a kind of stage.

    Raises:
        PluginError: if no installed package offers it, or it is no stage.
    """
    return Imported().form(find("stage", kind))


def _stage_homes(kinds: Iterable[str], sight: Imported | Kept) -> Iterator[tuple[type, str]]:
    """Yield the tables of stages in whose place a key may have been meant: the recipe's, and the core's."""
    own = {row.name for row in offers("stage") if row.package == "evidcore"}
    for kind in dict.fromkeys([*kinds, *sorted(own)]):
        with contextlib.suppress(PluginError, NotKept):
            form = sight.form(find("stage", kind))
            yield form, f"a {kind} stage, above its [[stage.…]] tables"
            hints = typing.get_type_hints(form, include_extras=True)
            for name, hint in hints.items():
                inner = next((item for item in typing.get_args(hint) if dataclasses.is_dataclass(item)), None)
                if isinstance(inner, type) and typing.get_origin(hint) is types.UnionType:
                    yield inner, f"{name} of a {kind} stage"


def section(raw: Mapping[str, Any], path: Path) -> str:
    """Return what messages call a path: stages go by their kind, `stage.grpo.reward[1].levels`."""
    if len(path) > 1 and path[0] == "stage" and isinstance(path[1], int):
        kinds = [item.get("kind") if isinstance(item, Mapping) else None for item in _list(raw.get("stage"))]
        kind = kinds[path[1]] if path[1] < len(kinds) else None
        if isinstance(kind, str):
            twins = [index for index, other in enumerate(kinds) if other == kind]
            number = f"[{twins.index(path[1])}]" if len(twins) > 1 else ""
            return f"stage.{kind}{number}{show(path[2:])}"
    return show(path).lstrip(".") or "recipe"


def service_kind(table: Mapping[str, Any]) -> str | None:
    """Return the kind of a service's table: as given, or the only kind with a component of that name."""
    if isinstance(table.get("kind"), str):
        return str(table["kind"])
    package, _, name = str(table.get("use")).rpartition("/")
    kinds = {
        row.kind
        for row in offers()
        if row.kind in SERVICE_KINDS and row.name == name and package in ("", row.package)
    }
    return kinds.pop() if len(kinds) == 1 else None


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


class Walk:
    """A walk over tables that collects mistakes, each with its path."""

    def __init__(
        self, raw: Mapping[str, Any], *, is_recipe: bool = True, sight: Imported | Kept | None = None
    ) -> None:
        """Start with no mistake.

        Args:
            raw: the file as read.
            is_recipe: an unknown key may have been meant for another table of a recipe.
            sight: tells what components and stages take; None imports them.
        """
        self.raw, self._is_recipe, self._sight = raw, is_recipe, sight or Imported()
        self.add: list[Problem] = []
        services = raw.get("service")
        tables = services if isinstance(services, Mapping) else {}
        known = {name: service_kind(item) for name, item in tables.items() if isinstance(item, Mapping)}
        self.services = {name: kind for name, kind in known.items() if kind in SERVICE_KINDS}

    @functools.cached_property
    def stages(self) -> dict[str, type]:
        """The class of each kind of stage that the recipe has, as far as it is installed."""
        kinds = [item.get("kind") for item in _list(self.raw.get("stage")) if isinstance(item, Mapping)]
        found = {}
        for kind in dict.fromkeys(str(kind) for kind in kinds):
            with contextlib.suppress(PluginError):  # reported where the stage is checked
                found[kind] = self._sight.form(find("stage", kind))
        return found

    @functools.cached_property
    def _homes(self) -> list[tuple[type, str]]:
        """Tables in whose place a key may have been meant, with what messages call them."""
        return [*_HOMES, *_stage_homes(self.stages, self._sight)] if self._is_recipe else []

    def table(
        self, form: type, value: Any, path: Path, more: Mapping[str, Option] | None = MappingProxyType({})
    ) -> None:
        """Check a table against the fields of its class.

        Args:
            form: a dataclass.
            value: the table as read.
            path: of the table.
            more: keys that it may hold beside the fields; None where that cannot be told.
        """
        if not isinstance(value, Mapping):
            self._say(path, f"must be a table, got {value!r}.")
            return
        hints = typing.get_type_hints(form, include_extras=True)
        known = {item.name: item for item in dataclasses.fields(form) if not item.metadata.get("open")}
        for key in value:
            if key not in known and more is not None and key not in more:
                self._say((*path, key), f"unknown key.{self._hint(key, {**known, **more}, path)}")
        given = {key: value[key] for key in more or {} if key in value}
        for mistake in check_options(more or {}, given, "", self.services, self._sight.options):
            self._say((*path, *mistake.key), mistake.text)
        for key in given:
            self._named_components(str((more or {})[key].kind), given[key], (*path, key))
        for name, item in known.items():
            is_required = item.default is item.default_factory is dataclasses.MISSING
            if name in value:
                self.value(hints[name], value[name], (*path, name))
            elif is_required:
                self._say(path, f"{name} is missing, and it has no default.")
            elif item.default_factory is not dataclasses.MISSING:  # a default may name a component too
                self.value(hints[name], item.default_factory(), (*path, name))

    def value(self, annotation: Any, value: Any, path: Path) -> None:
        """Check one value against the type of its field."""
        origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Annotated and any(isinstance(item, schema.Kind) for item in inner[1:]):
            kind = next(item for item in inner[1:] if isinstance(item, schema.Kind))
            value = kind.named(value)
            if kind.name == "stage":
                self.stage(value, path)
            elif isinstance(value, str) and kind.or_service:
                self.service(kind.name, value, path)
            else:
                self.component(kind.name, value, path)
        elif dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
            self.table(annotation, value, path)
        elif origin is types.UnionType and dataclasses.is_dataclass(inner[0]):  # optional table
            self.value(inner[0], value, path)
        elif origin is tuple and not _is_plain(inner[0]):
            if not isinstance(value, list | tuple) or not value:
                self._say(path, f"must be a list with at least one entry, got {value!r}.")
                return
            for index, item in enumerate(value):
                self.value(inner[0], item, (*path, index))
        elif origin is Mapping and len(inner) == 2 and not _is_plain(inner[1]):
            if not isinstance(value, Mapping):
                self._say(path, f"must be a table of named tables, got {value!r}.")
                return
            for name, item in value.items():
                self.value(inner[1], item, (*path, name))
        else:
            for key, text in validate(annotation, value)[1]:
                self._say((*path, *[part for part in key if part in _parts(value)]), text)

    def stage(self, value: Any, path: Path) -> None:
        """Check a stage against the class of its kind, and the keys that it leaves open."""
        if not isinstance(value, Mapping):
            self._say(path, f"must be a table, got {value!r}.")
            return
        kind = value.get("kind")
        try:
            form = self._sight.form(find("stage", str(kind)))
        except PluginError as cause:
            installed = [row.name for row in offers("stage")]
            text = f"must be one of {', '.join(installed)}, got {kind!r}."
            hint = did_you_mean(str(kind), installed) if str(kind) not in installed else f" {cause}"
            self._say((*path, "kind"), text + hint)
            return
        around = schema.Surroundings(self.raw, self.services)
        self.table(form, value, path, form.open_keys(value, around))

    def service(self, kind: str, name: str, path: Path) -> None:
        """Check the name of a service that stands in the place of a component's table."""
        option = Option(name=kind, type=str, default=None, kind=kind)
        for mistake in check_options({kind: option}, {kind: name}, "", self.services):
            self._say(path, mistake.text)

    def component(self, kind: str, value: Any, path: Path) -> None:
        """Check a component's table by its signature."""
        if not isinstance(value, Mapping):
            self._say(path, f"must be a table that names a component, {{ use = '…' }}, got {value!r}.")
            return
        table = dict(value)
        if kind == "service":
            given = table.pop("kind", None)
            found = service_kind(value)
            if found not in SERVICE_KINDS:
                kinds = ", ".join(SERVICE_KINDS)
                if given is not None:
                    self._say((*path, "kind"), f"must be one of {kinds}, got {given!r}.")
                else:
                    text = f"must name one component of the kinds {kinds}, got {table.get('use')!r}."
                    self._say((*path, "use"), f"{text} Where two kinds have it, add kind = '…'.")
                return
            kind = str(found)
        self._own_keys(kind, table, path)
        for mistake in check(kind, table, "", self.services, self._sight.options):
            text = mistake.text
            if text.startswith("unknown key."):
                text += self._home(str(mistake.key[-1]), path)
            self._say((*path, *mistake.key), text)

    def _named_components(self, kind: str, value: Any, path: Path) -> None:
        """Check what the core reads itself in a list of tables: their own keys, and that they differ."""
        before: list[tuple[Any, Any]] = []
        for index, table in enumerate(_list(value) if kind in schema.OWN_KEYS else ()):
            if isinstance(table, Mapping):
                self._own_keys(kind, table, (*path, index))
                called = (table.get("use"), table.get("name") or "")
                if called in before:
                    text = f"{kind} {called[0]!r} comes twice under one name."
                    self._say((*path, index), f"{text} Give this one a name = '…' of its own.")
                before.append(called)

    def _own_keys(self, kind: str, table: Mapping[str, Any], path: Path) -> None:
        """Check the keys of a component's table that the core reads itself."""
        form = schema.OWN_KEYS.get(kind)
        hints = typing.get_type_hints(form, include_extras=True) if form is not None else {}
        for key in hints.keys() & table.keys() - {"use"}:
            self.value(hints[key], table[key], (*path, key))

    def _say(self, path: Path, text: str) -> None:
        self.add.append(Problem(path=path, text=text))

    def _hint(self, key: str, known: Mapping[str, Any], path: Path) -> str:
        """Return the section where the key belongs, or else the nearest key here."""
        return self._home(key, path) or did_you_mean(key, known) or f" Keys here: {', '.join(sorted(known))}."

    def _home(self, key: str, path: Path) -> str:
        """Return where in a recipe a key belongs; the stage around it comes first."""
        homes = [
            (form, name)
            for form, name in self._homes
            if key in {item.name for item in dataclasses.fields(form)}
        ]
        if len(path) > 1 and path[0] == "stage" and isinstance(path[1], int):
            around = self.stages.get(str(self.raw["stage"][path[1]].get("kind")))
            homes = [home for home in homes if home[0] is around and len(path) > 2] or homes
            rewards = _list(self.raw["stage"][path[1]].get("reward"))
            for index, item in enumerate(rewards):
                if key not in own_keys("reward") and isinstance(item, Mapping) and self._has(item, key):
                    return (
                        f" It is an option of {section(self.raw, path[:2])}.reward[{index}] ({item['use']})."
                    )
        names = " or ".join(name for _, name in homes)
        return f" It belongs in {names}." if names else ""

    def _has(self, reward: Mapping[str, Any], key: str) -> bool:
        """Tell whether a reward has an option of that name."""
        with contextlib.suppress(PluginError):
            return key in self._sight.options(find("reward", str(reward.get("use"))))
        return False


def _is_plain(annotation: Any) -> bool:
    """Tell whether a type holds no table of the core and no component."""
    if dataclasses.is_dataclass(annotation):
        return False
    return not any(isinstance(item, schema.Kind) for item in typing.get_args(annotation)[1:])


def _parts(value: Any) -> Sequence[Any]:
    """Return what leads into a value; the tags of a union in pydantic's paths are none of it."""
    if isinstance(value, Mapping):
        return list(value)
    return range(len(value)) if isinstance(value, list) else ()
