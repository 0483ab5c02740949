"""Everything but training: build what is named, read a first case, render what is asked, count tokens."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

import torch

from evidcore.case import Prompt, TextPart, VisualPart
from evidcore.contracts import Encoder, Grid, Stage
from evidcore.errors import ContractError, EvidError, NotHere, RecipeError
from evidcore.model.architecture import shipped
from evidcore.model.language import missing_weights
from evidcore.model.processor import VolumeProcessor
from evidcore.recipe import DataUse, Recipe
from evidcore.recipe.nested_tables import is_fetched, tables
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore.run import model as models
from evidcore.run.assembly import Assembly, check_splits
from evidcore.run.context import Context
from evidcore.run.model import UNKNOWN_TEXT_WIDTH, StageOutputs
from evidcore.run.shapes import Shapes, adapter_parameters, shapes
from evidcore.volume import prepare


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
    """Do all that a run does before training, on the first case of each data entry.

    Encoder and bridge are built on the meta device, a published language model from the shape that is known
    of it. What needs files that have not been fetched is left out and named.

    Raises:
        EvidError: what is wrong, all of a stage's problems at once where they do not hang on each other.
    """
    assembly = Assembly(recipe)
    absent = _absent(assembly)
    check_splits(assembly, leaving_out=absent.keys())
    unchecked = list(dict.fromkeys(absent.values()))
    with torch.device("meta"):
        encoder = models.encoder(assembly, StageOutputs())
    unchecked += _weights(assembly, encoder)
    needs_data = bool(absent) and assembly.language.counts_words
    tokenizer = None if needs_data else assembly.language.tokenizer(assembly.corpus)
    made = None if needs_data else shapes(assembly)
    found, wrong = [], []
    processor = None
    try:
        processor = None if tokenizer is None else models.processor(assembly, tokenizer, encoder)
    except EvidError as cause:
        wrong.append(str(cause))
    for place, stage in enumerate(recipe.stages):
        name = recipe.stage_name(place)
        context = Context(assembly, name)
        try:
            stage.check(context)
        except EvidError as cause:
            wrong.append(str(cause))
        for where, use in _entries(stage, name):
            if use.dataset in absent:
                continue
            try:
                seen = _entry(assembly, encoder, processor, name, use)
                found.append(seen)
                if use.task and (refusal := stage.refusal(use, [next(_asked(assembly, use))], context)):
                    wrong.append(f"{where}: {refusal}")
                if any(use is own for own in stage.data):  # what is replayed is not written
                    wrong += _too_long(seen, stage, where)
            except EvidError as cause:
                wrong.append(f"{where}: {cause}")
    if wrong:
        count = "1 problem" if len(wrong) == 1 else f"{len(wrong)} problems"
        raise RecipeError(
            f"{recipe.path}: {count}\n" + "\n".join(f"  {text}" for text in dict.fromkeys(wrong))
        )
    grid = encoder.grid(encoder.input.size_zyx)
    width = assembly.language.width()
    with torch.device("meta"):
        tokens = models.bridge(assembly, encoder, width or UNKNOWN_TEXT_WIDTH).tokens(grid)
    return DryRun(
        data=tuple(found),
        parameters=None if made is None else made.parameters,
        patch_grid_zyx=grid,
        visual_tokens=tokens,
        stages=() if made is None else tuple(_stage_weights(recipe, made)),
        unchecked=tuple(unchecked),
    )


def _entries(stage: Stage, name: str) -> Iterator[tuple[str, DataUse]]:
    """Yield a stage's data entries and where they stand: in `data`, or in its replay."""
    yield from ((f"{name}.data[{number}]", use) for number, use in enumerate(stage.data))
    inner = stage.data_uses()[len(stage.data) :]
    yield from ((f"{name}.replay.data[{number}]", use) for number, use in enumerate(inner))


def _absent(assembly: Assembly) -> dict[str, str]:
    """Return the data sets whose files have not been fetched, and what each says of it."""
    found = {}
    for use in (use for stage in assembly.recipe.stages for use in stage.data_uses()):
        try:
            assembly.split(use.dataset, use.split)
        except NotHere as cause:
            found[use.dataset] = f"dataset.{use.dataset}: {cause}"
        except EvidError:
            pass  # said where the split is used
    return found


def _weights(assembly: Assembly, encoder: Encoder) -> Iterator[str]:
    """Yield what is said of weights that are not here; those that a fit stage makes are not needed."""
    fitted = {stage.output for stage in assembly.recipe.stages}
    said = {
        "model.encoder": "" if "encoder" in fitted else encoder.missing_weights(),
        "model.language": assembly.language.missing_weights(),
        **{
            where: missing_weights(str(table["id"]), str(table["revision"]))
            for where, table in tables(assembly.recipe)
            if is_fetched(table)
        },
    }
    yield from (f"{part}: {text}" for part, text in said.items() if text)


def _stage_weights(recipe: Recipe, made: Shapes) -> Iterator[StageWeights]:
    for place, stage in enumerate(recipe.stages):
        load = stage.workload()
        if load.trains_whole_model:
            trained, whole = made.trained(load), made.whole()
            if load.lora_rank is not None and whole is not None and made.text is not None:
                whole += adapter_parameters(made.text, load.lora_rank)
            frozen = None if trained is None or whole is None else whole - trained
            yield StageWeights(stage=recipe.stage_name(place), trained=trained, frozen=frozen)


def _entry(
    assembly: Assembly, encoder: Encoder, processor: VolumeProcessor | None, stage: str, use: DataUse
) -> CheckedData:
    cases = assembly.cases(use)
    first, prompts = cases[0], []
    if use.task:
        asking = next(_asked(assembly, use), None)
        if asking is None:
            raise RecipeError(f"task {use.task!r} asks nothing about any of its {len(cases)} cases.")
        first, prompts = asking.case, [asking]
    with blame(offer_of(assembly.view), f"rendering case {first.id!r}"):
        shown = [part for part in assembly.view.render(first) if isinstance(part, VisualPart)]
    image_tokens, width = 0, assembly.language.width()
    for part in shown:
        size = assembly.view.size_zyx(part, encoder.input)
        prepare(part.crop, encoder.input, size)  # reads the file
        if width is not None:
            with torch.device("meta"):
                image_tokens += models.bridge(assembly, encoder, width).tokens(encoder.grid(size))
    prompt_tokens, answer_tokens, text = (
        _count(assembly, use, prompts[0], processor, image_tokens) if prompts else (None, None, "")
    )
    return CheckedData(
        stage=stage, dataset=use.dataset, task=use.task, split=use.split, cases=len(cases),
        patients=len({case.patient or case.id for case in cases}),
        prompt_tokens=prompt_tokens,
        image_tokens=None if width is None else image_tokens, answer_tokens=answer_tokens,
        are_estimated=processor is None and answer_tokens is not None, prompt=text,
    )  # fmt: skip


def _asked(assembly: Assembly, use: DataUse) -> Iterator[Prompt]:
    task = assembly.tasks[use.task]
    for case in assembly.cases(use):
        with blame(offer_of(task), f"asking about case {case.id!r}"):
            yield from task.prompts(case, assembly.view, 0)


def _count(
    assembly: Assembly, use: DataUse, prompt: Prompt, processor: VolumeProcessor | None, image_tokens: int
) -> tuple[int | None, int | None, str]:
    """Return prompt tokens, answer tokens, and the prompt as text."""
    task = assembly.tasks[use.task]
    with blame(offer_of(task), f"writing and reading the gold answer of prompt {prompt.id!r}"):
        gold, _ = task.gold(prompt)
        malformed = task.parse(prompt, gold).malformed
    if malformed is not None:
        raise ContractError(f"{offer_of(task)}: its own gold answer {gold!r} is malformed: {malformed}.")
    if processor is None:
        written, answer = estimated_tokens(assembly, prompt, gold)
        return None if written is None else written + image_tokens, answer, ""
    tokens, answer = counted_tokens(prompt, gold, processor)
    return tokens, answer, re.sub(f"({re.escape(processor.image_token)})+", r"\1", processor.write(prompt))


def counted_tokens(prompt: Prompt, gold: str, processor: VolumeProcessor) -> tuple[int, int]:
    """Return the tokens of a prompt, visual ones included, and of its answer, as the run writes them."""
    return len(processor.encode(prompt).ids), len(processor.encode_answer(gold).ids)


def estimated_tokens(assembly: Assembly, prompt: Prompt, gold: str) -> tuple[int | None, int | None]:
    """Estimate the text tokens of a prompt and of its answer, None where the vocabulary is not known."""
    known = shipped().get(assembly.recipe.model.language.get("id", ""))
    if known is None or known.chat_tokens is None:
        return None, None
    written = "".join(part.text for part in prompt.parts if isinstance(part, TextPart))
    around = 2 * len(prompt.crops())  # the tokens before and after each image's
    return known.chat_tokens + around + known.text_tokens(written), known.text_tokens(gold) + 1


def _too_long(seen: CheckedData, stage: Stage, where: str) -> Iterator[str]:
    """Yield a sentence where even the gold answer would be cut off."""
    most = stage.longest_answer
    if most is not None and seen.answer_tokens is not None and seen.answer_tokens > most:
        yield (
            f"{where}: max_new_tokens = {most} cuts the gold answer of task {seen.task!r} off, "
            f"which has {seen.answer_tokens} tokens. Allow at least that."
        )
