"""A model that is read or fitted: its weights, the device that a recipe names for it, its learning rate."""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from evidcore.cache import plain_file
from evidcore.errors import DataError, RunError

TELLING = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # of `from_pretrained`
# which older files hold, and a model works out itself
_BUFFERS = re.compile(r"(inv_freq|position_ids|attn\.(masked_)?bias|num_batches_tracked)$")
log = logging.getLogger(__name__)


def refuse_random(who: str, info: Mapping[str, Any], *, unused: tuple[str, ...] = ()) -> None:
    """Refuse weights that lack a part of a model, or have one of another shape: it would be random.

    `info` comes from `from_pretrained(…, **TELLING)`. What the model has no place for is said. Names that
    begin as one of `unused` may be missing, or have no place.

    Raises:
        DataError: with the first names.
    """
    wrong = [f"{name} is missing" for name in sorted(info["missing_keys"]) if not name.startswith(unused)]
    wrong += [f"{name} is {[*shape]}, not {[*wanted]}" for name, shape, wanted in info["mismatched_keys"]]
    if wrong:
        text = f"{who}: its weights leave the model random: {_first(wrong)}"
        raise DataError(f"{text}. Get its files anew, or name a model whose weights are whole.")
    extra = [name for name in sorted(info["unexpected_keys"]) if not name.startswith(unused)]
    if extra := [name for name in extra if not _BUFFERS.search(name)]:
        log.warning("%s: the model has no place for %d of its tensors: %s", who, len(extra), _first(extra))


def load_weights(module: nn.Module, path: Path, advice: str, given: dict[str, Tensor] | None = None) -> None:
    """Load all weights of a module from a safetensors file, or those `given`; `advice` ends a refusal.

    Raises:
        DataError: if it cannot be read, or lacks a weight, has one too many, or one of another shape.
    """
    try:
        given = load_file(plain_file(path, is_text=False)) if given is None else given
    except (OSError, SafetensorError) as cause:
        raise DataError(f"{path}: weights cannot be read from it ({cause}). Get it anew.") from cause
    wanted = module.state_dict()
    names = sorted(given.keys() | wanted.keys())
    shapes = ((name, _shape(given.get(name)), _shape(wanted.get(name))) for name in names)
    wrong = [f"{name} ({has}, the network has {wants})" for name, has, wants in shapes if has != wants]
    if wrong:
        raise DataError(f"{path}: holds other weights than this network: {_first(wrong)}. {advice}")
    module.load_state_dict(given)


def _first(names: Sequence[str]) -> str:
    return "; ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _shape(weight: Tensor | None) -> str:
    return "none" if weight is None else " x ".join(map(str, weight.shape)) or "one number"


def device_of(named: str, who: str) -> torch.device:
    """Return the device; "auto" is the accelerator where there is one, else the CPU.

    Raises:
        RunError: if it is not there.
    """
    if named == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(named)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        text = f"{who}: device {named!r} is not there; torch sees {torch.cuda.device_count()} GPUs"
        raise RunError(f"{text}. Write device = 'auto'.")
    return device


def share_of_peak(step: int, steps: int) -> float:
    """Return the share of the peak learning rate at a step: a linear rise, then half a cosine down to 0."""
    warm = min(1.0, (step + 1) / min(60, max(1, steps // 4)))
    return warm * 0.5 * (1 + math.cos(math.pi * step / steps))
