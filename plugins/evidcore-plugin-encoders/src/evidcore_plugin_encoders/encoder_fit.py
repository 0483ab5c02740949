"""Train a volume encoder on what is known about cases.

Order of events: every volume, label and mask is read once; then a fixed number of steps over shuffled cases,
each on the sum of the asked objectives; then the frozen features are probed linearly on validation cases,
for what is there and on which side.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn

from evidcore.case import Case
from evidcore.compute.clock import Clock, clock_for
from evidcore.compute.learning_rate import share_of_peak
from evidcore.compute.logistic import Logistic, roc_auc
from evidcore.contracts import Encoder, FitLog
from evidcore.errors import DataError, did_you_mean
from evidcore_plugin_encoders.encoder_targets import Targets, finding_names, read_targets
from evidcore_plugin_encoders.objectives import HALVES, OBJECTIVES, pooled

PROBE_CASES = 1000  # of the training cases; enough for a logistic regression on two values per feature
LOG_EVERY_STEPS = 10
TELL_EVERY_S = 10.0  # how often the reading of cases is told


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderFit:
    """How an encoder is trained.

    Args:
        steps: optimiser updates.
        learning_rate: at its peak, after a short warm-up; falls to 0 along a cosine.
        cases_per_step: cases per update.
        supervision: the objectives, added up. "contrastive" matches volumes and reports (CLIP; Med3D-R1's
            way); "labels" asks for each finding and its side; "zones" for findings by height and side;
            "masks" for findings by patch. The last two need masks.
        structures: masks of what is no finding, as organs, that "masks" asks for by patch too.
        shift_voxels: training volumes are shifted by up to this many voxels along y and x.
    """

    steps: Annotated[int, Ge(1)] = 1000
    learning_rate: Annotated[float, Gt(0)] = 3e-3
    cases_per_step: Annotated[int, Ge(2)] = 16
    supervision: tuple[Literal["contrastive", "labels", "zones", "masks"], ...] = ("labels", "zones", "masks")
    structures: tuple[str, ...] = ()
    shift_voxels: Annotated[int, Ge(0), Le(16)] = 2


def fit_encoder(
    encoder: Encoder,
    train: Sequence[Case],
    validation: Sequence[Case],
    folder: Path,
    seed: int,
    log: FitLog,
    options: EncoderFit,
) -> None:
    """Train `encoder` in place, starting from its present weights.

    Args:
        encoder: what is trained.
        train: cases to learn from.
        validation: cases for the figures in `fit.json`; nothing is learned from them.
        folder: where `weights.safetensors` and `fit.json` go.
        seed: decides initial heads, order and shifts.
        log: takes the figures of a step.
        options: how it is trained.

    Raises:
        DataError: if there are fewer training cases than one step takes, or they lack what is asked for.
    """
    supervision, structures = options.supervision, options.structures
    if len(train) < options.cases_per_step:
        raise DataError(
            f"encoder: {len(train)} training cases, but a step takes "
            f"cases_per_step = {options.cases_per_step}. "
            f"Give more cases or take fewer per step."
        )
    if not supervision:
        raise DataError("encoder: supervision is empty; name at least one of " + ", ".join(OBJECTIVES) + ".")
    silent = [case.id for case in train if not (case.report and case.report.text)]
    if "contrastive" in supervision and silent:
        raise DataError(
            f"encoder: contrastive supervision needs reports, and {len(silent)} of {len(train)} cases have "
            f"none, the first is {silent[0]}. Leave them out, or train by other supervision."
        )
    names = finding_names(train)
    if structures and "masks" not in supervision:
        raise DataError('encoder: structures are asked for by supervision = ["masks"], which is not there.')
    _refuse_unmasked(structures, names, train)
    masks = bool({"zones", "masks"} & set(supervision))
    clock = clock_for(next(encoder.parameters()).device)
    with clock.part("data"):
        known = read_targets(train, encoder, names, masks=masks, structures=structures, told=_telling(log))
        held_out = read_targets(validation, encoder, names, masks=False, structures=structures)
    device = next(encoder.parameters()).device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        grid = encoder.grid(encoder.input.size_zyx)
        heads = nn.ModuleDict({
            name: OBJECTIVES[name][0](encoder.width, grid, len(known.names)) for name in supervision
        }).to(device)
        _train(encoder, heads, known, seed, log, clock, options)
    auc, right_side = probe_auc(encoder, known, held_out), side_accuracy(encoder, known, held_out)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.contiguous() for name, value in encoder.state_dict().items()}
    save_file(weights, folder / "weights.safetensors")
    figures = {
        "cases": len(train),
        "steps": options.steps,
        "supervision": list(supervision),
        "validation_cases": len(validation),
        "validation_probe_auc": auc,
        "validation_side_accuracy": right_side,
    }
    (folder / "fit.json").write_text(json.dumps(figures, indent=2), encoding="utf-8")


def _refuse_unmasked(structures: Sequence[str], findings: Sequence[str], cases: Sequence[Case]) -> None:
    masked = {name for case in cases for name in case.masks}
    for name in structures:
        if name in findings:
            raise DataError(
                f"encoder: structures names {name!r}, which is a finding and is asked for anyway."
            )
        if name not in masked:
            raise DataError(
                f"encoder: structures names {name!r}, of which no case has a mask."
                f"{did_you_mean(name, masked)} Masks there are: {', '.join(sorted(masked)) or 'none'}."
            )


def _telling(log: FitLog) -> Callable[[int, int], None]:
    """Return what logs, now and then, how many cases are read."""
    last_s = time.monotonic()

    def tell(done: int, count: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= TELL_EVERY_S:
            last_s = time.monotonic()
            log({"step": 0, "cases_read": done, "cases_to_read": count})

    return tell


def _train(
    encoder: Encoder,
    heads: nn.ModuleDict,
    known: Targets,
    seed: int,
    log: FitLog,
    clock: Clock,
    options: EncoderFit,
) -> None:
    steps, shift_voxels = options.steps, options.shift_voxels
    device = next(encoder.parameters()).device
    parameters = [*encoder.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=options.learning_rate, weight_decay=0.02)
    if all(weight.ndim != 4 for weight in encoder.parameters()):  # 2D convolutions have no such layout
        encoder.to(memory_format=torch.channels_last_3d)
    encoder.train()
    heads.train()
    order = torch.Generator().manual_seed(seed)
    for step, rows in enumerate(_batches(len(known.reports), options.cases_per_step, steps, order)):
        learning_rate = options.learning_rate * share_of_peak(step, steps)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        with clock.part("data"):
            batch = known.batch(rows, device)
            shift = torch.randint(-shift_voxels, shift_voxels + 1, (2,), generator=order).tolist()
            # Masks stay where they are: a shift by a quarter of a patch hardly changes which patches show a
            # sign.
            pixels = torch.roll(batch.pixels(), shift, dims=(3, 4))
        with clock.part("forward_backward"):
            features = encoder(pixels).features
            losses = {name: OBJECTIVES[name][1] * head(features, batch) for name, head in heads.items()}
            loss = torch.stack(list(losses.values())).sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
        with clock.part("optimizer"):
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        if step % LOG_EVERY_STEPS == 0 or step == steps - 1:
            parts = {f"loss_{name}": value.item() for name, value in losses.items()}
            log({
                "step": step,
                "loss": loss.item(),
                "learning_rate": learning_rate,
                **parts,
                **clock.lap(),
            })
    encoder.eval()


def _batches(cases: int, per_step: int, steps: int, order: torch.Generator) -> Iterator[Int[Tensor, " case"]]:
    """Yield `steps` sets of rows; every case comes once before any comes again, odd ones out are left."""
    done = 0
    while True:
        for rows in torch.split(torch.randperm(cases, generator=order), per_step):
            if len(rows) == per_step:
                yield rows
                done += 1
                if done == steps:
                    return


def encode(encoder: Encoder, known: Targets, rows: int) -> Iterator[Float[Tensor, "case patch width"]]:
    """Yield the frozen features of the first `rows` cases, some at a time."""
    device = next(encoder.parameters()).device
    encoder.eval()
    for part in torch.split(torch.arange(rows), 32):
        with torch.no_grad():
            yield encoder(known.batch(part, device).pixels()).features.float().cpu()


def side_accuracy(encoder: Encoder, known: Targets, held_out: Targets) -> dict[str, float | None]:
    """Return how often a linear probe of the body's halves says on which side a finding lies.

    Asked are validation cases with the finding in one half; the half that looks more like it is the answer,
    so chance is 0.5. None where no such case is there, or none to learn from. The probe is a logistic
    regression on maximum and mean of the frozen features in a half, fitted on training cases.
    """
    rows = min(PROBE_CASES, len(known.reports))
    learn_from, asked = known.sides[:rows], held_out.sides
    one_sided = {
        index: ((learn_from[:, :, index] >= 0).all(1), (asked[:, :, index].clamp(min=0).sum(1) == 1))
        for index in range(asked.shape[2])
    }
    wanted = [index for index, (told, held) in one_sided.items() if told.any() and held.any()]
    found: dict[str, float | None] = dict.fromkeys(known.names[: asked.shape[2]])
    if not wanted:
        return found
    grid = encoder.grid(encoder.input.size_zyx)
    seen, unseen = (
        torch.cat([pooled(part, grid, halves=HALVES) for part in encode(encoder, some, count)]).numpy()
        for some, count in ((known, rows), (held_out, len(held_out.reports)))
    )
    for index in wanted:
        told, held = (mask.numpy() for mask in one_sided[index])
        truth = learn_from[:, :, index].numpy()[told].reshape(-1)
        if len(set(truth)) < 2:
            continue
        probe = Logistic(seen[told].reshape(len(truth), -1), truth.astype(np.int64), strength=0.1)
        halves = unseen[held]
        odds = probe.log_odds(halves.reshape(-1, halves.shape[2])).reshape(-1, HALVES)
        where = asked[:, :, index].numpy()[held].argmax(1)
        found[known.names[index]] = float((odds.argmax(1) == where).mean())
    return found


def probe_auc(encoder: Encoder, known: Targets, held_out: Targets) -> dict[str, float | None]:
    """Return the area under the ROC curve of a linear probe per finding; None where a class is missing.

    The probe is a logistic regression on maximum and mean of the frozen features, fitted on training cases.
    """
    if not len(held_out.reports):
        return dict.fromkeys(known.names)
    grid = encoder.grid(encoder.input.size_zyx)
    rows = min(PROBE_CASES, len(known.reports))
    seen = torch.cat([pooled(part, grid)[:, 0] for part in encode(encoder, known, rows)]).numpy()
    unseen = encode(encoder, held_out, len(held_out.reports))
    held = torch.cat([pooled(part, grid)[:, 0] for part in unseen]).numpy()
    found: dict[str, float | None] = {}
    for index, name in enumerate(known.names):
        truth, asked = known.findings[:rows, index].numpy(), held_out.findings[:, index].numpy()
        learn, judge = truth >= 0, asked >= 0
        if len(set(truth[learn])) < 2 or len(set(asked[judge])) < 2:
            found[name] = None
            continue
        probe = Logistic(seen[learn], (truth[learn] > 0).astype(np.int64), strength=0.1)
        found[name] = roc_auc((asked[judge] > 0).astype(np.int64), probe.log_odds(held[judge]))
    return found
