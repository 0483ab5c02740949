"""Everything but training: build what is named, read a first case, render what is asked, count tokens."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from evidcore.case import Prompt, TextPart, VisualPart
from evidcore.contracts import Encoder, Grid
from evidcore.errors import ContractError, EvidError, NotHere, RecipeError
from evidcore.model.architecture import shipped
from evidcore.model.processor import VolumeProcessor
from evidcore.recipe import Audit, DataUse, Evaluate, Fit, Grpo, Recipe, Sft, Stage, data_uses
from evidcore.registry import blame, factory
from evidcore.registry.factory import offer_of
from evidcore.run import model as models
from evidcore.run.measuring import labeler_of, metrics_of, segmenter_of
from evidcore.run.model import UNKNOWN_TEXT_WIDTH, Standing
from evidcore.run.parts import Parts, build, check_splits
from evidcore.run.readiness import ask
from evidcore.run.shapes import Shapes, adapter_parameters, shapes
from evidcore.run.stages import audited_as, scored_as
from evidcore.run.traffic import is_fetched, tables
from evidcore.volume import prepare


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rehearsed:
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
class Rehearsal:
    """What was seen of a recipe without training."""

    data: tuple[Rehearsed, ...]
    parameters: Mapping[str, int | None] | None  # by part; None: a tiny model's words lie in absent data
    patch_grid_zyx: Grid  # of one usual input of the encoder
    visual_tokens: int  # that the bridge makes of it
    stages: tuple[StageWeights, ...]
    unchecked: tuple[str, ...]  # what needs files that are not here, and how to get them


def rehearse(recipe: Recipe) -> Rehearsal:
    """Do all that a run does before training, on the first case of each data entry.

    Encoder and bridge are built on the meta device, a published language model from the shape that is known
    of it. What needs files that have not been fetched is left out and named.

    Raises:
        EvidError: what is wrong, all of a stage's problems at once where they do not hang on each other.
    """
    parts = build(recipe)
    absent = _absent(parts)
    check_splits(parts, leaving_out=absent.keys())
    unchecked = list(dict.fromkeys(absent.values()))
    with torch.device("meta"):
        encoder = models.encoder(parts, Standing())
    unchecked += _weights(parts, encoder)
    needs_data = bool(absent) and bool(recipe.model.language.config)
    tokenizer = None if needs_data else models.tokenizer(parts)
    made = None if needs_data else shapes(parts)
    found, wrong = [], []
    processor = None
    try:
        processor = None if tokenizer is None else models.processor(parts, tokenizer, encoder)
    except EvidError as cause:
        wrong.append(str(cause))
    for place, stage in enumerate(recipe.stages):
        name = recipe.stage_name(place)
        try:
            _components(parts, stage, name)
        except EvidError as cause:
            wrong.append(str(cause))
        for where, use in _entries(stage, name):
            if use.dataset in absent:
                continue
            try:
                seen = _entry(parts, encoder, processor, name, use)
                found.append(seen)
                if isinstance(stage, Evaluate | Audit) and use.task:
                    judge = scored_as if isinstance(stage, Evaluate) else audited_as
                    judge(parts.tasks[use.task], [next(_asked(parts, use))])
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
    width = models.text_width(parts)
    with torch.device("meta"):
        tokens = models.bridge(parts, encoder, width or UNKNOWN_TEXT_WIDTH).tokens(grid)
    return Rehearsal(
        data=tuple(found),
        parameters=None if made is None else made.parameters,
        patch_grid_zyx=grid,
        visual_tokens=tokens,
        stages=() if made is None else tuple(_stage_weights(recipe, made)),
        unchecked=tuple(unchecked),
    )


def _entries(stage: Stage, name: str) -> Iterator[tuple[str, DataUse]]:
    """Yield a stage's data entries and where they stand."""
    yield from ((f"{name}.data[{number}]", use) for number, use in enumerate(stage.data))
    if isinstance(stage, Grpo) and stage.replay is not None:
        yield from ((f"{name}.replay.data[{number}]", use) for number, use in enumerate(stage.replay.data))


def _absent(parts: Parts) -> dict[str, str]:
    """Return the data sets whose files have not been fetched, and what each says of it."""
    found = {}
    for use in (use for stage in parts.recipe.stages for use in data_uses(stage)):
        try:
            parts.split(use.dataset, use.split)
        except NotHere as cause:
            found[use.dataset] = f"dataset.{use.dataset}: {cause}"
        except EvidError:
            pass  # said where the split is used
    return found


def _weights(parts: Parts, encoder: Encoder) -> Iterator[str]:
    """Yield what is said of weights that are not here; those that a fit stage makes are not needed."""
    fitted = {stage.component for stage in parts.recipe.stages if isinstance(stage, Fit)}
    said = {
        "model.encoder": "" if "model.encoder" in fitted else encoder.missing_weights(),
        "model.language": models.missing_weights(models.language_source(parts, Standing())),
        **{
            where: models.missing_weights(table) for where, table in tables(parts.recipe) if is_fetched(table)
        },
    }
    yield from (f"{part}: {text}" for part, text in said.items() if text)


def _stage_weights(recipe: Recipe, made: Shapes) -> Iterator[StageWeights]:
    for place, stage in enumerate(recipe.stages):
        if isinstance(stage, Sft | Grpo):
            trained, whole = made.trained(stage), made.whole()
            if stage.lora is not None and whole is not None and made.text is not None:
                whole += adapter_parameters(made.text, stage.lora.rank)
            frozen = None if trained is None or whole is None else whole - trained
            yield StageWeights(stage=recipe.stage_name(place), trained=trained, frozen=frozen)


def _components(parts: Parts, stage: Stage, name: str) -> None:
    """Build a stage's own components, without a model behind them."""
    given: dict[str, Any] = {"recipe_folder": parts.recipe.folder}
    if isinstance(stage, Sft):
        factory.build(
            "reweighter", stage.reweighter, given=given, where=f"{name}.reweighter", services=parts.services
        )
    if isinstance(stage, Evaluate):
        factory.build("scorer", stage.rescue, given=given, where=f"{name}.rescue", services=parts.services)
    if isinstance(stage, Grpo):
        for table in stage.reward:
            where = f"{name}.reward {table['use']}"
            factory.build(
                "reward", table, given={**given, "policy": None}, where=where, services=parts.services
            )
        models.strategy(parts, stage)
    if isinstance(stage, Evaluate):
        for named in metrics_of(parts, stage, labeler_of(parts, stage, name), name):
            ask(named.metric, name)
    if isinstance(stage, Evaluate | Audit):
        segmenter_of(parts, stage, name)


def _entry(
    parts: Parts, encoder: Encoder, processor: VolumeProcessor | None, stage: str, use: DataUse
) -> Rehearsed:
    cases = parts.cases(use)
    first, prompts = cases[0], []
    if use.task:
        asking = next(_asked(parts, use), None)
        if asking is None:
            raise RecipeError(f"task {use.task!r} asks nothing about any of its {len(cases)} cases.")
        first, prompts = asking.case, [asking]
    with blame(offer_of(parts.view), f"rendering case {first.id!r}"):
        shown = [part for part in parts.view.render(first) if isinstance(part, VisualPart)]
    image_tokens, width = 0, models.text_width(parts)
    for part in shown:
        size = parts.view.size_zyx(part, encoder.input)
        prepare(part.crop, encoder.input, size)  # reads the file
        if width is not None:
            with torch.device("meta"):
                image_tokens += models.bridge(parts, encoder, width).tokens(encoder.grid(size))
    prompt_tokens, answer_tokens, text = (
        _count(parts, use, prompts[0], processor, image_tokens) if prompts else (None, None, "")
    )
    return Rehearsed(
        stage=stage, dataset=use.dataset, task=use.task, split=use.split, cases=len(cases),
        patients=len({case.patient or case.id for case in cases}),
        prompt_tokens=prompt_tokens,
        image_tokens=None if width is None else image_tokens, answer_tokens=answer_tokens,
        are_estimated=processor is None and answer_tokens is not None, prompt=text,
    )  # fmt: skip


def _asked(parts: Parts, use: DataUse) -> Iterator[Prompt]:
    task = parts.tasks[use.task]
    for case in parts.cases(use):
        with blame(offer_of(task), f"asking about case {case.id!r}"):
            yield from task.prompts(case, parts.view, 0)


def _count(
    parts: Parts, use: DataUse, prompt: Prompt, processor: VolumeProcessor | None, image_tokens: int
) -> tuple[int | None, int | None, str]:
    """Return prompt tokens, answer tokens, and the prompt as text."""
    task = parts.tasks[use.task]
    with blame(offer_of(task), f"writing and reading the gold answer of prompt {prompt.id!r}"):
        gold, _ = task.gold(prompt)
        malformed = task.parse(prompt, gold).malformed
    if malformed is not None:
        raise ContractError(f"{offer_of(task)}: its own gold answer {gold!r} is malformed: {malformed}.")
    if processor is None:
        written, answer = estimated_tokens(parts, prompt, gold)
        return None if written is None else written + image_tokens, answer, ""
    tokens, answer = counted_tokens(prompt, gold, processor)
    return tokens, answer, re.sub(f"({re.escape(processor.image_token)})+", r"\1", processor.write(prompt))


def counted_tokens(prompt: Prompt, gold: str, processor: VolumeProcessor) -> tuple[int, int]:
    """Return the tokens of a prompt, visual ones included, and of its answer, as the run writes them."""
    return len(processor.encode(prompt).ids), len(processor.encode_answer(gold).ids)


def estimated_tokens(parts: Parts, prompt: Prompt, gold: str) -> tuple[int | None, int | None]:
    """Estimate the text tokens of a prompt and of its answer, None where the vocabulary is not known."""
    known = shipped().get(parts.recipe.model.language.id)
    if known is None or known.chat_tokens is None:
        return None, None
    written = "".join(part.text for part in prompt.parts if isinstance(part, TextPart))
    around = 2 * len(prompt.crops())  # the tokens before and after each image's
    return known.chat_tokens + around + known.text_tokens(written), known.text_tokens(gold) + 1


def _too_long(seen: Rehearsed, stage: Stage, where: str) -> Iterator[str]:
    """Yield a sentence where even the gold answer would be cut off."""
    most = getattr(stage, "max_new_tokens", None)
    if most is not None and seen.answer_tokens is not None and seen.answer_tokens > most:
        yield (
            f"{where}: max_new_tokens = {most} cuts the gold answer of task {seen.task!r} off, "
            f"which has {seen.answer_tokens} tokens. Allow at least that."
        )
