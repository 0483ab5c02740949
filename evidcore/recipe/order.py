"""Find what each table of a recipe allows by itself but the recipe as a whole does not."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from evidcore.errors import EvidError, PluginError, did_you_mean
from evidcore.recipe.schema import RecipeContext
from evidcore.registry import find, offers
from evidcore.registry.signature import component_class

Path = tuple[str | int, ...]
Found = Iterator[tuple[Path, str]]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_RULE = "must be at most 100 letters, digits, '_', '-' or '.'"


def problems(raw: Mapping[str, Any], services: Mapping[str, str], stages: Mapping[str, type]) -> Found:
    """Yield (path, sentence) for names that lead nowhere and stages that cannot follow each other.

    Whatever of `raw` has a wrong type is passed over: others report it.
    """
    name = raw.get("name")
    if isinstance(name, str) and not _NAME.fullmatch(name):
        yield ("name",), f"{_RULE}, since a folder is called so, got {name!r}."
    for section in ("dataset", "task", "service"):
        tables = raw.get(section)
        for key in tables if isinstance(tables, Mapping) else ():
            if not _NAME.fullmatch(key):
                yield (section, key), f"{_RULE}, as files are called, got {key!r}."
    for index, observer in enumerate(as_list(raw.get("observers"))):
        try:
            if isinstance(observer, str):
                find("observer", observer)
        except PluginError as cause:
            yield ("observers", index), str(cause)
    around = RecipeContext(raw, services)
    if around.table("model").get("load_in_4bit") and "language" not in as_list(raw["model"].get("bfloat16")):
        text = "embeddings and head lie in bfloat16, as products do. Write bfloat16 = ['language'] beside it."
        yield ("model", "load_in_4bit"), text
    yield from _language(around)
    line, arms = around, dict[str, RecipeContext]()
    for index, table in enumerate(as_tables(raw.get("stage"))):
        at: Path = ("stage", index)
        form: Any = stages.get(str(table.get("kind")))
        if form is None:
            continue
        around = line
        if arm := table.get("arm"):
            if not _NAME.fullmatch(str(arm)):
                yield (*at, "arm"), f"{_RULE}, as folders are called, got {str(arm)!r}."
            if str(table.get("component", "")).startswith("service."):
                text = "what is fitted here is a service of every stage, and an arm shares nothing."
                yield (*at, "arm"), f"{text} Leave arm out."
            standing = dataclasses.replace(line, has_weights=set(line.has_weights))
            around = arms.setdefault(str(arm), standing)
        yield from _data(around, table, form, at)
        for key, inner in table.items():  # data entries of an inner table, as of a replay
            if isinstance(inner, Mapping) and isinstance(inner.get("data"), list):
                yield from _data(around, {**inner, "kind": table["kind"]}, form, (*at, key))
        yield from form.problems(table, at, around)
        yield from _rounded(around, table, at)
        if form.traits.measures and "language" not in around.has_weights:
            use = around.table("model", "language").get("use")
            text = f"the language model has no weights: {use!r} only describes one. Put a fit stage with"
            yield at, f'{text} component = "model.language" above, or name a model by id or folder.'


def _rounded(around: RecipeContext, stage: Mapping[str, Any], at: Path) -> Found:
    """Find what a stage would train, or how it would multiply, against weights that are kept in bfloat16."""
    rounded, trl = as_list(around.table("model").get("bfloat16")), stage.get("trl")
    key, trained = "component", [str(stage.get("component")).removeprefix("model.")]
    if "train" in stage:
        key, trained = "train", as_list(stage["train"])
    lora: Mapping[str, Any] = stage["lora"] if isinstance(stage.get("lora"), Mapping) else {"parts": []}
    adapted = as_list(lora.get("parts", ["language"]))
    for part in rounded:
        if part in trained and part not in adapted:
            text = f"trains the {part}, and weights that model.bfloat16 names are too coarse for small steps."
            can_adapt = key == "train" and part != "bridge"
            adapters = f", or train adapters (lora with parts = [{part!r}])" if can_adapt else ""
            yield (*at, key), f"{text} Take {part!r} out here or there{adapters}."
        elif part in trained and lora.get("use_dora"):
            text = "adapters stay apart from weights that model.bfloat16 names, and DoRA's cannot."
            yield (*at, "lora", "use_dora"), f"{text} Leave one out."
    for field, value in trl.items() if rounded and isinstance(trl, Mapping) else ():
        if bool(value) == {"bf16": False, "fp16": True, "fsdp": True}.get(field):
            text = "weights that model.bfloat16 names are multiplied in bfloat16, and whole in each process"
            yield (*at, "trl", field), f"{text}, got {value!r}. Leave it out, or model.bfloat16."


def _language(around: RecipeContext) -> Found:
    """Ask the language model's component what is wrong with its table, and whether it has weights."""
    table = around.table("model").get("language")
    if not isinstance(table, Mapping):
        return
    try:
        made = component_class(around.factory_of("model.language"))
    except PluginError:
        return  # reported where the component is named
    for key, text in made.problems(table):
        yield ("model", "language", key) if key else ("model", "language"), text
    if made.has_weights:
        around.has_weights.add("language")


def _data(around: RecipeContext, stage: Mapping[str, Any], form: Any, at: Path) -> Found:
    kind = stage.get("kind")
    view = around.table("model", "view").get("use")
    asked: set[str] = set()
    for index, use in enumerate(as_tables(stage.get("data"))):
        here: Path = (*at, "data", index)
        dataset, task, split = use.get("dataset"), use.get("task"), use.get("split")
        known = around.table("dataset")
        if isinstance(dataset, str) and dataset not in known:
            hint = did_you_mean(dataset, known)
            listing = ", ".join(f"[dataset.{name}]" for name in known) or "none"
            yield (*here, "dataset"), f"no dataset is called {dataset!r}.{hint} This recipe has: {listing}."
        if split == "test" and form.traits.trains:
            yield (*here, "split"), "a stage that trains may not see the test split, got 'test'. Use another."
        if not form.traits.trains and use.get("sampling_weight", 1.0) != 1.0:
            got = use["sampling_weight"]
            text = f"only stages that train mix their data, got {got!r}. Use limit or patient_fraction."
            yield (*here, "sampling_weight"), text
        if not task and form.traits.needs_tasks:
            yield here, f"task is missing: a {kind} stage asks something about each case."
        if isinstance(task, str) and task:
            yield from _task(around, task, view, here)
            if (form.traits.measures or at[-1] == "evaluate") and task in asked:
                text = f"{task!r} is asked above too, and a stage's results are told apart by their tasks."
                yield (*here, "task"), f"{text} Give this one a table and a name of its own: [task.<name>]."
            asked.add(task)


def _task(around: RecipeContext, task: str, view: Any, here: Path) -> Found:
    named = around.table("task")
    use = around.table("task", task).get("use", task)
    installed = [row.name for row in offers("task")]
    if task not in named and task.rpartition("/")[2] not in installed:
        known = sorted({*named, *installed})
        listing = ", ".join(known) or "none"
        yield (*here, "task"), f"no task is called {task!r}.{did_you_mean(task, known)} Known: {listing}."
        return
    try:
        needs = getattr(component_class(find("task", str(use)).load()), "needs_slice_tags", False)
        has = getattr(component_class(find("view", str(view)).load()), "tags_slices", False)
    except EvidError:
        return  # reported where the component is named
    if needs and not has:
        text = f"task {task!r} asks for slice numbers, but view {view!r} does not show any."
        fitting = [row.name for row in offers("view") if _tags(row.name)]
        yield (*here, "task"), f"{text} Views that do: {', '.join(fitting) or 'none is installed'}."


def unmeasured(table: Mapping[str, Any], at: Path, around: RecipeContext) -> Found:
    """Find the data entries of a table that nothing can measure."""
    for index, name in named_evaluations(table, around):
        here = (*at, "data", index)
        if not name:
            listing = ", ".join(sorted({row.name for row in offers("evaluation")}))
            text = f"task {table['data'][index].get('task')!r} names no evaluation, so its answers cannot"
            yield here, f"{text} be measured. Write evaluation = '…' in this entry. Installed: {listing}."
            continue
        try:
            find("evaluation", name)
        except PluginError as cause:
            yield (*here, "evaluation"), str(cause)


def named_evaluations(table: Mapping[str, Any], around: RecipeContext) -> list[tuple[int, str]]:
    """Return the evaluation of each data entry whose task can be found, by the entry's number."""
    result = []
    for index, use in enumerate(as_tables(table.get("data"))):
        if isinstance(use.get("task"), str):
            component = around.table("task", use["task"]).get("use", use["task"])
            with contextlib.suppress(PluginError):  # reported where the task is named
                task = component_class(find("task", str(component)).load())
                result.append((index, str(use.get("evaluation") or getattr(task, "evaluation", ""))))
    return result


def _tags(view: str) -> bool:
    try:
        return bool(getattr(component_class(find("view", view).load()), "tags_slices", False))
    except EvidError:
        return False


def as_list(value: Any) -> list[Any]:
    """Return a value that is a list, and an empty one in place of any other."""
    return value if isinstance(value, list) else []


def as_tables(value: Any) -> list[Mapping[str, Any]]:
    """Return a list's items in place, an empty table for each that is none."""
    return [item if isinstance(item, Mapping) else {} for item in as_list(value)]
