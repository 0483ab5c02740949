"""Slices as the model sees them: a window of intensities in 256 greys, resized, normalised."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

MEAN = (0.485, 0.456, 0.406)  # of ImageNet, as in SAM 2.1
SPREAD = (0.229, 0.224, 0.225)

Greys = np.ndarray[Any, np.dtype[np.uint8]]


def greys(slice_: np.ndarray[Any, np.dtype[Any]], low: float, high: float) -> Greys:
    """Map intensities from `low` to `high` to 0..255, rounded; what lies beyond is black or white."""
    share = (slice_.astype(np.float32) - low) / (high - low)
    shown: Greys = np.rint(np.clip(share, 0, 1) * 255).astype(np.uint8)
    return shown


def pixels(shown: Greys, size_px: int) -> Float[Tensor, "3 size size"]:
    """Return a slice of greys, (y, x), as the encoder takes it: resized to a square by Pillow, bicubic."""
    if shown.shape != (size_px, size_px):
        shown = np.asarray(Image.fromarray(shown).resize((size_px, size_px), Image.Resampling.BICUBIC))
    plane = torch.from_numpy(shown.astype(np.float32) / 255)
    return (plane - torch.tensor(MEAN)[:, None, None]) / torch.tensor(SPREAD)[:, None, None]


def resized(
    maps: Float[Tensor, "row 1 y x"], size_yx: tuple[int, int], *, antialias: bool = False
) -> Float[Tensor, "row 1 to_y to_x"]:
    """Return maps at another size, bilinear as in SAM 2.1."""
    return F.interpolate(maps, size=size_yx, mode="bilinear", align_corners=False, antialias=antialias)


def to_slice(logits: Float[Tensor, "row low_y low_x"], shape_yx: tuple[int, int]) -> Bool[Tensor, "row y x"]:
    """Return the masks of low-resolution logits on the slice's own grid."""
    return resized(logits[:, None].float(), shape_yx)[:, 0] > 0


def to_model(masks: Bool[Tensor, "row y x"], size_px: int) -> Bool[Tensor, "row size size"]:
    """Return masks of slices in the model's pixels: those of which the mask covers at least half."""
    if masks.shape[1:] == (size_px, size_px):
        return masks
    return resized(masks[:, None].float(), (size_px,) * 2, antialias=True)[:, 0] >= 0.5
