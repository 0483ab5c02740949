"""Observer `tensorboard`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from evidcore.api import observe
from evidcore_plugin_trackers.figures import numbers


class TensorBoard:
    """Write each step's figures and each stage's result to `RUN/tensorboard/STAGE`.

    Each stage is a run of its own there, so that its steps count from 1. A step that is computed again after
    a resume replaces what was written of it.
    """

    def __init__(self) -> None:
        self._run: Path | None = None
        self._writer: SummaryWriter | None = None
        self._stage = ""

    @observe
    def stage_started(self, folder: Path) -> None:
        """Remember whose figures come."""
        self._run = folder.parents[1]

    @observe
    def step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._to(stage, step).add_scalar(name, value, step)
        self._to(stage).flush()

    @observe
    def stage_finished(self, stage: str, figures: Mapping[str, Any]) -> None:
        """Write the result; stages that were used again before the first one started are left out."""
        if self._run is not None:
            for name, value in numbers(figures):
                self._to(stage).add_scalar(f"result/{name}", value)
            self._to(stage).close()
            self._stage = ""

    def _to(self, stage: str, step: int | None = None) -> SummaryWriter:
        """Return what writes a stage; what it wrote from a step on before a resume is dropped."""
        if self._writer is None or stage != self._stage:
            assert self._run is not None
            self._writer = SummaryWriter(str(self._run / "tensorboard" / stage), purge_step=step)
            self._stage = stage
        return self._writer
