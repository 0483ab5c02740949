"""Find everything that is wrong with a recipe's tables, before anything is built."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evidcore.errors import PluginError, did_you_mean
from evidcore.recipe import order, schema
from evidcore.registry import find, offers
from evidcore.registry.factory import (
    Components,
    Form,
    Mistake,
    Path,
    form_of_class,
    mistake,
    mistakes_of,
    named_offer,
    show,
    together,
)
from evidcore.registry.signature import CORE_KEYS, SERVICE_KINDS, Kind, Option, fields, reserved_keys

_HOMES: Sequence[tuple[type, str]] = (
    (schema.Top, "the top of the file, above every [section]"),
    (schema.Model, "[model]"),
    (schema.Features, "[features]"),
    (schema.DataUse, "an entry of a stage's data"),
    (CORE_KEYS["reward"], "[[stage.reward]]"),
    (CORE_KEYS["metric"], "[[stage.metric]]"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageTable:
    """A stage's table, checked: what its class is made from."""

    form: Any  # the class
    values: Mapping[str, Any]  # of its fields that the table or a default names
    options: Mapping[str, Any]  # of the keys that it leaves open, with defaults


def check(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[Mistake]]:
    """Return the values of a recipe's tables, and every mistake; imports the components that it names."""
    tables = Tables(raw)
    result, wrong = tables.check()
    stages = dict[str, Any]()
    for kind in tables.kinds:
        with contextlib.suppress(PluginError):  # reported where the stage is checked
            stages[kind] = stage_class(kind)
    across = order.problems(raw, tables.services, stages)
    return result, [*wrong, *(Mistake(key=key, text=text) for key, text in across)]


def table_problems(form: type, table: Any) -> list[Mistake]:
    """Return the mistakes of a file that is no recipe, against the dataclass of its keys."""
    _, wrong = mistakes_of(lambda value: form_of_class(form).check(value, Components()), table)
    return [dataclasses.replace(item, text=item.text + _nearest(item), known=None) for item in wrong]


def _nearest(one: Mistake) -> str:
    if one.known is None:
        return ""
    return did_you_mean(str(one.key[-1]), one.known) or f" Keys here: {', '.join(sorted(one.known))}."


def stage_class(kind: str) -> Any:
    """Return the class of a kind of stage."""
    offer = find("stage", kind)
    form = offer.load()
    if not dataclasses.is_dataclass(form):
        raise PluginError(f"{offer}: must be a dataclass that is a Stage, got {form!r}.")
    return form


def section(raw: Mapping[str, Any], path: Path) -> str:
    """Return what messages call a path: stages go by their kind, `stage.grpo.reward[1].levels`."""
    if len(path) > 1 and path[0] == "stage" and isinstance(path[1], int):
        kinds = [item.get("kind") for item in order.as_tables(raw.get("stage"))]
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


class Tables(Components):
    """Looks into the tables of a recipe: components, services and stages; imports what they name."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        services = raw.get("service")
        tables = services if isinstance(services, Mapping) else {}
        known = {name: service_kind(item) for name, item in tables.items() if isinstance(item, Mapping)}
        super().__init__({name: kind for name, kind in known.items() if kind in SERVICE_KINDS})
        self.raw = raw
        kinds = [item.get("kind") for item in order.as_list(raw.get("stage")) if isinstance(item, Mapping)]
        self.kinds = list(dict.fromkeys(str(kind) for kind in kinds))

    def check(self) -> tuple[dict[str, Any], list[Mistake]]:
        """Return the values of the top's keys, and every mistake."""
        result, wrong = mistakes_of(lambda raw: form_of_class(schema.Top).check(raw, self), self.raw)
        return result, [dataclasses.replace(item, text=self._text(item), known=None) for item in wrong]

    def component(self, kind: Kind, value: Any) -> Any:
        """Return the values of a component's table, of a service's or a stage's."""
        if kind.name == "stage":
            return self._stage(value)
        if kind.name == "service" and isinstance(value, Mapping):
            return self._service(value)
        return super().component(kind, value)

    def _service(self, table: Mapping[str, Any]) -> dict[str, Any]:
        kind, given, use = service_kind(table), table.get("kind"), table.get("use")
        kinds = ", ".join(SERVICE_KINDS)
        if kind not in SERVICE_KINDS and given is not None:
            raise mistake(f"must be one of {kinds}, got {given!r}.", at=("kind",))
        if kind not in SERVICE_KINDS:
            text = f"must name one component of the kinds {kinds}, got {use!r}."
            raise mistake(f"{text} Where two kinds have it, add kind = '…'.", at=("use",))
        bare = {key: value for key, value in table.items() if key != "kind"}
        return {"kind": kind, **self.table(str(kind), bare)}

    def _stage(self, table: Any) -> StageTable:
        if not isinstance(table, Mapping):
            raise mistake(f"must be a table, got {table!r}.")
        kind = str(table.get("kind"))
        try:
            form = stage_class(kind)
        except PluginError as cause:
            installed = [row.name for row in offers("stage")]
            hint = did_you_mean(kind, installed) if kind not in installed else f" {cause}"
            text = f"must be one of {', '.join(installed)}, got {table.get('kind')!r}.{hint}"
            raise mistake(text, at=("kind",)) from None
        base, more = form_of_class(form), form.open_keys(table, schema.RecipeContext(self.raw, self.services))
        whole = Form({**(more or {}), **base.known}, is_component=False, is_open=more is None)
        values = together(_twins(more or {}, table), lambda: whole.check(table, self))
        left_open = Form(more or {}).resolved(table, values)
        return StageTable(form=form, values=values, options=left_open)

    @functools.cached_property
    def _homes(self) -> list[tuple[set[str], str]]:
        """Keys of tables in whose place a key may have been meant, with what messages call the tables.

        Of stages they are the recipe's and the core's.
        """
        result = [({item.name for item in fields(form)}, name) for form, name in _HOMES]
        builtin = {row.name for row in offers("stage") if row.package == "evidcore"}
        for kind in dict.fromkeys([*self.kinds, *sorted(builtin)]):
            with contextlib.suppress(PluginError):
                form = form_of_class(stage_class(kind))
                result.append(({*form.known}, f"a {kind} stage, above its [[stage.…]] tables"))
                for name, node in form.schema["properties"].items():
                    for entry in node.get("anyOf", ()):
                        if "$ref" in entry:
                            inner = form.schema["$defs"][entry["$ref"].rpartition("/")[2]]
                            result.append(({*inner["properties"]}, f"{name} of a {kind} stage"))
        return result

    def _text(self, one: Mistake) -> str:
        """Return the sentence about a mistake; of an unknown key, where it belongs or which is near."""
        if one.known is None:
            return one.text
        home = self._home(str(one.key[-1]), one.key[:-1])
        return f"{one.sentence}{home}" if one.is_option else f"{one.text}{home or _nearest(one)}"

    def _home(self, key: str, path: Path) -> str:
        """Return where in a recipe a key belongs; the stage around it comes first."""
        homes = [name for keys, name in self._homes if key in keys]
        if len(path) > 1 and path[0] == "stage" and isinstance(path[1], int):
            table = self.raw["stage"][path[1]]
            around = f"a {table.get('kind')} stage, above its [[stage.…]] tables"
            homes = [name for name in homes if name == around and len(path) > 2] or homes
            for index, item in enumerate(order.as_list(table.get("reward"))):
                if key not in reserved_keys("reward") and isinstance(item, Mapping) and self._has(item, key):
                    where = f"{section(self.raw, path[:2])}.reward[{index}]"
                    return f" It is an option of {where} ({item['use']})."
        return f" It belongs in {' or '.join(homes)}." if homes else ""

    def _has(self, reward: Mapping[str, Any], key: str) -> bool:
        with contextlib.suppress(PluginError):
            return key in self.form(named_offer("reward", reward)).known
        return False


def _twins(known: Mapping[str, Option], table: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield the tables of a list whose figures could not be told apart."""
    for key, option in known.items():
        before: list[tuple[Any, Any]] = []
        for index, item in enumerate(order.as_list(table.get(key)) if option.kind in CORE_KEYS else ()):
            if isinstance(item, Mapping):
                called = (item.get("use"), item.get("name") or "")
                if called in before:
                    text = f"{option.kind} {called[0]!r} comes twice under one name."
                    yield (key, index), f"{text} Give this one a name = '…' of its own."
                before.append(called)
