"""Ablations: a recipe's variants over seeds, each cell an ordinary run, compared item by item."""

from evidcore_plugin_lab.ablation.cells import AblationFolder, Cell
from evidcore_plugin_lab.ablation.outcome import outcome
from evidcore_plugin_lab.ablation.runner import CellResult, Failure, run_cells
from evidcore_plugin_lab.ablation.tables import (
    NO_ANSWERS,
    keep,
    latex,
    markdown,
    read,
    without_places,
    write_up,
)

__all__ = [
    "NO_ANSWERS", "AblationFolder", "Cell", "CellResult", "Failure", "keep", "latex", "markdown",
    "outcome", "read", "run_cells", "without_places", "write_up",
]  # fmt: skip
