"""Ablations: a recipe's variants over seeds, each cell an ordinary run, compared item by item."""

from evidcore_plugin_lab.ablation.cells import AblationFolder, Cell
from evidcore_plugin_lab.ablation.outcome import outcome
from evidcore_plugin_lab.ablation.passage import Failure, Passed, go
from evidcore_plugin_lab.ablation.tables import NO_ANSWERS, latex, markdown
from evidcore_plugin_lab.ablation.written import keep, read, without_places, write_up

__all__ = [
    "NO_ANSWERS", "AblationFolder", "Cell", "Failure", "Passed", "go", "keep", "latex", "markdown", "outcome",
    "read", "without_places", "write_up",
]  # fmt: skip
