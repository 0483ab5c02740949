"""Ask a run's last model about a scan, and write the answer with its evidence into a folder.

Order of events: the run, the task and the question are checked; the scan is read, compared with those of the
training, and refused where it is far outside of them; the model answers greedily over the scan and over a
volume of air; the task reads both answers; the mask is written on the original grid. Equal inputs give equal
files: nothing in them says when or by whom they were made.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from evidcore_plugin_pages.jinja import NOTICE

from evidcore import __version__
from evidcore.case import Answer, Case, Evidence, Finding, Prompt, VolumeRef
from evidcore.contracts import EncoderInput, Labeler
from evidcore.data import Volume, read, read_geometry
from evidcore.data.content import volume_key
from evidcore.data.reading import opened
from evidcore.errors import DataError
from evidcore.evaluate.choice import option_log_likelihoods
from evidcore.evaluate.eval_stage import EvalStage
from evidcore.model.policy import VLMPolicy
from evidcore.recipe import load
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore.runs.execute import outputs_of
from evidcore.runs.folder import RunFolder, atomic_directory, sha256, write
from evidcore.runs.inputs import versions
from evidcore.runs.post_run import last_model
from evidcore.text.tags import LETTERS
from evidcore_plugin_lab.predict.answer_page import write_answer_page
from evidcore_plugin_lab.predict.evidence import Mask, mask_of, write_evidence
from evidcore_plugin_lab.predict.inquiry import (
    Inquiry,
    asked,
    most_new_tokens,
    naming_flags,
    questions,
    task_name,
)
from evidcore_plugin_lab.predict.training_scans import (
    Tell,
    TrainingScans,
    data_facts,
    features_of,
    figures_of,
    training_scans,
)

_NAMES = ("letter", "option")  # of a row of options
CASE = "scan"  # what the case is called: a file name may be a person's


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """An answer, and the folder it was written to."""

    folder: Path
    record: dict[str, Any]  # what answer.json holds


def predict_scan(
    folder: RunFolder, inquiry: Inquiry, out: Path | None = None, tell: Tell | None = None
) -> Prediction:
    """Answer an inquiry with a run's last model.

    Args:
        folder: a run whose training has finished.
        inquiry: the scan and what is asked about it.
        out: the new folder for `answer.json`, `index.html`, and where the answer has them `report.txt` and
            `mask.nii.gz`; left out: `predictions/<scan>-<task>` in the working directory.
        tell: told how many training scans of how many are measured, where that was not done before.

    Raises:
        RunError: if the run has no finished model, its recipe no such task, or the question no use.
        DataError: if the scan cannot be used, or is far outside of what the model was trained on.
    """
    weights = last_model(folder)
    recipe = load(folder.path / "resolved.toml")
    name = task_name(inquiry, recipe)
    with naming_flags():
        read_geometry(inquiry.reference("arbitrary"))  # what cannot be read is found before weights load
    target = out or _free_place(inquiry.name(), name)
    with atomic_directory(target) as work:
        assembly = Assembly(recipe)
        put = questions(inquiry, is_free=assembly.tasks[name].takes_free_questions)
        before = outputs_of(folder, recipe, recipe.line)
        before.load_services(assembly)
        policy = Context(assembly, "predict", before=before).local_policy()
        spec = policy.model.model.encoder.input
        ref = inquiry.reference("hu" if spec.windows else "arbitrary")
        with naming_flags():
            volume = read(ref)
        check_volume(volume, ref, spec)
        known = training_scans(folder, assembly, policy, weights, tell)
        unlike = []
        if not isinstance(known, str):
            unlike = known.unlike(figures_of(volume), features_of(policy, assembly.view, [ref])[0])
        far = "; ".join(item.sentence() for item in unlike if item.is_far)
        if far and not inquiry.unlike:
            raise DataError(
                f"{ref.path}: is far outside of what the model of this run was trained on: {far}. An answer "
                "would rest on scans of another kind. Give a scan like those of its training (`evid predict "
                "RUN` describes them), or add --unlike to have it answer all the same."
            )
        names = dict.fromkeys(name for source in assembly.datasets.values() for name in source.findings)
        vocabulary = tuple(Finding(name=each, state="uncertain") for each in names)  # nothing is known here
        case = Case(id=CASE, patient=None, volumes=(ref,), questions=put, findings=vocabulary)
        prompt = asked(assembly, name, case, inquiry)
        record, answer = answered(policy, prompt, assembly, most_new_tokens(recipe, name))
        mask = None
        if answer.evidence is not None:
            mask = mask_of(answer.evidence, volume, offer_of(assembly.tasks[name]))
            followed = _followed(assembly, prompt, answer.evidence, ref)
            if followed is not None:
                mask = followed[0]
            record["evidence"] = write_evidence(answer.evidence, mask, volume, ref, work)
            record["evidence"]["segmenter"] = None if followed is None else str(offer_of(followed[1]))
        if answer.report is not None:
            write(work / "report.txt", answer.report + "\n")
        lock = folder.lock()
        packages = {package: table["version"] for package, table in lock["package"].items()}
        shown = (folder.path / "checkpoints").iterdir()  # links, named after their stages
        record = {
            "notice": NOTICE,
            "scan": {  # what was looked at, and how it was read; its header is not repeated
                "path": ref.path,
                "series": ref.key,
                "tilted": ref.tilted,
                "resampled": opened(ref)[1].is_resampled,
                "fingerprint": volume_key(ref),
                "intensity": volume.intensity,
                "shape_zyx": list(volume.shape_zyx),
                "spacing_mm_zyx": [round(step, 6) for step in volume.spacing_mm_zyx],
                "voxel_to_mm_zyx": volume.affine.tolist(),
            },
            "training": training_record(known, assembly),
            "unlike": [{**vars(item), "sentence": item.sentence()} for item in unlike],
            **record,
            "model": {
                "recipe": recipe.name,
                "recipe_hash": lock["recipe"]["hash"],
                "run": folder.path.name,
                "stage": max(path.name for path in shown if path.resolve() == weights.resolve()),
                "sha256": {path.name: sha256(path) for path in sorted(weights.glob("*.safetensors"))},
            },
            "data": lock["dataset"],
            "software": {"versions": {"evidcore": __version__, **versions()}, "packages": packages},
        }
        write(work / "answer.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        write_answer_page(work, record, volume, mask)
    return Prediction(folder=target, record=record)


def _followed(
    assembly: Assembly, prompt: Prompt, evidence: Evidence, ref: VolumeRef
) -> tuple[Mask, object] | None:
    """Return the mask behind an answer's evidence, by what the recipe's last stage measures the task."""
    for place, stage in reversed(list(enumerate(assembly.recipe.stages))):
        use = next((use for use in stage.data if use.task == prompt.task), None)
        if isinstance(stage, EvalStage) and use is not None:
            context = Context(assembly, assembly.recipe.stage_name(place))
            return stage.evaluation(use, context).follow(prompt, evidence, ref)
    return None


def describe_training(folder: RunFolder, tell: Tell | None = None) -> dict[str, Any]:
    """Return what a run's last model was trained on, and keep what its scans were like in the run folder.

    Raises:
        RunError: if the run has no finished model.
    """
    weights, recipe = last_model(folder), load(folder.path / "resolved.toml")
    assembly = Assembly(recipe)
    policy = Context(assembly, "predict", before=outputs_of(folder, recipe, recipe.line)).local_policy()
    return training_record(training_scans(folder, assembly, policy, weights, tell), assembly)


def training_record(known: TrainingScans | str, assembly: Assembly) -> dict[str, Any]:
    """Return what a model was trained on, as answer.json holds it."""
    facts: dict[str, Any] = {"datasets": data_facts(assembly), "unknown": None, "scans": None}
    if isinstance(known, str):
        return {**facts, "unknown": known}
    facts["scans"] = {
        "measured": len(known.patients),
        "validation_scans": known.validation_scans,
        "bound": known.bound,
        "ranges": {name: list(pair) for name, pair in known.ranges().items()},
    }
    return facts


def check_volume(volume: Volume, ref: VolumeRef, spec: EncoderInput) -> None:
    """Refuse what was read but is not what the encoder was trained on.

    Raises:
        DataError: if a model of volumes is given one slice, or a model of HU values that cannot be HU.
    """
    depth, height, width = volume.shape_zyx
    if depth == 1 and spec.size_zyx[0] > 1 and not spec.any_depth:
        raise DataError(
            f"{ref.path}: is a 2D image of {height} x {width} pixels; the model of this run reads volumes. "
            "Give the whole series."
        )
    if not spec.windows:
        return
    stored, placement = opened(ref)
    # what lies outside a resampled volume was filled with air, whatever it is a scan of
    held = stored.values(ref.rescale) if placement.is_resampled else volume.array
    low, high = float(held.min()), float(held.max())
    if low >= 0:  # as MR, PET or CT without its rescale
        raise DataError(
            f"{ref.path}: the values run from {low:g} to {high:g}, so this is no CT in HU, where air is "
            "-1000 and fat -100; the model of this run reads HU. Give a CT with its rescale applied, or use "
            "a run whose encoder has windows = [] for MR and other intensities."
        )


def _free_place(scan: str, task: str) -> Path:
    """Return the first folder of `predictions/<scan>-<task>`, `…-2`, … that is not there."""
    place, number = Path("predictions") / f"{scan}-{task}", 1
    while place.exists():
        number += 1
        place = place.with_name(f"{scan}-{task}-{number}")
    return place


def answered(
    policy: VLMPolicy, prompt: Prompt, assembly: Assembly, max_new_tokens: int
) -> tuple[dict[str, Any], Answer]:
    """Answer greedily, over the scan and over a volume of air.

    Returns:
        The record of the answer: as written, as read, with the likelihoods of options on both; and the answer
        as its task reads it.
    """
    task = assembly.tasks[prompt.task]
    crops = [dataclasses.replace(crop, blank=True) for crop in prompt.crops()]
    blank = dataclasses.replace(prompt.showing(crops), id=f"{prompt.id}:blank")
    texts = policy.generate([prompt, blank], max_new_tokens=max_new_tokens)
    with blame(offer_of(task), f"reading an answer to prompt {prompt.id!r}"):
        answer, aside = (task.parse(item, text) for item, text in zip((prompt, blank), texts, strict=True))
    options = prompt.reference.get("options")
    rows = _option_rows(policy, prompt, blank, assembly) if options else []
    known, same = assembly.phrases, None
    if rows:
        on_scan, on_air = (max(sides, key=lambda side: side["share"]) for sides in zip(*rows, strict=True))
        same = on_scan["letter"] == on_air["letter"]
    return {
        "task": prompt.task,
        "prompt": prompt.written(),
        **_as_read(answer, assembly),
        "options": [
            {**scan, "blank": {key: air[key] for key in air if key not in _NAMES}} for scan, air in rows
        ]
        or None,
        "options_not_trained": [item for item in options or () if known and item not in known],
        "blank": {
            **_as_read(aside, assembly),
            "same_completion": aside.text == answer.text,
            "same_likeliest_option": same,
        },
        "evidence": None,
    }, answer  # fmt: skip


def _as_read(answer: Answer, assembly: Assembly) -> dict[str, Any]:
    """Return an answer as JSON holds it; None where the task has no such part, or did not find it."""
    findings = {}  # that each labeler of the recipe reads in a report, by service
    for name, labeler in assembly.services.items():
        if isinstance(labeler, Labeler) and answer.report is not None:
            with blame(offer_of(labeler), "reading the report"):
                findings[name] = [
                    {key: getattr(finding, key) for key in ("name", "state", "side", "size_mm")}
                    for finding in labeler(answer.report)
                ]
    return {
        "completion": answer.text,
        "malformed": answer.malformed,
        "think": answer.think,
        "choice": answer.choice,
        "lenient_choice": answer.lenient_choice,
        "report": answer.report,
        "findings": findings or None,
    }


def _option_rows(
    policy: VLMPolicy, prompt: Prompt, blank: Prompt, assembly: Assembly
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return how likely each option is, on the scan and on a blank volume: log-likelihood in nats, and share.

    The shares sum to 1 over the options. They compare the options and are no probabilities of disease. Where
    the task asks for reasoning, they are of whole answers (`verdict_log_likelihood`), else of the letter.
    """
    task = assembly.tasks[prompt.task]
    with blame(offer_of(task), f"writing the answers to prompt {prompt.id!r}"):
        letters, wholes = option_log_likelihoods(policy, [prompt, blank], task)
    sides: list[list[dict[str, Any]]] = []
    for side, bare in enumerate(letters):
        whole = None if wholes is None else wholes[side]
        likely = bare if whole is None else whole
        powers = np.exp(np.asarray(likely, dtype=np.float64) - max(likely))
        sides.append([
            {
                "letter": LETTERS[index],
                "option": option,
                "log_likelihood": bare[index],
                "verdict_log_likelihood": None if whole is None else whole[index],
                "share": share,
            }
            for index, (option, share) in enumerate(
                zip(prompt.reference["options"], (powers / powers.sum()).tolist(), strict=True)
            )
        ])  # fmt: skip
    on_scan, on_air = sides
    return list(zip(on_scan, on_air, strict=True))
