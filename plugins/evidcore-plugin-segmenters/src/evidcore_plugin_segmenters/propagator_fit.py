"""Train a slice-by-slice propagator on the masks of cases.

Order of events: every object is cut out once, around a jittered box on one of its larger slices; then a fixed
number of steps over chains of slices; then the Dice of validation objects from their tight boxes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Float, UInt8
from safetensors.torch import save_model
from torch import Tensor, nn

from evidcore.api import Case, DataError, Segmenter, read_mask
from evidcore.compute.loading import share_of_peak
from evidcore.contracts import FitData
from evidcore.data import Mask, Volume, volume_cache
from evidcore.data.masks import dice
from evidcore_plugin_segmenters.propagation import Frame, Windows, inputs, shown
from evidcore_plugin_segmenters.regions import moved, parts, tight_box

if TYPE_CHECKING:
    from evidcore_plugin_segmenters.slice_propagator import SlicePropagator

LOG_EVERY_STEPS = 10
LARGE = 0.5  # of an object's largest area: slices on which it may be prompted
LEAST_VOXELS = 8  # of an object
BEYOND = 3  # slices past an object's ends that are learned from
FROM_BOX = 0.5  # of the chains; the others start from the true mask of a slice
VALIDATION_OBJECTS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """One object in its square, slice by slice."""

    images: UInt8[Tensor, "slice window y x"]  # -1..1 as 0..255
    masks: UInt8[Tensor, "slice y x"]  # shares of voxels as 0..255
    box: Float[Tensor, "y x"]
    key: int  # the slice that the box lies on

    def image(self, place: int) -> Float[Tensor, "window y x"]:
        """Return a slice as the network sees it."""
        return self.images[place].float().mul_(2 / 255).sub_(1)

    def mask(self, place: int) -> Float[Tensor, "y x"]:
        """Return a slice's mask, shares of voxels."""
        return self.masks[place].float().div_(255)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PropagatorFit:
    """How the network is trained.

    Args:
        steps: optimiser updates.
        learning_rate: at its peak, after a short warm-up; falls to 0 along a cosine.
        objects_per_step: objects per update, one chain each.
        most_objects: more are not read; which, is drawn.
        masks: names of the masks to learn; empty: all.
        chain: slices of a chain.
        jitter: boxes are moved by up to this share of their size, one draw an object.
    """

    steps: Annotated[int, Ge(1)] = 400
    learning_rate: Annotated[float, Gt(0)] = 1e-2
    objects_per_step: Annotated[int, Ge(1)] = 8
    most_objects: Annotated[int, Ge(1)] = 512
    masks: tuple[str, ...] = ()
    chain: Annotated[int, Ge(2), Le(16)] = 4
    jitter: Annotated[float, Ge(0), Le(0.5)] = 0.1


def fit_propagator(segmenter: SlicePropagator, given: FitData, options: PropagatorFit) -> None:
    """Train `segmenter` in place; see `SlicePropagator.fit`.

    Raises:
        DataError: if no training case has such a mask, or a file cannot be used; names it and the case.
    """
    rng = np.random.default_rng(given.seed)
    named = _named(given.train, options.masks)
    if not named:
        wanted = f"masks called {', '.join(options.masks)}" if options.masks else "masks"
        raise DataError(
            f"slice-propagator: {wanted} are needed, and none of the {len(given.train)} training cases has "
            f"any. Give a data set with masks, or take the fit stage out."
        )
    some = [named[place] for place in rng.permutation(len(named))[: options.most_objects]]
    objects: list[Known] = []
    for case, name in some:
        for volume, part in _objects(case, name):
            objects.append(_cut_out(volume, part, segmenter.size, segmenter.windows, options.jitter, rng))
    if not objects:
        raise DataError(
            f"slice-propagator: all {len(some)} masks that were read are empty. Look at them with "
            f"`evid data check`."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(given.seed)
        network = segmenter.blank_network()
        _train(network, objects, rng, given, options)
    segmenter.network = network.eval()
    given.folder.mkdir(parents=True, exist_ok=True)
    save_model(network, str(given.folder / "weights.safetensors"))
    result = _validation_dice(segmenter, given.validation, options.masks)
    figures = {
        "cases": len({case.id for case, _ in some}),
        "objects": len(objects),
        "steps": options.steps,
        "validation_objects": len(result),
        "validation_dice": float(np.mean(result)) if result else None,
    }
    (given.folder / "fit.json").write_text(json.dumps(figures, indent=2), encoding="utf-8")


def _objects(case: Case, name: str) -> Iterator[tuple[Volume, Mask]]:
    """Yield a volume and each object of a mask, shape (z, y, x)."""
    try:
        volume = volume_cache.read(case.volumes[0])
        mask = read_mask(case.masks[name], like=volume)
    except DataError as cause:
        if case.id in str(cause):
            raise
        raise DataError(f"{cause} (case {case.id!r})") from cause
    for part in parts(mask, LEAST_VOXELS):
        yield volume, part


def _named(cases: Sequence[Case], masks: Sequence[str]) -> list[tuple[Case, str]]:
    return [
        (case, name) for case in cases if case.volumes for name in case.masks if not masks or name in masks
    ]


def _cut_out(
    volume: Volume, part: Mask, size: int, windows: Windows, jitter: float, rng: np.random.Generator
) -> Known:
    areas = part.sum(axis=(1, 2))
    z = int(rng.choice(np.flatnonzero(areas >= LARGE * areas.max())))
    box = moved(tight_box(part[z], z), rng.uniform(-jitter, jitter, 2).tolist(), part.shape[1:])
    _, dy, dx = volume.spacing_mm_zyx
    frame = Frame.around(box, (dy, dx), size)
    held = np.flatnonzero(areas)
    first, last = max(0, int(held[0]) - BEYOND), min(len(part), int(held[-1]) + 1 + BEYOND)
    images = torch.stack([shown(volume, index, frame, windows) for index in range(first, last)])
    masks = torch.stack([frame.cut_mask(part[index]) for index in range(first, last)])
    inside = np.zeros(part.shape[1:], dtype=np.float32)
    inside[box.y0 : box.y1, box.x0 : box.x1] = 1.0
    return Known(
        images=images.add_(1).mul_(127.5).round_().to(torch.uint8),
        masks=masks.mul_(255).round_().to(torch.uint8),
        box=frame.cut_mask(inside),
        key=z - first,
    )


def _train(
    network: nn.Module,
    objects: Sequence[Known],
    rng: np.random.Generator,
    given: FitData,
    options: PropagatorFit,
) -> None:
    from monai.losses import DiceCELoss

    measure = DiceCELoss(sigmoid=True, batch=True)  # over the batch: a slice past the end holds no object
    optimizer = torch.optim.AdamW(network.parameters(), lr=options.learning_rate, weight_decay=0.01)
    network.train()
    for step in range(options.steps):
        rate = options.learning_rate * share_of_peak(step, options.steps)
        optimizer.param_groups[0]["lr"] = rate
        chosen = [objects[place] for place in rng.integers(len(objects), size=options.objects_per_step)]
        walks = [_walk(known, options.chain, rng) for known in chosen]
        before: list[Tensor] = [
            known.mask(places[0]) for known, (_, places) in zip(chosen, walks, strict=True)
        ]
        losses = []
        for number in range(1, options.chain):
            rows, targets = [], []
            for place, (known, (from_box, places)) in enumerate(zip(chosen, walks, strict=True)):
                now, last = known.image(places[number]), known.image(places[number - 1])
                is_first = from_box and number == 1
                rows.append(
                    inputs(now, last, None if is_first else before[place], known.box if is_first else None)
                )
                targets.append(known.mask(places[number]) >= 0.5)
            logits = network(torch.stack(rows))
            losses.append(measure(logits, torch.stack(targets)[:, None].float()))
            before = list(torch.sigmoid(logits.detach())[:, 0])
        loss = torch.stack(losses).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if step % LOG_EVERY_STEPS == 0 or step == options.steps - 1:
            given.log({"step": step, "loss": loss.item(), "learning_rate": rate})


def _walk(known: Known, chain: int, rng: np.random.Generator) -> tuple[bool, list[int]]:
    """Return whether a chain starts with the box, and its slices; the first is the one before it starts.

    A chain with the box starts on the box's slice, which is also the one before; a chain that would leave the
    stack stays on its last slice.
    """
    way = int(rng.choice((-1, 1)))
    last = len(known.masks) - 1
    if rng.random() < FROM_BOX:
        places = [known.key, *(known.key + way * step for step in range(chain - 1))]
        return True, [min(max(place, 0), last) for place in places]
    start = int(rng.choice(np.flatnonzero(known.masks.flatten(1).amax(1).numpy())))
    return False, [min(max(start + way * step, 0), last) for step in range(chain)]


def _validation_dice(
    segmenter: SlicePropagator, validation: Sequence[Case], masks: Sequence[str]
) -> list[float]:
    """Return the Dice of validation objects from their tight boxes on the largest slice."""
    result: list[float] = []
    for case, name in _named(validation, masks):
        for _, part in _objects(case, name):
            if len(result) == VALIDATION_OBJECTS:
                return result
            z = int(part.sum(axis=(1, 2)).argmax())
            mask = segmenter.session(case.volumes[0]).mask([Segmenter.BoxPrompt(box=tight_box(part[z], z))])
            result.append(dice(mask, part))
    return result
