"""Turn a recipe table into a component: left of `*` the core gives, right of it the recipe gives."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from evidcore.errors import ContractError, PluginError, RecipeError, did_you_mean
from evidcore.registry import Offer, blame, find, watch

OWN_KEYS: Mapping[str, frozenset[str]] = {
    "reward": frozenset({"use", "weight", "gate", "name", "isolated"}),
    "metric": frozenset({"use", "name"}),
    "scorer": frozenset({"use", "isolated"}),
    "reader": frozenset({"use", "isolated"}),
}
_USE = frozenset({"use"})
SERVICE_KINDS = ("segmenter", "reader", "scorer", "labeler")


class Flat:
    """Marks a keyword-only parameter whose fields are keys of the table: `reading: Annotated[Reading, Flat]`.

    Its type is a frozen dataclass. A default of the parameter gives the defaults of its fields.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mistake:
    """One thing wrong in a table: where, and the sentence that follows."""

    where: str  # the table's name in messages
    key: tuple[str | int, ...]  # from the table down to the value
    text: str

    def __str__(self) -> str:
        """Return the line of the message."""
        return f"{self.where}{show(self.key)}: {self.text}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """One key of a component's table."""

    name: str
    type: Any  # annotation with bounds
    default: Any  # inspect.Parameter.empty where there is none
    kind: str | None  # component kind, where the value is a component
    is_list: bool = False  # of components, `tuple[Metric, ...]`
    holder: inspect.Parameter | None = None  # the flat parameter that it is a field of

    @property
    def is_required(self) -> bool:
        """Tell whether the recipe must give it."""
        return self.default is inspect.Parameter.empty


def show(key: tuple[str | int, ...]) -> str:
    """Return a key path as messages print it: `.reward[1].levels`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)


def own_keys(kind: str) -> frozenset[str]:
    """Return the keys of a `kind` table that the core reads itself."""
    return OWN_KEYS.get(kind, _USE)


def options(factory: Callable[..., Any], kind: str | None = None) -> dict[str, Option]:
    """Return the keyword-only parameters of `factory`, which are the keys of its table.

    Args:
        factory: a class, or a function such as a component's `fit`.
        kind: component kind; its options may not take the core's own keys. None where there is none.

    Raises:
        PluginError: if an option has no type, stands twice, or takes a name that the core reads itself.
    """
    name = getattr(factory, "__qualname__", repr(factory))
    found: dict[str, Option] = {}
    for option in _options(factory, name):
        if kind is not None and option.name in own_keys(kind):
            raise PluginError(
                f"{name} has an option {option.name!r}; that key of a {kind} table is the core's."
            )
        if option.name in found:
            raise PluginError(f"{name} has the option {option.name!r} twice.")
        found[option.name] = option
    return found


def _options(factory: Callable[..., Any], name: str) -> Iterator[Option]:
    """Yield the options of `factory`, the fields of a flat parameter in its place."""
    named = [
        item for item in inspect.signature(factory).parameters.values() if item.kind is item.KEYWORD_ONLY
    ]
    hints: dict[str, Any] = {}
    for written, names in _annotations(factory) if named else ():
        # types left of `*` may be written for a type checker only
        own = {item.name: written[item.name] for item in named if item.name in written}
        hints |= _hints(types.SimpleNamespace(__annotations__=own), names, name) if own else {}
    if untyped := [item.name for item in named if item.name not in hints]:
        raise PluginError(f"{name} has no type for its option {untyped[0]!r}; nothing could be checked.")
    for item in named:
        marks = typing.get_args(hints[item.name])
        if Flat not in marks:
            yield _option(item.name, hints[item.name], item.default)
            continue
        form = marks[0]
        if not getattr(getattr(form, "__dataclass_params__", None), "frozen", False):
            raise PluginError(f"{name}: {item.name!r} is Flat, so it must be a frozen dataclass, got {form}.")
        holder, inner = item.replace(annotation=form), _hints(form, None, name)
        for field in dataclasses.fields(form):
            option = _option(field.name, inner[field.name], _default(field, item.default))
            yield dataclasses.replace(option, holder=holder)


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
        raise PluginError(
            f"{factory}: its types cannot be read ({type(cause).__name__}: {cause})."
        ) from cause


def _option(name: str, hint: Any, default: Any) -> Option:
    return Option(name=name, type=hint, default=default, kind=_component_kind(hint), is_list=_is_list(hint))


def _default(field: dataclasses.Field[Any], whole: Any) -> Any:
    """Return the default of a field of a flat parameter whose own default is `whole`."""
    if whole is not inspect.Parameter.empty:
        return getattr(whole, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


def flat_forms(factory: Callable[..., Any]) -> list[type]:
    """Return the dataclasses whose fields are options of `factory`, each after those that it extends."""
    holders = _holders(options(factory)).values()
    found: list[type] = [part for holder in holders for part in reversed(holder.annotation.__mro__)]
    return [part for part in dict.fromkeys(found) if "__dataclass_fields__" in vars(part)]


def _holders(known: Mapping[str, Option]) -> dict[str, inspect.Parameter]:
    """Return the flat parameters by name."""
    return {option.holder.name: option.holder for option in known.values() if option.holder}


def options_of(offer: Offer) -> Mapping[str, Option]:
    """Import a component and return its options."""
    return options(offer.load(), offer.kind)


def check(
    kind: str,
    table: Mapping[str, Any],
    where: str,
    services: Mapping[str, str] | None = None,
    read: Callable[[Offer], Mapping[str, Option]] = options_of,
) -> list[Mistake]:
    """Return everything that is wrong with a component's table.

    Args:
        kind: component kind.
        table: the recipe table with `use`.
        where: what messages call the table.
        services: name -> kind of the recipe's services.
        read: gives the options of the component that `use` names; this one imports it.
    """
    use = table.get("use")
    if not isinstance(use, str):
        text = "missing; it names the component." if use is None else f"must be a name, got {use!r}."
        return [Mistake(where=where, key=("use",), text=text)]
    try:
        known = read(find(kind, use))
    except PluginError as cause:
        return [Mistake(where=where, key=("use",), text=str(cause))]
    given = {key: value for key, value in table.items() if key not in own_keys(kind)}
    wrong = check_options(known, given, where, services, read)
    if is_isolated(kind, table):
        if (isolation := watch("isolation")) is None:
            text = "a process of its own needs `pip install evidcore-plugin-hub`. Or leave `isolated` out."
            wrong.append(Mistake(where=where, key=("isolated",), text=text))
        elif read is options_of:  # what it is given by the core stands in its code
            wrong += isolation.check(kind, table, where)
    return wrong


def is_isolated(kind: str, table: Mapping[str, Any]) -> bool:
    """Tell whether a table asks for a process of its own."""
    return "isolated" in own_keys(kind) and table.get("isolated", False) is not False


def check_options(
    known: Mapping[str, Option],
    table: Mapping[str, Any],
    where: str,
    services: Mapping[str, str] | None = None,
    read: Callable[[Offer], Mapping[str, Option]] = options_of,
) -> list[Mistake]:
    """Return everything that is wrong with the values of `table` for the options `known`."""
    wrong = [
        Mistake(
            where=where, key=(key,),
            text=f"unknown key.{did_you_mean(key, known)} Keys here: {', '.join(sorted(known)) or 'none'}.",
        )
        for key in table.keys() - known.keys()
    ]  # fmt: skip
    wrong += [
        Mistake(where=where, key=(name,), text="missing, and it has no default.")
        for name, option in known.items()
        if option.is_required and name not in table
    ]
    for name in known.keys() & table.keys():
        option = known[name]
        if option.kind is not None:
            wrong += _check_component(option, table[name], where, services or {}, read)
        else:
            wrong += [
                Mistake(where=where, key=(name, *key), text=text)
                for key, text in validate(option.type, table[name])[1]
            ]
    return sorted(wrong, key=lambda item: [str(part) for part in item.key])


def build(
    kind: str,
    table: Mapping[str, Any],
    *,
    given: Mapping[str, Any],
    where: str,
    services: Mapping[str, Any] | None = None,
) -> Any:
    """Build the component that `table` describes.

    Args:
        kind: component kind.
        table: the recipe table with `use`.
        given: what the core gives to this kind, by name; parameters left of `*` ask for it.
        where: what messages call the table.
        services: the recipe's services, built.

    Raises:
        RecipeError: every wrong key of the table at once.
        PluginError: if the component fails while it is built, or asks for what the core does not give.
        ContractError: if what was built is not of this kind.
    """
    kinds = {name: _kind_of(service) for name, service in (services or {}).items()}
    _refuse(check(kind, table, where, kinds))
    offer = find(kind, table["use"])
    if is_isolated(kind, table):
        component = watch("isolation", f"{where}: `isolated`").isolate(offer, table, given, where)
    else:
        component = _construct(offer, table, given, where, services or {})
    contract = _contracts().get(kind)
    if contract is not None and not isinstance(component, contract):
        raise ContractError(f"{offer}: must give a {contract.__name__}, got {type(component).__name__}.")
    try:
        object.__setattr__(component, "evid_offer", offer)
        object.__setattr__(component, "evid_name", str(table.get("name") or ""))
    except AttributeError as cause:
        raise ContractError(f"{offer}: instances must take attributes; drop `slots=True`.") from cause
    return component


def _construct(
    offer: Offer, table: Mapping[str, Any], given: Mapping[str, Any], where: str, services: Mapping[str, Any]
) -> Any:
    factory = offer.load()
    known = options(factory, offer.kind)
    values = _values(known, table, given, where, services)
    arguments = _given(offer, factory, given)
    with blame(offer, f"being built for {where}", PluginError):
        return factory(**arguments, **gathered(known, values))


def arguments(function: Callable[..., Any], table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the keyword arguments of `function` that a table of its options stands for.

    Raises:
        RecipeError: every wrong key of the table at once.
    """
    known = options(function)
    _refuse(check_options(known, table, where))
    return gathered(known, _values(known, table, {}, where, {}))


def _refuse(wrong: Iterable[Mistake]) -> None:
    if text := "\n".join(str(item) for item in wrong):
        raise RecipeError(text)


def _values(
    known: Mapping[str, Option],
    table: Mapping[str, Any],
    given: Mapping[str, Any],
    where: str,
    services: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the value of each option that the table or a default table of a component gives."""
    values: dict[str, Any] = {}
    for name, option in known.items():
        value = table.get(name, option.default)
        if option.kind is None:
            if name in table:
                values[name] = validate(option.type, value)[0]
        elif _names_components(value):
            around = {**given, **values}  # a component's own labeler is given to its metrics
            values[name] = _inner(option, value, around, f"{where}.{name}", services)
    return values


def gathered(known: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments: the values, those of a flat parameter's fields in its dataclass."""
    found = {name: value for name, value in values.items() if known[name].holder is None}
    for name, holder in _holders(known).items():
        fields = {key: value for key, value in values.items() if known[key].holder == holder}
        whole = holder.default
        found[name] = (
            holder.annotation(**fields) if whole is holder.empty else dataclasses.replace(whole, **fields)
        )
    return found


def _names_components(value: Any) -> bool:
    """Tell a table, a list of tables or a service's name from a default that is a Python object."""
    if isinstance(value, list | tuple):
        return all(isinstance(item, Mapping | str) for item in value)
    return isinstance(value, Mapping | str)


def _inner(
    option: Option, value: Any, given: Mapping[str, Any], where: str, services: Mapping[str, Any]
) -> Any:
    """Build the component of an option, or each of a list; a service is built already."""
    if option.is_list:
        one = dataclasses.replace(option, is_list=False)
        return tuple(
            _inner(one, item, given, f"{where}[{index}]", services) for index, item in enumerate(value)
        )
    if isinstance(value, str):
        return services[value]
    return build(str(option.kind), value, given=given, where=where, services=services)


def offer_of(component: Any) -> Offer:
    """Return the offer that `build` made `component` from.

    Raises:
        PluginError: if `build` did not make it.
    """
    offer = getattr(component, "evid_offer", None)
    if not isinstance(offer, Offer):
        raise PluginError(f"{type(component).__name__} was not built from a recipe table.")
    return offer


def _given(offer: Offer, factory: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Pick what the component asks of the core, by name."""
    asked: dict[str, Any] = {}
    for item in inspect.signature(factory).parameters.values():
        if item.kind is not item.POSITIONAL_OR_KEYWORD:
            continue
        if item.name in given:
            asked[item.name] = given[item.name]
        elif item.default is item.empty:
            listing = ", ".join(sorted(given)) or "nothing"
            raise PluginError(
                f"{offer} asks the core for {item.name!r}; a {offer.kind} is given {listing}. "
                f"Options belong right of `*`. Report this to the authors of {offer.package}."
            )
    return asked


def name_of(component: Any) -> str:
    """Return the `name` that a component's table gave it, empty where it gave none."""
    return str(getattr(component, "evid_name", ""))


def _check_component(
    option: Option,
    value: Any,
    where: str,
    services: Mapping[str, str],
    read: Callable[[Offer], Mapping[str, Option]],
) -> list[Mistake]:
    """Check an option that takes components: a table with `use`, the name of a service, or a list of them."""
    kind, key = str(option.kind), (option.name,)
    if option.is_list:
        if not isinstance(value, list | tuple):
            text = f"must be a list of {kind} tables such as [{{ use = '…' }}], got {value!r}."
            return [Mistake(where=where, key=key, text=text)]
        one = dataclasses.replace(option, is_list=False)
        return [
            dataclasses.replace(item, key=(option.name, index, *item.key[1:]))
            for index, entry in enumerate(value)
            for item in _check_component(one, entry, where, services, read)
        ]
    if isinstance(value, Mapping):
        inner = check(kind, value, where, services, read)
        return [dataclasses.replace(item, key=(option.name, *item.key)) for item in inner]
    if not isinstance(value, str):
        text = f"must be a {kind}: a table such as {{ use = '…' }}, or the name of a service; got {value!r}."
        return [Mistake(where=where, key=key, text=text)]
    if value not in services:
        fitting = [name for name, found in services.items() if found == kind]
        listing = ", ".join(fitting) or "none"
        text = (
            f"no service is called {value!r}.{did_you_mean(value, fitting)} Services of this kind: {listing}."
        )
        return [Mistake(where=where, key=key, text=f"{text} A {kind} of its own: {{ use = {value!r} }}.")]
    if services[value] != kind:
        text = f"must be a {kind}, but service {value!r} is a {services[value]}."
        return [Mistake(where=where, key=key, text=text)]
    return []


def validate(annotation: Any, value: Any) -> tuple[Any, list[tuple[tuple[str | int, ...], str]]]:
    """Return the checked value and what is wrong with it."""
    from pydantic import TypeAdapter, ValidationError  # 40 ms; listing does not need it

    try:
        text = json.dumps(value, allow_nan=False)  # strict JSON rules: 1 is a float, "1" and true are not
    except (TypeError, ValueError):
        return None, [((), f"must be a finite number, a text, a list or a table, got {value!r}.")]
    try:
        return TypeAdapter(annotation).validate_json(text, strict=True), []
    except ValidationError as error:
        wrong = []
        for item in error.errors():
            message = item["msg"].replace("Input should", "must")
            wrong.append((tuple(item["loc"]), f"{message}, got {item['input']!r}."))
        return None, wrong


def _contracts() -> Mapping[str, type]:
    """Return the contract classes if anything has imported them; without, nothing can be one of them."""
    module = sys.modules.get("evidcore.contracts")
    return module.KINDS if module is not None else {}


def _component_kind(annotation: Any) -> str | None:
    """Return the kind whose contract `annotation` is, or is one of with None, or a tuple of."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated or _is_list(annotation):
        return _component_kind(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        kinds = {_component_kind(item) for item in typing.get_args(annotation)} - {None}
        return kinds.pop() if len(kinds) == 1 else None
    return next((kind for kind, contract in _contracts().items() if contract is annotation), None)


def _is_list(annotation: Any) -> bool:
    """Tell `tuple[Contract, ...]`."""
    return typing.get_origin(annotation) is tuple and typing.get_args(annotation)[1:] == (...,)


def _kind_of(service: Any) -> str:
    """Return the kind of a built service."""
    return next((kind for kind in SERVICE_KINDS if isinstance(service, _contracts().get(kind, ()))), "?")
