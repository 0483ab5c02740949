"""Rotary positions of tokens: multimodal ones (Qwen2-VL, arXiv 2409.12191) count along an image's axes."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from evidcore.contracts import Grid


def is_multimodal(text_config: Any) -> bool:
    """Tell whether a language model's rotary positions have three axes."""
    return "mrope_section" in (getattr(text_config, "rope_parameters", None) or {})


def counted(mask: Int[Tensor, "row place"]) -> Int[Tensor, "row place"]:
    """Return positions that count tokens; `mask` is 1 on tokens."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def multimodal(
    ids: Int[Tensor, "row place"], mask: Int[Tensor, "row place"], image_id: int, grids: Sequence[Grid]
) -> Int[Tensor, "3 row place"]:
    """Return positions in which an image's tokens count time, height and width, and text all three alike.

    After an image the count goes on behind its longest side.

    Args:
        ids: left-padded.
        mask: 1 on tokens.
        image_id: the token that stands for a piece of an image.
        grids: of the images' tokens, in the order in which they come, row after row.
    """
    remaining = iter(grids)
    positions = torch.zeros(3, *ids.shape, dtype=torch.long)
    for row, (tokens, there) in enumerate(zip(ids.cpu(), mask.cpu().bool(), strict=True)):
        is_image = (tokens == image_id)[there]
        if len(is_image) and bool(is_image[-1]):
            raise ValueError(
                f"row {row} ends with token {image_id} of an image; let text follow, as chat templates do, "
                "so that answers can be laid behind it."
            )
        positions[:, row, there] = torch.cat([*_pieces(is_image.tolist(), remaining, row)], dim=1)
    if (left := len(list(remaining))) > 0:
        raise ValueError(f"{left} of {len(grids)} images have no tokens in the text")
    return positions.to(ids.device)


def _pieces(is_image: list[bool], grids: Iterator[Grid], row: int) -> Iterator[Int[Tensor, "3 place"]]:
    """Yield the positions of stretches of text and of images, in order."""
    place = start = 0
    while place < len(is_image):
        if not is_image[place]:
            words = next((n for n in range(place, len(is_image)) if is_image[n]), len(is_image)) - place
            yield torch.arange(start, start + words).expand(3, -1)
            place, start = place + words, start + words
            continue
        grid = next(grids, None)
        if grid is None or not all(is_image[place : place + grid[0] * grid[1] * grid[2]]):
            raise ValueError(f"row {row} has image tokens that no image of the grids given accounts for")
        axes = torch.meshgrid(*(torch.arange(start, start + count) for count in grid), indexing="ij")
        yield torch.stack(axes).flatten(1)
        place, start = place + grid[0] * grid[1] * grid[2], start + max(grid)
