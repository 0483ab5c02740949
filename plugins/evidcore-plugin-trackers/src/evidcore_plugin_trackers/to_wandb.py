"""Observer `wandb`."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from evidcore.api import observe
from evidcore_plugin_trackers.figures import numbers

HOST = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"


class Wandb:
    """Send each step's figures and each stage's result to Weights & Biases: numbers, and names of stages.

    The project is called as the recipe, the run as the run folder. Figures are `STAGE/name` over
    `STAGE/step`, since steps count anew in each stage. `WANDB_MODE=offline` keeps them under `RUN/wandb`.
    """

    sends_away: ClassVar[str] = f"the figures of each step and stage, to Weights & Biases at {HOST}"

    def __init__(self) -> None:
        import wandb

        self._wandb = wandb
        self._run: Any = None

    @observe
    def stage_started(self, stage: str, folder: Path) -> None:
        """Open the run at the first stage, and tell what its steps are."""
        place = folder.parents[1]
        if self._run is None:
            sober = self._wandb.Settings(  # without base_url, ./wandb/settings says who is sent the key
                base_url=HOST, console="off", disable_code=True, disable_git=True, x_disable_meta=True
            )
            try:
                self._run = self._wandb.init(
                    project=place.parent.name, name=place.name, id=place.name, resume="allow",
                    dir=str(place), settings=sober,
                )  # fmt: skip
            finally:
                for path in place.glob("wandb/**/*"):
                    if path.is_symlink():  # to newest files, and a log elsewhere: a run with links is refused
                        path.unlink()
        self._run.define_metric(f"{stage}/step", hidden=True)
        self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")

    @observe
    def step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        figures = {f"{stage}/{name}": value for name, value in metrics.items()}
        self._run.log({f"{stage}/step": step, **figures})

    @observe
    def stage_finished(self, stage: str, figures: Mapping[str, Any]) -> None:
        """Put the result into the run's summary; that of stages used again before it opened is left out."""
        if self._run is not None:
            self._run.summary.update({f"{stage}/result/{name}": value for name, value in numbers(figures)})
