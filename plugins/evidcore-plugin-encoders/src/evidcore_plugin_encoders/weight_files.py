"""Files of weights, read as tensors alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from evidcore.api import DataError
from evidcore.data.stored import refuse_substitute, unreadable

WEIGHTS = "weights.safetensors"
HOLDERS = ("state_dict", "model")  # what trainers call the weights beside what else they save


def read_tensors(file: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a file by their names; nothing in it is executed.

    Raises:
        DataError: if it is not there, or holds anything else than tensors and plain values.
    """
    refuse_substitute(file)
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as cause:
        raise unreadable(file, cause) from cause
    except Exception as cause:  # torch's words are left out: they advise to read it unsafely
        raise DataError(
            f"{file}: cannot be read as tensors alone ({type(cause).__name__}): it is damaged, or holds "
            "objects that would be executed. Get it anew, or a file of the encoder's state dict alone."
        ) from cause
    for key in HOLDERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise DataError(f"{file}: holds a {type(content).__name__}. Name a file with a state dict.")
    return {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
