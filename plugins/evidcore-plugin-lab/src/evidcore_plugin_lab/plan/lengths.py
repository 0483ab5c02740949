"""How long a recipe's prompts and answers are, before it is run: counted, estimated, or assumed."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Literal

from evidcore.case import Prompt, VisualPart
from evidcore.contracts import Grid, RolloutStrategy, Stage
from evidcore.errors import NotHere
from evidcore.model.processor import VolumeProcessor
from evidcore.recipe import DataUse
from evidcore.runs.assembly import Assembly
from evidcore.runs.dry_run import counted_tokens, estimated_tokens
from evidcore_plugin_lab.plan.shapes import Shapes

LOOKED_AT = 16  # prompts of a data entry; the longest counts
# where the data are not here: a choice question with its rules has some 140 tokens of Qwen2.5, and 95 % of
# the reports in CT-RATE have below 830
ASSUMED_PROMPT_TEXT_TOKENS = 256
ASSUMED_ANSWER_TOKENS = 1024
ASSUMED_TAG_TOKENS = 8  # "slice 12:" and the marks around a slice
Ground = Literal["counted", "estimated", "assumed"]
GROUNDS: tuple[Ground, ...] = ("counted", "estimated", "assumed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens of a row."""

    prompt_tokens: int  # visual ones included
    answer_tokens: int  # that may be written, or of the longest gold answer that was looked at
    volumes: int  # shown in a prompt
    size_zyx: Grid  # of the largest of them, in voxels as the encoder is given it
    ground: Ground  # "estimated": from letters; "assumed": the data are not here
    replayed: Lengths | None = None  # of the rows that a grpo stage replays, with their gold answers


def lengths(
    assembly: Assembly,
    made: Shapes,
    processor: VolumeProcessor | None,
    stage: Stage,
    strategy: RolloutStrategy | None,
) -> Lengths:
    """Return the longest lengths over a stage's data entries; what tools answer is not counted.

    Args:
        assembly: of the recipe.
        made: its shapes.
        processor: it writes the prompts; None where the tokenizer is not here.
        stage: one that trains or asks.
        strategy: how its answers come about.
    """
    longest = _longest(assembly, made, processor, stage.data, strategy)
    load = stage.workload()
    written, replay = load.answers_tokens, load.replay
    return dataclasses.replace(
        longest,
        answer_tokens=longest.answer_tokens if written is None else written,
        replayed=_longest(assembly, made, processor, replay, None) if replay else None,
    )


def _longest(
    assembly: Assembly,
    made: Shapes,
    processor: VolumeProcessor | None,
    data: Sequence[DataUse],
    strategy: RolloutStrategy | None,
) -> Lengths:
    found = [_of(assembly, made, processor, use, strategy) for use in data if use.task]
    return Lengths(
        prompt_tokens=max(one.prompt_tokens for one in found),
        answer_tokens=max(one.answer_tokens for one in found),
        volumes=max(one.volumes for one in found),
        size_zyx=max((one.size_zyx for one in found), key=math.prod),
        ground=max((one.ground for one in found), key=GROUNDS.index),
    )


def _of(
    assembly: Assembly,
    made: Shapes,
    processor: VolumeProcessor | None,
    use: DataUse,
    strategy: RolloutStrategy | None,
) -> Lengths:
    task, usual = assembly.tasks[use.task], made.encoder.input
    try:
        cases = assembly.cases(use)
    except NotHere:
        cases = []
    prompts = (prompt for case in cases for prompt in task.prompts(case, assembly.view, 0))
    asked = list(itertools.islice(prompts, LOOKED_AT))
    seen = [_row(assembly, made, processor, prompt, task.gold(prompt)[0], strategy) for prompt in asked]
    known = [row for row in seen if row is not None]
    shown = [part for prompt in asked for part in prompt.parts if isinstance(part, VisualPart)]
    if not known:
        tags = made.patch_grid_zyx[0] * ASSUMED_TAG_TOKENS if assembly.view.tags_slices else 0
        return Lengths(
            prompt_tokens=made.visual_tokens + tags + ASSUMED_PROMPT_TEXT_TOKENS,
            answer_tokens=ASSUMED_ANSWER_TOKENS,
            volumes=1,
            size_zyx=usual.size_zyx,
            ground="assumed",
        )
    return Lengths(
        prompt_tokens=max(row[0] for row in known),
        answer_tokens=max(row[1] for row in known),
        volumes=max(len(prompt.crops()) for prompt in asked),
        size_zyx=max(
            (assembly.view.size_zyx(part, usual) for part in shown), key=math.prod, default=usual.size_zyx
        ),
        ground="counted" if processor is not None else "estimated",
    )


def _row(
    assembly: Assembly,
    made: Shapes,
    processor: VolumeProcessor | None,
    prompt: Prompt,
    gold: str,
    strategy: RolloutStrategy | None,
) -> tuple[int, int] | None:
    """Return the tokens of a prompt and of its answer, None where nothing is known of the vocabulary."""
    if processor is not None:
        return counted_tokens(prompt, gold, processor, strategy)
    text, answer = estimated_tokens(assembly, prompt, gold, strategy)
    if text is None or answer is None:
        return None
    visual = 0
    for part in prompt.parts:
        if isinstance(part, VisualPart):
            size = assembly.view.size_zyx(part, made.encoder.input)
            visual += made.bridge.tokens(made.encoder.grid(size))
    return text + visual, answer
