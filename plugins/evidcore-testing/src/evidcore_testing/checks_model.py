"""Checks of the kinds that hold weights: encoder, bridge."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from evidcore.contracts import Bridge, Encoder, Grid, Patches
from evidcore_testing.clauses import broken, raises_nothing, require


@torch.no_grad()
def check_encoder(encoder: Encoder, *, depths: Sequence[int] = (), seed: int = 0) -> None:
    """Assert the contract of an encoder.

    - it declares its input and width;
    - the grid is known without weights;
    - features have the declared shape and are finite;
    - patch centres come in z, y, x raster order about the middle of the input;
    - a volume is encoded alone as among others, in order;
    - equal volumes get equal features and different ones different features.

    Args:
        encoder: the component under test; put into evaluation mode here.
        depths: other numbers of slices to try, for an encoder that takes any.
        seed: of the random volumes.
    """
    encoder.eval()
    declared = encoder.input
    windows_rise = bool(declared.windows) and all(low < high for low, high in declared.windows)
    require(windows_rise, encoder, "each window rises, in HU", f"got {declared.windows!r}")
    require(encoder.width > 0, encoder, "the width is declared", f"got {encoder.width!r}")
    if depths and not declared.any_depth:
        raise ValueError(f"depths {tuple(depths)} are for an encoder that declares any_depth")

    generator = torch.Generator().manual_seed(seed)
    for depth in (declared.size_zyx[0], *depths):
        size = (depth, *declared.size_zyx[1:])
        volumes = torch.rand((3, declared.channels, *size), generator=generator) * 2 - 1
        grid = encoder.grid(size)
        positive = len(grid) == 3 and all(isinstance(count, int) and count > 0 for count in grid)
        require(positive, encoder, "the grid is three positive integers", f"got {grid!r} for {size} voxels")
        patches = encoder(volumes)
        expected = (3, math.prod(grid), encoder.width)
        shape = tuple(patches.features.shape)
        told = f"grid() says {grid}, forward {patches.grid_zyx}"
        require(tuple(patches.grid_zyx) == grid, encoder, "the grid is known without weights", told)
        clause = "features are (volume, patch, width)"
        require(shape == expected, encoder, clause, f"must be {expected}, got {shape}")
        finite = bool(torch.isfinite(patches.features).all())
        bad = int((~torch.isfinite(patches.features)).sum())
        require(finite, encoder, "features are finite", f"{bad} of {patches.features.numel()} are not")
        _centres_in_raster_order(encoder, patches, size)
        _volumes_in_order(encoder, volumes, patches.features)


def _centres_in_raster_order(encoder: Encoder, patches: Patches, size: tuple[int, ...]) -> None:
    clause = "patch centres come in z, y, x raster order about the middle of the input"
    shape = tuple(patches.centres_mm.shape)
    expected = (math.prod(patches.grid_zyx), 3)
    require(shape == expected, encoder, clause, f"must have shape {expected}, got {shape}")
    spacing = encoder.input.spacing_mm_zyx or (1.0, 1.0, 1.0)
    centres = patches.centres_mm.double().reshape(*patches.grid_zyx, 3)
    for axis, name in enumerate("zyx"):
        along = centres[..., axis].movedim(axis, 0).flatten(1)  # (position on the axis, all others)
        line = along[:, 0]
        flat = bool((along - line[:, None]).abs().max() < 1e-3)
        rises = bool((line.diff() > 0).all())
        result = f"along {name}: {[round(value, 3) for value in line.tolist()]}"
        require(flat and rises, encoder, clause, result)
        half = size[axis] * spacing[axis] / 2
        inside = bool(line.abs().max() <= half + 1e-3)
        require(inside, encoder, clause, f"{result}, beyond {half} from the middle")
        middle = float(line[0] + line[-1])
        require(abs(middle) <= 0.1 * half, encoder, clause, f"{result}, not about 0")


def _volumes_in_order(encoder: Encoder, volumes: Tensor, features: Tensor) -> None:
    again = encoder(volumes).features
    same = torch.equal(again, features)
    gap = float((again - features).abs().max())
    require(same, encoder, "equal volumes get equal features", f"they differ by {gap:.3g}")
    turned = encoder(volumes.flip(0)).features.flip(0)
    gap = float((turned - features).abs().max())
    scale = float(features.abs().max())
    clause = "a volume is encoded alone as among others, in order"
    require(gap <= 1e-3 * scale, encoder, clause, f"turning the batch moves features by {gap:.3g}")
    alone = encoder(volumes[:1]).features
    gap = float((alone - features[:1]).abs().max())
    require(gap <= 1e-3 * scale, encoder, clause, f"encoding a volume alone moves features by {gap:.3g}")
    apart = float((features[0] - features[1]).abs().max())
    clause = "different volumes get different features"
    require(apart > 0, encoder, clause, "two random volumes gave the same features")


def check_bridge(
    build: Callable[[], Bridge],
    *,
    width: int,
    text_width: int,
    grid_zyx: Grid,
    other_grids: Sequence[Grid] = (),
    seed: int = 0,
) -> None:
    """Assert the contract of a bridge.

    - tokens are counted without weights, as forward gives them;
    - embeddings have the declared shape and are finite;
    - a volume is bridged alone as among others;
    - gradient reaches the input;
    - no parameter is a single number without an axis;
    - what is kept of the embeddings is in persistent buffers: it survives saving and loading, training,
      and changes of the embeddings afterwards.

    Args:
        build: gives a new bridge each time, as a recipe would build it.
        width: of the patches, as `build` was told.
        text_width: of the language model, as `build` was told.
        grid_zyx: the usual grid, as `build` was told.
        other_grids: more grids that the bridge must take.
        seed: of weights, patches and embeddings.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        bridge = build().eval()
        embeddings = torch.randn(64, text_width)
        with (
            torch.device("meta"),
            raises_nothing(bridge, "tokens are counted without weights", "building on meta"),
        ):
            bare = build()
        for name, parameter in bridge.named_parameters():
            clause = "no parameter is a single number without an axis (FSDP refuses them)"
            require(parameter.ndim > 0, bridge, clause, f"{name} has shape ()")
        bridge.set_anchor(embeddings)
        for grid in (grid_zyx, *other_grids):
            patches = _patches(grid, width)
            embedded = bridge(patches)
            _tokens_and_gradient(bridge, bare, patches, embedded, text_width)
        _anchor_is_kept(build, embeddings, _patches(grid_zyx, width), seed)


def _patches(grid: Grid, width: int) -> Patches:
    features = torch.randn(2, math.prod(grid), width, requires_grad=True)
    axes = [torch.arange(count) - (count - 1) / 2 for count in grid]
    centres = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, 3)
    return Patches(features, grid, centres)


def _tokens_and_gradient(
    bridge: Bridge, bare: Bridge, patches: Patches, embedded: Tensor, text_width: int
) -> None:
    grid = patches.grid_zyx
    counted = bare.tokens(grid)
    shape = tuple(embedded.shape)
    clause = "tokens are counted without weights, as forward gives them"
    counts_agree = counted == bridge.tokens(grid) and counted > 0 and shape[1:2] == (counted,)
    require(counts_agree, bridge, clause, f"tokens({grid}) says {counted}, forward gives {shape}")
    expected = (2, counted, (1 + bridge.deep_layers) * text_width)
    clause = "embeddings are (volume, token, text_width)"
    require(shape == expected, bridge, clause, f"must be {expected}, got {shape}")
    clause = "embeddings are finite"
    require(bool(torch.isfinite(embedded).all()), bridge, clause, f"not so for grid {grid}")

    clause = "gradient reaches the input"
    if not embedded.requires_grad:
        broken(bridge, clause, "the embeddings are cut off from the patches")
    # a weighted sum: a plain one has no gradient through a final normalisation
    weighted = (embedded[0] * torch.randn_like(embedded[0])).sum()
    weighted.backward()  # type: ignore[no-untyped-call]
    gradient = patches.features.grad
    if gradient is None or not gradient[0].any():
        broken(bridge, clause, "the gradient on the patches is 0")
    clause = "a volume is bridged alone as among others"
    apart = not gradient[1].any()
    require(apart, bridge, clause, "volume 0's embeddings depend on volume 1's patches")
    with torch.no_grad():
        alone = bridge(Patches(patches.features[:1], grid, patches.centres_mm))
    gap = float((alone - embedded[:1].detach()).abs().max())
    require(gap <= 1e-4, bridge, clause, f"bridging a volume alone moves its embeddings by {gap:.3g}")


def _anchor_is_kept(build: Callable[[], Bridge], embeddings: Tensor, patches: Patches, seed: int) -> None:
    torch.manual_seed(seed)
    bridge = build().eval()
    weights = {name: value.detach().clone() for name, value in bridge.named_parameters()}
    buffers = {name: value.clone() for name, value in bridge.named_buffers()}
    given = embeddings.clone()
    bridge.set_anchor(given)
    clause = "what is kept of the embeddings is in persistent buffers"
    for name, parameter in bridge.named_parameters():
        unmoved = name in weights and torch.equal(parameter, weights[name])
        told = f"set_anchor changed the parameter {name!r}, which training would change"
        require(unmoved, bridge, clause, told)
    with torch.no_grad():
        before = bridge(patches)
        given.mul_(3.0).add_(1.0)  # as training the language model does
        gap = float((bridge(patches) - before).abs().max())
    require(gap == 0, bridge, clause, f"changing the embeddings afterwards moves the output by {gap:.3g}")

    torch.manual_seed(seed + 1)
    fresh = build().eval()
    with raises_nothing(bridge, clause, "loading the saved state into a new bridge"):
        fresh.load_state_dict(bridge.state_dict())
    with torch.no_grad():
        gap = float((fresh(patches) - before).abs().max())
    require(gap == 0, bridge, clause, f"saving and loading moves the output by {gap:.3g}")

    anchors = {
        name: value.clone()
        for name, value in bridge.named_buffers()
        if name not in buffers or not torch.equal(value, buffers[name])
    }
    bridge.train()
    optimiser = torch.optim.SGD(bridge.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        bridge(patches).square().mean().backward()
        optimiser.step()
    for name, value in bridge.named_buffers():
        kept = name not in anchors or torch.equal(value, anchors[name])
        require(kept, bridge, "the anchor survives training", f"training changed the buffer {name!r}")
