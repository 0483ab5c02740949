"""Train a slice reader on the masks of cases.

Order of events: slices that show a finding are read, and as many times `EMPTY_SLICES` that show none; then a
fixed number of steps; then thresholds on the patients that were held back; then figures on validation cases.
In every step some slices are blank or noise, and nothing is seen on them.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt
from jaxtyping import Float, Int, UInt8
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.nn import functional

from evidcore.api import Case, Crop, DataError, read_mask
from evidcore.compute.loading import share_of_peak
from evidcore.contracts import FitData
from evidcore.data import volume_cache
from evidcore_plugin_emrl.matched_slices import patient_of
from evidcore_plugin_emrl.reading_figures import (
    LEAST_PIXELS,
    Scores,
    Shown,
    is_known,
    reading_figures,
    shortfalls,
    shown,
)

if TYPE_CHECKING:
    from evidcore_plugin_emrl.slice_reader import SliceReader

LOG_EVERY_STEPS = 10
HELD_BACK = 0.1  # of the training patients: they set the thresholds
BACKGROUND_WEIGHT, FINDING_WEIGHT = 0.3, 3.0  # of a pixel; most show nothing
EMPTY_SLICES = 2.0  # that are kept, for each slice with a finding
UNSEEN = 0.0625  # share of a step's slices that are blank or noise
LEFT_ALONE = 0.98  # least share of lesion-free slices on which the thresholds let nothing be named
SLICE_WEIGHT = 3.0  # of the slices' loss beside the pixels'; pixels make few patients enough
LEAST_LOGIT = -1.0  # of a slice on which a finding is named: odds of 1 to 2.7 among slices learned from
SHIFT = 4  # pixels of the network's input that slices are moved by, at most
CONTROL_SLICES = 64  # blank ones, and noise, whose names are counted in `fit.json`


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReaderFit:
    """How the network is trained.

    Args:
        steps: optimiser updates.
        slices_per_step: half of them show a finding.
        learning_rate: at its peak, after a short warm-up; falls to 0 along a cosine.
        findings: names to learn, each a mask of cases; empty: every finding of the cases that is also a mask.
    """

    steps: Annotated[int, Ge(1)] = 1500
    slices_per_step: Annotated[int, Ge(4)] = 32
    learning_rate: Annotated[float, Gt(0)] = 4e-3
    findings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slices:
    """Slices to learn from."""

    pixels: UInt8[Tensor, "slice channel y x"]  # -1..1 as 0..255
    marks: UInt8[Tensor, "slice y2 x2"]  # 0 nothing, 1 + the index of a finding, half as fine
    areas: Int[Tensor, "slice finding"]  # pixels of the source

    def __len__(self) -> int:
        return len(self.pixels)


def fit_reader(reader: SliceReader, given: FitData, options: ReaderFit) -> None:
    """Train `reader` in place; see `SliceReader.fit`.

    Raises:
        DataError: if no case has a mask of a finding, or too few patients are there; says what is needed.
    """
    started = time.monotonic()
    rng = np.random.default_rng(given.seed)
    named = {name for case in given.train for name in case.present() if name in case.masks}
    findings = options.findings or tuple(sorted(named))
    cases = [case for case in given.train if is_known(case, findings)]
    if not findings or not any(name in case.masks for case in cases for name in findings):
        wanted = f"masks called {', '.join(options.findings)}" if options.findings else "masks of findings"
        raise DataError(
            f"slice-reader: {wanted} are needed, and none of the {len(given.train)} training cases has any. "
            "Give a data set whose findings have masks of the same name, as phantom-abdomen, or take the fit "
            "stage out."
        )
    learned, held = _split(cases, rng)
    if not held or not learned:
        raise DataError(
            f"slice-reader: {len(cases)} training cases with masks are of one patient, and some patients set "
            "the thresholds. Give it at least two."
        )
    slices = _read(reader, learned, findings, rng)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(given.seed)
        network = reader.blank_network(len(findings))
        _train(network, slices, rng, given, options)
    reader.network, reader.findings = network.eval(), tuple(findings)
    reader.thresholds = (0.0,) * len(findings)
    volumes, scores = _scored(reader, held)
    reader.thresholds = tuple(_thresholds(volumes, scores))
    given.folder.mkdir(parents=True, exist_ok=True)
    save_model(network, str(given.folder / "weights.safetensors"))
    known = {"findings": findings, "thresholds": reader.thresholds, "network": reader.described()}
    (given.folder / "reader.json").write_text(json.dumps(known, indent=2), encoding="utf-8")
    figures: dict[str, Any] = {
        "cases": len(cases),
        "slices": len(slices),
        "steps": options.steps,
        "seconds": round(time.monotonic() - started, 1),
        **_named_without(reader, given.seed),
        **validated(reader, given.validation),
    }
    (given.folder / "fit.json").write_text(json.dumps(figures, indent=2), encoding="utf-8")


def validated(reader: SliceReader, cases: Sequence[Case]) -> dict[str, Any]:
    """Return the figures of a fitted reader on cases, and which of the lines it misses."""
    known = [case for case in cases if is_known(case, reader.findings)]
    if not known:
        return {"validation": None}
    volumes, scores = _scored(reader, known)
    named = [item > 0 for item in scores]
    figures = reading_figures(volumes, scores, named, reader.findings)
    return {"validation": figures, "shortfalls": shortfalls(figures)}


def _split(cases: Sequence[Case], rng: np.random.Generator) -> tuple[list[Case], list[Case]]:
    """Return cases to learn from and cases of other patients that set the thresholds."""
    patients = sorted(set(map(patient_of, cases)))
    count = max(1, round(HELD_BACK * len(patients)))
    held = {patients[index] for index in rng.permutation(len(patients))[:count]}
    learned = [case for case in cases if patient_of(case) not in held]
    return learned, [case for case in cases if patient_of(case) in held]


def _read(
    reader: SliceReader, cases: Sequence[Case], findings: Sequence[str], rng: np.random.Generator
) -> Slices:
    """Read the slices that show a finding, and some that show none, patient by patient."""
    pixels, marks, areas = [], [], []
    for case, item, labels in _measured(cases, findings):
        seen = np.flatnonzero(item.areas.any(axis=1))
        empty = np.flatnonzero(~item.areas.any(axis=1))
        most = max(1, round(EMPTY_SLICES * len(seen)))
        chosen = np.sort(np.concatenate([seen, rng.permutation(empty)[:most]]))
        shown_pixels = reader.pixels(Crop(volume=case.volumes[0]))[torch.from_numpy(chosen)]
        pixels.append(shown_pixels.add(1).mul_(127.5).round_().to(torch.uint8))
        height, width = reader.size_yx
        fine = torch.from_numpy(labels[chosen])[:, None].float()
        coarse = functional.interpolate(fine, (height // 2, width // 2), mode="nearest-exact")
        marks.append(coarse[:, 0].to(torch.uint8))
        areas.append(torch.from_numpy(item.areas[chosen]))
    return Slices(pixels=torch.cat(pixels), marks=torch.cat(marks), areas=torch.cat(areas))


def _measured(
    cases: Sequence[Case], findings: Sequence[str]
) -> Iterator[tuple[Case, Shown, np.ndarray[Any, np.dtype[np.uint8]]]]:
    """Yield what each case shows, and its findings as labels (z, y, x); of several the last one counts."""
    for case in cases:
        try:
            volume = volume_cache.read(case.volumes[0])
            labels = np.zeros(volume.shape_zyx, np.uint8)
            for index, name in enumerate(findings):
                if name in case.masks:
                    labels[read_mask(case.masks[name], like=volume)] = index + 1
            yield case, shown(case, findings), labels
        except DataError as cause:
            if case.id in str(cause):
                raise
            raise DataError(f"{cause} (case {case.id!r})") from cause


def _train(
    network: nn.Module, slices: Slices, rng: np.random.Generator, given: FitData, options: ReaderFit
) -> None:
    from evidcore_plugin_emrl.slice_reader import slice_scores

    classes = 1 + slices.areas.shape[1]
    weights = torch.tensor([BACKGROUND_WEIGHT, *[FINDING_WEIGHT] * (classes - 1)])
    seen = np.flatnonzero((slices.areas >= LEAST_PIXELS).any(dim=1).numpy())
    empty = np.flatnonzero(~slices.areas.any(dim=1).numpy())
    optimizer = torch.optim.AdamW(network.parameters(), lr=options.learning_rate, weight_decay=0.01)
    network.train()
    for step in range(options.steps):
        rate = options.learning_rate * share_of_peak(step, options.steps)
        optimizer.param_groups[0]["lr"] = rate
        half = options.slices_per_step // 2
        drawn = rng.choice(seen, half), rng.choice(empty, options.slices_per_step - half)
        places = torch.from_numpy(np.concatenate(drawn))
        pixels, marks = slices.pixels[places].float().mul_(2 / 255).sub_(1), slices.marks[places].long()
        areas = slices.areas[places]
        down, right = (2 * int(by) for by in rng.integers(-SHIFT // 2, SHIFT // 2 + 1, 2))
        pixels = torch.roll(pixels, (down, right), (2, 3))
        marks = torch.roll(marks, (down // 2, right // 2), (1, 2))
        for row in np.flatnonzero(rng.random(len(places)) < UNSEEN):
            # a slice that shows nothing: air, one value, or noise around it
            centre = float(rng.choice([-1.0, rng.uniform(-1, 1)]))
            spread = float(rng.choice([0.0, rng.uniform(0.02, 1)]))
            pixels[row] = _noise(tuple(pixels.shape[1:]), centre, spread, rng)
            marks[row], areas[row] = 0, 0
        logits = network(pixels)
        by_pixel = functional.cross_entropy(logits, marks, weight=weights)
        told = (areas == 0) | (areas >= LEAST_PIXELS)
        by_slice = functional.binary_cross_entropy_with_logits(
            slice_scores(logits), (areas > 0).float(), weight=told.float()
        )
        loss = by_pixel + SLICE_WEIGHT * by_slice
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step % LOG_EVERY_STEPS == 0 or step == options.steps - 1:
            losses = {"loss": loss, "loss_pixels": by_pixel, "loss_slices": by_slice}
            figures = {name: value.item() for name, value in losses.items()}
            given.log({"step": step, **figures, "learning_rate": rate})


def _noise(
    shape: tuple[int, ...], centre: float, spread: float, rng: np.random.Generator
) -> Float[Tensor, "channel y x"]:
    return torch.from_numpy(centre + spread * rng.standard_normal(shape)).clamp(-1, 1).float()


def _scored(reader: SliceReader, cases: Sequence[Case]) -> tuple[list[Shown], list[Scores]]:
    """Return what cases show and the reader's scores above its thresholds, (slice, finding) a case."""
    volumes, scores = [], []
    for case in cases:
        pixels = reader.pixels(Crop(volume=case.volumes[0]))
        volumes.append(shown(case, reader.findings))
        scores.append(reader.scores(pixels).double().numpy() - np.asarray(reader.thresholds))
    return volumes, scores


def _thresholds(volumes: Sequence[Shown], scores: Sequence[Scores]) -> list[float]:
    """Return a threshold a finding, at least `LEAST_LOGIT`: equal shares of lesion-free slices pass them.

    The share is the largest at which `LEFT_ALONE` of these slices pass no threshold. Without a least one,
    thresholds of few patients lie in the gap below slices with a finding, where blank ones may lie.
    """
    areas = np.concatenate([item.areas for item in volumes])
    free = np.concatenate(scores)[areas.sum(axis=1) == 0]
    if not len(free):
        return [0.0] * areas.shape[1]
    low, high = 0.0, 1 - LEFT_ALONE
    for _ in range(30):
        share = (low + high) / 2
        passed = (free > np.quantile(free, 1 - share, axis=0)).any(axis=1).mean()
        low, high = (low, share) if passed > 1 - LEFT_ALONE else (share, high)
    return [max(LEAST_LOGIT, float(value)) for value in np.quantile(free, 1 - low, axis=0)]


def _named_without(reader: SliceReader, seed: int) -> dict[str, float]:
    """Return on what share of blank slices, and of noise, anything is named."""
    rng = np.random.default_rng([seed, 1])
    channels = max(1, len(reader.windows))
    blank = torch.full((1, channels, *reader.size_yx), -1.0)
    spreads = rng.uniform(0.02, 1, CONTROL_SLICES)
    noise = torch.stack([_noise((channels, *reader.size_yx), 0.0, float(item), rng) for item in spreads])
    thresholds = torch.tensor(reader.thresholds)
    return {
        f"named_on_{name}": float((reader.scores(some) > thresholds).any(dim=1).float().mean())
        for name, some in (("blank", blank), ("noise", noise))
    }
