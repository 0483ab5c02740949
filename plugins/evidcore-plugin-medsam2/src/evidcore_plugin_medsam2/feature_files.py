"""Features of slices as the content of cache entries, and the name of the weights that they come from."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from safetensors import torch as safetensors

from evidcore_plugin_medsam2.network import View

if TYPE_CHECKING:
    from transformers import Sam2VideoModel


def to_bytes(view: View) -> bytes:
    """Return what `from_bytes` reads."""
    on_cpu = view.to(torch.device("cpu"), view.coarse.dtype)
    return safetensors.save({
        "fine": on_cpu.fine.contiguous(),
        "middle": on_cpu.middle.contiguous(),
        "coarse": on_cpu.coarse.contiguous(),
    })


def from_bytes(content: bytes) -> View:
    """Return a view as it was written."""
    return View(**safetensors.load(content))


def weights_digest(model: Sam2VideoModel) -> str:
    """Name what encodes slices by its weights, wherever they came from."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
