"""The device that a recipe names for a model of its own."""

from __future__ import annotations

import torch

from evidcore.errors import RunError


def device_of(named: str, who: str) -> torch.device:
    """Return the device; "auto" is the accelerator where there is one, else the CPU.

    Raises:
        RunError: if it is not there.
    """
    if named == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(named)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RunError(
            f"{who}: device {named!r} is not there; torch sees {torch.cuda.device_count()} GPUs. "
            "Write device = 'auto'."
        )
    return device
