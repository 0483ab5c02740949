"""Proof that pixels reach every row and every trained weight: the clauses, whatever runs the passes.

A clause looks at real passes over a few prompts, blanks or renames what is shown, and says which row reacted
otherwise than it must. A stage that breaks one stops with the clause's name.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NoReturn

import torch
from jaxtyping import Int
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from evidcore.case import Crop, Prompt, TextPart
from evidcore.compute.processes import rng_preserved
from evidcore.errors import RunError
from evidcore.model.parts import part_of
from evidcore.model.processor import VolumeProcessor
from evidcore.prompts.targets import GivenImages

MOVED = 1e-8  # nats: any bit; a blind pass gives exactly 0, and one may see and care little
USUAL = 32.0  # nats at most that a word drawn at random is from what a model expects
LOOKED_AT = 256  # prompts of a stream, in search of those that show a volume
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
        weights = list(model.parameters())
        if is_mixed or {item.dtype for item in weights} & {torch.float16, torch.bfloat16}:
            return cls(nats=0.2, slope=0.7)
        is_rounded = weights[0].is_cuda and torch.backends.cuda.matmul.allow_tf32
        return cls(nats=0.02, slope=0.5) if is_rounded else cls(nats=2e-4, slope=0.05)


def stop(where: str, clause: str, what: str, look_at: str) -> NoReturn:
    """Stop the stage."""
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
    result: dict[int, Prompt] = {}
    seen: set[tuple[Crop, ...]] = set()
    for place, prompt in prompts:
        crops = prompt.crops()
        if crops and crops not in seen and _visible(crops, processor):
            seen.add(crops)
            longer = (TextPart(text="Look well. "), *prompt.parts) if len(result) % 2 else prompt.parts
            result[place] = dataclasses.replace(prompt, parts=longer)
        if len(result) == wanted:
            break
    return result


def _visible(crops: Sequence[Crop], processor: VolumeProcessor) -> list[int]:
    """Return the numbers of the crops that a blank one differs from."""
    images = processor.image_processor
    bank = images.bank
    assert bank is not None  # a model that is trained or asked is connected
    pairs = [[images.handle(crop), images.handle(dataclasses.replace(crop, blank=True))] for crop in crops]
    return [number for number, pair in enumerate(pairs) if not torch.equal(*bank.pixels(pair))]


def with_blank_volumes(prompt: Prompt, processor: VolumeProcessor, number: int) -> Prompt:
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
    return [rng.choice(words) if drawn else item for item, drawn in zip(ids, is_own, strict=True)]


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

    `number` counts the proofs before: of several crops each is blanked in turn.
    """

    def look(places: Sequence[int], shown: Mapping[int, Prompt], seed: int = 0) -> Rows:
        with rng_preserved():
            torch.manual_seed(seed)
            return score(places, shown)

    places = list(prompts)
    baseline, again = look(places, prompts), look(places, prompts, seed=1)
    most: dict[str, float] = {}
    for name, groups in baseline.items():
        noise = max(_apart(mine, theirs) for mine, theirs in zip(groups, again[name], strict=True))
        # numbers far from 0 have fewer digits behind it
        size = max([1.0, *(float(row.abs().mean()) / USUAL for rows in groups for row in rows if len(row))])
        most[name] = 3 * noise + tolerance.nats * size
    _finite(where, baseline, prompts)
    moved = dict.fromkeys(baseline, math.inf)
    for turn, changed in enumerate(places):
        blanked = {**prompts, changed: with_blank_volumes(prompts[changed], processor, number + turn)}
        scores = look(places, blanked)
        _finite(where, scores, blanked)
        for name, rows in scores.items():
            least = _reacted(where, name, baseline[name], rows, prompts, changed, most[name])
            moved[name] = min(moved[name], least)
    for name, other in (("rollout", "policy"), ("old policy", "policy"), ("answer", "likelihood")):
        if name in baseline and other in baseline:
            _agree(where, baseline, name, other, prompts, most[other])
    for place in places:
        others = {place: renamed(prompts[place])}
        for name, rows in look([place], others).items():
            far, prompt_id = _apart(baseline[name][places.index(place)], rows[0]), prompts[place].id
            if far <= most[name]:
                continue
            by_itself = look([place], {place: prompts[place]})[name][0]
            if _apart(by_itself, rows[0]) > tolerance.nats:
                stop(
                    where, "pixels, not names", f"the {name} pass moves prompt {prompt_id!r} by {far:.1e} "
                    "nats a token when the same pixels come under another handle.", "what features are made "
                    "of, and what is kept by handle",
                )  # fmt: skip
            stop(
                where, "row alone", f"in the {name} pass prompt {prompt_id!r} alone and in its batch are "
                f"{far:.1e} nats a token apart.", "padding, positions, and what is shared between rows",
            )  # fmt: skip
    return moved


def _finite(where: str, scores: Rows, prompts: Mapping[int, Prompt]) -> None:
    for name, groups in scores.items():
        for prompt, rows in zip(prompts.values(), groups, strict=True):
            if not all(bool(row.isfinite().all()) for row in rows):
                stop(
                    where, "finite", f"the {name} pass gives prompt {prompt.id!r} log-probabilities that are "
                    "not finite.", "the weights, the learning rate and the precision",
                )  # fmt: skip


def _apart(mine: Sequence[Row], theirs: Sequence[Row]) -> float:
    """Return by how much the rows of a prompt differ, averaged over tokens, in the worst row."""
    far = [
        float((item - other).abs().mean())
        for item, other in zip(mine, theirs, strict=True)
        if len(item) and len(item) == len(other)
    ]
    return math.nan if any(map(math.isnan, far)) else max(far, default=0.0)


def _agree(
    where: str, scores: Rows, name: str, other: str, prompts: Mapping[int, Prompt], most: float
) -> None:
    for prompt, mine, theirs in zip(prompts.values(), scores[name], scores[other], strict=True):
        cut = [row[: len(first)] for row, first in zip(theirs, mine, strict=True)]  # of the first turn
        first = [item[: len(row)] for item, row in zip(mine, cut, strict=True)]
        if not (far := _apart(first, cut)) <= most:
            stop(
                where,
                f"{name} = {other}",
                f"of the same answers to prompt {prompt.id!r}, by the same weights, {name} and {other} "
                f"passes give log-probabilities {far:.1e} nats a token apart (at most {most:.1e}).",
                f"what the {name} pass is given: temperature, positions, images, weights",
            )


def _reacted(
    where: str,
    name: str,
    baseline: Sequence[Sequence[Row]],
    scores: Sequence[Sequence[Row]],
    prompts: Mapping[int, Prompt],
    changed: int,
    most: float,
) -> float:
    """Return by how much the least moved row of a prompt moved whose volume was blanked."""
    least = math.inf
    for place, mine, theirs in zip(prompts, baseline, scores, strict=True):
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
    for place, mine, theirs in zip(prompts, baseline, scores, strict=True):
        far = _apart(mine, theirs)
        if place != changed and not far <= max(most, 0.0):
            stop(
                where, "no other row", f"in the {name} pass prompt {prompts[place].id!r} moves by {far:.1e} "
                f"nats a token when the volume of prompt {prompts[changed].id!r} is blanked.",
                "how images are dealt to rows, and what is shared between rows",
            )  # fmt: skip
    return least


def prove_images_of_rows(
    where: str,
    given: GivenImages,
    ids: Int[Tensor, "row place"],
    mask: Int[Tensor, "row place"],
    images: Int[Tensor, "image handle"] | None,
) -> None:
    """Prove of a pass that trains, from its handles alone, that each row has the images of its own prompt."""
    left = [] if images is None else images.flatten().tolist()
    for number, (row, is_token) in enumerate(zip(ids, mask.bool(), strict=True)):
        known = given.beside(row[is_token].tolist())
        count = len(next(iter(known), ()))
        if tuple(left[:count]) not in known:
            stop(
                where, "own images", f"row {number} of a pass has other images than came with its prompt.",
                "what deals rows and images to passes and processes",
            )  # fmt: skip
        del left[:count]


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

    `objective` computes something of the answers in nats a token, through the training pass, and `backward`
    sends its gradient back. With `slopes` the weights are moved, for a moment; else gradients are only looked
    for.
    """
    for unit in model.modules():  # passes without gradients may leave weights whole; gradients go to shards
        if isinstance(unit, FSDPModule) and any(item.requires_grad for item in unit.parameters()):
            unit.reshard()
    weights = [(name, item) for name, item in model.named_parameters() if item.requires_grad]
    before = [item.grad for _, item in weights]
    for _, item in weights:
        item.grad = None
    try:
        value = objective()
        if not value.requires_grad:
            stop(
                where, "gradient", f"nothing that the stage trains ({', '.join(parts)}) is in the graph of "
                "its loss.", "what cuts the graph: a detach, kept features, or a pass without gradients",
            )  # fmt: skip
        backward(value)
        by_part = {part: [(name, item) for name, item in weights if part_of(name) == part] for part in parts}
        for part, named in by_part.items():
            for name, item in named:
                if item.grad is not None and not bool(item.grad.isfinite().all()):
                    stop(
                        where, "gradient", f"the gradient at {name!r} of the {part} is not finite.",
                        "the precision, and divisions in reach of that weight",
                    )  # fmt: skip
            if not any(item.grad is not None and bool(item.grad.any()) for _, item in named):
                stop(
                    where, "gradient", f"no gradient reaches any of the {part}'s {len(named)} weights, "
                    "though the stage trains it.", f"what cuts the graph between {part} and answers: a "
                    "detach, kept features, or a pass without gradients",
                )  # fmt: skip
        if slopes:
            for part, named in by_part.items():
                _slope(where, part, [item for _, item in named], objective, tolerance)
    finally:
        for (_, item), gradient in zip(weights, before, strict=True):
            item.grad = gradient


@torch.no_grad()
def _slope(
    where: str, part: str, weights: Sequence[Tensor], objective: Callable[[], Tensor], tolerance: Tolerance
) -> None:
    """Move the weights along their gradient, both ways, and see whether the objective follows."""
    gradients = [(item, item.grad.float()) for item in weights if item.grad is not None]
    gradients.sort(key=lambda pair: float(pair[1].norm()), reverse=True)
    gradients = gradients[:WEIGHTS]
    slope = math.sqrt(sum(float(gradient.norm()) ** 2 for _, gradient in gradients))
    size = math.sqrt(sum(float(item.float().norm()) ** 2 for item, _ in gradients))
    originals = [item.clone() for item, _ in gradients]
    along = [gradient / slope for _, gradient in gradients]
    across = [part.flip(0) for part in along]  # less what of it lies along the gradient
    shared = sum(float((item * part).sum()) for item, part in zip(across, along, strict=True))
    across = [item - shared * part for item, part in zip(across, along, strict=True)]

    def moved(way: Sequence[Tensor], length: float) -> float:
        for (item, _), original, part in zip(gradients, originals, way, strict=True):
            item.copy_(original + length * part.to(item.dtype))
        return float(objective())

    value = float(objective())
    noise = abs(float(objective()) - value) + 2e-6 * max(abs(value), 1.0)
    denied: tuple[float, float] | None = None
    for wanted in (5e-5, 2e-4, 2e-3, 2e-2, 0.2):  # nats: smaller is straighter, larger less of a rounding
        longest = min(10 * wanted, max(wanted, 0.02)) * max(size, 1.0)
        step = min(wanted * max(abs(value), 1.0) / slope, longest)
        ends = [moved(along, length) for length in (step, -step, step / 2, -step / 2)]
        # a pass of 16 bits repeats its roundings, and any move draws others
        rounding = abs(moved(across, step) - moved(across, -step))
        for (item, _), original in zip(gradients, originals, strict=True):
            item.copy_(original)
        seen, expected = ends[0] - ends[1], 2 * step * slope
        halves = 2 * (ends[2] - ends[3])
        size_of, bend = max(abs(seen), abs(expected)), abs(seen - halves)
        if size_of > 20 * noise and bend <= 0.25 * size_of:  # else it says nothing
            straight = (4 * halves - seen) / 3  # Richardson's: without what bends with the third power
            if min(abs(seen - expected), abs(straight - expected)) <= tolerance.slope * size_of + 4 * noise:
                return
            if size_of > 20 * rounding and bend <= 0.25 * max(abs(seen), abs(halves)) + 4 * noise:
                denied = denied or (seen, expected)
    if denied is not None:
        seen, expected = denied
        stop(
            where, "slope", f"moving the {part} along its gradient changes the objective by {seen:.1e}, "
            f"where the gradient says {expected:.1e}.", f"what scales, detaches or hooks the gradient of the "
            f"{part}",
        )  # fmt: skip
