"""Find what each table of a recipe allows by itself but the recipe as a whole does not."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from evidcore.errors import EvidError, PluginError, did_you_mean
from evidcore.recipe import trl_fields
from evidcore.registry import find, offers
from evidcore.registry.factory import Option, check_options, options

Path = tuple[str | int, ...]
Found = Iterator[tuple[Path, str]]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def problems(raw: Mapping[str, Any], services: Mapping[str, str]) -> Found:
    """Yield (path, sentence) for names that lead nowhere and stages that cannot follow each other.

    Args:
        raw: the recipe as read; whatever has a wrong type is passed over, others report it.
        services: name -> kind of the services.
    """
    name = raw.get("name")
    if isinstance(name, str) and not _NAME.fullmatch(name):
        yield (
            ("name",),
            f"must be letters, digits, '_', '-' or '.', since a folder is called so, got {name!r}.",
        )
    yield from _observers(raw)
    yield from _language(raw)
    has_weights = {"language": not _dict(_dict(raw, "model"), "language").get("config"), "bridge": False}
    for place, stage in enumerate(_tables(raw.get("stage"))):
        at: Path = ("stage", place)
        kind = stage.get("kind")
        yield from _data(raw, stage, at)
        if kind == "grpo" and isinstance(stage.get("replay"), Mapping):
            yield from _data(raw, {**stage["replay"], "kind": kind}, (*at, "replay"))
        if kind == "fit":
            yield from _fit(raw, stage, at, services, has_weights)
        if kind in ("sft", "grpo"):
            yield from _training(stage, at, str(kind), has_weights)
        if kind == "grpo":
            yield from _rewards(stage, at)
        if kind == "evaluate":
            yield from _metrics(stage, at)
        if kind in ("evaluate", "audit") and not has_weights["language"]:
            yield at, _no_language(raw)


def factory_of(raw: Mapping[str, Any], component: str, services: Mapping[str, str]) -> Any:
    """Return the factory of `model.encoder` or `service.<name>`.

    Raises:
        PluginError: if there is no such component.
    """
    section, _, name = component.partition(".")
    if section == "model":
        return find(name, str(_dict(_dict(raw, "model"), name).get("use"))).load()
    return find(services[name], str(_dict(_dict(raw, "service"), name).get("use"))).load()


def fit_options(
    raw: Mapping[str, Any], component: str, services: Mapping[str, str]
) -> dict[str, Option] | None:
    """Return the options of a component's `fit`, None if it has none.

    Raises:
        PluginError: if the component cannot be loaded, or `fit` has an option without a type.
    """
    if component == "model.language":
        from evidcore.model.text_fit import TextFit  # imports torch, as every component named here does

        known = options(TextFit.fit)
        known.pop("shares")  # the shares of the data entries
        return known
    fit = getattr(made_class(factory_of(raw, component, services)), "fit", None)
    return None if fit is None else options(fit)


def made_class(factory: Any) -> Any:
    """Return the class that a factory makes: itself, or what a function says it returns."""
    if inspect.isclass(factory):
        return factory
    try:
        return typing.get_type_hints(factory).get("return", object)
    except NameError:
        return object


def _observers(raw: Mapping[str, Any]) -> Found:
    names = raw.get("observers")
    for place, name in enumerate(names if isinstance(names, list) else ()):
        try:
            if isinstance(name, str):
                find("observer", name)
        except PluginError as cause:
            yield ("observers", place), str(cause)


def _language(raw: Mapping[str, Any]) -> Found:
    model = raw.get("model")
    table = _dict(model, "language")
    if not table:
        return
    at: Path = ("model", "language")
    given = [key for key in ("config", "id", "folder") if table.get(key)]
    if len(given) != 1:
        yield at, f"must have exactly one of config, id and folder, got {' and '.join(given) or 'none'}."
    if table.get("id") and not table.get("revision"):
        text = "revision is missing: without a commit, the same recipe may train another model tomorrow."
        yield at, f"{text} Copy it from huggingface.co/{table['id']}/commits."
    for key in ("width", "layers", "heads"):
        if key in table and not table.get("config"):
            yield (
                (*at, key),
                f"goes with config only, got {table[key]!r}: other models have a shape.",
            )
    if table.get("revision") and not table.get("id"):
        yield (*at, "revision"), f"goes with id only, got {table['revision']!r}."


def _no_language(raw: Mapping[str, Any]) -> str:
    config = _dict(_dict(raw, "model"), "language").get("config")
    return (
        f"the language model has no weights: config = {config!r} only describes one. "
        'Put a fit stage with component = "model.language" above, or name a model by id or folder.'
    )


def _data(raw: Mapping[str, Any], stage: Mapping[str, Any], at: Path) -> Found:
    """Check what a stage's data entries name."""
    kind = stage.get("kind")
    view = _dict(_dict(raw, "model"), "view").get("use")
    asked: set[str] = set()
    for place, use in enumerate(_tables(stage.get("data"))):
        here: Path = (*at, "data", place)
        dataset, task, split = use.get("dataset"), use.get("task"), use.get("split")
        known = _dict(raw, "dataset")
        if isinstance(dataset, str) and dataset not in known:
            hint = did_you_mean(dataset, known)
            listing = ", ".join(f"[dataset.{name}]" for name in known) or "none"
            yield (*here, "dataset"), f"no dataset is called {dataset!r}.{hint} This recipe has: {listing}."
        if split == "test" and kind in ("fit", "sft", "grpo"):
            yield (*here, "split"), "a stage that trains may not see the test split, got 'test'. Use 'train'."
        if kind in ("evaluate", "audit") and use.get("share", 1.0) != 1.0:
            text = f"only stages that train mix their data, got {use['share']!r}. Use limit or patients."
            yield (*here, "share"), text
        if not task and kind in ("sft", "grpo", "evaluate", "audit"):
            yield here, f"task is missing: a {kind} stage asks something about each case."
        if isinstance(task, str) and task:
            yield from _task(raw, task, view, here)
            if kind in ("evaluate", "audit") and task in asked:
                text = f"{task!r} is asked above too, and a stage's results are told apart by their tasks."
                yield (*here, "task"), f"{text} Give this one a table and a name of its own: [task.<name>]."
            asked.add(task)


def _task(raw: Mapping[str, Any], task: str, view: Any, here: Path) -> Found:
    named = _dict(raw, "task")
    use = _dict(named, task).get("use", task) if task in named else task
    installed = [row.name for row in offers("task")]
    if task not in named and task.rpartition("/")[2] not in installed:
        known = sorted({*named, *installed})
        listing = ", ".join(known) or "none"
        yield (*here, "task"), f"no task is called {task!r}.{did_you_mean(task, known)} Known: {listing}."
        return
    try:
        needs = getattr(made_class(find("task", str(use)).load()), "needs_slice_tags", False)
        has = getattr(made_class(find("view", str(view)).load()), "tags_slices", False)
    except EvidError:
        return  # reported where the component is named
    if needs and not has:
        text = f"task {task!r} asks for slice numbers, but view {view!r} does not show any."
        fitting = [row.name for row in offers("view") if _tags(row.name)]
        yield (*here, "task"), f"{text} Views that do: {', '.join(fitting) or 'none is installed'}."


def _tags(view: str) -> bool:
    try:
        return bool(getattr(made_class(find("view", view).load()), "tags_slices", False))
    except EvidError:
        return False


def _fit(
    raw: Mapping[str, Any], stage: Mapping[str, Any], at: Path,
    services: Mapping[str, str], has_weights: dict[str, bool],
) -> Found:  # fmt: skip
    component, table = stage.get("component"), stage.get("options", {})
    known = ["model.encoder", "model.language", *(f"service.{name}" for name in services)]
    if not isinstance(component, str):
        return
    if component not in known:
        hint = did_you_mean(component, known)
        yield (*at, "component"), f"must be one of {', '.join(known)}, got {component!r}.{hint}"
        return
    if component.startswith("model.") and has_weights["bridge"]:
        text = f"{component} would be trained anew below a stage that already trained the bridge to it."
        yield (*at, "component"), f"{text} Move this stage up."
    if component == "model.language":
        source = _dict(_dict(raw, "model"), "language")
        if not source.get("config"):
            text = "only a language model given by config is fitted; this one already has weights."
            yield (*at, "component"), f"{text} Leave the stage out, or use sft with train = ['language']."
        has_weights["language"] = True
    try:
        found = fit_options(raw, component, services)
    except PluginError:
        return  # reported where the component is named
    if found is None:
        yield (
            (*at, "component"),
            f"{component} has no fit(), so there is nothing to train. Leave the stage out.",
        )
    elif isinstance(table, Mapping):
        for mistake in check_options(found, table, "", services):
            yield (*at, "options", *mistake.key), mistake.text


def _training(stage: Mapping[str, Any], at: Path, kind: str, has_weights: dict[str, bool]) -> Found:
    train = [part for part in _list(stage.get("train")) if isinstance(part, str)]
    if isinstance(stage.get("train"), list) and not train:
        yield (*at, "train"), "must name at least one of encoder, bridge and language, got []."
    if len(set(train)) != len(train):
        yield (*at, "train"), f"names a part twice, got {train!r}."
    rates = stage.get("learning_rate")
    if isinstance(rates, Mapping) and rates.keys() != set(train):
        text = f"must have the keys of train ({', '.join(train)}) and no other, got {', '.join(rates)}."
        yield (*at, "learning_rate"), text
    if not has_weights["language"] and "language" not in train:
        yield (
            at,
            "the language model has no weights, and this stage does not train it. Fit model.language above.",
        )
    if stage.get("lora") and "language" not in train:
        yield (
            (*at, "lora"),
            "adapts the language model, which is not in train. Add 'language' or leave lora out.",
        )
    if stage.get("momentum") is not None and stage.get("optimizer") != "muon":
        text = "is Muon's. Leave it out, or write optimizer = 'muon'; AdamW's betas are fields of trl."
        yield (*at, "momentum"), text
    has_weights["language"] = has_weights["bridge"] = True
    trl = stage.get("trl")
    if isinstance(trl, Mapping):
        for field, text in trl_fields.problems(kind, trl):
            yield (*at, "trl", field), text


def _rewards(stage: Mapping[str, Any], at: Path) -> Found:
    names: list[str] = []
    for place, table in enumerate(_tables(stage.get("reward"))):
        here: Path = (*at, "reward", place)
        name, gate = table.get("name") or str(table.get("use")).rpartition("/")[2], table.get("gate")
        if name in names:
            yield here, f"a second reward is called {name!r}. Give this one a name = '…' of its own."
        if isinstance(gate, str) and gate and gate not in names:
            listing = ", ".join(names) or "none"
            hint = did_you_mean(gate, names)
            text = f"must be a reward above this one, got {gate!r}.{hint} Above: {listing}."
            yield (*here, "gate"), text
        names.append(str(name))
    tables = _tables(stage.get("reward"))
    if tables and all(table.get("weight") == 0 for table in tables):
        yield (
            (*at, "reward"),
            "every weight is 0, so nothing would be learnt. Give at least one a weight above 0.",
        )


def _metrics(stage: Mapping[str, Any], at: Path) -> Found:
    before: list[tuple[Any, Any]] = []
    for place, table in enumerate(_tables(stage.get("metric"))):
        called = (table.get("use"), table.get("name") or "")
        if called in before:
            text = f"metric {called[0]!r} comes twice under one name. Give this one a name = '…' of its own."
            yield (*at, "metric", place), text
        before.append(called)


def _dict(table: Any, key: str) -> Mapping[str, Any]:
    value = table.get(key) if isinstance(table, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _tables(value: Any) -> list[Mapping[str, Any]]:
    """Return a list's items in place, an empty table for each that is none."""
    return [item if isinstance(item, Mapping) else {} for item in _list(value)]
