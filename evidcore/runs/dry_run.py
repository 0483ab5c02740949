"""Everything but training: build what is named, read a first case, render what is asked, count tokens.

Models are built without weights: what their parts weigh, and what each stage trains of them.
"""

import dataclasses
import functools
import inspect
import json
import logging
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoModel

from evidcore.case import Prompt, TextPart, VisualPart
from evidcore.contracts import Bridge, Encoder, Grid, RolloutStrategy, Stage, Workload
from evidcore.contracts.stage import Lora
from evidcore.data.preparation import prepare
from evidcore.errors import EvidError, NotDownloadedError, RecipeError
from evidcore.model.architecture import shipped
from evidcore.model.language import missing_weights
from evidcore.model.parts import adapted_layers, refuse_4bit
from evidcore.model.processor import VolumeProcessor, refuse_too_long
from evidcore.model.template import round_trip
from evidcore.prompts.rows import Row, askable, prompt_sets
from evidcore.recipe import DataUse, Recipe
from evidcore.recipe.resolve import stage_table
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore.runs.assembly import Assembly, check_splits
from evidcore.runs.context import (
    UNKNOWN_TEXT_WIDTH,
    Context,
    StageOutputs,
    fresh_bridge,
    fresh_encoder,
    weightless_processor,
)
from evidcore.runs.inputs import unfitted_readers
from evidcore.train.checks import check_rows

log = logging.getLogger(__name__)

_ROWS_S = 30.0  # for a look at the rows of all data entries


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """A recipe's model on the meta device: without weights."""

    encoder: Encoder
    bridge: Bridge
    config: Any  # of the language model; None where only a download, or absent data, would tell
    language: nn.ModuleList  # its layers, and its head where that is not tied; empty where `config` is None
    has_known_width: bool  # of the language model; else the bridge is built at any width

    @functools.cached_property
    def parameters(self) -> dict[str, int | None]:
        """Return the parameters of each part; tied ones count once."""
        return {
            "encoder": size(self.encoder),
            "bridge": size(self.bridge) if self.has_known_width else None,
            "language": None if self.config is None else size(self.language),
        }

    def adapters(self, lora: Lora | None, where: str = "stage") -> int | None:
        """Return what LoRA adds: a (rank, in) and an (out, rank) to each matrix, with DoRA an (out,)."""
        if lora is None:
            return 0
        if self.config is None and "language" in lora.parts:
            return None
        modules: dict[str, nn.Module] = {"encoder": self.encoder, "language": self.language[:1]}
        layers = adapted_layers({part: modules[part] for part in lora.parts}, lora, where).values()
        sizes = [lora.rank * (item.in_features + item.out_features) for item in layers]
        return sum(sizes) + (sum(item.out_features for item in layers) if lora.use_dora else 0)

    def trained(self, load: Workload, where: str = "stage") -> int | None:
        """Return how many parameters a stage trains; None where a part's size is not known."""
        adapted = load.lora.parts if load.lora else ()
        counts = [self.parameters.get(part) for part in load.train if part not in adapted]
        counts.append(self.adapters(load.lora, where))
        return None if None in counts else sum(count or 0 for count in counts)

    def whole(self) -> int | None:
        """Return the parameters of the whole model."""
        counts = list(self.parameters.values())
        return None if None in counts else sum(count or 0 for count in counts)


def meta_parts(assembly: Assembly, *, needs_data: bool = False) -> Parts:
    """Build a recipe's model without weights.

    With `needs_data`, the language model counts the words of data that are not here.
    """
    width = assembly.language.width()
    config = None if needs_data else assembly.language.config(assembly.corpus)
    with torch.device("meta"):
        encoder = fresh_encoder(assembly, StageOutputs())
        bridge = fresh_bridge(assembly, encoder, width or UNKNOWN_TEXT_WIDTH)
        language = nn.ModuleList()
        if config is not None:
            language.append(AutoModel.from_config(config))
            whole: Any = assembly.language.vision() or config
            if not whole.tie_word_embeddings:
                language.append(nn.Linear(config.hidden_size, config.vocab_size, bias=False))
    return Parts(
        encoder=encoder, bridge=bridge, config=config, language=language, has_known_width=width is not None
    )


def size(module: nn.Module) -> int:
    """Return a module's parameters; tied ones count once."""
    return sum(weight.numel() for weight in module.parameters())


def tables(recipe: Recipe) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every table inside data sets, tasks, services and stages, and where it stands."""
    stages = dict(zip(recipe.stage_names, map(stage_table, recipe.stages), strict=True))
    sections = {"dataset": recipe.datasets, "task": recipe.tasks, "service": recipe.services, "stage": stages}
    waiting: list[tuple[str, Any]] = [
        (f"{section}.{name}", table) for section, tables in sections.items() for name, table in tables.items()
    ]
    while waiting:
        where, value = waiting.pop(0)
        if isinstance(value, Mapping):
            yield where, value
            waiting += [(f"{where}.{key}", item) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(f"{where}[{number}]", item) for number, item in enumerate(value)]


def is_fetched(table: Mapping[str, Any]) -> bool:
    """Tell whether a table names a model on the Hub, and nothing on this machine in its place."""
    is_named = bool(table.get("id") and table.get("revision"))
    return is_named and not (table.get("folder") or table.get("file"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedData:
    """What was seen of one data entry of one stage."""

    stage: str
    dataset: str
    task: str
    split: str
    cases: int
    patients: int
    prompt_tokens: int | None  # of the first prompt; None where nothing is known of the tokenizer
    image_tokens: int | None
    answer_tokens: int | None  # of its gold answer
    are_estimated: bool  # text tokens were worked out from letters: the tokenizer is not here
    prompt: str  # as the model will read it, a mark for each visual part; "" without the tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageWeights:
    """What a stage trains and what it leaves alone, in parameters; None: known after a download."""

    stage: str
    trained: int | None
    frozen: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DryRun:
    """What was seen of a recipe without training."""

    data: tuple[CheckedData, ...]
    parameters: Mapping[str, int | None] | None  # by part; None: a tiny model's words lie in absent data
    patch_grid_zyx: Grid  # of one usual input of the encoder
    visual_tokens: int  # that the bridge makes of it
    stages: tuple[StageWeights, ...]
    unchecked: tuple[str, ...]  # what needs files that are not here, and how to get them


def dry_run(recipe: Recipe) -> DryRun:
    """Do all that a run does before training: on the first case of each data entry, and on texts of all.

    Encoder and bridge are built on the meta device, a published language model from the shape that is known
    of it. What needs files that have not been fetched is left out and named.
    """
    assembly = Assembly(recipe)
    absent: dict[str, str] = {}  # data sets whose files have not been fetched, and what each says of it
    for use in (use for stage in recipe.stages for use in stage.data_uses()):
        try:
            assembly.split(use.dataset, use.split)
        except NotDownloadedError as cause:
            absent[use.dataset] = f"dataset.{use.dataset}: {cause}"
        except EvidError:
            pass  # said where the split is used
    check_splits(assembly, leaving_out=absent.keys())
    unchecked = list(dict.fromkeys(absent.values()))
    needs_data = bool(absent) and assembly.language.counts_words
    parts = meta_parts(assembly, needs_data=needs_data)
    encoder, grid = parts.encoder, parts.encoder.grid(parts.encoder.input.size_zyx)
    unchecked += _weights(assembly, encoder)
    tokenizer = None if needs_data else assembly.language.tokenizer(assembly.corpus)
    holds = getattr(parts.config, "max_position_embeddings", None)  # tokens
    ends = time.monotonic() + _ROWS_S
    result, wrong, looked = [], list[str](), set[tuple[DataUse, int | None]]()
    for name, service, reader in unfitted_readers(assembly):
        try:
            reader.ready()
        except NotDownloadedError:
            pass  # said of what has not been fetched
        except EvidError as cause:
            wrong.append(f"{name}: service.{service}: {cause}")
    processor, sizes = None, set[Grid]()
    try:
        processor = None if tokenizer is None else weightless_processor(assembly, tokenizer, encoder)
        if processor is not None:
            processor.context_tokens = holds
        refuse_4bit(recipe.model)
    except EvidError as cause:
        wrong.append(str(cause))
    for index, (stage, trained_by) in enumerate(zip(recipe.stages, answering(recipe), strict=True)):
        name, strategy = recipe.stage_name(index), None
        context = Context(assembly, name, is_dry_run=True)
        try:
            stage.check(context)
            strategy = None if trained_by is None else trained_by.strategy(context)
        except EvidError as cause:
            wrong.append(str(cause))
        for where, use, most in _entries(stage, name):
            if use.dataset in absent:
                continue
            try:
                seen = _entry(assembly, encoder, processor, name, use, strategy, sizes)
                if use.task and stage.traits.trains:
                    askable(prompt_sets(context, [use])[0], recipe.seed)
                result.append(seen)
                if use.task and (refusal := stage.refusal(use, [next(_asked(assembly, use))], context)):
                    wrong.append(f"{where}: {refusal}")
                if stage.traits.compares and seen.patients < 2:
                    text = f"its questions are about {seen.patients} patient, and an audit compares patients"
                    wrong.append(f"{where}: {text}. Take data of at least two.")
                wrong += _too_long(seen, most, where, holds)
                if use.task and (use, most) not in looked:
                    looked.add((use, most))
                    opening = "" if processor is None else processor.opening_of(strategy)
                    left_s = max(0.0, ends - time.monotonic())
                    rows = _rows(assembly, use, where if stage.traits.measures else "")
                    check_rows(
                        rows, processor, opening, where=where, seconds=left_s, max_new_tokens=most or 0
                    )
            except EvidError as cause:
                wrong.append(f"{where}: {cause}")
    for says in _mismatches(assembly, encoder, processor, sizes):
        log.warning("%s: %s", recipe.path, says)
    if wrong:
        count = "1 problem" if len(wrong) == 1 else f"{len(wrong)} problems"
        listing = "\n".join(f"  {text}" for text in dict.fromkeys(wrong))
        raise RecipeError(f"{recipe.path}: {count}\n{listing}")
    return DryRun(
        data=tuple(result), parameters=None if needs_data else parts.parameters, patch_grid_zyx=grid,
        visual_tokens=parts.bridge.tokens(grid),
        stages=() if needs_data else tuple(_stage_weights(recipe, parts)), unchecked=tuple(unchecked),
    )  # fmt: skip


def _mismatches(
    assembly: Assembly, encoder: Encoder, processor: VolumeProcessor | None, sizes: set[Grid]
) -> Iterator[str]:
    """Yield what is given otherwise than a published model expects, which works and may not be meant."""
    published, unit = assembly.language.published(), assembly.view.box_unit
    named = [pair for stage in assembly.recipe.stages for pair in stage.components(assembly.recipe)]
    speaking = [kind for kind, table in named if kind == "tool" and table]  # a task may too
    speaking += [key for key in assembly.recipe.model.view if key == "boxes"]
    speaking += [key for task in assembly.tasks.values() for key in inspect.signature(type(task)).parameters]
    if unit and published.get("boxes", unit) != unit and {"tool", "boxes", "view"} & {*speaking}:
        why = f"boxes are written in {unit}, and the language model was trained to write {published['boxes']}"
        yield f"model.view: {why}. Take a view that has such `boxes`, or have it learn the other unit."
    template = published.get("chat_template")
    theirs = None if processor is None or not template else round_trip(processor.tokenizer, template)[0]
    if processor is not None and theirs is not None and theirs != (ours := processor.turns):
        yield (
            "model.language: the tokenizer's chat template is used, and the processor's is another: before a "
            f"question stand {ours.before_question!r} and {theirs.before_question!r}, before an answer "
            f"{ours.before_answer!r} and {theirs.before_answer!r}. Put the right one beside the tokenizer as "
            "chat_template.jinja."
        )
    yield from encoder.mismatches(published, sizes)


def _entries(stage: Stage, name: str) -> Iterator[tuple[str, DataUse, int | None]]:
    """Yield where a stage's data entries stand, the entries, and how many tokens are written to each.

    None: gold answers are read, as those of rows that are replayed.
    """
    most = stage.workload().answers_tokens
    yield from ((f"{name}.data[{number}]", use, most) for number, use in enumerate(stage.data))
    for key, inner in vars(stage).items():
        for number, use in enumerate(getattr(inner, "data", ())):
            yield f"{name}.{key}.data[{number}]", use, getattr(inner, "max_new_tokens", None)


def _weights(assembly: Assembly, encoder: Encoder) -> Iterator[str]:
    """Yield what is said of weights that are not here; those that a fit stage makes are not needed."""
    fitted = {stage.output for stage in assembly.recipe.line.values()}
    texts = {"model.encoder": "" if "encoder" in fitted else encoder.missing_weights()}
    texts["model.language"] = assembly.language.missing_weights()
    for where, table in tables(assembly.recipe):
        if is_fetched(table):
            texts[where] = missing_weights(str(table["id"]), str(table["revision"]))
    yield from (f"{part}: {text}" for part, text in texts.items() if text)


def _stage_weights(recipe: Recipe, parts: Parts) -> Iterator[StageWeights]:
    for index, stage in enumerate(recipe.stages):
        load = stage.workload()
        if load.trains_whole_model:
            trained, whole = parts.trained(load, recipe.stage_name(index)), parts.whole()
            if whole is not None:
                whole += parts.adapters(load.lora) or 0
            frozen = None if trained is None or whole is None else whole - trained
            yield StageWeights(stage=recipe.stage_name(index), trained=trained, frozen=frozen)


def answering(recipe: Recipe) -> list[Stage | None]:
    """Return for each stage the one as which answers come about: itself, or the last trained before it."""
    last: dict[str, Stage | None] = {}  # by arm, which begins where the recipe's own line stands
    result = []
    for stage in recipe.stages:
        result.append(stage if stage.output == "model" else last.get(stage.arm, last.get("")))
        last[stage.arm] = result[-1]
    return result


def _entry(
    assembly: Assembly,
    encoder: Encoder,
    processor: VolumeProcessor | None,
    stage: str,
    use: DataUse,
    strategy: RolloutStrategy | None,
    sizes: set[Grid],
) -> CheckedData:
    cases = assembly.cases(use)
    asking = next(_asked(assembly, use), None) if use.task else None
    if use.task and asking is None:
        raise RecipeError(f"task {use.task!r} asks nothing about any of its {len(cases)} cases.")
    with blame(offer_of(assembly.view), f"rendering case {cases[0].id!r}"):
        rendered = asking.parts if asking else assembly.view.render(cases[0])
    parts = [part for part in rendered if isinstance(part, VisualPart)]
    image_tokens, width = 0, assembly.language.width()
    for part in parts:
        size = assembly.view.size_zyx(part, encoder.input)
        prepare(part.crop, encoder.input, size)  # reads the file
        sizes.add(size)
        if width is not None:
            with torch.device("meta"):
                image_tokens += fresh_bridge(assembly, encoder, width).tokens(encoder.grid(size))
    prompt_tokens, answer_tokens, text, task = None, None, "", assembly.tasks.get(use.task)
    if asking is not None and task is not None:
        with blame(offer_of(task), f"writing the gold answer of prompt {asking.id!r}"):
            gold, _ = task.gold(asking)
        if processor is None:
            written, answer_tokens = estimated_tokens(assembly, asking, gold, strategy)
            prompt_tokens = None if written is None else written + image_tokens
        else:
            prompt_tokens, answer_tokens = counted_tokens(asking, gold, processor, strategy)
            text = processor.write(asking, processor.opening_of(strategy))
            text = re.sub(f"({re.escape(processor.image_token)})+", r"\1", text)
    return CheckedData(
        stage=stage, dataset=use.dataset, task=use.task, split=use.split, cases=len(cases),
        patients=len({case.patient or case.id for case in cases}),
        prompt_tokens=prompt_tokens,
        image_tokens=None if width is None else image_tokens, answer_tokens=answer_tokens,
        are_estimated=processor is None and answer_tokens is not None, prompt=text,
    )  # fmt: skip


def _rows(assembly: Assembly, use: DataUse, where: str) -> Iterator[Row]:
    """Yield rows; warn behind the last, unless `where` is "", if one letter or option answers all of them."""
    right: list[tuple[str, str]] = []
    for prompt in _asked(assembly, use):
        if "letter" in prompt.reference:
            right.append((str(prompt.reference["letter"]), str(prompt.reference.get("finding"))))
        yield Row(prompt, assembly.tasks[use.task])
    for what, given in zip(("letter", "option"), zip(*right, strict=True), strict=False):
        if where and len(right) > 1 and len({*given}) == 1:
            says = "%s: the right %s of all %d questions is %r, so an answer without a look scores 100 %%"
            log.warning(says, where, what, len(right), given[0])


def _asked(assembly: Assembly, use: DataUse) -> Iterator[Prompt]:
    for case in assembly.cases(use):
        yield from assembly.asked(use.task, case)


def counted_tokens(
    prompt: Prompt, gold: str, processor: VolumeProcessor, strategy: RolloutStrategy | None
) -> tuple[int, int]:
    """Return the tokens of a prompt, with visual ones and what a strategy tells, and of its answer."""
    asked = processor.encode(prompt, processor.opening_of(strategy))
    return len(asked.ids), len(processor.encode_answer(gold).ids)


def estimated_tokens(
    assembly: Assembly, prompt: Prompt, gold: str, strategy: RolloutStrategy | None
) -> tuple[int | None, int | None]:
    """Estimate the text tokens of a prompt and of its answer, None where the vocabulary is not known."""
    known = shipped().get(assembly.recipe.model.language.get("id", ""))
    if known is None or known.chat_tokens is None:
        return None, None
    written = "".join(part.text for part in prompt.parts if isinstance(part, TextPart))
    written += "".join(json.dumps(function) for function in (strategy.functions if strategy else ()))
    around = 2 * len(prompt.crops())  # the tokens before and after each image's
    return known.chat_tokens + around + known.text_tokens(written), known.text_tokens(gold) + 1


def _too_long(seen: CheckedData, most: int | None, where: str, holds: int | None) -> Iterator[str]:
    """Yield what is wrong where the gold answer would be cut off, or estimated tokens exceed the context."""
    gold = seen.answer_tokens
    if most is not None and gold is not None and gold > most:
        why = f"max_new_tokens = {most} cuts the gold answer of task {seen.task!r} off"
        yield f"{where}: {why}, which has {gold} tokens. Allow at least that."
    asked, answer = seen.prompt_tokens, gold if most is None else most
    if seen.are_estimated and asked is not None and answer is not None:
        refuse_too_long(holds, f"of task {seen.task}", asked, answer)
