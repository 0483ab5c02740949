"""What an encoder wants to be given, which is all that decides how a volume is prepared for it."""

import dataclasses

Grid = tuple[int, int, int]  # z, y, x


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderInput:
    """What an encoder wants to be given."""

    size_zyx: Grid  # voxels; a slice-wise encoder takes any z and declares the usual one
    spacing_mm_zyx: tuple[float, float, float] | None  # None: the whole field of view, resized
    windows: tuple[tuple[float, float], ...]  # (low, high) in HU, one channel each, mapped to -1..1
    # no window at all: one channel, scaled by the volume's percentiles; the only way for arbitrary intensity
    any_depth: bool = False  # z may differ from size_zyx[0]
    multiple_px: int | None = None  # y and x may be any multiples of this; None: as in size_zyx
    # of an encoder without windows: photographs in red, green and blue, all else thrice
    colours: bool = False

    @property
    def channels(self) -> int:
        """Number of channels the encoder is given."""
        return 3 if self.colours else max(1, len(self.windows))
