"""The abstract classes of the component kinds, and what passes through them.

The factory rule holds for each: in a component's constructor, left of `*` the core gives (by the names listed
in the contract's docstring; take only those you need), right of `*` the recipe. A keyword-only parameter
that is annotated with a contract (`scorer: Scorer`) is a table with `use` in the recipe, or the name of a
`[service.<name>]`. Fields of a parameter `options: Annotated[Options, InlineOptions]` are keys of the table
like its other parameters. Construction reads no file and opens no socket. Imported by every room below, and
by whoever writes a component.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from evidcore.registry import KIND_NAMES

# fmt: off
# isort: off
if TYPE_CHECKING:  # `model` loads torch, which a data set or a reward may do without
    from evidcore.contracts.answering import (
        Continuation, Prefix, RolloutStrategy, Rows, Sampler, Sampling, Task, Tool,
    )
    from evidcore.contracts.dataset import Dataset, View
    from evidcore.contracts.evaluating import (
        Answers, Audit, AuditResult, BlindRule, Condition, EvalOptions, EvalResult, Evaluation, Row,
        StageResult,
    )
    from evidcore.contracts.judging import (
        Component, ImageQuestion, Labeler, LabelError, Measured, Metric, Reader, Reward, Scorer,
        TextSample, Totals,
    )
    from evidcore.contracts.model import (
        Bridge, Completion, Corpus, Encoder, FitData, Language, Patches, Policy, Reweighter,
    )
    from evidcore.contracts.segmenting import (
        BoxPrompt, MaskPrompt, MaskRequest, PointPrompt, Segmenter, SegmenterPrompt, SegmenterSession,
        TextPrompt,
    )
    from evidcore.contracts.stage import Engine, Stage, StageContext, StageTraits, Workload
    from evidcore.data.encoder_input import EncoderInput, Grid
    from evidcore.data.format import Format
    from evidcore.data.grid import FileGrid
    from evidcore.data.stored import Stored

__all__ = [
    "KINDS", "Answers", "Audit", "AuditResult", "BlindRule", "BoxPrompt", "Bridge", "Completion", "Component",
    "Condition", "Continuation", "Corpus", "Dataset", "Encoder", "EncoderInput", "Engine", "EvalOptions",
    "EvalResult", "Evaluation", "FileGrid", "FitData", "Format", "Grid", "ImageQuestion",
    "LabelError", "Labeler", "Language", "MaskPrompt", "MaskRequest", "Measured", "Metric", "Patches",
    "PointPrompt", "Policy", "Prefix", "Reader", "Reward", "Reweighter", "RolloutStrategy", "Row", "Rows",
    "Sampler", "Sampling", "Scorer", "Segmenter", "SegmenterPrompt", "SegmenterSession", "Stage",
    "StageContext", "StageResult", "StageTraits", "Stored", "Task", "TextPrompt", "TextSample", "Tool",
    "Totals", "View", "Workload",
]
_MODULES = (
    "contracts.dataset", "contracts.judging", "contracts.answering", "contracts.segmenting",
    "contracts.evaluating", "contracts.stage", "contracts.model", "data.encoder_input", "data.format",
    "data.grid", "data.stored",
)
# fmt: on
KINDS = {kind: kind.capitalize() for kind in KIND_NAMES if kind not in ("observer", "command", "page")}
KINDS |= {"rollout": "RolloutStrategy", "sampler": "Engine"}


def __getattr__(name: str) -> Any:
    """Import a contract, or what passes through one, from its module."""
    for place in _MODULES if name in __all__ else ():
        module = import_module(f"evidcore.{place}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def contract(kind: str) -> Any:
    """Return the contract of a kind; None of one that is no component's class."""
    return getattr(sys.modules[__name__], KINDS[kind]) if kind in KINDS else None


def imported() -> dict[str, type]:
    """Return by kind the contracts that anything has imported: no type can be one of the others."""
    modules = [sys.modules.get(f"evidcore.{place}") for place in _MODULES]
    return {kind: getattr(it, name) for it in modules for kind, name in KINDS.items() if hasattr(it, name)}
