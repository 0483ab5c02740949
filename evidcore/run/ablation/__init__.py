"""Ablations: a recipe's variants over seeds, each cell an ordinary run, compared item by item."""

from evidcore.run.ablation.cells import AblationFolder, Cell
from evidcore.run.ablation.outcome import outcome
from evidcore.run.ablation.passage import Failure, Passed, go
from evidcore.run.ablation.tables import latex, markdown
from evidcore.run.ablation.written import keep, read, write_up

__all__ = [
    "AblationFolder", "Cell", "Failure", "Passed", "go", "keep", "latex", "markdown", "outcome", "read",
    "write_up",
]  # fmt: skip
