"""How many bytes a recipe's frozen features take, and for how many volumes `[features]` has room."""

from __future__ import annotations

import dataclasses
import math

from evidcore.cache import cache_folder, limit_bytes
from evidcore.case import VisualPart
from evidcore.errors import NotHere
from evidcore.recipe import DataUse
from evidcore.runs.assembly import Assembly
from evidcore_plugin_lab.plan.needs import uses_whole_model
from evidcore_plugin_lab.plan.shapes import Shapes

CENTRE_BYTES = 3 * 4  # of a patch; on disk they lie beside its features


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptFeatures:
    """The features of all volumes that stages show to a frozen encoder."""

    volumes: int | None  # None: the data are not here
    volume_bytes: int  # of the largest; where the data are not here, of one usual input
    in_memory: int  # volumes that the bound leaves room for
    on_disk: int

    @property
    def room(self) -> int:
        """Return how many volumes need not be encoded again."""
        return max(self.in_memory, self.on_disk)


def kept_features(assembly: Assembly, made: Shapes) -> KeptFeatures | None:
    """Return what the features take; None where no stage has a frozen encoder.

    Volumes are counted as the view shows them, as many of each case as of the first of its data entry.
    """
    recipe = assembly.recipe
    loads = [(stage, stage.workload()) for stage in recipe.stages]
    frozen = [stage for stage, load in loads if "encoder" not in load.train and uses_whole_model(load)]
    uses = dict.fromkeys(use for stage in frozen for use in stage.data_uses())
    if not uses:
        return None
    shown: dict[tuple[str, str], int] = {}  # volumes by data set and case
    largest, volumes = 0, None
    try:
        for use in uses:
            parts, patches = _first(assembly, made, use)
            largest = max(largest, patches)
            shown |= {(use.dataset, case.id): parts for case in assembly.cases(use)}
        volumes = sum(shown.values())
    except NotHere:
        largest = math.prod(made.patch_grid_zyx)
    if not largest:  # nothing is shown
        return None
    kept = recipe.features
    features_bytes = largest * made.encoder.width * (2 if kept.precision == "float16" else 4)
    volume_bytes = features_bytes + largest * CENTRE_BYTES
    return KeptFeatures(
        volumes=volumes,
        volume_bytes=volume_bytes,
        in_memory=int(kept.memory_gb * 1e9) // features_bytes,
        on_disk=limit_bytes(cache_folder(), 0) // volume_bytes,
    )


def _first(assembly: Assembly, made: Shapes, use: DataUse) -> tuple[int, int]:
    """Return how many volumes the view shows of an entry's first case, and the most patches of one."""
    parts = [part for part in assembly.view.render(assembly.cases(use)[0]) if isinstance(part, VisualPart)]
    grids = [made.encoder.grid(assembly.view.size_zyx(part, made.encoder.input)) for part in parts]
    return len(parts), max(map(math.prod, grids), default=0)
