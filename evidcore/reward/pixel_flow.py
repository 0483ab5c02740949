"""Proof that pixels reach every row, place and trained weight: the clauses, whatever runs the passes.

A clause looks at real passes over a few prompts, blanks or renames what is shown, and says which row reacted
otherwise than it must. A stage that breaks one stops with the clause's name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from evidcore.case import Crop, Prompt, TextPart, VolumeRef
from evidcore.contracts import EncoderInput, Grid, Patches
from evidcore.errors import RunError
from evidcore.model.bank import FeatureBank
from evidcore.model.parts import part_of
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM

MOVED = 1e-6  # nats; a blind pass gives exactly 0 on a CPU
LOOKED_AT = 256  # prompts of a stream, in search of those that show a volume
SLABS = 8  # along z
FAINT = 1e-3  # of the size of the words' embeddings, or of what the other places do
CROSSED = 1.2  # times what an end does to its own places
WEIGHTS = 8  # matrices of a part along whose gradient it is moved

Row = Tensor  # log-probabilities in nats of an answer's tokens
Rows = Mapping[str, Sequence[Sequence[Row]]]  # by pass, for each prompt one or several answers
Score = Callable[[Sequence[int], Mapping[int, Prompt]], Rows]
"""Gives the rows of prompts, by their places, of which some are shown changed."""


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """By how much equal things may differ in the arithmetic that a stage computes in."""

    nats: float  # of a token's log-probability, on average over a row
    slope: float  # share of a slope

    @classmethod
    def of(cls, model: torch.nn.Module, *, is_mixed: bool = False) -> Tolerance:
        """Return what holds for a model's weights, or for 16-bit passes over 32-bit weights."""
        weight = next(model.parameters())
        if is_mixed or weight.dtype in (torch.float16, torch.bfloat16):
            return cls(nats=0.2, slope=0.7)
        is_rounded = weight.is_cuda and torch.backends.cuda.matmul.allow_tf32
        return cls(nats=0.02, slope=0.5) if is_rounded else cls(nats=2e-4, slope=0.25)


def stop(where: str, clause: str, what: str, look_at: str) -> NoReturn:
    """Stop the stage.

    Raises:
        RunError: always.
    """
    raise RunError(
        f"{where}: pixel-flow proof, clause '{clause}': {what} Training or measuring on would not be about "
        f"the pixels. Look at {look_at}."
    )


def shown_prompts(
    prompts: Iterator[tuple[int, Prompt]], processor: VolumeProcessor, wanted: int
) -> dict[int, Prompt]:
    """Return the first prompts, by their places, that show different volumes which are not air alone.

    Every second one is made longer by a word, so that rows of a batch are padded.
    """
    found: dict[int, Prompt] = {}
    seen: set[tuple[Crop, ...]] = set()
    for place, prompt in prompts:
        crops = prompt.crops()
        if crops and crops not in seen and _visible(crops, processor):
            seen.add(crops)
            longer = (TextPart(text="Look well. "), *prompt.parts) if len(found) % 2 else prompt.parts
            found[place] = dataclasses.replace(prompt, parts=longer)
        if len(found) == wanted:
            break
    return found


def _visible(crops: Sequence[Crop], processor: VolumeProcessor) -> list[int]:
    """Return the numbers of the crops that a blank one differs from."""
    images = processor.image_processor
    bank = _bank(processor)
    found = []
    for number, crop in enumerate(crops):
        pair = [images.handle(crop), images.handle(dataclasses.replace(crop, blank=True))]
        if not torch.equal(*bank.pixels(pair)):
            found.append(number)
    return found


def _bank(processor: VolumeProcessor) -> FeatureBank:
    bank: FeatureBank | None = processor.image_processor.bank
    assert bank is not None  # a model that is trained or asked is connected
    return bank


def blanked(prompt: Prompt, processor: VolumeProcessor, number: int) -> Prompt:
    """Return the prompt with one of its crops air alone: of those that can be seen, the one of `number`."""
    crops = list(prompt.crops())
    visible = _visible(crops, processor)
    place = visible[number % len(visible)]
    crops[place] = dataclasses.replace(crops[place], blank=True)
    return prompt.showing(crops)


def renamed(prompt: Prompt) -> Prompt:
    """Return the prompt over the same pixels under other handles."""
    return prompt.showing([_renamed(crop) for crop in prompt.crops()])


def _renamed(crop: Crop) -> Crop:
    if crop.volume.rescale is None:
        return dataclasses.replace(crop, volume=dataclasses.replace(crop.volume, rescale=(1.0, 0.0)))
    slope, intercept = crop.volume.rescale
    other = (math.nextafter(slope, math.inf), intercept)
    return dataclasses.replace(crop, volume=dataclasses.replace(crop.volume, rescale=other))


def scrambled(ids: Sequence[int], is_own: Sequence[bool], processor: VolumeProcessor, seed: int) -> list[int]:
    """Return tokens with every one that is the model's own replaced by any word.

    Log-probabilities of what a model is sure of are nearly 0 whatever it sees; those of nonsense are not.
    """
    tokenizer = processor.tokenizer
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    words = [number for number in range(len(tokenizer)) if number not in special]
    rng = random.Random(seed)
    return [rng.choice(words) if own else one for one, own in zip(ids, is_own, strict=True)]


def prove_rows(
    where: str,
    prompts: Mapping[int, Prompt],
    processor: VolumeProcessor,
    score: Score,
    tolerance: Tolerance,
    *,
    number: int = 0,
) -> dict[str, float]:
    """Prove that each row sees its own volume and no other's; return by how many nats each pass moved.

    Args:
        where: stage and step.
        prompts: by their places, those that `shown_prompts` gave.
        processor: the model's.
        score: runs the passes; draws otherwise when it is called the second time, and only then.
        tolerance: of the stage's arithmetic.
        number: how many proofs came before: which of several crops is blanked.

    Raises:
        RunError: naming the clause, the row and the pass.
    """
    places = list(prompts)
    own = score(places, prompts)
    noise = _noise(own, score(places, prompts))
    _finite(where, own, prompts)
    moved = dict.fromkeys(own, math.inf)
    for turn, changed in enumerate(places):
        shown = {**prompts, changed: blanked(prompts[changed], processor, number + turn)}
        scores = score(places, shown)
        _finite(where, scores, shown)
        for name, rows in scores.items():
            least = _reacted(where, name, own[name], rows, prompts, changed, tolerance.nats + 3 * noise[name])
            moved[name] = min(moved[name], least)
    for name, other in (("rollout", "policy"), ("old policy", "policy"), ("answer", "likelihood")):
        if name in own and other in own:
            _agree(where, own, name, other, prompts, tolerance.nats + 3 * noise[other])
    for place in places:
        others = {place: renamed(prompts[place])}
        for name, rows in score([place], others).items():
            far = _apart(own[name][places.index(place)], rows[0])
            if not far <= tolerance.nats + 3 * noise[name]:
                again = score([place], {place: prompts[place]})[name][0]
                is_name = _apart(again, rows[0]) > tolerance.nats
                _unequal(where, name, prompts[place], far, is_name=is_name)
    return moved


def _finite(where: str, scores: Rows, prompts: Mapping[int, Prompt]) -> None:
    for name, groups in scores.items():
        for prompt, rows in zip(prompts.values(), groups, strict=True):
            if not all(bool(row.isfinite().all()) for row in rows):
                stop(
                    where, "finite", f"the {name} pass gives prompt {prompt.id!r} log-probabilities that are "
                    "not finite.", "the weights, the learning rate and the precision",
                )  # fmt: skip


def _noise(one: Rows, other: Rows) -> dict[str, float]:
    """Return by how much each pass differs from itself."""
    return {
        name: max(_apart(mine, theirs) for mine, theirs in zip(groups, other[name], strict=True))
        for name, groups in one.items()
    }


def _apart(mine: Sequence[Row], theirs: Sequence[Row]) -> float:
    """Return by how much the rows of a prompt differ, averaged over tokens, in the worst row."""
    far = [
        float((one - other).abs().mean())
        for one, other in zip(mine, theirs, strict=True)
        if len(one) and len(one) == len(other)
    ]
    return math.nan if any(map(math.isnan, far)) else max(far, default=0.0)


def _agree(
    where: str, scores: Rows, name: str, other: str, prompts: Mapping[int, Prompt], most: float
) -> None:
    for prompt, mine, theirs in zip(prompts.values(), scores[name], scores[other], strict=True):
        cut = [row[: len(first)] for row, first in zip(theirs, mine, strict=True)]  # of the first turn
        first = [one[: len(row)] for one, row in zip(mine, cut, strict=True)]
        if not (far := _apart(first, cut)) <= most:
            stop(
                where,
                f"{name} = {other}",
                f"of the same answers to prompt {prompt.id!r}, by the same weights, the {name} and the "
                f"{other} pass give log-probabilities {far:.1e} nats a token apart (at most {most:.1e}).",
                f"what the {name} pass is given: temperature, positions, images, weights",
            )


def _reacted(
    where: str,
    name: str,
    own: Sequence[Sequence[Row]],
    scores: Sequence[Sequence[Row]],
    prompts: Mapping[int, Prompt],
    changed: int,
    most: float,
) -> float:
    """Return by how much the least moved row of a prompt moved whose volume was blanked."""
    least = math.inf
    for place, mine, theirs in zip(prompts, own, scores, strict=True):
        for number, (row, other) in enumerate(zip(mine, theirs, strict=True)):
            if not len(row):
                continue  # nothing is learned from a truncated answer
            moved = float((row - other).abs().max())
            if place == changed:
                least = min(least, moved)
                if not moved > MOVED:
                    stop(
                        where, "own row", f"the {name} pass is blind: answer {number} to prompt "
                        f"{prompts[place].id!r} moves by {moved:.1e} nats when its volume is blanked.",
                        "what was changed in the model, the processor or the trainer: the volume is lost, or "
                        "stands in another row",
                    )  # fmt: skip
    for place, mine, theirs in zip(prompts, own, scores, strict=True):
        far = _apart(mine, theirs)
        if place != changed and not far <= max(most, 0.0):
            stop(
                where, "no other row", f"in the {name} pass prompt {prompts[place].id!r} moves by {far:.1e} "
                f"nats a token when the volume of prompt {prompts[changed].id!r} is blanked.",
                "how images are dealt to rows, and what is shared between rows",
            )  # fmt: skip
    return least


def _unequal(where: str, name: str, prompt: Prompt, far: float, *, is_name: bool) -> NoReturn:
    if is_name:
        stop(
            where, "pixels, not names", f"the {name} pass moves prompt {prompt.id!r} by {far:.1e} nats a "
            "token when the same pixels come under another handle.", "what features are made of, and what "
            "is kept by handle",
        )  # fmt: skip
    stop(
        where, "row alone", f"in the {name} pass prompt {prompt.id!r} alone and in its batch are {far:.1e} "
        "nats a token apart.", "padding, positions, and what is shared between rows",
    )  # fmt: skip


@torch.no_grad()
def prove_images(where: str, model: VolumeVLM, processor: VolumeProcessor, prompt: Prompt) -> None:
    """Prove that each slab of a raw volume reaches its places, as loudly as words.

    The volumes are noise, written as files and read, prepared, encoded and bridged as any other.

    Args:
        where: stage and step.
        model: in the mode, training or evaluation, that is to be proven.
        processor: its processor.
        prompt: whose first crop says how large an encoder's input is, and of which intensity.

    Raises:
        RunError: naming the clause and the slab.
    """
    crop, bank = prompt.crops()[0], _bank(processor)
    size = processor.image_processor.size_zyx(crop)
    with _probes(bank.spec, size, crop.volume.intensity) as probes, _held(bank):
        base, again, *slabs = [_tokens(model, bank, one, size) for one in probes.crops]
        if not all(bool(one.isfinite().all()) for one in (base, *slabs)):
            stop(where, "finite", "image tokens are not finite.", "encoder and bridge")
        size_of = float(torch.stack([(one - base).norm() for one in slabs]).max())
        if not float((again - base).norm()) <= 0.05 * size_of + 1e-4 * float(base.norm()):
            stop(
                where, "pixels, not names", "equal pixels under another handle give other image tokens.",
                "what features are made of",
            )  # fmt: skip
        moves = torch.stack([(one - base).norm(dim=-1) for one in slabs])  # (slab, token)
        _every_token(where, moves)
        _every_slab(where, probes, moves)
        _loud(where, model, base, slabs)
        _in_place(where, model, processor, bank, size, probes, moves)
        _by_modes(where, model, bank, probes.crops[0], size, base, size_of)


@dataclasses.dataclass(frozen=True)
class Probes:
    """Volumes of noise: the first two are equal, each other one differs in one slab."""

    crops: tuple[Crop, ...]
    slabs: tuple[tuple[int, int, int], ...]  # axis, number, of how many


@contextlib.contextmanager
def _probes(spec: EncoderInput, size: Grid, intensity: str) -> Iterator[Probes]:
    rng = np.random.default_rng(0)
    low = min((window[0] for window in spec.windows), default=0.0)
    high = max((window[1] for window in spec.windows), default=1000.0)
    depth = 2 * size[0] if size[0] > 1 else 1
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
                edges = [round(raw.shape[axis] * edge / count) for edge in (slab, slab + 1)]
                held = [slice(None)] * 3
                held[axis] = slice(*edges)
                part = changed[tuple(held)]
                changed[tuple(held)] = rng.permutation(part.ravel()).reshape(part.shape)
            path = Path(folder) / f"probe-{number}.npy"
            np.save(path, changed)
            ref = VolumeRef(
                path=str(path), intensity=intensity, axes="SPL",  # type: ignore[arg-type]
                spacing_mm_zyx=(spacing[0] * size[0] / depth, *spacing[1:]),
                rescale=(1.0, 0.0) if number == 1 else None,
            )  # fmt: skip
            crops.append(Crop(volume=ref))
        yield Probes(tuple(crops), tuple(slabs))


@contextlib.contextmanager
def _held(bank: FeatureBank) -> Iterator[None]:
    """Leave in a bank what was there: files of probes are gone afterwards."""
    known = set(bank.handles())
    try:
        yield
    finally:
        bank.forget(set(bank.handles()) - known)


def _tokens(model: VolumeVLM, bank: FeatureBank, crop: Crop, size: Grid) -> Tensor:
    """Return the image tokens of a crop, (token, width)."""
    handle = torch.tensor([[bank.handle(crop, size)]], device=model.device)
    found: Tensor = model.get_image_features(handle).pooler_output[0].float()
    return found


def _every_slab(where: str, probes: Probes, moves: Tensor) -> None:
    by_slab = moves.norm(dim=-1)
    for (axis, number, count), moved in zip(probes.slabs, by_slab.tolist(), strict=True):
        if not moved > FAINT * float(by_slab.median()) or not float(by_slab.median()) > 0:
            stop(
                where, "every slab", f"slab {number} of {count} along {'zyx'[axis]} of the raw volume does "
                f"not move the image tokens ({moved:.1e}, the median slab {float(by_slab.median()):.1e}).",
                "reading, preparing and encoding: slices or places are dropped",
            )  # fmt: skip


def _every_token(where: str, moves: Tensor) -> None:
    by_token = moves.norm(dim=0)
    still = (by_token <= FAINT * by_token.median()).nonzero().flatten().tolist()
    if still or not float(by_token.median()) > 0:
        stop(
            where, "every token", f"{len(still)} of {len(by_token)} image tokens (first: {still[:1]}) say "
            "the same whatever is shown.", "bridge, and what is done to its tokens",
        )  # fmt: skip


def _loud(where: str, model: VolumeVLM, base: Tensor, slabs: Sequence[Tensor]) -> None:
    words = model.get_input_embeddings().weight
    size = float(words.detach().float().pow(2).mean().sqrt()) if words.numel() else 0.0
    said = statistics.fmean(float((one - base).pow(2).mean().sqrt()) for one in slabs)
    if size and not said > FAINT * size / len(slabs):
        stop(
            where, "as loud as words", f"what a volume shows moves its tokens by {said:.1e}, where a word's "
            f"embedding is {size:.1e} large.", "scale and norms of bridge and encoder",
        )  # fmt: skip


def _in_place(
    where: str,
    model: VolumeVLM,
    processor: VolumeProcessor,
    bank: FeatureBank,
    size: Grid,
    probes: Probes,
    moves: Tensor,
) -> None:
    """The low end of each axis moves the low places, of patches and, where they form a grid, of tokens."""
    vlm = model.model
    is_live = not vlm.encoder_is_frozen

    def patches(number: int) -> Patches:
        handle = bank.handle(probes.crops[number], size)
        [(_, found)] = bank.patches([handle], vlm.encoder, live=is_live)
        return found

    base = patches(0)
    token_grid = vlm.bridge.token_grid(base.grid_zyx)
    for axis in range(3):
        slabs = [number for number, slab in enumerate(probes.slabs) if slab[0] == axis]
        ends = (slabs[0], slabs[-1]) if slabs else ()
        moved = [(patches(one + 2).features - base.features)[0].float().norm(dim=-1) for one in ends]
        _ends(where, "patches", moved, base.grid_zyx, axis)
        if token_grid is not None:
            _ends(where, "image tokens", [moves[one] for one in ends], token_grid, axis)
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
    if features.shape[1] > 1 and torch.allclose(
        vlm._tokens(turned)[0].float(), shown, rtol=0.0, atol=FAINT * float(shown.abs().max())
    ):
        stop(
            where, "places", "patches may change places and the image tokens stay the same.",
            "bridge: it pools places away",
        )  # fmt: skip


def _ends(where: str, what: str, moved: Sequence[Tensor], grid: Grid, axis: int) -> None:
    """The slabs at the two ends of an axis must not move the places at the other end more than their own."""
    if len(moved) < 2 or grid[axis] < 2 or moved[0].numel() != math.prod(grid):
        return
    half = grid[axis] // 2
    layers = [one.reshape(grid).movedim(axis, 0).flatten(1).mean(dim=1) for one in moved]
    low, high = layers
    own = float(low[:half].max() * high[-half:].max())
    other = float(low[-half:].max() * high[:half].max())
    if not other <= CROSSED * own:
        stop(
            where, "orientation", f"the lowest slab along {'zyx'[axis]} moves the {what} at the far end most "
            f"({', '.join(f'{one:.1e}' for one in low.tolist())} by layer).", "axes on the way from file to "
            "tokens: something is flipped or dealt to other places",
        )  # fmt: skip


def _by_modes(
    where: str, model: VolumeVLM, bank: FeatureBank, crop: Crop, size: Grid, base: Tensor, moved: float
) -> None:
    """Training and evaluation see the same; dropout may make a difference that is drawn."""
    drawn = float((_tokens(model, bank, crop, size) - base).norm())
    was = model.training
    model.train(not was)
    far = float((_tokens(model, bank, crop, size) - base).norm())
    model.train(was)
    if not far <= 0.05 * moved + 1e-3 * float(base.norm()) and not drawn > 0:
        stop(
            where, "training = evaluation", "the same volume gives other image tokens in training than in "
            "evaluation.", "what the encoder or the bridge does in training alone",
        )  # fmt: skip


def prove_gradient(
    where: str,
    model: torch.nn.Module,
    parts: Sequence[str],
    objective: Callable[[], Tensor],
    backward: Callable[[Tensor], None],
    tolerance: Tolerance,
    *,
    slopes: bool,
) -> None:
    """Prove that each trained part gets a gradient, and that it is the objective's.

    Args:
        where: stage and step.
        model: whose weights are trained.
        parts: that the stage trains.
        objective: computes something of the answers in nats a token, through the training pass.
        backward: sends its gradient back.
        tolerance: of the stage's arithmetic.
        slopes: whether to move the weights, for a moment, and look; else gradients are only looked for.

    Raises:
        RunError: naming the part.
    """
    weights = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    kept = [one.grad for _, one in weights]
    for _, one in weights:
        one.grad = None
    try:
        value = objective()
        if not value.requires_grad:
            stop(
                where, "gradient", f"nothing that the stage trains ({', '.join(parts)}) is in the graph of "
                "its loss.", "what cuts the graph: a detach, kept features, or a pass without gradients",
            )  # fmt: skip
        backward(value)
        by_part = {part: [(name, one) for name, one in weights if part_of(name) == part] for part in parts}
        for part, own in by_part.items():
            _reached(where, part, own)
        if slopes:
            for part, own in by_part.items():
                _slope(where, part, [one for _, one in own], objective, tolerance)
    finally:
        for (_, one), gradient in zip(weights, kept, strict=True):
            one.grad = gradient


def _reached(where: str, part: str, weights: Sequence[tuple[str, Tensor]]) -> None:
    for name, one in weights:
        if one.grad is not None and not bool(one.grad.isfinite().all()):
            stop(
                where, "gradient", f"the gradient at {name!r} of the {part} is not finite.",
                "the precision, and divisions in reach of that weight",
            )  # fmt: skip
    if not any(one.grad is not None and bool(one.grad.any()) for _, one in weights):
        stop(
            where, "gradient", f"no gradient reaches any of the {part}'s {len(weights)} weights, though the "
            "stage trains it.", f"what cuts the graph between {part} and answers: a detach, kept features, "
            "or a pass without gradients",
        )  # fmt: skip


@torch.no_grad()
def _slope(
    where: str, part: str, weights: Sequence[Tensor], objective: Callable[[], Tensor], tolerance: Tolerance
) -> None:
    """Move the weights along their gradient, both ways, and see whether the objective follows."""
    told = [(one, one.grad.float()) for one in weights if one.grad is not None]
    told.sort(key=lambda pair: float(pair[1].norm()), reverse=True)
    told = told[:WEIGHTS]
    slope = math.sqrt(sum(float(gradient.norm()) ** 2 for _, gradient in told))
    size = math.sqrt(sum(float(one.float().norm()) ** 2 for one, _ in told))
    originals = [one.clone() for one, _ in told]
    value = float(objective())
    noise = abs(float(objective()) - value) + 2e-6 * max(abs(value), 1.0)
    found = []
    for wanted in (2e-3, 2e-2):  # nats: the smaller is straighter, the larger less of a rounding
        step = min(wanted * max(abs(value), 1.0) / slope, 0.02 * max(size, 1.0))
        ends = []
        for sign in (1.0, -1.0):
            for (one, gradient), original in zip(told, originals, strict=True):
                one.copy_(original + (sign * step / slope) * gradient.to(one.dtype))
            ends.append(float(objective()))
        for (one, _), original in zip(told, originals, strict=True):
            one.copy_(original)
        seen, expected = ends[0] - ends[1], 2 * step * slope
        found.append((seen, expected))
        if abs(seen - expected) <= tolerance.slope * max(abs(seen), abs(expected)) + 4 * noise:
            return
    seen, expected = found[0]
    stop(
        where, "slope", f"moving the {part} along its gradient changes the objective by {seen:.1e}, where "
        f"the gradient says {expected:.1e}.", f"what scales, detaches or hooks the gradient of the {part}",
    )  # fmt: skip
