"""Ablations: a recipe's variants over seeds, each cell an ordinary run, compared item by item."""

from evidcore.run.ablation.cells import AblationFolder, Cell
from evidcore.run.ablation.outcome import outcome
from evidcore.run.ablation.passage import Failure, Passed, go
from evidcore.run.ablation.tables import NO_ANSWERS, latex, markdown
from evidcore.run.ablation.written import keep, read, without_places, write_up

__all__ = [
    "NO_ANSWERS", "AblationFolder", "Cell", "Failure", "Passed", "go", "keep", "latex", "markdown", "outcome",
    "read", "without_places", "write_up",
]  # fmt: skip
