"""What fits a GPU: slices, rows in a pass and the like, by the same arithmetic as `evid plan`."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from evidcore.api import DataError, Stage
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context, weightless_processor
from evidcore_plugin_lab.init.written_recipe import SHORTEST_ANSWER, Fit, StageFit
from evidcore_plugin_lab.plan.lengths import lengths
from evidcore_plugin_lab.plan.needs import earlier_ranks, memory
from evidcore_plugin_lab.plan.shapes import Shapes, shapes

SLICES = (64, 48, 32, 24, 16, 12, 8, 4)
TOGETHER = (8, 4, 2, 1)  # rows, or prompts with all their answers, in a forward pass
ASKED = (32, 16, 8, 4, 2, 1)  # prompts that are answered together
SHARE = 0.9  # of the memory; the rest is for CUDA, the allocator's gaps and what the plan does not count
SPARE = 1.25  # of the longest right answer's tokens


def fit(written: Callable[[Fit], str], *, gpu_gb: float, context_tokens: int | None) -> Fit:
    """Return the settings with most slices that fit memory and context; then most rows in a pass.

    Rows in a pass and checkpointed activations cost time alone, so they are given up before slices are.

    Args:
        written: the recipe for some settings, with absolute paths.
        gpu_gb: memory of the GPU in GB.
        context_tokens: that the language model takes; None: any number.

    Raises:
        DataError: if nothing fits; says by how much, and what would.
    """

    def found(slices: int) -> Fit | str:
        planned = _Planned(written, slices)
        whole = planned.prompt_tokens + planned.answer_tokens
        if context_tokens is not None and whole > context_tokens:
            return f"{slices} slices take {whole} tokens, and the model's context holds {context_tokens}"
        return planned.within(SHARE * gpu_gb * 1e9)

    fewest = found(SLICES[-1])  # first: where these do not fit, none do
    if isinstance(fewest, str):
        raise DataError(
            f"--gpu {gpu_gb:g}: nothing fits, not even {SLICES[-1]} slices of a scan: {fewest}. Take a "
            "smaller model or a larger GPU."
        )
    return next((item for slices in SLICES[:-1] if isinstance(item := found(slices), Fit)), fewest)


class _Planned:
    """A recipe that shows so many slices, and how much memory its stages would take."""

    def __init__(self, written: Callable[[Fit], str], slices: int) -> None:
        """Build its shapes, and count the tokens of what is trained."""
        self.slices = slices
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "planned.toml"
            path.write_text(written(Fit(slices=slices)), encoding="utf-8")
            recipe = load(path)
            self.assembly = assembly = Assembly(recipe)
        self.made: Shapes = shapes(assembly)
        tokenizer = assembly.language.tokenizer(assembly.corpus)
        self.processor = None
        if tokenizer is not None:
            self.processor = weightless_processor(assembly, tokenizer, self.made.encoder)
        self.stages = {stage.kind: stage for stage in recipe.stages}
        ranks = zip(recipe.stages, earlier_ranks(recipe), strict=True)
        self.ranks = {stage.kind: rank for stage, rank in ranks}  # of the last of a kind, the greatest
        taught = [stage for stage in recipe.stages if stage.traits.trains]
        asked = dataclasses.replace(taught[0], data=tuple(use for stage in taught for use in stage.data))
        longest = lengths(assembly, self.made, self.processor, asked, None)
        self.prompt_tokens = longest.prompt_tokens
        self.answer_tokens = max(SHORTEST_ANSWER, int(SPARE * longest.answer_tokens) + 1)

    def within(self, budget_bytes: float) -> Fit | str:
        """Return the settings that fit, or which stage does not."""
        result: dict[str, StageFit] = {}
        for kind, stage in self.stages.items():
            strategy = stage.strategy(Context(self.assembly, kind))
            rows = lengths(self.assembly, self.made, self.processor, stage, strategy)
            if stage.workload().answers_tokens is not None:
                rows = dataclasses.replace(rows, answer_tokens=self.answer_tokens)
            least = float("inf")
            for item, changed in _variants(stage):
                planned = memory(self.made, changed.workload(), rows, earlier_rank=self.ranks[kind])
                assert planned is not None  # a model whose shape is not known has been refused
                peak_bytes = (planned.get("bfloat16") or planned["float32"]).peak  # as it runs on a GPU
                if peak_bytes <= budget_bytes:
                    result[kind] = dataclasses.replace(item, peak_bytes=peak_bytes)
                    break
                least = min(least, peak_bytes)
            else:
                return f"stage {kind} takes {least / 1e9:.1f} GB with {self.slices} slices"
        asking = [result[kind] for kind, stage in self.stages.items() if not stage.traits.trains]
        return Fit(
            slices=self.slices,
            sft=result["sft"],
            grpo=result.get("grpo", result["sft"]),
            asking=min(asking, key=lambda item: item.together, default=StageFit(together=1)),
            answer_tokens=self.answer_tokens,
        )


def _variants(stage: Any) -> Iterable[tuple[StageFit, Stage]]:
    """Yield a stage in smaller and smaller passes, and with activations computed again."""
    if not stage.traits.trains:
        for together in ASKED:
            yield StageFit(together=together), dataclasses.replace(stage, prompts_per_batch=together)
        return
    key = "rows_per_forward" if stage.kind == "sft" else "prompts_per_forward"
    for together in TOGETHER:
        for is_checkpointed in (False, True):
            trl = {**stage.trl, "activation_checkpointing": is_checkpointed}
            changed = dataclasses.replace(stage, trl=trl, **{key: together})
            yield StageFit(together=together, is_checkpointed=is_checkpointed), changed
