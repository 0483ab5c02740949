"""Where the gate of residual alignment must win: patches that show nothing, and should say nothing.

python benchmarks/gate_control.py        1 core, about 1 minute, no download

A positive control by construction, without a language model around it. Each patch shows one of 16 patterns,
or only noise. The right token of a pattern is the embedding of its word; that of noise is the mean embedding,
no word in particular. Bridge `projection` normalises every token, so that it has a size whatever it shows;
the gate of `residual-alignment` can shut a token off. Both are trained as they are shipped, on the squared
error alone, without and with the norm that the released code puts behind the gate, which gives every token
its size back.

Printed is the squared error on held-out patches, in units of the embeddings' variance: its mean over seeds
(lowest to highest), and that of the difference.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

import torch
from evidcore_plugin_med3d_r1.bridge import ResidualAlignment
from torch import Tensor

from evidcore.api import Bridge, Patches
from evidcore.builtin.projection import Projection

PATTERNS, WORDS, WIDTH, TEXT_WIDTH = 16, 200, 48, 64
GRID = (4, 8, 8)  # patches of a volume; one token each
NOISE = 0.3  # of a patch, beside patterns of size 1 in each feature
ONE = (1, 1, 1)


@dataclasses.dataclass(frozen=True)
class World:
    """Patterns and the embeddings of their words."""

    patterns: Tensor  # (pattern, width)
    embeddings: Tensor  # (word, text width); the first words are the patterns'

    @classmethod
    def draw(cls, rng: torch.Generator) -> World:
        """Draw one, with a mean embedding that is not 0."""
        mean = torch.randn(TEXT_WIDTH, generator=rng)
        words = mean + torch.randn(WORDS, TEXT_WIDTH, generator=rng)
        return cls(torch.randn(PATTERNS, WIDTH, generator=rng), 0.02 * words)

    def volume(self, rng: torch.Generator) -> tuple[Patches, Tensor, Tensor]:
        """Return patches, half of them noise alone; which are noise; and the right tokens."""
        count = GRID[0] * GRID[1] * GRID[2]
        shown = torch.randint(0, PATTERNS, (count,), generator=rng)
        is_noise = torch.rand(count, generator=rng) < 0.5
        noise = torch.randn(count, WIDTH, generator=rng)
        features = torch.where(is_noise[:, None], noise, self.patterns[shown] + NOISE * noise)
        right = torch.where(is_noise[:, None], self.embeddings.mean(dim=0), self.embeddings[shown])
        centres = torch.zeros(count, 3)
        return Patches(features[None], GRID, centres), is_noise, right


def error(name: str, seed: int, *, norm: bool, steps: int) -> tuple[float, float]:
    """Train a bridge; return the squared error of patterns and of noise on held-out patches."""
    rng = torch.Generator().manual_seed(seed)
    world = World.draw(rng)
    torch.manual_seed(seed)
    kind = {"projection": Projection, "residual-alignment": ResidualAlignment}[name]
    bridge: Bridge = kind(WIDTH, TEXT_WIDTH, GRID, pool_zyx=ONE, position_embedding=False, norm=norm)
    bridge.set_anchor(world.embeddings)
    optimizer = torch.optim.AdamW(bridge.parameters(), lr=2e-3, weight_decay=0.0)
    unit = world.embeddings.var()
    for _ in range(steps):
        patches, _, right = world.volume(rng)
        loss = (bridge(patches)[0] - right).square().mean() / unit
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        patches, is_noise, right = world.volume(rng)
        off = (bridge(patches)[0] - right).square().mean(dim=1) / unit
    return float(off[~is_noise].mean()), float(off[is_noise].mean())


def spoken(values: Sequence[float]) -> str:
    """Return the mean over seeds, with the lowest and the highest."""
    return f"{sum(values) / len(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[17, 18, 19, 20, 21])
    parser.add_argument("--steps", type=int, default=400)
    asked = parser.parse_args()
    for norm in (False, True):
        print(f"norm behind the gate: {'on' if norm else 'off'}; error of patterns, of noise")
        result = {}
        for name in ("projection", "residual-alignment"):
            result[name] = [error(name, seed, norm=norm, steps=asked.steps) for seed in asked.seeds]
            patterns, noise = zip(*result[name], strict=True)
            print(f"  {name:<20} {spoken(patterns)}  {spoken(noise)}")
        pairs = zip(result["residual-alignment"], result["projection"], strict=True)
        patterns, noise = zip(
            *((ours[0] - theirs[0], ours[1] - theirs[1]) for ours, theirs in pairs), strict=True
        )
        print(f"  {'difference':<20} {spoken(patterns)}  {spoken(noise)}")


if __name__ == "__main__":
    main()
