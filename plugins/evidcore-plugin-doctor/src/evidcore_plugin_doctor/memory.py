"""Whether a scan fits into memory, told from its header before a voxel is unpacked."""

from __future__ import annotations

import math
import resource
from pathlib import Path

from evidcore.case import VolumeRef
from evidcore.data import Geometry
from evidcore.errors import DataError

VOXEL_BYTES = 12  # float32 as stored, as a volume and in body axes; int16 takes half, and checks the other
_GIB = 2**30
_CGROUP = Path("/sys/fs/cgroup")


def refuse_oversized(ref: VolumeRef, geometry: Geometry, processes: int) -> None:
    """Stop at a volume that `processes` at once cannot hold in memory.

    Raises:
        DataError: if it needs more than there is.
    """
    needed = math.prod(geometry.shape_zyx) * VOXEL_BYTES
    free = free_bytes() / processes
    if needed > free:
        shape = " x ".join(map(str, geometry.shape_zyx))
        shared = "" if processes == 1 else f" for each of {processes} processes (fewer at once have more)"
        raise DataError(
            f"{ref.path}: is too large for memory: {shape} voxels (z, y, x) take {needed / _GIB:.1f} GiB "
            f"while they are read, {free / _GIB:.1f} GiB are free{shared}. Crop or resample the scan, or "
            "check it on a machine with more memory."
        )


def free_bytes() -> float:
    """Return how much more memory this process may take: of the machine, its limit and its control group."""
    free = [_available(), _below_limit(), _below_group()]
    return max(0.0, min(free))


def _available() -> float:
    """Return what the machine has left, infinity where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return math.inf
    said = {name: amount for name, _, amount in (line.partition(":") for line in lines)}
    return 1024.0 * int(said["MemAvailable"].split()[0]) if "MemAvailable" in said else math.inf


def _below_limit() -> float:
    """Return what is left below the limit of address space that a shell or scheduler may set."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return math.inf
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return float(limit)
    return float(limit - pages * resource.getpagesize())


def _below_group() -> float:
    """Return what is left of a container's memory (control groups, version 2)."""
    try:
        limit = (_CGROUP / "memory.max").read_text(encoding="ascii").strip()
        used = (_CGROUP / "memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return math.inf
    return math.inf if limit == "max" else float(int(limit) - int(used))
