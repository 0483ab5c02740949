"""Check a table of a recipe by the signature of its component, and build it.

Left of `*` the core gives, right of it the recipe gives. Pydantic checks: one model for each signature, every
mistake at once, in TOML's words.

A table is checked as JSON, strictly: 1 is a float, "1" and true are not, a list is a tuple, a text a path.
Where a value is a component, its `Kind` asks the context of the validation (`Components`), which looks up
what `use` names and checks the table by that one's model; pydantic puts the mistakes of both together.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import InitErrorDetails, PydanticCustomError, to_jsonable_python

from evidcore.errors import ContractError, PluginError, RecipeError, did_you_mean
from evidcore.registry import Offer, blame, find, watch
from evidcore.registry.signature import (
    CORE_KEYS,
    ISOLABLE,
    SERVICE_KINDS,
    InlineOptions,
    Kind,
    Option,
    contract_of,
    contracts,
    fields,
    flat_forms,
    gathered,
    options,
    reserved_keys,
)

__all__ = ["InlineOptions", "Kind", "Option", "flat_forms", "gathered", "options", "reserved_keys"]

Path = tuple[str | int, ...]
Known = Mapping[str, Option]


def show(key: Path) -> str:
    """Return a key path as messages print it: `.reward[1].levels`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mistake:
    """One thing wrong in a table: where, and the sentence that follows."""

    where: str = ""  # the table's name in messages
    key: Path  # from the table down to the value
    text: str
    known: tuple[str, ...] | None = None  # of a key that nothing knows: those that are known
    is_option: bool = False  # of a component

    def __str__(self) -> str:
        return f"{self.where}{show(self.key)}: {self.text}"

    @property
    def sentence(self) -> str:
        """Return the text; that about an unknown key with those that are known."""
        if self.known is None:
            return self.text
        listing = ", ".join(sorted(self.known)) or "none"
        return f"{self.text}{did_you_mean(str(self.key[-1]), self.known)} Keys here: {listing}."


def _line(told: dict[str, Any], at: Path, value: Any = None) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError("told", "see its text", told), loc=at, input=value)


def mistake(text: str, *, at: Path = ()) -> ValidationError:
    """Return what a check raises for one mistake; pydantic puts it together with others."""
    return ValidationError.from_exception_data("table", [_line({"text": text}, at)])


class _Plain(GenerateJsonSchema):
    """Leaves out what only repeats names, and defaults, which here only say that a key may be left out."""

    def default_schema(self, schema: Any) -> Any:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Form:
    """What a table may hold: the keys of a signature or of a dataclass, as a model of pydantic's."""

    def __init__(
        self, known: Known, *, own: Known | None = None, is_component: bool = True, is_open: bool = False
    ) -> None:
        """Take the keys.

        Messages list the keys of `known`; the core reads those of `own` itself.
        """
        self.known, self.keys, self.is_component = known, {**(own or {}), **known}, is_component
        self.is_open = is_open  # holds keys that cannot be told
        self.leaves_open = False  # a stage's: it may hold keys that its other values name

    @functools.cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """The model."""
        config = ConfigDict(extra="ignore" if self.is_open else "forbid", strict=True)
        made = [
            (name, item.hint, dataclasses.field(default=dataclasses.MISSING if item.is_required else None))
            for name, item in self.keys.items()
        ]
        namespace = {"__pydantic_config__": config}
        return TypeAdapter(dataclasses.make_dataclass("Table", made, kw_only=True, namespace=namespace))

    @functools.cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema, without titles and defaults."""
        return self.adapter.json_schema(schema_generator=_Plain)

    def check(self, table: Mapping[str, Any], context: Components) -> dict[str, Any]:
        """Return the values of a table: of its keys, and of components that stand where it has none."""
        usual = {name: item.default_component for name, item in self.keys.items()}
        whole = {name: value for name, value in usual.items() if value is not None} | dict(table)
        text = json.dumps(whole, default=lambda _: None)
        try:
            made = self.adapter.validate_json(text, strict=True, context=context)
        except ValidationError as error:
            # where entries are wrong, pydantic also counts those that are not
            found = [line for line in error.errors() if line["type"] != "too_short" or not line["input"]]
            raise ValidationError.from_exception_data("table", [self._told(line) for line in found]) from None
        return {name: getattr(made, name) for name in whole if name in self.keys}

    def resolved(self, table: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a checked table with every default filled in, as TOML values; None stays away."""
        full = {}
        for name, item in self.known.items():
            value = values.get(name, item.default) if item.kind else table.get(name, item.default)
            if value is not None and value is not inspect.Parameter.empty:
                full[name] = to_jsonable_python(value, fallback=str)
        return full

    def _told(self, line: Mapping[str, Any]) -> InitErrorDetails:
        """Turn a mistake of pydantic's into one of ours; its path loses the tags of unions."""
        kind, loc, value = line["type"], line["loc"], line["input"]
        if kind == "told":
            return _line(line["ctx"], self._along(loc)[0], value)
        is_unknown = kind == "unexpected_keyword_argument"
        if is_unknown or (kind == "missing" and isinstance(value, dict)):
            path, node = self._along(loc[:-1])
            if is_unknown:
                known = tuple(node.get("properties", ()) if path else self.known)
                told = {"text": "unknown key.", "known": known, "is_option": self.is_component}
                return _line(told, (*path, loc[-1]), value)
            if self.is_component and not path:
                return _line({"text": "missing, and it has no default."}, loc, value)
            return _line({"text": f"{loc[-1]} is missing, and it has no default."}, path, value)
        path, node = self._along(loc)
        inner = node.get("items", node.get("additionalProperties"))
        entry = inner if isinstance(inner, Mapping) else {}
        named, is_list = entry.get("x-component"), kind in ("tuple_type", "too_short")
        text = line["msg"].replace("Input should", "must")
        if kind == "dataclass_type":
            text = "must be a table"
        elif is_list and named and named["or_service"]:
            text = f"must be a list of {named['name']} tables such as [{{ use = '…' }}]"
        elif is_list and (named or "$ref" in entry):
            text = "must be a list with at least one entry"
        elif kind == "dict_type" and named:
            text = "must be a table of named tables"
        return _line({"text": f"{text}, got {value!r}."}, path, value)

    def _along(self, loc: Path) -> tuple[Path, Mapping[str, Any]]:
        """Follow pydantic's path through the schema: return it without tags of unions, and where it ends."""

        def whole(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
            if "$ref" in node:
                node = self.schema["$defs"][node["$ref"].rpartition("/")[2]]
            yield node
            for one in node.get("anyOf", ()):
                yield from whole(one)

        path: Path = ()
        nodes, rest = [*whole(self.schema)], [*loc]
        while rest and not any("x-component" in node for node in nodes):
            part = rest.pop(0)
            if sum(one.get("type") != "null" for node in nodes for one in node.get("anyOf", ())) > 1:
                if not rest:  # it says which of a union
                    break
                part = rest.pop(0)
            for node in nodes:
                if isinstance(part, int):
                    found = dict(enumerate(node.get("prefixItems", ()))).get(part, node.get("items"))
                else:
                    found = node.get("properties", {}).get(part) or node.get("additionalProperties")
                if isinstance(found, Mapping):
                    path, nodes = (*path, part), [*whole(found)]
                    break
        nested = {"properties", "items", "additionalProperties"}
        return (*path, *rest), next((node for node in nodes if node.keys() & nested), nodes[0])


def unwritable(value: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield what JSON cannot write, with its path: dates, infinities."""
    if isinstance(value, Mapping | list | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from unwritable(item, (*at, key))
    elif not isinstance(value, str | int | None) and not (isinstance(value, float) and math.isfinite(value)):
        yield at, value


def mistakes_of(check: Callable[[Any], Any], table: Any) -> tuple[Any, list[Mistake]]:
    """Return what a check gives, and every mistake that it raises; what no JSON can hold is one too."""
    odd, found = dict(unwritable(table)), None
    text = "must be a finite number, a text, a list or a table, got"
    wrong = [Mistake(key=at, text=f"{text} {item!r}.") for at, item in odd.items()]
    try:
        found = check(table)
    except ValidationError as error:
        lines = [line for line in error.errors() if not any(line["loc"][: len(at)] == at for at in odd)]
        wrong += [Mistake(key=line["loc"], **line["ctx"]) for line in lines]
    return found, wrong


@functools.lru_cache(maxsize=1024)
def form_of(factory: Callable[..., Any], kind: str | None = None) -> Form:
    """Return the form of a component's table, or of a function's options."""
    own = {}
    if kind is not None:
        form = CORE_KEYS.get(kind)
        own = {item.name: item for item in fields(form)} if form is not None else {}
        own["use"] = Option(name="use", type=Any, default=None)
        if kind in ISOLABLE:
            own["isolated"] = Option(name="isolated", type=Any, default=None)
    return Form(options(factory, kind), own=own)


@functools.lru_cache(maxsize=256)
def form_of_class(form: type) -> Form:
    """Return the form of a table whose keys are the fields of a dataclass, as a stage's are."""
    found = Form({item.name: item for item in fields(form)}, is_component=False)
    found.leaves_open = any(item.metadata.get("open") for item in dataclasses.fields(form))
    return found


class Components:
    """Looks into tables that name components: the context of a check."""

    def __init__(self, services: Mapping[str, str] | None = None) -> None:
        self.services = services or {}

    def form(self, offer: Offer) -> Form:
        """Return the form of a component's table; imports it."""
        form: Form = form_of(offer.load(), offer.kind) if offer.apart is None else offer.apart.form()
        return form

    def component(self, kind: Kind, value: Any) -> Any:
        """Return a component's table with its defaults, a service's name as it is."""
        value = kind.named(value)
        if isinstance(value, Mapping):
            full = self.table(kind.name, value)
            own = fields(CORE_KEYS[kind.name]) if kind.name in CORE_KEYS and not kind.or_service else ()
            defaults = {item.name: to_jsonable_python(item.default) for item in own if not item.is_required}
            return {"use": full["use"], **defaults, **full}
        if not kind.or_service:
            raise mistake(f"must be a table that names a component, {{ use = '…' }}, got {value!r}.")
        if not isinstance(value, str):
            text = f"must be a {kind.name}: a table such as {{ use = '…' }}, or the name of a service; got"
            raise mistake(f"{text} {value!r}.")
        other = self.services.get(value)
        if other is None:
            fitting = [name for name, found in self.services.items() if found == kind.name]
            text = f"no service is called {value!r}.{did_you_mean(value, fitting)} Services of this kind: "
            text += f"{', '.join(fitting) or 'none'}. A {kind.name} of its own: {{ use = {value!r} }}."
            raise mistake(text)
        if other != kind.name:
            raise mistake(f"must be a {kind.name}, but service {value!r} is a {other}.")
        return value

    def table(self, kind: str, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return a component's table with every default filled in, as TOML values."""
        form, values = self.values(kind, table)
        full = {key: table[key] for key in table if key in reserved_keys(kind) - {"isolated"}}
        if is_isolated(kind, table):
            full["isolated"] = watch("isolation", "`isolated`").resolved(table["isolated"])
        return full | form.resolved(table, values)

    def values(self, kind: str, table: Mapping[str, Any]) -> tuple[Form, dict[str, Any]]:
        """Return the form of the component that a table names, and the values of the table."""
        use = table.get("use")
        if not isinstance(use, str):
            text = "missing; it names the component." if use is None else f"must be a name, got {use!r}."
            raise mistake(text, at=("use",))
        wrong = list[tuple[Path, str]]()
        if is_isolated(kind, table):
            if (isolation := watch("isolation")) is None:
                text = "a process of its own needs `pip install evidcore-plugin-hub`."
                raise mistake(f"{text} Or leave `isolated` out.", at=("isolated",))
            wrong = isolation.check(table["isolated"])
        try:
            form = self.form(named_offer(kind, table))
        except PluginError as cause:
            raise mistake(str(cause), at=("use",)) from None
        return form, together(wrong, lambda: form.check(table, self))


def together(wrong: Iterable[tuple[Path, str]], check: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a check gives, or raise its mistakes together with others."""
    lines, found = [_line({"text": text}, at) for at, text in wrong], dict[str, Any]()
    try:
        found = check()
    except ValidationError as error:
        lines += [_line(line["ctx"], line["loc"], line["input"]) for line in error.errors()]
    if lines:
        raise ValidationError.from_exception_data("table", lines)
    return found


def is_isolated(kind: str, table: Mapping[str, Any]) -> bool:
    """Tell whether a table asks for a process of its own."""
    return kind in ISOLABLE and table.get("isolated", False) is not False


def named_offer(kind: str, table: Mapping[str, Any], isolated: Any = None) -> Offer:
    """Return the offer that a table names; of an isolated one, or inside one, it loads in a process apart."""
    isolated = table["isolated"] if is_isolated(kind, table) else isolated
    isolation = None if isolated is None else watch("isolation")
    offer: Offer = (find if isolation is None else isolation.offered(isolated))(kind, str(table.get("use")))
    return offer


def _mistakes(check: Callable[[Any], Any], table: Any, where: str) -> tuple[Any, list[Mistake]]:
    """Return what a check gives and what it finds wrong, in the order of the keys."""
    found, wrong = mistakes_of(check, table)
    listed = [Mistake(where=where, key=one.key, text=one.sentence) for one in wrong]
    return found, sorted(listed, key=lambda item: [str(part) for part in item.key])


def check(
    kind: str, table: Mapping[str, Any], where: str, services: Mapping[str, str] | None = None
) -> list[Mistake]:
    """Return everything that is wrong with a component's table."""
    return _mistakes(functools.partial(Components(services).values, kind), table, where)[1]


def check_options(
    known: Known, table: Mapping[str, Any], services: Mapping[str, str] | None = None
) -> list[Mistake]:
    """Return everything that is wrong with the values of `table` for the options `known`."""
    return _mistakes(lambda table: Form(known).check(table, Components(services)), table, "")[1]


def build(
    kind: str,
    table: Mapping[str, Any],
    *,
    given: Mapping[str, Any],
    where: str,
    services: Mapping[str, Any] | None = None,
) -> Any:
    """Build the component that `table` describes.

    `given` is what the core gives to this kind, by name: parameters left of `*` ask for it.

    Raises:
        RecipeError: every wrong key of the table at once.
        PluginError: if the component fails while it is built, or asks for what the core does not give.
        ContractError: if what was built is not of this kind.
    """
    kinds = {
        name: next((kind for kind in SERVICE_KINDS if isinstance(one, contracts().get(kind, ()))), "?")
        for name, one in (services or {}).items()
    }
    found, wrong = _mistakes(functools.partial(Components(kinds).values, kind), table, where)
    _refuse(wrong)
    form, values = found
    offer, own = named_offer(kind, table), dict[str, Any]()
    if is_isolated(kind, table):
        component = watch("isolation", f"{where}: `isolated`").isolate(offer, table, given, where)
    else:
        factory = offer.load()
        for name in [name for name in form.known if name in values]:
            own[name] = values[name]
            if (inner := form.known[name].kind) is not None:
                around = {**given, **own}  # a component's own labeler is given to its metrics
                own[name] = _inner(inner, values[name], around, f"{where}.{name}", services or {})
        arguments = _given(offer, factory, given)
        with blame(offer, f"being built for {where}", PluginError):
            component = factory(**arguments, **gathered(form.known, own))
    if (contract := contract_of(kind)) is not None and not isinstance(component, contract):
        raise ContractError(f"{offer}: must give a {contract.__name__}, got {type(component).__name__}.")
    if table.get("exclude"):
        component.exclude(table["exclude"], given["recipe_folder"], where)
    try:
        object.__setattr__(component, "evid_offer", offer)
        object.__setattr__(component, "evid_name", str(table.get("name") or ""))
        object.__setattr__(component, "evid_table", {**table, **own})
    except AttributeError as cause:
        raise ContractError(f"{offer}: instances must take attributes; drop `slots=True`.") from cause
    return component


def _inner(kind: str, value: Any, given: Mapping[str, Any], where: str, services: Mapping[str, Any]) -> Any:
    if isinstance(value, list | tuple):
        return tuple(
            _inner(kind, item, given, f"{where}[{index}]", services) for index, item in enumerate(value)
        )
    if isinstance(value, str):
        return services[value]
    return build(kind, value, given=given, where=where, services=services)


def arguments(function: Callable[..., Any], table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the keyword arguments of `function` that a table of its options stands for."""
    known = options(function)
    found, wrong = _mistakes(lambda table: Form(known).check(table, Components()), table, where)
    _refuse(wrong)
    return gathered(known, found)


def _refuse(wrong: Iterable[Mistake]) -> None:
    if text := "\n".join(str(item) for item in wrong):
        raise RecipeError(text)


def offer_of(component: Any) -> Offer:
    """Return the offer that `build` made `component` from."""
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
            text = f"{offer} asks the core for {item.name!r}; a {offer.kind} is given {listing}. Options "
            raise PluginError(f"{text}belong right of `*`. Report this to the authors of {offer.package}.")
    return asked


def name_of(component: Any) -> str:
    """Return the `name` that a component's table gave it, empty where it gave none."""
    return str(getattr(component, "evid_name", ""))
