"""Ask a run's last model about a scan, and write the answer with its evidence into a folder.

Order of events: the run, the task and the question are checked; the scan is read, compared with those of the
training, and refused where it is far outside of them; the model answers greedily over the scan and over a
volume of air; the task reads both answers; the mask is written on the original grid. Equal inputs give equal
files: nothing in them says when or by whom they were made.
"""

import dataclasses
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from evidcore_plugin_pages.jinja import NOTICE
from scipy.special import softmax

from evidcore import __version__
from evidcore.api import Answer, Case, DataError, EvalStage, Finding, Labeler, Prompt, Task, read
from evidcore.data import read_geometry
from evidcore.data.content import volume_key
from evidcore.data.reading import opened
from evidcore.evaluate.choice import option_log_likelihoods
from evidcore.model.policy import VLMPolicy
from evidcore.recipe import load
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore.runs.execute import last_model, outputs_of
from evidcore.runs.folder import atomic_directory, open_run, sha256, write
from evidcore.runs.inputs import versions
from evidcore.text.tags import LETTERS
from evidcore_plugin_lab.predict.answer_page import write_answer_page
from evidcore_plugin_lab.predict.evidence import mask_of, write_evidence
from evidcore_plugin_lab.predict.inquiry import Inquiry, check_volume, most_new_tokens, naming_flags
from evidcore_plugin_lab.predict.training_scans import Tell, describe, figures_of, known_scans

_LIKELIHOODS = ("log_likelihood", "verdict_log_likelihood", "share")  # of an option
CASE = "scan"  # what the case is called: a file name may be a person's


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """An answer, and the folder it was written to."""

    folder: Path
    record: dict[str, Any]  # what answer.json holds


def predict_scan(
    run: str | os.PathLike[str], inquiry: Inquiry, out: Path | None = None, tell: Tell = lambda *_: None
) -> Prediction:
    """Answer an inquiry with a run's last model.

    Args:
        run: the folder of a run whose training has finished.
        inquiry: the scan and what is asked about it.
        out: the new folder for `answer.json`, `index.html`, and where the answer has them `report.txt` and
            `mask.nii.gz`; left out: `predictions/<scan>-<task>` in the working directory.
        tell: told how many training scans of how many are measured, where that was not done before.

    Raises:
        RunError: if the run has no finished model, its recipe no such task, or the question no use.
        DataError: if the scan cannot be used, or is far outside of what the model was trained on.
    """
    folder = open_run(Path(run))
    weights = last_model(folder)
    recipe = load(folder.path / "resolved.toml")
    name = inquiry.task_name(recipe)
    with naming_flags():
        read_geometry(inquiry.reference("arbitrary"))  # what cannot be read is found before weights load
    first = Path("predictions") / f"{inquiry.name()}-{name}"
    others = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    target = out or next(place for place in itertools.chain([first], others) if not place.exists())
    with atomic_directory(target) as work:
        assembly = Assembly(recipe)
        put = inquiry.questions(is_free=assembly.tasks[name].takes_free_questions)
        before = outputs_of(folder, recipe, recipe.line)
        before.load_services(assembly)
        policy = Context(assembly, "predict", before=before).local_policy()
        spec = policy.model.model.encoder.input
        ref = inquiry.reference("hu" if spec.windows else "arbitrary")
        with naming_flags():
            volume = read(ref)
        check_volume(volume, ref, spec)
        known = known_scans(folder, assembly, tell)
        unlike = [] if isinstance(known, str) else known.unlike(figures_of(volume))
        far = "; ".join(item["sentence"] for item in unlike if item["is_far"])
        if far and not inquiry.unlike:
            raise DataError(
                f"{ref.path}: is far outside of what the model of this run was trained on: {far}. An answer "
                "would rest on scans of another kind. Give a scan like those of its training (`evid predict "
                "RUN` describes them), or add --unlike to have it answer all the same."
            )
        names = dict.fromkeys(name for source in assembly.datasets.values() for name in source.findings)
        vocabulary = tuple(Finding(name=each, state="uncertain") for each in names)  # nothing is known here
        case = Case(id=CASE, patient=None, volumes=(ref,), questions=put, findings=vocabulary)
        prompt = inquiry.prompt(assembly, name, case)
        record, answer = answered(policy, prompt, assembly, most_new_tokens(recipe, name))
        mask = None
        if answer.evidence is not None:
            mask = mask_of(answer.evidence, volume, offer_of(assembly.tasks[name]))
            followed = None  # the mask behind it, by what the recipe's last stage measures the task
            for place, stage in reversed(list(enumerate(recipe.stages))):
                use = next((use for use in stage.data if use.task == prompt.task), None)
                if isinstance(stage, EvalStage) and use is not None:
                    context = Context(assembly, recipe.stage_name(place))
                    followed = stage.evaluation(use, context).follow(prompt, answer.evidence, ref)
                    break
            if followed is not None:
                mask = followed[0]
            record["evidence"] = write_evidence(answer.evidence, mask, volume, ref, work)
            record["evidence"]["segmenter"] = None if followed is None else str(offer_of(followed[1]))
        if answer.report is not None:
            write(work / "report.txt", answer.report + "\n")
        lock = folder.lock()
        packages = {package: table["version"] for package, table in lock["package"].items()}
        checkpoints = (folder.path / "checkpoints").iterdir()  # links, named after their stages
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
            "training": describe(known, assembly),
            "unlike": unlike,
            **record,
            "model": {
                "recipe": recipe.name,
                "recipe_hash": lock["recipe"]["hash"],
                "run": folder.path.name,
                "stage": max(path.name for path in checkpoints if path.resolve() == weights.resolve()),
                "sha256": {path.name: sha256(path) for path in sorted(weights.glob("*.safetensors"))},
            },
            "data": lock["dataset"],
            "software": {"versions": {"evidcore": __version__, **versions()}, "packages": packages},
        }
        write(work / "answer.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        write_answer_page(work, record, volume, mask)
    return Prediction(folder=target, record=record)


def describe_training(run: str | os.PathLike[str], tell: Tell = lambda *_: None) -> dict[str, Any]:
    """Return what a run's last model was trained on, and write what its scans were like to the run folder."""
    folder = open_run(Path(run))
    _ = last_model(folder)  # or there is none
    assembly = Assembly(load(folder.path / "resolved.toml"))
    return describe(known_scans(folder, assembly, tell), assembly)


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
    rows = _option_rows(policy, prompt, blank, task) if options else []
    known, same = assembly.phrases, None
    if rows:
        likeliest = max(rows, key=lambda row: row["share"])
        same = likeliest is max(rows, key=lambda row: row["blank"]["share"])
    return {
        "task": prompt.task,
        "prompt": prompt.written(),
        **_as_read(answer, assembly),
        "options": rows or None,
        "options_not_trained": [item for item in options or () if known and item not in known],
        "blank": {
            **_as_read(aside, assembly),
            "same_completion": aside.text == answer.text,
            "same_likeliest_option": same,
        },
        "evidence": None,
    }, answer


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


def _option_rows(policy: VLMPolicy, prompt: Prompt, blank: Prompt, task: Task) -> list[dict[str, Any]]:
    """Return how likely each option is, on the scan and on a blank volume: log-likelihood in nats, and share.

    The shares sum to 1 over the options. They compare the options and are no probabilities of disease. Where
    the task asks for reasoning, they are of whole answers (`verdict_log_likelihood`), else of the letter.
    """
    with blame(offer_of(task), f"writing the answers to prompt {prompt.id!r}"):
        letters, wholes = option_log_likelihoods(policy, [prompt, blank], task)
    sides = []
    for side, of_letters in enumerate(letters):
        of_wholes = [None] * len(of_letters) if wholes is None else wholes[side]
        shares = softmax(np.asarray(of_letters if wholes is None else of_wholes, dtype=np.float64))
        columns = zip(of_letters, of_wholes, shares.tolist(), strict=True)
        sides.append([dict(zip(_LIKELIHOODS, row, strict=True)) for row in columns])
    rows = zip(LETTERS, prompt.reference["options"], *sides, strict=False)
    return [{"letter": letter, "option": option, **scan, "blank": air} for letter, option, scan, air in rows]
