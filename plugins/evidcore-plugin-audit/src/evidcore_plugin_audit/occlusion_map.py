"""How much less likely an answer becomes with one cell of its scan covered: `RUN/occlusion/<stage>.jsonl`.

Order of events: the recorded answers of a stage are read, and the recipe makes their questions again; the
model is loaded as the stages before left it; for each question the log-probability of the recorded answer is
measured over its own scan and over the scan with one cell covered at a time. A drop is own minus covered, in
nats, the mean over the answer's tokens; the token that ends a turn does not count.

A line of the file is a question. It has `prompt_id`, `task`, `case_id`, `patient`, the answer's `text` and
`tokens`, the scan as `image`, and the `model` that was asked. `grid` has the number of cells and their edges
in voxels, and `drops` a value for each cell in raster order (x changes first): 0 where covering changes
nothing that the encoder is given, null where no voxel of the cell is shown. `largest` is the cell with the
largest drop, null where every drop is below 0.0001. `pointing`, where the case has a mask of what is
asked, tells whether this cell touches the mask, which share of the positive drops lies in cells that touch
it, and the chance level of both: the share of body cells that touch it.

The file is written after each question, so the same call goes on with the questions that it does not have.
"""

import dataclasses
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evidcore.api import EvalStage, Prompt, mean_interval, read, read_mask
from evidcore.compute.processes import pin_threads
from evidcore.contracts.evaluating import Interval
from evidcore.data import Geometry, content_hash, read_geometry
from evidcore.data.body import coarse, outline
from evidcore.errors import RunError, did_you_mean
from evidcore.evaluate.reference_lines import cluster
from evidcore.model.policy import VLMPolicy
from evidcore.recipe import Recipe, load
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore.runs.execute import outputs_of
from evidcore.runs.folder import RunFolder, naming_remedy, read_lines, write
from evidcore_plugin_audit.cell_grid import BoxZYX, CellGrid, grid_over
from evidcore_plugin_audit.covering_bank import CoveredCrop, CoveringBank, connected
from evidcore_plugin_audit.occlusion import asked_masks
from evidcore_plugin_audit.stage_order import stages_before

Line = Mapping[str, Any]
Tell = Callable[[int, int], None]
FOLDER = "occlusion"
SMALLEST = 1e-4  # nats a token; a smaller drop is none: products in bfloat16 round by as much
DIGITS = 6  # of a drop


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """The maps of some questions of a stage."""

    path: Path
    stage: str
    lines: tuple[Line, ...]
    left_out: Mapping[str, int]  # why, and how many questions

    def pointing(self) -> dict[str, Any] | None:
        """Return how often the largest drop touches the mask, beside chance; None where that is not known."""
        # maps with a drop, of questions about what the case has a mask of
        pointed = [line for line in self.lines if line["pointing"] and line["largest"]]
        if not pointed:
            return None
        hits = np.array([float(line["pointing"]["hit"]) for line in pointed])
        chances = np.array([line["pointing"]["chance"] for line in pointed])
        clusters = [cluster(line["patient"], line["case_id"]) for line in pointed]
        above: Interval = mean_interval(hits - chances, clusters)
        return {
            "questions": len(hits), "accuracy": float(hits.mean()), "chance": float(chances.mean()),
            "above_chance": above.value, "low": above.low, "high": above.high, "patients": above.patients,
        }  # fmt: skip


def occlude(
    folder: RunFolder,
    *,
    stage: str = "",
    questions: Sequence[str] = (),
    limit: int = 0,
    cells_zyx: tuple[int, int, int],
    cell_mm: float = 0.0,
    tell: Tell,
) -> Measured:
    """Measure the maps of a stage's answers, and write those that the run does not have yet.

    The stage is an `evaluate` stage; empty: the last that has answers. Without ids of prompts in `questions`
    all are measured, of `limit` so many, the first of the file. `cell_mm` is the size of a cell in place of
    the number of cells along each axis. `tell` is told how many cells of how many are measured.
    """
    recipe = load(folder.path / "resolved.toml")
    name = _stage_name(folder, recipe, stage)
    place = recipe.stage_names.index(name)
    asking: Any = recipe.stages[place]
    chosen = _chosen(folder, name, questions)
    above = stages_before(recipe, place)
    before = outputs_of(folder, recipe, above)
    if before.model is None:
        raise RunError(
            f"{folder.path}: no stage above {name} trains a model, and its fresh bridge was not kept. "
            "Name an evaluate stage behind one that trains."
        )
    trained_by = recipe.stage_name(max(at for at, item in above.items() if item.output == "model"))
    pin_threads(recipe.threads)
    assembly = Assembly(recipe)
    before.load_services(assembly)
    context = Context(assembly, name, before=before)
    prompts = {
        (prompt.task, prompt.id, prompt.written()): prompt
        for use in asking.data
        for prompt in asking.prompts(use, context)
    }
    left_out: Counter[str] = Counter()
    asked: list[tuple[Line, Prompt, CellGrid]] = []
    for line in chosen:
        prompt = prompts.get((*_question(line), str(line["prompt"])))
        if prompt is None:
            what = f"{folder.path}: the question {line['prompt_id']!r} is not asked by the run's recipe today"
            raise RunError(f"{what}: its data or its task has changed. `evid resume` tells what.")
        if why := _refusal(line, prompt):
            if questions:
                raise RunError(f"{folder.path}: question {line['prompt_id']!r} of {name} {why}.")
            left_out[why] += 1
            continue
        geometry = read_geometry(prompt.crops()[0].volume)
        asked.append((line, prompt, grid_over(geometry, cells_zyx, cell_mm)))
        if limit and len(asked) == limit:
            break
    if not asked:
        reasons = "; ".join(f"{count}: {why}" for why, count in left_out.items())
        raise RunError(f"{folder.path}: no answer of {name} can be measured ({reasons}).")
    path = folder.path / FOLDER / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with folder.locked(), naming_remedy(folder):
        known, results = {line["key"]: line for line in read_lines(path)}, []
        policy = context.local_policy(prompts_per_pass=asking.prompts_per_batch)
        bank = connected(policy)
        model = {"stage": trained_by, "inputs": folder.result(trained_by)["inputs"]}
        total, done = sum(len(grid.boxes) for _, _, grid in asked), 0
        for answer, prompt, grid in asked:
            images = [crop.uri() for crop in prompt.crops()]
            about = [model, *_question(answer), prompt.written(), answer["text"], images, grid.edges_zyx]
            about += [content_hash(prompt.crops()[0].volume.path), policy.prompts_per_pass]
            key = hashlib.blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()
            if key not in known:
                same = [old for old, line in known.items() if _question(line) == _question(answer)]
                for old in same:  # of another grid or model
                    del known[old]
                measured = _measured(policy, bank, answer, prompt, grid)
                known[key] = {**measured, "model": model, "key": key}
                texts = (json.dumps(line, ensure_ascii=False) + "\n" for line in known.values())
                write(path, "".join(texts))
            results.append(known[key])
            done += len(grid.boxes)
            tell(done, total)
    return Measured(path=path, stage=name, lines=tuple(results), left_out=left_out)


def _measured(
    policy: VLMPolicy, bank: CoveringBank, answer: Line, prompt: Prompt, grid: CellGrid
) -> dict[str, Any]:
    """Return the map of one answer as a line holds it."""
    bank.begin()
    text, crops = answer["text"], prompt.crops()
    tokens = len(policy.processor.tokenizer(text, add_special_tokens=False)["input_ids"])
    changes = [_changes(bank, policy, prompt, box) for box in grid.boxes]
    covered = [place for place, changed in enumerate(changes) if changed]
    boxes = [None, *(grid.boxes[place] for place in covered)]
    log_probs: list[float] = []
    for start in range(0, len(boxes), policy.prompts_per_pass):
        prompts = [_covered(prompt, box) for box in boxes[start : start + policy.prompts_per_pass]]
        log_probs += [score / tokens for (score,) in policy.log_likelihoods(prompts, [[text]] * len(prompts))]
    own = log_probs[0]
    drops: list[float | None] = [None if changed is None else 0.0 for changed in changes]
    for place, value in zip(covered, log_probs[1:], strict=True):
        drops[place] = round(own - value, DIGITS) + 0.0  # no -0.0
    return {
        "prompt_id": prompt.id, "task": prompt.task, "case_id": prompt.case.id,
        "patient": prompt.case.patient, "image": (answer.get("images") or [crops[0].uri()])[0],
        "text": text, "tokens": tokens, "grid": {"shape_zyx": grid.shape_zyx, "edges_zyx": grid.edges_zyx},
        "own_log_prob": own, "drops": drops, "largest": _largest(drops, grid, read_geometry(crops[0].volume)),
        "pointing": _pointing(drops, changes, grid, prompt),
    }  # fmt: skip


def _question(line: Line) -> tuple[str, str]:
    return str(line["task"]), str(line["prompt_id"])


def _stage_name(folder: RunFolder, recipe: Recipe, wanted: str) -> str:
    """Return which stage's answers are meant."""
    known = [
        name
        for name, stage in zip(recipe.stage_names, recipe.stages, strict=True)
        if isinstance(stage, EvalStage)
        and not stage.traits.compares
        and (folder.path / "answers" / f"{name}.jsonl").is_file()
    ]
    if wanted not in known and (wanted or not known):
        what = f"stage {wanted!r} is no evaluate stage with answers" if wanted else "it has no answers"
        hint = did_you_mean(wanted, known) if wanted else ""
        raise RunError(f"{folder.path}: {what}.{hint} Evaluate stages with answers: {known or 'none'}.")
    return wanted or known[-1]


def _chosen(folder: RunFolder, stage: str, questions: Sequence[str]) -> list[Line]:
    """Return the answers to some questions, to all where none is named."""
    lines = read_lines(folder.path / "answers" / f"{stage}.jsonl")
    ids = list(dict.fromkeys(str(line["prompt_id"]) for line in lines))
    if unknown := [item for item in questions if item not in ids]:
        hint = did_you_mean(unknown[0], ids)
        some = ", ".join(ids[:3])
        raise RunError(
            f"{folder.path}: {stage} asked no question {unknown[0]!r}.{hint} "
            f"It asked {len(ids)}, such as {some}."
        )
    return [line for line in lines if not questions or line["prompt_id"] in questions]


def _refusal(line: Line, prompt: Prompt) -> str:
    """Return why no map of an answer can be made; empty where it can."""
    crops = prompt.crops()
    if line.get("turns"):
        return "was answered in several turns, and only answers of one turn are measured"
    if not str(line["text"]).strip():
        return "was answered by nothing, so no word can become less likely"
    if not crops:
        return "shows no pixels"
    if len({crop.volume for crop in crops}) > 1:
        return "shows several volumes, and only one is covered"
    if (drawing := next((crop.drawing for crop in crops if crop.drawing), None)) is not None:
        return f"shows pictures drawn of the scan ({drawing.kind}), in which a cell has no place"
    return ""


def _covered(prompt: Prompt, cell_zyx: BoxZYX | None) -> Prompt:
    """Return the question over its scan with a cell covered; None: with nothing covered, by the same way."""
    return prompt.showing([CoveredCrop(**vars(crop), cell_zyx=cell_zyx) for crop in prompt.crops()])


def _changes(bank: CoveringBank, policy: VLMPolicy, prompt: Prompt, cell_zyx: BoxZYX) -> bool | None:
    """Tell whether covering a cell changes anything that is shown; None where nothing of it is shown."""
    size = policy.processor.image_processor.size_zyx
    crops = [crop for crop in _covered(prompt, cell_zyx).crops() if isinstance(crop, CoveredCrop)]
    told = [bank.changes(crop, size(crop)) for crop in crops]
    seen = [item for item in told if item is not None]
    return any(seen) if seen else None


def _largest(drops: Sequence[float | None], grid: CellGrid, geometry: Geometry) -> dict[str, Any] | None:
    """Return the cell with the largest drop, the first of equal ones; None if all are below `SMALLEST`."""
    cell = _cell(drops)
    if cell is None:
        return None
    box = grid.boxes[cell]
    corners = [[edge - 0.5 for edge in edges] for edges in (box[::2], box[1::2])]
    low, high = ((geometry.affine @ [*corner, 1.0])[:3] for corner in corners)
    mm = [sorted((round(float(a), 1), round(float(b), 1))) for a, b in zip(low, high, strict=True)]
    return {"cell": cell, "drop": drops[cell], "box_zyx": box, "mm_zyx": mm}


def _cell(drops: Sequence[float | None]) -> int | None:
    values = [-math.inf if drop is None else drop for drop in drops]
    best = max(range(len(values)), key=values.__getitem__)
    return best if values[best] > SMALLEST else None


def _pointing(
    drops: Sequence[float | None], changes: Sequence[bool | None], grid: CellGrid, prompt: Prompt
) -> dict[str, Any] | None:
    """Return whether drops lie where the mask of what is asked does; None where the scan has no such mask."""
    masks, ref = asked_masks(prompt, prompt.case.masks), prompt.crops()[0].volume
    if not masks or ref != prompt.case.volumes[0]:
        return None
    volume = read(ref)
    touching = np.array(grid.touched(np.logical_or.reduce([read_mask(mask, like=volume) for mask in masks])))
    body = np.array([bool(changed) for changed in changes])
    if volume.intensity == "hu":  # in a CT the cells that hold a part of the body
        blocks = coarse(volume)
        steps = zip(blocks.spacing_mm_zyx, volume.spacing_mm_zyx, strict=True)
        z, y, x = (round(block / voxel) for block, voxel in steps)
        body = np.array(grid.touched(outline(blocks), (z, y, x)))
    body &= np.array([drop is not None for drop in drops])
    if not touching.any() or not body.any():
        return None
    cell, positive = _cell(drops), np.array([max(0.0, drop or 0.0) for drop in drops])
    return {
        "hit": None if cell is None else bool(touching[cell]),
        "share": None if cell is None else float(positive[touching].sum() / positive.sum()),
        "chance": float(touching[body].mean()),
    }
