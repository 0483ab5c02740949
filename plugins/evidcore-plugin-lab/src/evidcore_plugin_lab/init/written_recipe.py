"""The text of a recipe for own scans: `recipe.toml.jinja` filled in, each decided value with its ground."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from pathlib import Path

import jinja2

from evidcore.recipe.resolve import toml_key, toml_value
from evidcore_plugin_lab.init.own_data import OwnData
from evidcore_plugin_lab.init.own_model import OwnModel

ROWS_PER_STEP, EPOCHS = 8, 3  # of supervised fine-tuning
FEWEST_STEPS, MOST_STEPS = 20, 2000
SHORTEST_ANSWER = 256  # tokens that a thinking answer may have
WIDTH = 108  # columns of a comment


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
    template = environment.from_string(
        Path(__file__).with_name("recipe.toml.jinja").read_text(encoding="utf-8")
    )

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
