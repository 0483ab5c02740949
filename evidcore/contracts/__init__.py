"""The abstract classes of the component kinds, and what passes through them.

The factory rule holds for each: in a component's constructor, left of `*` the core gives (by the names listed
in the contract's docstring; take only those you need), right of `*` the recipe. A keyword-only parameter
that is annotated with a contract (`scorer: Scorer`) is a table with `use` in the recipe, or the name of a
`[service.<name>]`. Fields of a parameter `options: Annotated[Options, Flat]` are keys of the table like its
other parameters. Construction reads no file and opens no socket. Imported by every room below, and by whoever
writes a component.
"""

from __future__ import annotations

from collections.abc import Mapping

from evidcore.contracts.answering import RolloutStrategy, Sampler, Task, Tool
from evidcore.contracts.dataset import Dataset, View
from evidcore.contracts.evaluating import (
    Answers,
    Asking,
    Audit,
    Audited,
    Blind,
    Condition,
    Evaluation,
    Row,
    Scored,
    StageResult,
)
from evidcore.contracts.judging import (
    Checked,
    ImageQuestion,
    Labeler,
    Measured,
    Metric,
    Reader,
    Reward,
    Scorer,
    Sums,
    TextKind,
    Unread,
    Written,
)
from evidcore.contracts.model import (
    Bridge,
    Completion,
    Corpus,
    Encoder,
    FitLog,
    Fittable,
    ForwardingPolicy,
    Language,
    Patches,
    Policy,
    Reweighter,
)
from evidcore.contracts.sampling import Continuation, Prefix, Rows, Sampling
from evidcore.contracts.segmenting import (
    BoxPrompt,
    MaskPrompt,
    MaskRequest,
    PointPrompt,
    Segmenter,
    SegmenterPrompt,
    SegmenterSession,
    refuse_unusable,
)
from evidcore.contracts.stage import (
    Announce,
    Dependencies,
    Engine,
    Stage,
    StageContext,
    StageTraits,
    Workload,
)
from evidcore.data.encoder_input import EncoderInput, Grid
from evidcore.data.format import Format
from evidcore.data.grid import FileGrid
from evidcore.data.stored import Stored

KINDS: Mapping[str, type] = {
    "dataset": Dataset,
    "encoder": Encoder,
    "bridge": Bridge,
    "reweighter": Reweighter,
    "reward": Reward,
    "segmenter": Segmenter,
    "view": View,
    "task": Task,
    "rollout": RolloutStrategy,
    "sampler": Engine,
    "tool": Tool,
    "reader": Reader,
    "labeler": Labeler,
    "scorer": Scorer,
    "metric": Metric,
    "evaluation": Evaluation,
    "audit": Audit,
    "condition": Condition,
    "language": Language,
    "stage": Stage,
    "format": Format,
}

__all__ = [
    "KINDS",
    "Announce",
    "Answers",
    "Asking",
    "Audit",
    "Audited",
    "Blind",
    "BoxPrompt",
    "Bridge",
    "Checked",
    "Completion",
    "Condition",
    "Continuation",
    "Corpus",
    "Dataset",
    "Dependencies",
    "Encoder",
    "EncoderInput",
    "Engine",
    "Evaluation",
    "FileGrid",
    "FitLog",
    "Fittable",
    "Format",
    "ForwardingPolicy",
    "Grid",
    "ImageQuestion",
    "Labeler",
    "Language",
    "MaskPrompt",
    "MaskRequest",
    "Measured",
    "Metric",
    "Patches",
    "PointPrompt",
    "Policy",
    "Prefix",
    "Reader",
    "Reward",
    "Reweighter",
    "RolloutStrategy",
    "Row",
    "Rows",
    "Sampler",
    "Sampling",
    "Scored",
    "Scorer",
    "Segmenter",
    "SegmenterPrompt",
    "SegmenterSession",
    "Stage",
    "StageContext",
    "StageResult",
    "StageTraits",
    "Stored",
    "Sums",
    "Task",
    "TextKind",
    "Tool",
    "Unread",
    "View",
    "Workload",
    "Written",
    "refuse_unusable",
]
