"""The text of a recipe for own scans: `recipe.toml.jinja` filled in, each decided value with its ground.

Slices, rows in a pass and the like fit a GPU by the same arithmetic as `evid plan`.
"""

import dataclasses
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jinja2

from evidcore.api import DataError, Stage
from evidcore.recipe import load
from evidcore.recipe.resolve import toml_key, toml_value
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore_plugin_lab.init.own_data import OwnData
from evidcore_plugin_lab.init.own_model import OwnModel
from evidcore_plugin_lab.plan.lengths import lengths
from evidcore_plugin_lab.plan.needs import earlier_adapters, memory
from evidcore_plugin_lab.plan.shapes import shapes

ROWS_PER_STEP, EPOCHS = 8, 3  # of supervised fine-tuning
FEWEST_STEPS, MOST_STEPS = 20, 2000
SHORTEST_ANSWER = 256  # tokens that a thinking answer may have
WIDTH = 108  # columns of a comment
SLICES = (64, 48, 32, 24, 16, 12, 8, 4)
TOGETHER = (8, 4, 2, 1)  # rows, or prompts with all their answers, in a forward pass
ASKED = (32, 16, 8, 4, 2, 1)  # prompts that are answered together
SHARE = 0.9  # of the memory; the rest is for CUDA, the allocator's gaps and what the plan does not count
SPARE = 1.25  # of the longest right answer's tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageFit:
    """What of a stage is fitted to a GPU's memory."""

    together: int  # rows, or prompts, in a forward pass
    is_checkpointed: bool = False  # activations are computed again in the backward pass
    peak_bytes: int | None = None  # as planned

    @property
    def trl(self) -> dict[str, bool]:
        """Return the fields of TRL that say so."""
        return {"activation_checkpointing": True} if self.is_checkpointed else {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """What of a recipe is fitted to a GPU's memory, and to the model's context."""

    slices: int  # shown of each scan
    sft: StageFit = StageFit(together=1, is_checkpointed=True)
    grpo: StageFit = StageFit(together=1, is_checkpointed=True)
    asking: StageFit = StageFit(together=1)
    answer_tokens: int = SHORTEST_ANSWER


def name_of(data: Path) -> str:
    """Return what a recipe for some data is called: letters, digits and underscores."""
    stem = data.resolve().stem if data.is_file() else data.resolve().name
    return re.sub(r"\W+", "_", stem, flags=re.ASCII).strip("_").lower() or "own"


def recipe_text(
    name: str, data: OwnData, model: OwnModel, fit: Fit, *, gpu_gb: float, command: str, folder: Path
) -> str:
    """Return the recipe; what lies in its `folder` is named from there."""
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"toml": toml_value, "toml_key": toml_key}
    template = environment.from_string(Path(__file__).with_name("recipe.toml.jinja").read_text("utf-8"))

    def within(path: str) -> str:
        return str(Path(path).relative_to(folder)) if Path(path).is_relative_to(folder) else path

    peaks = {"sft": fit.sft, "grpo": fit.grpo, "evaluate": fit.asking}
    split = next((split for split in ("test", "validation") if data.cases[split]), None)
    tasks = ["report"] if data.asks == "report" else ["direct", "think"]
    return template.render(
        name=name, data=data, model=model, fit=fit, command=command, gpu=f"{gpu_gb:g}", tasks=tasks,
        within=within, wrapped=_wrapped, commented=_commented,
        measured=[{"dataset": "own", "task": task, "split": split} for task in tasks] if split else [],
        language={key: within(item) if key == "folder" else item for key, item in model.table.items()},
        peaks=", ".join(
            f"{stage} {entry.peak_bytes / 1e9:.3g} GB" for stage, entry in peaks.items() if entry.peak_bytes
        ),
        steps=min(max(round(EPOCHS * data.prompts / ROWS_PER_STEP), FEWEST_STEPS), MOST_STEPS),
        rows_per_step=ROWS_PER_STEP, epochs=EPOCHS, fewest_steps=FEWEST_STEPS,
    )  # fmt: skip


def _wrapped(text: str) -> str:
    lines = textwrap.wrap(text, WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"# {line}" for line in lines)


def _commented(assignment: str, comment: str) -> str:
    """Return an assignment with its comment behind it, above it where the line would be too long."""
    behind = f"{assignment:<32} # {comment}"
    return behind if len(behind) <= WIDTH else f"{_wrapped(comment)}\n{assignment}"


def fit(written: Callable[[Fit], str], *, gpu_gb: float, context_tokens: int | None) -> Fit:
    """Return the settings with most slices that fit memory and context; then most rows in a pass.

    Rows in a pass and checkpointed activations cost time alone, so they are given up before slices are.
    `written` gives the recipe for some settings, with absolute paths. The language model takes
    `context_tokens`; None: any number.
    """

    def found(slices: int) -> Fit | str:
        return _fit(written(Fit(slices=slices)), slices, context_tokens, SHARE * gpu_gb * 1e9)

    fewest = found(SLICES[-1])  # first: where these do not fit, none do
    if isinstance(fewest, str):
        what = f"nothing fits, not even {SLICES[-1]} slices of a scan: {fewest}"
        raise DataError(f"--gpu {gpu_gb:g}: {what}. Take a smaller model or a larger GPU.")
    return next((item for slices in SLICES[:-1] if isinstance(item := found(slices), Fit)), fewest)


def _fit(text: str, slices: int, context_tokens: int | None, budget_bytes: float) -> Fit | str:
    """Return the settings with which a recipe that shows so many slices fits, or why none do."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "planned.toml"
        path.write_text(text, encoding="utf-8")
        recipe = load(path)
        assembly = Assembly(recipe)
    made = shapes(assembly)
    trained: list[Any] = [stage for stage in recipe.stages if stage.traits.trains]
    uses = tuple(use for stage in trained for use in stage.data)
    longest = lengths(assembly, made, dataclasses.replace(trained[0], data=uses), None)
    answer_tokens = max(SHORTEST_ANSWER, int(SPARE * longest.answer_tokens) + 1)
    whole = longest.prompt_tokens + answer_tokens
    if context_tokens is not None and whole > context_tokens:
        return f"{slices} slices take {whole} tokens, and the model's context holds {context_tokens}"
    result: dict[str, StageFit] = {}
    # of the last stage of a kind: its adapters lie beside those of the stages before
    pairs = zip(recipe.stages, earlier_adapters(recipe), strict=True)
    last = {stage.kind: (stage, earlier) for stage, earlier in pairs}
    for kind, (stage, earlier) in last.items():
        rows = lengths(assembly, made, stage, stage.strategy(Context(assembly, kind)))
        if stage.workload().answers_tokens is not None:
            rows = dataclasses.replace(rows, answer_tokens=answer_tokens)
        least = float("inf")
        for item, changed in _variants(stage):
            planned = memory(made, changed.workload(), rows, earlier=earlier)
            assert planned is not None  # a model whose shape is not known has been refused
            peak_bytes = (planned.get("bfloat16") or planned["float32"]).peak  # as it runs on a GPU
            if peak_bytes <= budget_bytes:
                result[kind] = dataclasses.replace(item, peak_bytes=peak_bytes)
                break
            least = min(least, peak_bytes)
        else:
            return f"stage {kind} takes {least / 1e9:.1f} GB with {slices} slices"
    asking = [result[kind] for kind, (stage, _) in last.items() if not stage.traits.trains]
    return Fit(
        slices=slices,
        sft=result["sft"],
        grpo=result.get("grpo", result["sft"]),
        asking=min(asking, key=lambda item: item.together, default=StageFit(together=1)),
        answer_tokens=answer_tokens,
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
