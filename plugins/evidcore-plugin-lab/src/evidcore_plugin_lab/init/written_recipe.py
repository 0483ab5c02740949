"""The text of a recipe for own scans: short, commented, each decided value with its ground."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evidcore.recipe.resolve import toml_key, toml_value
from evidcore_plugin_lab.init.own_data import OwnData
from evidcore_plugin_lab.init.own_model import OwnModel

ROWS_PER_STEP, PROMPTS_PER_STEP, ANSWERS = 8, 8, 8
EPOCHS = 3  # of supervised fine-tuning
FEWEST_STEPS, MOST_STEPS = 20, 2000
GRPO_STEPS = 200
SHORTEST_ANSWER = 256  # tokens that a thinking answer may have
WIDTH = 108  # columns of a comment
SOFT_TISSUE = ((-160.0, 240.0),)  # HU


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageFit:
    """What of a stage is fitted to a GPU's memory."""

    together: int  # rows, or prompts, in a forward pass
    is_checkpointed: bool = False  # activations are computed again in the backward pass
    peak_bytes: int | None = None  # as planned


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
    """Return the recipe.

    Args:
        name: of the recipe.
        data: what it trains on.
        model: what it trains.
        fit: what the memory allows.
        gpu_gb: memory of the GPU in GB.
        command: that wrote it.
        folder: of the recipe; what lies in it is named from there.
    """
    lines = [*_head(command, fit, gpu_gb), "schema = 1", f"name = {toml_value(name)}", "seed = 17", ""]
    lines += [*_dataset(data, folder), "", *_tasks(data), "", *_model(data, model, fit, folder)]
    stages = _stages(data, fit)
    return "\n".join([*lines, *(line for stage in stages for line in ("", *stage))]) + "\n"


def _head(command: str, fit: Fit, gpu_gb: float) -> Iterator[str]:
    peaks = {"sft": fit.sft, "grpo": fit.grpo, "evaluate": fit.asking}
    said = ", ".join(
        f"{stage} {one.peak_bytes / 1e9:.3g} GB" for stage, one in peaks.items() if one.peak_bytes is not None
    )
    yield from _wrapped(f"Written by `{command}`.")
    yield from _wrapped(
        f"Slices and rows in a pass were chosen so that memory as `evid plan` works it out stays below "
        f"nine tenths of {gpu_gb:g} GB: {said}. Steps and learning rates are usual ones, not tuned."
    )


def _wrapped(text: str) -> Iterator[str]:
    lines = textwrap.wrap(text, WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    yield from (f"# {line}" for line in lines)


def _commented(assignment: str, comment: str) -> str:
    """Return an assignment with its comment behind it, above it where the line would be too long."""
    behind = f"{assignment:<32} # {comment}"
    return behind if len(behind) <= WIDTH else "\n".join([*_wrapped(comment), assignment])


def _within(path: str, folder: Path) -> str:
    """Return a path from the recipe's folder where it lies in there, else as it is."""
    place = Path(path)
    return str(place.relative_to(folder)) if place.is_relative_to(folder) else path


def _dataset(data: OwnData, folder: Path) -> Iterator[str]:
    yield "[dataset.own]"
    for key, item in data.table.items():
        if key == "path":
            yield f"path = {toml_value(_within(item, folder))}"
        elif key == "intensity":
            yield _commented(f"intensity = {toml_value(item)}", data.ground)
        else:
            yield f"{toml_key(key)} = {toml_value(item)}"


def _tasks(data: OwnData) -> Iterator[str]:
    if data.asks == "report":
        yield from ("[task.report]", 'use = "report"')
        return
    given = ['training_questions = "given"'] if data.table["use"] == "table" else []
    yield "[task.direct]                    # the letter alone"
    yield from ('use = "choice"', "think = false", "rules = true", *given, "")
    yield "[task.think]                     # the letter after thinking"
    yield from ('use = "choice"', "rules = true", *given)


def _model(data: OwnData, model: OwnModel, fit: Fit, folder: Path) -> Iterator[str]:
    language = {key: _within(item, folder) if key == "folder" else item for key, item in model.table.items()}
    windows = SOFT_TISSUE if data.is_ct else ()
    yield "[model]"
    yield f"language = {toml_value(language)}"
    if model.is_bfloat16:
        yield _commented('bfloat16 = ["encoder", "language"]', "frozen weights; adapters stay in float32")
    yield 'bridge = { use = "native-merger" }'
    yield f'view = {{ use = "slices", slices = {fit.slices} }}'
    yield ""
    yield "[model.encoder]                  # the model's own eyes"
    yield 'use = "native-vision"'
    yield _commented(f"size = {model.size_pixels}", "pixels of a slice's side, resized to it")
    yield _commented("slices = 1", "at a time, as the view shows them")
    about = "HU, shown in grey" if data.is_ct else "none: values are no HU, and are scaled by percentiles"
    yield _commented(f"windows = {toml_value([list(window) for window in windows])}", about)


def _stages(data: OwnData, fit: Fit) -> Iterator[list[str]]:
    measured = next((split for split in ("test", "validation") if data.cases[split]), None)
    tasks = ["report"] if data.asks == "report" else ["direct", "think"]
    entries = [{"dataset": "own", "task": task, "split": measured} for task in tasks]
    if measured:
        yield ["[[stage]]                        # the model as it was published", *_evaluate(entries, fit)]
    yield _sft(data, tasks[0], fit)
    if data.asks == "choice":
        yield _grpo(tasks[1], fit)
    if measured:
        yield ["[[stage]]", *_evaluate(entries, fit)]
        yield [
            "[[stage]]                        # is the score earned by the pixels?", 'kind = "audit"',
            f"data = [{toml_value(entries[-1])}]", *_asked(fit),
        ]  # fmt: skip


def _evaluate(entries: list[dict[str, Any]], fit: Fit) -> list[str]:
    listing = ["data = [", *(f"  {toml_value(entry)}," for entry in entries), "]"]
    return ['kind = "evaluate"', *listing, *_asked(fit)]


def _asked(fit: Fit) -> list[str]:
    return [f"max_new_tokens = {fit.answer_tokens}", f"prompts_per_batch = {fit.asking.together}"]


def _sft(data: OwnData, task: str, fit: Fit) -> list[str]:
    steps = min(max(round(EPOCHS * data.prompts / ROWS_PER_STEP), FEWEST_STEPS), MOST_STEPS)
    return [
        "[[stage]]", 'kind = "sft"', 'train = ["bridge", "language"]',
        f'data = [{{ dataset = "own", task = "{task}" }}]',
        _commented(f"steps = {steps}", f"{data.prompts} prompts {EPOCHS} times, at least {FEWEST_STEPS}"),
        f"rows_per_step = {ROWS_PER_STEP}",
        _commented(f"rows_per_forward = {fit.sft.together}", "bounds memory, changes no result"),
        "learning_rate = { bridge = 1e-5, language = 1e-4 }",
        "lora = { rank = 16, alpha = 32.0 }",
        _trl({"lr_scheduler_type": "cosine", "warmup_steps": 0.1}, fit.sft),
    ]  # fmt: skip


def _grpo(task: str, fit: Fit) -> list[str]:
    return [
        "[[stage]]", 'kind = "grpo"', 'train = ["bridge", "language"]',
        f'data = [{{ dataset = "own", task = "{task}" }}]', f"steps = {GRPO_STEPS}",
        f"prompts_per_step = {PROMPTS_PER_STEP}",
        _commented(f"prompts_per_forward = {fit.grpo.together}", "bounds memory, changes no result"),
        f"answers_per_prompt = {ANSWERS}", f"max_new_tokens = {fit.answer_tokens}",
        "learning_rate = { bridge = 1e-6, language = 1e-5 }",
        "lora = { rank = 16, alpha = 32.0 }",
        _trl({"loss_type": "grpo", "beta": 0.0, "epsilon": 0.2}, fit.grpo),
        "", "[[stage.reward]]", 'use = "format"', "weight = 0.2",
        "", "[[stage.reward]]", 'use = "choice-accuracy"', "weight = 1.0",
    ]  # fmt: skip


def _trl(fields: Mapping[str, Any], fit: StageFit) -> str:
    checkpointed = {"activation_checkpointing": True} if fit.is_checkpointed else {}
    return f"trl = {toml_value({**fields, **checkpointed})}"
