"""Checks of what holds weights: encoder, bridge, and components that a `fit` stage can train."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evidcore.api import Bridge, Case, Encoder, Patches
from evidcore.contracts import FitData, Grid
from evidcore.contracts.model import Fittable
from evidcore.registry.factory import arguments
from evidcore_testing.clauses import Clauses


@torch.no_grad()
def check_encoder(encoder: Encoder, *, depths: Sequence[int] = ()) -> None:
    """Assert the contract of an encoder.

    - it declares its input and width;
    - the grid is known without weights;
    - features have the declared shape and are finite;
    - patch centres come in z, y, x raster order about the middle of the input, up to half a step beside it;
    - a volume is encoded alone as among others, in order;
    - equal volumes get equal features and different ones different features.

    Args:
        encoder: the component under test; put into evaluation mode here.
        depths: other numbers of slices to try, for an encoder that takes any.
    """
    encoder.eval()
    check = Clauses(encoder)
    declared = encoder.input
    windows_rise = declared.windows and all(low < high for low, high in declared.windows)
    check(windows_rise, "each window rises, in HU", f"got {declared.windows!r}")
    check(encoder.width > 0, "the width is declared", f"got {encoder.width!r}")
    if depths and not declared.any_depth:
        raise ValueError(f"depths {tuple(depths)} are for an encoder that declares any_depth")

    generator = torch.Generator().manual_seed(0)
    for depth in (declared.size_zyx[0], *depths):
        size = (depth, *declared.size_zyx[1:])
        volumes = torch.rand((3, declared.channels, *size), generator=generator) * 2 - 1
        grid = encoder.grid(size)
        positive = len(grid) == 3 and all(isinstance(count, int) and count > 0 for count in grid)
        check(positive, "the grid is three positive integers", f"got {grid!r} for {size} voxels")
        patches = encoder(volumes)
        got = f"grid() says {grid}, forward {patches.grid_zyx}"
        check(tuple(patches.grid_zyx) == grid, "the grid is known without weights", got)
        features = patches.features
        expected, shape = (3, math.prod(grid), encoder.width), tuple(features.shape)
        check(shape == expected, "features are (volume, patch, width)", f"must be {expected}, got {shape}")
        bad = int((~torch.isfinite(features)).sum())
        check(bad == 0, "features are finite", f"{bad} of {features.numel()} are not")
        _centres_in_raster_order(check, patches, size, declared.spacing_mm_zyx or (1.0, 1.0, 1.0))
        gap = _gap(encoder(volumes).features, features)
        check(gap == 0, "equal volumes get equal features", f"they differ by {gap:.3g}")
        clause = "a volume is encoded alone as among others, in order"
        slack = 1e-3 * float(features.abs().max())
        gap = _gap(encoder(volumes.flip(0)).features.flip(0), features)
        check(gap <= slack, clause, f"turning the batch moves features by {gap:.3g}")
        gap = _gap(encoder(volumes[:1]).features, features[:1])
        check(gap <= slack, clause, f"encoding a volume alone moves features by {gap:.3g}")
        apart = _gap(features[0], features[1])
        got = "two random volumes gave the same features"
        check(apart > 0, "different volumes get different features", got)


def _gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().abs().max())


def _centres_in_raster_order(
    check: Clauses, patches: Patches, size: Sequence[int], spacing: Sequence[float]
) -> None:
    clause = "patch centres come in z, y, x raster order about the middle of the input"
    shape, expected = tuple(patches.centres_mm.shape), (math.prod(patches.grid_zyx), 3)
    check(shape == expected, clause, f"must have shape {expected}, got {shape}")
    centres = patches.centres_mm.double().reshape(*patches.grid_zyx, 3)
    for axis, name in enumerate("zyx"):
        along = centres[..., axis].movedim(axis, 0).flatten(1)  # (position on the axis, all others)
        line = along[:, 0]
        got = f"along {name}: {[round(value, 3) for value in line.tolist()]}"
        check(_gap(along, line[:, None]) < 1e-3 and (line.diff() > 0).all(), clause, got)
        half = size[axis] * spacing[axis] / 2
        check(line.abs().max() <= half + 1e-3, clause, f"{got}, beyond {half} from the middle")
        # strided convolutions centre their patches up to half a step beside the middle
        check(abs(line[0] + line[-1]) / 2 <= half / len(line) + 1e-3, clause, f"{got}, not about 0")


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
        check = Clauses(bridge)
        embeddings = torch.randn(64, text_width)
        on_meta = check.raises_nothing("tokens are counted without weights", "building on meta")
        with torch.device("meta"), on_meta:
            bare = build()
        for name, parameter in bridge.named_parameters():
            clause = "no parameter is a single number without an axis (FSDP refuses them)"
            check(parameter.ndim > 0, clause, f"{name} has shape ()")
        bridge.set_anchor(embeddings)
        for grid in (grid_zyx, *other_grids):
            _tokens_and_gradient(check, bridge, bare.tokens(grid), _patches(grid, width), text_width)
        if list(bridge.parameters()):
            _anchor_is_kept(check, build, embeddings, _patches(grid_zyx, width), seed)


def _patches(grid: Grid, width: int) -> Patches:
    features = torch.randn(2, math.prod(grid), width, requires_grad=True)
    axes = [torch.arange(count) - (count - 1) / 2 for count in grid]
    return Patches(features, grid, torch.cartesian_prod(*axes))


def _tokens_and_gradient(
    check: Clauses, bridge: Bridge, counted: int, patches: Patches, text_width: int
) -> None:
    grid, embedded = patches.grid_zyx, bridge(patches)
    shape, expected = tuple(embedded.shape), (2, counted, (1 + bridge.deep_layers) * text_width)
    agree = counted == bridge.tokens(grid) and counted > 0 and shape[1:2] == (counted,)
    got = f"tokens({grid}) says {counted}, forward gives {shape}"
    check(agree, "tokens are counted without weights, as forward gives them", got)
    check(shape == expected, "embeddings are (volume, token, text_width)", f"must be {expected}, got {shape}")
    check(torch.isfinite(embedded).all(), "embeddings are finite", f"not so for grid {grid}")

    clause = "gradient reaches the input"
    check(embedded.requires_grad, clause, "the embeddings are cut off from the patches")
    # a weighted sum: a plain one has no gradient through a final normalisation
    weighted = (embedded[0] * torch.randn_like(embedded[0])).sum()
    weighted.backward()
    gradient = patches.features.grad
    if gradient is None or not gradient[0].any():
        check.fail(clause, "the gradient on the patches is 0")
    clause = "a volume is bridged alone as among others"
    check(not gradient[1].any(), clause, "volume 0's embeddings depend on volume 1's patches")
    gap = _gap(bridge(Patches(patches.features[:1], grid, patches.centres_mm)), embedded[:1])
    check(gap <= 1e-4, clause, f"bridging a volume alone moves its embeddings by {gap:.3g}")


def _anchor_is_kept(
    check: Clauses, build: Callable[[], Bridge], embeddings: Tensor, patches: Patches, seed: int
) -> None:
    torch.manual_seed(seed)
    bridge = build().eval()
    state = (*bridge.named_parameters(), *bridge.named_buffers())
    start = {name: value.detach().clone() for name, value in state}
    given = embeddings.clone()
    bridge.set_anchor(given)
    clause = "what is kept of the embeddings is in persistent buffers"
    for name, parameter in bridge.named_parameters():
        unmoved = name in start and torch.equal(parameter, start[name])
        check(unmoved, clause, f"set_anchor changed the parameter {name!r}, which training would change")
    before = bridge(patches)
    given.mul_(3.0).add_(1.0)  # as training the language model does
    gap = _gap(bridge(patches), before)
    check(gap == 0, clause, f"changing the embeddings afterwards moves the output by {gap:.3g}")

    torch.manual_seed(seed + 1)
    fresh = build().eval()
    with check.raises_nothing(clause, "loading the saved state into a new bridge"):
        fresh.load_state_dict(bridge.state_dict())
    gap = _gap(fresh(patches), before)
    check(gap == 0, clause, f"saving and loading moves the output by {gap:.3g}")

    buffers = {name: value.clone() for name, value in bridge.named_buffers()}
    bridge.train()
    optimiser = torch.optim.SGD(bridge.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        bridge(patches).square().mean().backward()
        optimiser.step()
    for name, value in bridge.named_buffers():  # those that hold something of the embeddings
        holds_none = name in start and torch.equal(buffers[name], start[name])
        survives = holds_none or torch.equal(value, buffers[name])
        check(survives, "the anchor survives training", f"training changed the buffer {name!r}")


def check_fit(
    build: Callable[[], Fittable],
    train: Sequence[Case],
    validation: Sequence[Case],
    folder: Path,
    *,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Assert the contract of a component that can be fitted.

    - `fit` writes weights and a `fit.json` that holds a table, and logs finite numbers;
    - from equal starts equal seeds write equal weights, whatever was drawn since; another seed writes others;
    - the random state of the process is left as it was;
    - `load` gives a new component what `fit` made, and fitting leaves that in the one that was fitted.

    Args:
        build: gives a new component each time, as a recipe would build it.
        train: cases to train on.
        validation: cases to choose on.
        folder: an empty one.
        options: of `fit`, as a recipe gives them.
    """
    logged: list[Mapping[str, float]] = []
    fitted, weights = [], []
    for number, seed in enumerate((1, 1, 2)):
        place = folder / str(number)
        place.mkdir(parents=True)
        torch.manual_seed(0)  # the core seeds every stage, so the first weights are the same
        component = build()
        check = Clauses(component)
        torch.manual_seed(number)  # what was drawn since must not matter
        state = torch.random.get_rng_state()
        with check.raises_nothing("cases are fitted", f"{len(train)} cases"):
            own = arguments(component.fit, options or {}, "fit")
            component.fit(FitData(train, validation, place, seed, logged.append), **own)
        same = torch.equal(state, torch.random.get_rng_state())
        check(same, "the random state is left as it was", "torch's has moved")
        try:
            figures = json.loads((place / "fit.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            check.fail("`fit.json` holds a table", f"{type(error).__name__}: {error}")
        check(isinstance(figures, dict), "`fit.json` holds a table", f"got {figures!r}")
        written = {str(path.relative_to(place)): path for path in place.rglob("*") if path.is_file()}
        del written["fit.json"]  # which may tell seconds
        check(written, "weights are written", "got ['fit.json']")
        fitted.append(component)
        weights.append({name: path.read_bytes() for name, path in written.items()})
    check(logged, "the log hears of steps", "it heard nothing")
    for numbers in logged:
        finite = all(map(math.isfinite, numbers.values()))
        check(finite, "logged numbers are finite", f"got {dict(numbers)}")
    first, again, other = weights
    moved = [name for name in first if first[name] != again.get(name)]
    check(not moved, "equal seeds write equal weights", f"different: {moved}")
    check(first != other, "another seed writes other weights", "seeds 1 and 2 wrote the same")

    fresh, clause = build(), "`load` gives what `fit` made"
    with check.raises_nothing(clause, str(folder / "0")):
        fresh.load(folder / "0")
    if isinstance(fresh, nn.Module) and isinstance(fitted[0], nn.Module):
        made, read = fitted[0].state_dict(), fresh.state_dict()
        apart = [name for name in made if name not in read or not torch.equal(made[name], read[name])]
        check(not apart, clause, f"different: {apart[:5]}")
