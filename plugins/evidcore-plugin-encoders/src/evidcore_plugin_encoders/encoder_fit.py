"""Train a volume encoder on what is known about cases.

Order of events: every volume, label and mask is read once; then a fixed number of steps over shuffled cases,
each on the sum of the asked objectives; then the frozen features are probed linearly on validation cases,
for the side of each finding. (Stage `linear-probe` tells what is there.)
"""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn

from evidcore.api import DataError, Encoder, View
from evidcore.compute.clock import Clock, clock_for
from evidcore.compute.loading import share_of_peak
from evidcore.contracts import FitData
from evidcore.errors import did_you_mean
from evidcore.evaluate.reference_lines import logistic
from evidcore_plugin_encoders.encoder_targets import Targets, finding_names, read_targets
from evidcore_plugin_encoders.objectives import HALVES, OBJECTIVES

PROBE_CASES = 1000  # of the training cases; enough for a logistic regression on two values per feature
PROBE_PATCHES = 24  # of each case, beside those with a finding
LOG_EVERY_STEPS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderFit:
    """How an encoder is trained.

    Args:
        steps: optimiser updates.
        learning_rate: at its peak, after a short warm-up; falls to 0 along a cosine.
        cases_per_step: cases per update.
        supervision: the objectives, added up. "contrastive" matches volumes and reports (CLIP; Med3D-R1's
            way); "labels" asks for each finding and its side; "zones" for findings by height and side;
            "masks" for findings by patch; "voxels" for the voxels that show a finding among all of a case's,
            of an encoder with maps at full resolution. The last three need masks.
        structures: masks of what is no finding, as organs, that "masks" asks for too.
        shift_voxels: training volumes are shifted by up to this many voxels along y and x.
        view: draws what is trained on, as `model.view` of a recipe that shows pictures does; left out,
            volumes are prepared whole. Supervision is then "labels" or "contrastive": masks lie in volumes.
    """

    steps: Annotated[int, Ge(1)] = 1000
    learning_rate: Annotated[float, Gt(0)] = 3e-3
    cases_per_step: Annotated[int, Ge(2)] = 16
    supervision: tuple[Literal["contrastive", "labels", "zones", "masks", "voxels"], ...] = (
        "labels",
        "zones",
        "masks",
    )
    structures: tuple[str, ...] = ()
    shift_voxels: Annotated[int, Ge(0), Le(16)] = 2
    view: View | None = None


def fit_encoder(encoder: Encoder, given: FitData, options: EncoderFit) -> None:
    """Train `encoder` in place, starting from its present weights.

    Nothing is learned from validation cases: they give the figures in `fit.json`, which goes into `folder`
    beside `weights.safetensors`.

    Raises:
        DataError: if there are fewer training cases than one step takes, or they lack what is asked for.
    """
    train, supervision, structures = given.train, options.supervision, options.structures
    if len(train) < options.cases_per_step:
        raise DataError(
            f"encoder: {len(train)} training cases, but a step takes cases_per_step = "
            f"{options.cases_per_step}. Give more cases or take fewer per step."
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
    masked = {name for case in train for name in case.masks}
    for name in structures:
        if name in names:
            raise DataError(
                f"encoder: structures names {name!r}, which is a finding and is asked for anyway."
            )
        if name not in masked:
            raise DataError(
                f"encoder: structures names {name!r}, of which no case has a mask."
                f"{did_you_mean(name, masked)} Masks there are: {', '.join(sorted(masked)) or 'none'}."
            )
    masks = any(OBJECTIVES[name].needs_masks for name in supervision)
    if options.view is not None and masks:
        raise DataError(
            f"encoder: supervision = {list(supervision)} compares masks with whole volumes, and view draws "
            f'pictures. Use supervision = ["labels"] or ["contrastive"], or leave view out.'
        )
    voxels = any(OBJECTIVES[name].of_voxels for name in supervision)
    if voxels and not _fine_channels(encoder):
        raise DataError(
            'encoder: supervision = ["voxels"] asks maps at full resolution, and this encoder makes none. '
            "Give vit3d fine_channels, or leave it out."
        )
    device = next(encoder.parameters()).device
    clock = clock_for(device)
    with clock.part("data"):
        asked: dict[str, Any] = {"structures": structures, "view": options.view}
        known = read_targets(train, encoder, names, masks=masks, voxels=voxels, **asked)
        held_out = read_targets(given.validation, encoder, names, masks=False, **asked)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(given.seed)
        grid = encoder.grid(known.size_zyx)
        by_patch = (encoder.width, grid, len(known.names))
        by_voxel = (_fine_channels(encoder), grid, len(names))
        heads = nn.ModuleDict({
            name: OBJECTIVES[name](*(by_voxel if OBJECTIVES[name].of_voxels else by_patch))
            for name in supervision
        }).to(device)
        _train(encoder, heads, known, given, clock, options)
    sides = side_accuracy(encoder, known, held_out)
    given.folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.contiguous() for name, value in encoder.state_dict().items()}
    save_file(weights, given.folder / "weights.safetensors")
    counts = {"cases": len(train), "steps": options.steps, "validation_cases": len(given.validation)}
    figures = {**counts, "supervision": list(supervision), "validation_side_accuracy": sides}
    (given.folder / "fit.json").write_text(json.dumps(figures, indent=2), encoding="utf-8")


def _train(
    encoder: Encoder, heads: nn.ModuleDict, known: Targets, given: FitData, clock: Clock, options: EncoderFit
) -> None:
    steps, shift_voxels = options.steps, options.shift_voxels
    grid = encoder.grid(known.size_zyx)
    device = next(encoder.parameters()).device
    parameters = [*encoder.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=options.learning_rate, weight_decay=0.02)
    if all(weight.ndim != 4 for weight in encoder.parameters()):  # 2D convolutions have no such layout
        encoder.to(memory_format=torch.channels_last_3d)
    encoder.train()
    heads.train()
    order = torch.Generator().manual_seed(given.seed)
    for step, rows in enumerate(_batches(len(known.reports), options.cases_per_step, steps, order)):
        learning_rate = options.learning_rate * share_of_peak(step, steps)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        with clock.part("data"):
            y, x = torch.randint(-shift_voxels, shift_voxels + 1, (2,), generator=order).tolist()
            batch = known.batch(rows, device).shifted((y, x), grid)
        with clock.part("forward_backward"):
            voxels: Tensor | None = None  # features of these, (case, voxel, channel), where targets are known
            if batch.voxels.numel() and isinstance(encoder, FineMaps):
                patches, fine = encoder.maps(batch.pixels())
                voxels = fine.flatten(2).transpose(1, 2)
            else:
                patches = encoder(batch.pixels()).features
            losses = {
                name: OBJECTIVES[name].weight * head(voxels if OBJECTIVES[name].of_voxels else patches, batch)
                for name, head in heads.items()
            }
            loss = torch.stack(list(losses.values())).sum()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
        with clock.part("optimizer"):
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        if step % LOG_EVERY_STEPS == 0 or step == steps - 1:
            parts = {f"loss_{name}": value.item() for name, value in losses.items()}
            rates = {"step": step, "loss": loss.item(), "learning_rate": learning_rate}
            given.log({**rates, **parts, **clock.lap()})
    encoder.eval()


@runtime_checkable
class FineMaps(Protocol):
    """An encoder that has features of voxels too."""

    fine_channels: int  # 0: it has none

    def maps(self, volumes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of patches, (case, patch, width), and of voxels, (case, channel, z, y, x)."""


def _fine_channels(encoder: Encoder) -> int:
    return encoder.fine_channels if isinstance(encoder, FineMaps) else 0


def _batches(cases: int, per_step: int, steps: int, order: torch.Generator) -> Iterator[Int[Tensor, " case"]]:
    """Yield `steps` sets of rows; every case comes once before any comes again, odd ones out are left."""
    rounds = (torch.split(torch.randperm(cases, generator=order), per_step) for _ in itertools.count())
    full = (rows for sets in rounds for rows in sets if len(rows) == per_step)
    return itertools.islice(full, steps)


def encode(
    encoder: Encoder, known: Targets, rows: int
) -> Iterator[tuple[Int[Tensor, " case"], Float[Tensor, "case patch width"]]]:
    """Yield the first `rows` cases, some at a time, with their frozen features."""
    device = next(encoder.parameters()).device
    encoder.eval()
    for part in torch.split(torch.arange(rows), 32):
        with torch.no_grad():
            features = encoder(known.batch(part, device).pixels()).features.float().cpu()
        yield part, features  # outside of no_grad, which would hold for the caller too


def side_accuracy(encoder: Encoder, known: Targets, held_out: Targets) -> dict[str, float | None]:
    """Tell by finding how often the likest patch of held-out cases lies on the finding's side.

    A linear probe of single frozen patches is fitted on training cases, so it needs their masks. It is asked
    about cases with the finding in one half of the body; chance is 0.5. None where there is no such mask or
    no such case, or the grid has no halves.
    """
    names, grid = known.names, encoder.grid(known.size_zyx)
    result: dict[str, float | None] = dict.fromkeys(names)
    if not len(held_out.reports) or grid[2] % HALVES:
        return result
    rows = min(PROBE_CASES, len(known.reports))
    one_sided = held_out.sides.clamp(min=0).sum(1) == 1
    asked = [index for index in range(len(names)) if one_sided[:, index].any()]
    patches = known.patches[:rows]
    chance = PROBE_PATCHES / max(1, patches.shape[2])
    drawn = torch.rand(rows, patches.shape[2], generator=torch.Generator().manual_seed(0)) < chance
    picked = drawn | (patches[:, asked] > 0).any(1)  # those with a finding, and some of all
    if not picked.any():
        return result
    learnt = torch.cat([features[picked[part]] for part, features in encode(encoder, known, rows)]).numpy()
    probes: dict[int, Any] = {}
    for index in asked:
        masked = (~known.unmasked[:rows, index])[:, None].expand_as(picked)[picked].numpy()
        truth = (patches[:, index][picked] > 0).numpy()[masked]
        if len(set(truth)) == 2:
            probes[index] = logistic(learnt[masked], truth.astype(np.int64), strength=0.1)
    likest: dict[int, list[Tensor]] = {index: [] for index in probes}  # half of each body: 0 right, 1 left
    for _, features in encode(encoder, held_out, len(held_out.reports)):
        for index, probe in probes.items():
            odds = torch.from_numpy(probe.decision_function(features.flatten(0, 1).numpy()))
            halves = odds.reshape(len(features), grid[0], grid[1], HALVES, grid[2] // HALVES)
            likest[index].append(halves.amax((1, 2, 4)).argmax(1))
    for index, parts in likest.items():
        right = torch.cat(parts) == held_out.sides[:, :, index].argmax(1)
        result[names[index]] = right[one_sided[:, index]].float().mean().item()
    return result
