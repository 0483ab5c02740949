"""The abstract classes of the component kinds, and what passes through them.

The factory rule holds for each: in a component's constructor, left of `*` the core gives (by the names listed
in the contract's docstring; take only those you need), right of `*` the recipe. A keyword-only parameter
that is annotated with a contract (`scorer: Scorer`) is a table with `use` in the recipe, or the name of a
`[service.<name>]`. Fields of a parameter `options: Annotated[Options, InlineOptions]` are keys of the table
like its other parameters. Construction reads no file and opens no socket. Imported by every room below, and
by whoever writes a component.
"""

from __future__ import annotations

from collections.abc import Mapping

from evidcore.contracts.answering import Continuation as Continuation
from evidcore.contracts.answering import Prefix as Prefix
from evidcore.contracts.answering import RolloutStrategy as RolloutStrategy
from evidcore.contracts.answering import Rows as Rows
from evidcore.contracts.answering import Sampler as Sampler
from evidcore.contracts.answering import Sampling as Sampling
from evidcore.contracts.answering import Task as Task
from evidcore.contracts.answering import Tool as Tool
from evidcore.contracts.dataset import Dataset as Dataset
from evidcore.contracts.dataset import View as View
from evidcore.contracts.evaluating import Answers as Answers
from evidcore.contracts.evaluating import Audit as Audit
from evidcore.contracts.evaluating import AuditResult as AuditResult
from evidcore.contracts.evaluating import BlindRule as BlindRule
from evidcore.contracts.evaluating import Condition as Condition
from evidcore.contracts.evaluating import EvalOptions as EvalOptions
from evidcore.contracts.evaluating import EvalResult as EvalResult
from evidcore.contracts.evaluating import Evaluation as Evaluation
from evidcore.contracts.evaluating import Row as Row
from evidcore.contracts.evaluating import StageResult as StageResult
from evidcore.contracts.judging import Component as Component
from evidcore.contracts.judging import ImageQuestion as ImageQuestion
from evidcore.contracts.judging import Labeler as Labeler
from evidcore.contracts.judging import LabelError as LabelError
from evidcore.contracts.judging import Measured as Measured
from evidcore.contracts.judging import Metric as Metric
from evidcore.contracts.judging import Reader as Reader
from evidcore.contracts.judging import Reward as Reward
from evidcore.contracts.judging import Scorer as Scorer
from evidcore.contracts.judging import TextSample as TextSample
from evidcore.contracts.judging import Totals as Totals
from evidcore.contracts.model import Bridge as Bridge
from evidcore.contracts.model import Completion as Completion
from evidcore.contracts.model import Corpus as Corpus
from evidcore.contracts.model import Encoder as Encoder
from evidcore.contracts.model import FitLog as FitLog
from evidcore.contracts.model import Language as Language
from evidcore.contracts.model import Patches as Patches
from evidcore.contracts.model import Policy as Policy
from evidcore.contracts.model import Reweighter as Reweighter
from evidcore.contracts.segmenting import BoxPrompt as BoxPrompt
from evidcore.contracts.segmenting import MaskPrompt as MaskPrompt
from evidcore.contracts.segmenting import MaskRequest as MaskRequest
from evidcore.contracts.segmenting import PointPrompt as PointPrompt
from evidcore.contracts.segmenting import Segmenter as Segmenter
from evidcore.contracts.segmenting import SegmenterPrompt as SegmenterPrompt
from evidcore.contracts.segmenting import SegmenterSession as SegmenterSession
from evidcore.contracts.stage import Engine as Engine
from evidcore.contracts.stage import Stage as Stage
from evidcore.contracts.stage import StageContext as StageContext
from evidcore.contracts.stage import StageTraits as StageTraits
from evidcore.contracts.stage import Workload as Workload
from evidcore.data.encoder_input import EncoderInput as EncoderInput
from evidcore.data.encoder_input import Grid as Grid
from evidcore.data.format import Format as Format
from evidcore.data.grid import FileGrid as FileGrid
from evidcore.data.stored import Stored as Stored

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
