"""Read what a table of a recipe may hold from the signature of its component: the keyword-only parameters."""

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from annotated_types import Ge

from evidcore.errors import PluginError

SERVICE_KINDS = ("segmenter", "reader", "scorer", "labeler")


class InlineOptions:
    """Marks a parameter whose fields are keys of the table: `reading: Annotated[Reading, InlineOptions]`.

    Its type is a frozen dataclass. A default of the parameter gives the defaults of its fields.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardKeys:
    """The keys of a reward's table that are the core's; the others are the component's options."""

    use: str
    weight: Annotated[float, Ge(0)] = 1.0
    gate: str = ""  # name of an earlier reward: counts only where that one is above 0
    name: str = ""  # what metrics and rollouts call it; empty: the component's name


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricKeys:
    """The keys of a metric's table that are the core's; the others are the component's options."""

    use: str
    name: str = ""  # stands before its figures' names where a stage has the same metric twice


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetKeys:
    """The keys of a data set's table that are the core's; the others are the component's options."""

    use: str
    exclude: tuple[str, ...] | str = ()  # ids of cases to leave out, or a text file with one on each line


CORE_KEYS: Mapping[str, type] = {"reward": RewardKeys, "metric": MetricKeys, "dataset": DatasetKeys}
ISOLABLE = ("reward", "scorer", "reader")  # a table of these may have a key `isolated`


@dataclasses.dataclass(frozen=True)
class Kind:
    """Marks a value that is a component's table (`{ use = "…", … }`); what checks a recipe looks into it."""

    name: str
    or_service: bool = False  # or the name of a service of that kind
    default: str = ""  # the component, where the table names none

    def named(self, table: Any) -> Any:
        """Return a table with the default component's name where it has no `use`."""
        if self.default and isinstance(table, Mapping) and "use" not in table:
            return {"use": self.default, **table}
        return table

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Have what checks, the context of the validation, look into the value."""
        from pydantic_core import core_schema

        return core_schema.with_info_plain_validator_function(
            lambda value, info: info.context.component(self, value)
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """Return a node that says which component; `evid show --schema` refers to its kind there."""
        return {"x-component": dataclasses.asdict(self)}


def marked_kind(annotation: Any) -> str | None:
    """Return the component kind of a field's type, of a table, of each of a tuple; None where it is none."""
    for item in typing.get_args(annotation):
        if isinstance(item, Kind):
            return item.name
        if (inner := marked_kind(item)) is not None:
            return inner
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """One key of a table."""

    name: str
    type: Any  # annotation with bounds
    default: Any  # inspect.Parameter.empty where there is none
    kind: str | None = None  # component kind, where the value is a component
    is_list: bool = False  # of components, `tuple[Metric, ...]`
    holder: inspect.Parameter | None = None  # the flat parameter that it is a field of

    @property
    def is_required(self) -> bool:
        """Tell whether the recipe must give it."""
        return self.default is inspect.Parameter.empty

    @property
    def hint(self) -> Any:
        """Return the type that its value is checked by."""
        if self.kind is None:
            return self.type
        one = Annotated[Any, Kind(self.kind, or_service=True)]
        return tuple[one, ...] if self.is_list else one

    @property
    def default_component(self) -> Any:
        """Return the default where it is a component's table, a service's name or some of them; else None."""
        items = self.default if isinstance(self.default, list | tuple) else [self.default]
        is_one = self.kind is not None or marked_kind(self.type) is not None
        are_named = bool(items) and all(isinstance(item, Mapping | str) for item in items)
        return self.default if is_one and are_named else None


def reserved_keys(kind: str) -> frozenset[str]:
    """Return the keys of a `kind` table that the core reads itself."""
    names = {item.name for item in dataclasses.fields(CORE_KEYS[kind])} if kind in CORE_KEYS else {"use"}
    return frozenset(names | ({"isolated"} if kind in ISOLABLE else set()))


def options(factory: Callable[..., Any], kind: str | None = None) -> dict[str, Option]:
    """Return the keyword-only parameters of `factory`, which are the keys of its table.

    Where a kind is named, its options may not take the core's own keys.
    """
    name = getattr(factory, "__qualname__", repr(factory))
    result: dict[str, Option] = {}
    for option in _options(factory, name):
        if kind is not None and option.name in reserved_keys(kind):
            text = f"{name} has an option {option.name!r}; that key of a {kind} table is the core's."
            raise PluginError(text)
        if option.name in result:
            raise PluginError(f"{name} has the option {option.name!r} twice.")
        result[option.name] = option
    return result


def _options(factory: Callable[..., Any], name: str) -> Iterator[Option]:
    """Yield the options of `factory`, the fields of a flat parameter in its place."""
    named = [
        item for item in inspect.signature(factory).parameters.values() if item.kind is item.KEYWORD_ONLY
    ]
    hints: dict[str, Any] = {}
    for written, names in _annotations(factory) if named else ():
        # types left of `*` may be written for a type checker only
        values = {item.name: written[item.name] for item in named if item.name in written}
        hints |= _hints(types.SimpleNamespace(__annotations__=values), names, name) if values else {}
    if untyped := [item.name for item in named if item.name not in hints]:
        raise PluginError(f"{name} has no type for its option {untyped[0]!r}; nothing could be checked.")
    for item in named:
        marks = typing.get_args(hints[item.name])
        if InlineOptions not in marks:
            yield _option(item.name, hints[item.name], item.default)
            continue
        form = marks[0]
        if not getattr(getattr(form, "__dataclass_params__", None), "frozen", False):
            raise PluginError(f"{name}: {item.name!r} is InlineOptions, a frozen dataclass; got {form}.")
        holder, whole = item.replace(annotation=form), item.default
        for option in fields(form, name):
            default = option.default if whole is item.empty else getattr(whole, option.name)
            yield dataclasses.replace(option, default=default, holder=holder)


def fields(form: type, name: str = "") -> Iterator[Option]:
    """Yield the fields of a dataclass as keys of a table, but those that leave keys open."""
    hints = _hints(form, None, name or form.__qualname__)
    for item in dataclasses.fields(form):
        if item.metadata.get("open"):
            continue
        default = inspect.Parameter.empty if item.default is dataclasses.MISSING else item.default
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        yield _option(item.name, hints[item.name], default)


def _annotations(factory: Callable[..., Any]) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Yield annotations of parameters, with the names of the modules that they are written in."""
    if inspect.isclass(factory) and dataclasses.is_dataclass(factory):
        for form in reversed(factory.__mro__):
            yield inspect.get_annotations(form), vars(sys.modules[form.__module__])
        return
    function = inspect.unwrap(factory.__init__ if inspect.isclass(factory) else factory)
    yield function.__annotations__, function.__globals__


def _hints(annotated: Any, names: dict[str, Any] | None, factory: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(annotated, names, include_extras=True)
    except Exception as cause:  # an annotation may hold any expression
        text = f"{factory}: its types cannot be read ({type(cause).__name__}: {cause})."
        raise PluginError(text) from cause


def _option(name: str, hint: Any, default: Any) -> Option:
    is_list = typing.get_origin(hint) is tuple and typing.get_args(hint)[1:] == (...,)
    one = typing.get_args(hint)[0] if is_list else hint
    each = {item for item in (one, *typing.get_args(one)) if inspect.isclass(item)}  # perhaps with None
    kinds = [kind for kind, contract in contracts().items() if contract in each]
    kind = kinds[0] if len(kinds) == 1 else None
    return Option(name=name, type=hint, default=default, kind=kind, is_list=is_list and kind is not None)


def contracts() -> Mapping[str, type]:
    """Return the contract classes that anything has imported; nothing can be one of the others."""
    module = sys.modules.get("evidcore.contracts")
    return module.imported() if module is not None else {}


def contract_of(kind: str) -> type | None:
    """Return the contract class of a kind; None of one that is none of a component's class."""
    module = sys.modules.get("evidcore.contracts")
    return module.contract(kind) if module is not None else None


def holders(known: Mapping[str, Option]) -> dict[str, inspect.Parameter]:
    """Return the flat parameters by name."""
    return {option.holder.name: option.holder for option in known.values() if option.holder}


def flat_forms(factory: Callable[..., Any]) -> list[type]:
    """Return the dataclasses whose fields are options of `factory`, each after those that it extends."""
    each = holders(options(factory)).values()
    result: list[type] = [part for holder in each for part in reversed(holder.annotation.__mro__)]
    return [part for part in dict.fromkeys(result) if "__dataclass_fields__" in vars(part)]


def gathered(known: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments: the values, those of a flat parameter's fields in its dataclass."""
    made = {name: value for name, value in values.items() if known[name].holder is None}
    for name, holder in holders(known).items():
        part = {key: value for key, value in values.items() if known[key].holder == holder}
        is_new = holder.default is holder.empty
        made[name] = holder.annotation(**part) if is_new else dataclasses.replace(holder.default, **part)
    return made


def component_class(factory: Any) -> Any:
    """Return the class that a factory makes: itself, or what a function says it returns."""
    if inspect.isclass(factory):
        return factory
    try:
        return typing.get_type_hints(factory).get("return", object)
    except NameError:
        return object
