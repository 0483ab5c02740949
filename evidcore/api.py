"""The public surface: what the author of a component imports. All else in evidcore is private.

Contracts, plain data that passes through them, and what reads scans. What passes through one contract alone
is an attribute of it: `Segmenter.BoxPrompt`, `Format.Stored`, `Metric.Measured`.

A name is imported from its room when it is first asked for, because a scan is read where torch is not loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# fmt: off
# isort: off
if TYPE_CHECKING:
    from evidcore.cache import Cache
    from evidcore.case import (
        Answer, Box, Case, Crop, Episode, Finding, MaskRef, Prompt, Question, Report, Rollout, Score,
        Span, TextPart, Unscored, VisualPart, VolumeRef,
    )
    from evidcore.contracts import (
        Answers, Audit, Bridge, Condition, Dataset, Encoder, EncoderInput, Engine, EvalOptions,
        EvalResult, Evaluation, Labeler, Language, Metric, Patches, Policy, Reader, Reward, Reweighter,
        RolloutStrategy, Row, Scorer, Segmenter, Stage, StageContext, StageResult, Task, Tool, View,
        Workload,
    )
    from evidcore.data import Format, read, read_mask
    from evidcore.data.preparation import prepare
    from evidcore.errors import DataError
    from evidcore.evaluate.eval_stage import EvalStage
    from evidcore.evaluate.bootstrap import mean_interval, paired_interval
    from evidcore.evaluate.numeric_result import numeric_result
    from evidcore.hooks import observe
    from evidcore.registry import find
    from evidcore.registry.factory import InlineOptions

__all__ = [
    "Answer", "Answers", "Audit", "Box", "Bridge", "Cache", "Case", "Condition", "Crop", "DataError",
    "Dataset", "Encoder", "EncoderInput", "Engine", "Episode", "EvalOptions", "EvalResult", "EvalStage",
    "Evaluation", "Finding", "Format", "InlineOptions", "Labeler", "Language", "MaskRef", "Metric", "Patches",
    "Policy", "Prompt", "Question", "Reader", "Report", "Reward", "Reweighter", "Rollout", "RolloutStrategy",
    "Row", "Score", "Scorer", "Segmenter", "Span", "Stage", "StageContext", "StageResult", "Task", "TextPart",
    "Tool", "Unscored", "View", "VisualPart", "VolumeRef", "Workload", "find", "mean_interval",
    "numeric_result", "observe", "paired_interval", "prepare", "read", "read_mask",
]
_ROOMS = (  # lightest first: `contracts` load torch
    "errors", "cache", "case", "registry", "registry.factory", "hooks", "data", "contracts",
    "data.preparation", "evaluate.numeric_result", "evaluate.bootstrap", "evaluate.eval_stage",
)
# fmt: on


def __getattr__(name: str) -> Any:
    """Import a public name from its room."""
    if name in __all__:
        for room in _ROOMS:
            module = importlib.import_module(f"evidcore.{room}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
