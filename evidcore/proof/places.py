"""Proof that each place of a raw volume reaches the image tokens of its own place."""

import contextlib
import dataclasses
import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from evidcore.case import Crop, Prompt, VolumeRef
from evidcore.contracts import EncoderInput, Grid, Patches
from evidcore.model.bank import FeatureBank
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.proof.flow import stop

SLABS = 8  # along z
FAINT = 1e-3  # of the size of the words' embeddings, or of what the other places do
EXCHANGED = 0.2  # more than this an axis is moved along by slabs of another
ROUNDING = 1e-5  # of the largest value of a token
CROSSED = 1.2  # times what an end does to its own places


@torch.no_grad()
def prove_images(where: str, model: VolumeVLM, processor: VolumeProcessor, prompt: Prompt) -> None:
    """Prove that each slab of a raw volume reaches its places, as loudly as words.

    The volumes are noise, written as files and read, prepared, encoded and bridged as any other.

    The model is in the mode that is to be proven. The prompt's first crop says how large an encoder's input
    is, and of which intensity.
    """
    crop, bank = prompt.crops()[0], processor.image_processor.bank
    assert bank is not None  # a model that is trained or asked is connected
    size = processor.image_processor.size_zyx(crop)
    known = set(bank.handles())
    with probe_volumes(bank.spec, size, crop.volume.intensity) as probes, contextlib.ExitStack() as after:
        after.callback(lambda: bank.forget(set(bank.handles()) - known))  # files of probes are gone then
        base, again, *slabs = [_tokens(model, bank, item, size) for item in probes.crops]
        if not all(bool(item.isfinite().all()) for item in (base, *slabs)):
            stop(where, "finite", "image tokens are not finite.", "encoder and bridge")
        size_of = float(torch.stack([(item - base).norm() for item in slabs]).max())
        if not float((again - base).norm()) <= 0.05 * size_of + 1e-4 * float(base.norm()):
            stop(
                where, "pixels, not names", "equal pixels under another handle give other image tokens.",
                "what features are made of",
            )  # fmt: skip
        moves = torch.stack([(item - base).norm(dim=-1) for item in slabs])  # (slab, token)
        by_token, by_slab = moves.norm(dim=0), moves.norm(dim=-1)
        still = (by_token <= FAINT * by_token.median()).nonzero().flatten().tolist()
        if still or not float(by_token.median()) > 0:
            stop(
                where, "every token", f"{len(still)} of {len(by_token)} image tokens (first: {still[:1]}) "
                "say the same whatever is shown.", "bridge, and what is done to its tokens",
            )  # fmt: skip
        usual = float(by_slab.median())
        for (axis, number, count), moved in zip(probes.slabs, by_slab.tolist(), strict=True):
            if not moved > FAINT * usual or not usual > 0:
                stop(
                    where, "every slab", f"slab {number} of {count} along {'zyx'[axis]} of the raw volume "
                    f"does not move the image tokens ({moved:.1e}, the median slab {usual:.1e}).",
                    "reading, preparing and encoding: slices or places are dropped",
                )  # fmt: skip
        words = model.get_input_embeddings().weight
        loud = float(words.detach().float().pow(2).mean().sqrt()) if words.numel() else 0.0
        moved = statistics.fmean(float((item - base).pow(2).mean().sqrt()) for item in slabs)
        if loud and not moved > FAINT * loud / len(slabs):
            stop(
                where, "as loud as words", f"what a volume shows moves its tokens by {moved:.1e}, where a "
                f"word's embedding is {loud:.1e} large.", "scale and norms of bridge and encoder",
            )  # fmt: skip
        _in_place(where, model, bank, size, probes, moves)
        drawn = float((_tokens(model, bank, probes.crops[0], size) - base).norm())  # by dropout
        was = model.training
        model.train(not was)
        far = float((_tokens(model, bank, probes.crops[0], size) - base).norm())
        model.train(was)
        if not far <= 0.05 * size_of + 1e-3 * float(base.norm()) and not drawn > 0:
            stop(
                where, "training = evaluation", "the same volume gives other image tokens in training than "
                "in evaluation.", "what the encoder or the bridge does in training alone",
            )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Probes:
    """Volumes of noise: the first two are equal, each other one differs in one slab."""

    crops: tuple[Crop, ...]
    slabs: tuple[tuple[int, int, int], ...]  # axis, number, of how many


@contextlib.contextmanager
def probe_volumes(spec: EncoderInput, size: Grid, intensity: str) -> Iterator[Probes]:
    """Write the volumes of the proof, the same each time, for an encoder that is given `size` voxels."""
    rng = np.random.default_rng(0)
    low = min((window[0] for window in spec.windows), default=0.0)
    high = max((window[1] for window in spec.windows), default=1000.0)
    depth = 2 * size[0]  # a volume has two slices at least; of those one is shown where one is wanted
    box = (0, 1, 0, size[1], 0, size[2]) if size[0] == 1 else None
    raw = rng.integers(int(low), max(int(high), int(low) + 2), (depth, *size[1:])).astype(np.int16)
    spacing = spec.spacing_mm_zyx or (1.0, 1.0, 1.0)
    counts = (min(SLABS, size[0]), min(2, size[1]), min(2, size[2]))
    slabs = [
        (axis, number, count) for axis, count in enumerate(counts) if count > 1 for number in range(count)
    ]
    with tempfile.TemporaryDirectory() as folder:
        crops = []
        for number in range(len(slabs) + 2):
            changed = raw.copy()
            if number >= 2:
                axis, slab, count = slabs[number - 2]
                part = np.array_split(changed, count, axis)[slab]  # a view
                part[:] = rng.permutation(part.ravel()).reshape(part.shape)
            path = Path(folder) / f"probe-{number}.npy"
            np.save(path, changed)
            ref = VolumeRef(
                path=str(path), intensity=intensity, axes="SPL",  # type: ignore[arg-type]
                spacing_mm_zyx=(spacing[0] * size[0] / depth, *spacing[1:]),
                rescale=(1.0, 0.0) if number == 1 else None,
            )  # fmt: skip
            crops.append(Crop(volume=ref, box_zyx=box))
        yield Probes(tuple(crops), tuple(slabs))


def _tokens(model: VolumeVLM, bank: FeatureBank, crop: Crop, size: Grid) -> Tensor:
    handle = torch.tensor([[bank.handle(crop, size)]], device=model.device)
    return torch.as_tensor(model.get_image_features(handle).pooler_output[0]).float()


def _in_place(
    where: str, model: VolumeVLM, bank: FeatureBank, size: Grid, probes: Probes, moves: Tensor
) -> None:
    """The low end of each axis moves the low places, of patches and, where they form a grid, of tokens."""
    vlm = model.model
    is_live = not vlm.encoder_is_frozen

    def patches(number: int) -> Patches:
        handle = bank.handle(probes.crops[number], size)
        [(_, result)] = bank.patches([handle], vlm.encoder, live=is_live)
        return result

    base = patches(0)
    token_grid = vlm.bridge.token_grid(base.grid_zyx)
    for axis in range(3):
        slabs = [number for number, slab in enumerate(probes.slabs) if slab[0] == axis]
        ends = (slabs[0], slabs[-1]) if slabs else ()
        moved = [(patches(item + 2).features - base.features)[0].float().norm(dim=-1) for item in ends]
        _ends(where, "patches", moved, base.grid_zyx, axis)
        if token_grid is not None:
            _ends(where, "image tokens", [moves[item] for item in ends], token_grid, axis)
    shown = _tokens(model, bank, probes.crops[0], size)
    weight = next(vlm.bridge.parameters(), base.features)
    features = base.features.to(weight.dtype)
    straight = vlm.bridge(Patches(features.contiguous(), base.grid_zyx, base.centres_mm))[0].float()
    if not torch.allclose(shown, straight, rtol=0.05, atol=0.02 * float(straight.abs().max())):
        stop(
            where, "places", "the image tokens are not those that the bridge makes of the encoder's patches, "
            "in their order.", "what stands between bridge and language model",
        )  # fmt: skip
    turned = Patches(features.flip(1).contiguous(), base.grid_zyx, base.centres_mm)
    apart = float((vlm._tokens(turned)[0].float() - shown).abs().max())
    spread = float((shown - shown.mean(dim=0)).abs().max())  # small beside what all tokens share, in noise
    if features.shape[1] > 1 and apart <= max(FAINT * spread, ROUNDING * float(shown.abs().max())):
        stop(
            where, "places", "patches may change places and the image tokens stay the same.",
            "bridge: it pools places away",
        )  # fmt: skip


def _ends(where: str, what: str, moved: Sequence[Tensor], grid: Grid, axis: int) -> None:
    """The slabs at the two ends of an axis must not move the places at the other end more than their own."""
    if len(moved) < 2 or grid[axis] < 2 or moved[0].numel() != math.prod(grid):
        return
    half = grid[axis] // 2
    layers = [layer.reshape(grid).movedim(axis, 0).flatten(1).mean(dim=1) for layer in moved]
    low, high = layers
    same = float(low[:half].max() * high[-half:].max())
    other = float(low[-half:].max() * high[:half].max())
    if not other <= CROSSED * same:
        stop(
            where, "orientation", f"the lowest slab along {'zyx'[axis]} moves the {what} at the far end most "
            f"({', '.join(f'{far:.1e}' for far in low.tolist())} by layer).", "axes on the way from file to "
            "tokens: something is flipped or dealt to other places",
        )  # fmt: skip
    along = [_tilt(moved, grid, other) for other in range(3)]
    largest = max(range(3), key=along.__getitem__)
    if largest != axis and along[largest] > CROSSED * along[axis] + EXCHANGED:
        stop(
            where, "orientation", f"slabs along {'zyx'[axis]} move the {what} along {'zyx'[largest]}.",
            "axes on the way from file to tokens: two are exchanged",
        )  # fmt: skip


def _tilt(moved: Sequence[Tensor], grid: Grid, axis: int) -> float:
    """Return how much more the two ends of an axis differ for one slab than for the other, of their mean."""
    half, (low, high) = grid[axis] // 2, (item.reshape(grid).movedim(axis, 0) for item in moved)
    if not half:
        return 0.0
    low, high = low / low.mean(), high / high.mean()
    return abs(float(low[:half].mean() - low[-half:].mean() - high[:half].mean() + high[-half:].mean()))
