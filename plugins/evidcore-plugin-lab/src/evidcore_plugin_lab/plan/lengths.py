"""How long a recipe's prompts and answers are, before it is run: counted, estimated, or assumed."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Literal

from evidcore.api import RolloutStrategy, Stage, VisualPart
from evidcore.contracts import Grid
from evidcore.errors import NotDownloadedError
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
GROUNDS = ("counted", "estimated", "assumed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens of a row."""

    prompt_tokens: int  # visual ones included
    text_tokens: int  # of the prompt that has the most
    answer_tokens: int  # that may be written, or of the longest gold answer that was looked at
    volumes: int  # shown in a prompt
    size_zyx: Grid  # of the largest of them, in voxels as the encoder is given it
    ground: Ground  # "estimated": from letters; "assumed": the data are not here
    replayed: Lengths | None = None  # of the rows that a grpo stage replays, with their gold answers


def lengths(assembly: Assembly, made: Shapes, stage: Stage, strategy: RolloutStrategy | None) -> Lengths:
    """Return the longest lengths over a stage's data entries; what tools answer is not counted.

    `strategy` says how answers come about.
    """

    def longest(data: Sequence[DataUse], strategy: RolloutStrategy | None) -> Lengths:
        result = [_of(assembly, made, use, strategy) for use in data if use.task]
        return Lengths(
            prompt_tokens=max(item.prompt_tokens for item in result),
            text_tokens=max(item.text_tokens for item in result),
            answer_tokens=max(item.answer_tokens for item in result),
            volumes=max(item.volumes for item in result),
            size_zyx=max((item.size_zyx for item in result), key=math.prod),
            ground=max((item.ground for item in result), key=GROUNDS.index),
        )

    load, rows = stage.workload(), longest(stage.data, strategy)
    return dataclasses.replace(
        rows,
        answer_tokens=rows.answer_tokens if load.answers_tokens is None else load.answers_tokens,
        replayed=longest(load.replay, None) if load.replay else None,
    )


def _of(assembly: Assembly, made: Shapes, use: DataUse, strategy: RolloutStrategy | None) -> Lengths:
    processor = made.processor
    task, view, usual = assembly.tasks[use.task], assembly.view, made.encoder.input
    try:
        cases = assembly.cases(use)
    except NotDownloadedError:
        cases = []
    prompts = (prompt for case in cases for prompt in task.prompts(case, view, 0))
    asked = list(itertools.islice(prompts, LOOKED_AT))
    sizes: list[Grid] = []
    known: list[tuple[int, int, int]] = []  # tokens of prompt, of its answer, of the prompt's text
    for prompt in asked:
        shown = [view.size_zyx(part, usual) for part in prompt.parts if isinstance(part, VisualPart)]
        sizes += shown
        visual = sum(made.bridge.tokens(made.encoder.grid(size)) for size in shown)
        gold = task.gold(prompt)[0]
        if processor is not None:
            whole, gold_tokens = counted_tokens(prompt, gold, processor, strategy)
            known.append((whole, gold_tokens, whole - visual))
            continue
        text, answer = estimated_tokens(assembly, prompt, gold, strategy)
        if text is not None and answer is not None:  # something is known of the vocabulary
            known.append((text + visual, answer, text))
    if not known:
        tags = made.patch_grid_zyx[0] * ASSUMED_TAG_TOKENS if view.tags_slices else 0
        return Lengths(
            prompt_tokens=made.visual_tokens + tags + ASSUMED_PROMPT_TEXT_TOKENS,
            text_tokens=tags + ASSUMED_PROMPT_TEXT_TOKENS,
            answer_tokens=ASSUMED_ANSWER_TOKENS,
            volumes=1,
            size_zyx=usual.size_zyx,
            ground="assumed",
        )
    return Lengths(
        prompt_tokens=max(row[0] for row in known),
        text_tokens=max(row[2] for row in known),
        answer_tokens=max(row[1] for row in known),
        volumes=max(len(prompt.crops()) for prompt in asked),
        size_zyx=max(sizes, key=math.prod, default=usual.size_zyx),
        ground="counted" if processor is not None else "estimated",
    )
