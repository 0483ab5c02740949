"""Everything but training: build what is named, read a first case, render what is asked, count tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from evidcore.case import Prompt, VisualPart
from evidcore.contracts import Encoder
from evidcore.errors import ContractError, EvidError, RecipeError
from evidcore.plugins import blame, factory
from evidcore.plugins.factory import offer_of
from evidcore.recipe import DataUse, Evaluate, Grpo, Recipe, Sft, Stage
from evidcore.run import model as models
from evidcore.run.measuring import labeler_of, metrics_of
from evidcore.run.model import Standing
from evidcore.run.parts import Parts, build, check_splits
from evidcore.run.stages import scored_as
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
    prompt_tokens: int | None  # of the first prompt; None where the tokenizer was not downloaded yet
    image_tokens: int | None
    answer_tokens: int | None  # of its gold answer
    prompt: str  # as the model will read it, a mark for each visual part


def rehearse(recipe: Recipe) -> list[Rehearsed]:
    """Do all that a run does before training, on the first case of each data entry.

    Raises:
        EvidError: what is wrong, all of a stage's problems at once where they do not hang on each other.
    """
    parts = build(recipe)
    check_splits(parts)
    encoder = models.encoder(parts, Standing())
    tokenizer = models.tokenizer(parts)
    found, wrong = [], []
    for place, stage in enumerate(recipe.stages):
        name = recipe.stage_name(place)
        try:
            _components(parts, stage, name)
        except EvidError as cause:
            wrong.append(str(cause))
        for number, use in enumerate(stage.data):
            try:
                seen = _entry(parts, encoder, tokenizer, name, use)
                found.append(seen)
                if isinstance(stage, Evaluate) and use.task:
                    scored_as(parts.tasks[use.task], [next(_asked(parts, use))])
                wrong += _too_long(seen, stage, f"{name}.data[{number}]")
            except EvidError as cause:
                wrong.append(f"{name}.data[{number}]: {cause}")
    if wrong:
        count = "1 problem" if len(wrong) == 1 else f"{len(wrong)} problems"
        raise RecipeError(
            f"{recipe.path}: {count}\n" + "\n".join(f"  {text}" for text in dict.fromkeys(wrong))
        )
    return found


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
            named.metric.ready()


def _entry(parts: Parts, encoder: Encoder, tokenizer: Any, stage: str, use: DataUse) -> Rehearsed:
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
            image_tokens += models.bridge(parts, encoder, width).tokens(encoder.grid(size))
    text_tokens, answer_tokens, text = (
        _count(parts, use, prompts[0], tokenizer) if prompts else (None, None, "")
    )
    return Rehearsed(
        stage=stage, dataset=use.dataset, task=use.task, split=use.split, cases=len(cases),
        patients=len({case.patient or case.id for case in cases}),
        prompt_tokens=None if text_tokens is None else text_tokens + image_tokens,
        image_tokens=None if width is None else image_tokens, answer_tokens=answer_tokens, prompt=text,
    )  # fmt: skip


def _asked(parts: Parts, use: DataUse) -> Iterator[Prompt]:
    task = parts.tasks[use.task]
    for case in parts.cases(use):
        with blame(offer_of(task), f"asking about case {case.id!r}"):
            yield from task.prompts(case, parts.view, 0)


def _count(parts: Parts, use: DataUse, prompt: Prompt, tokenizer: Any) -> tuple[int | None, int | None, str]:
    """Return prompt tokens without the visual ones, answer tokens, and the prompt as text."""
    task = parts.tasks[use.task]
    with blame(offer_of(task), f"writing and reading the gold answer of prompt {prompt.id!r}"):
        gold, _ = task.gold(prompt)
        malformed = task.parse(prompt, gold).malformed
    if malformed is not None:
        raise ContractError(f"{offer_of(task)}: its own gold answer {gold!r} is malformed: {malformed}.")
    if tokenizer is None:
        return None, None, ""
    content = [
        {"type": "image"} if isinstance(part, VisualPart) else {"type": "text", "text": part.text}
        for part in prompt.parts
    ]
    if tokenizer.chat_template is None:
        raise RecipeError(
            "model.language: its tokenizer has no chat template, so no prompt can be written. "
            "Use an instruction-tuned model, or put a chat_template.jinja beside its tokenizer."
        )
    messages = [{"role": "user", "content": content}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    tokens = len(tokenizer(text, add_special_tokens=False).input_ids) - len(prompt.crops())
    return tokens, len(tokenizer(gold, add_special_tokens=False).input_ids) + 1, text


def _too_long(seen: Rehearsed, stage: Stage, where: str) -> Iterator[str]:
    """Yield a sentence where even the gold answer would be cut off."""
    most = getattr(stage, "max_new_tokens", None)
    if most is not None and seen.answer_tokens is not None and seen.answer_tokens > most:
        yield (
            f"{where}: max_new_tokens = {most} cuts the gold answer of task {seen.task!r} off, "
            f"which has {seen.answer_tokens} tokens. Allow at least that."
        )
