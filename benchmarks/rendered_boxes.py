"""How often the policy audit is fooled over boxes: planted policies that know where bodies lie, and a looker.

python benchmarks/rendered_boxes.py --seeds 200       2 cores, about an hour, no download
python benchmarks/rendered_boxes.py --seeds 200 --keep docs/results/rendered_boxes.json

One pool of abdominal phantoms is drawn, moved, scaled, half of them mirrored; the distance of slices that
headers state follows how high a scan was taken. Each audit draws its patients from the pool anew and asks for
every organ in view. What policies say to each showing is worked out once; so is what a segmenter makes of
each box, and what blind rules learn.
"""

import dataclasses
import functools
import hashlib
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import planted_rates
from evidcore_plugin_audit import occlusion
from evidcore_plugin_audit.occlusion import Occluded, OccludedElsewhere
from evidcore_plugin_medvol_r1.blind_boxes import REGISTRATION, Rule, best_answers
from evidcore_plugin_medvol_r1.evaluation import SegmentationEvaluation
from evidcore_plugin_medvol_r1.masks import request, target_mask
from evidcore_plugin_medvol_r1.scan_facts import outlined

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "evidcore-plugin-medvol-r1" / "tests"))

import planted_boxes as planted

from evidcore.audit.conditions import Blank, Perturbed, Scrambled
from evidcore.case import Answer, Box, Case, Prompt, VolumeRef
from evidcore.contracts import Answers, EvalOptions, EvalResult, Policy, Row, Task
from evidcore.data import read, read_geometry, read_mask, save_volume
from evidcore.data.content import crop_key
from evidcore.data.grid import Mask
from evidcore.data.masks import dice
from evidcore.registry import Offer

POOL = 600
TRAINING = 160
CONDITIONS = ("blank", "scrambled", "perturbed", "other-patient", "occluded", "occluded-elsewhere")
SLICE_MM = 15.0
HEADER_CUE = 0.9  # how likely a header's slice distance tells how high the scan was taken
Showing = tuple[str, bool, str, str]  # a volume's path, whether blank, its change, the organ asked for


class Overlaps(EvalResult):
    """The Dice of each answer, which is all that a verdict needs."""

    def __init__(self, name: str, prompts: Sequence[Prompt], values: Sequence[float]) -> None:
        self.name, self._values = name, tuple(values)
        self._clusters = tuple(prompt.case.patient or prompt.case.id for prompt in prompts)

    @property
    def clusters(self) -> tuple[str, ...]:
        """Return the patient of each prompt."""
        return self._clusters

    def values(self, metric: str) -> tuple[float, ...]:
        """Return the Dice of each prompt."""
        if metric != "dsc":
            raise ValueError(f"dsc alone is measured here, got {metric!r}")
        return self._values

    def rows(self) -> list[Row]:
        """Return nothing: verdicts are counted."""
        return []

    def lines(self) -> list[dict[str, Any]]:
        """Return nothing."""
        return []


class Remembering(SegmentationEvaluation):
    """Reads each answer, makes and measures each mask, and learns blind rules once."""

    def __init__(self, world: planted.World) -> None:
        segmenter = planted.Likes()
        segmenter.evid_offer = Offer(
            kind="segmenter", name="likes", package="benchmarks", version="1", target="planted_boxes:Likes"
        )
        super().__init__(world.folder / "cache", segmenter=segmenter)
        self.read: dict[tuple[str, str], Answer] = {}
        self.dsc: dict[tuple[str, tuple[Box, ...]], float] = {}
        self.targets: dict[str, Mask] = {}
        self.sessions: dict[str, planted.Alike] = {}
        for prompt in world.prompts:
            (ref,) = prompt.case.volumes
            if ref.path not in self.sessions:
                self.sessions[ref.path] = segmenter.session(ref)
            self.targets[prompt.id] = target_mask(prompt, read(ref))
        learnt = super().best_rules(world.prompts, world.training, world.task)
        ids = [prompt.id for prompt in world.prompts]
        self.learnt = [(rule, dict(zip(ids, said, strict=True))) for rule, said in learnt]

    def answer(
        self, policy: Policy, prompts: Sequence[Prompt], task: Task, asking: EvalOptions
    ) -> list[Answer]:
        """Return what the task reads in each answer."""
        texts = policy.generate(prompts, max_new_tokens=asking.max_new_tokens)
        for prompt, text in zip(prompts, texts, strict=True):
            if (prompt.id, text) not in self.read:
                self.read[prompt.id, text] = task.parse(prompt, text)
        return [self.read[prompt.id, text] for prompt, text in zip(prompts, texts, strict=True)]

    def score(self, answers: Sequence[Answers[Answer]], task: Task, name: str) -> list[EvalResult]:
        """Return the Dice of each answer."""
        return [
            Overlaps(name, item.prompts, list(map(self.overlap, item.prompts, item.said))) for item in answers
        ]

    def overlap(self, prompt: Prompt, answer: Answer) -> float:
        """Return the Dice of what the segmenter makes of an answer's boxes."""
        boxes = answer.evidence.boxes if answer.evidence else ()
        if not boxes:
            return 0.0
        if (prompt.id, boxes) not in self.dsc:
            made = self.sessions[prompt.case.volumes[0].path].mask(request(boxes).prompts)
            self.dsc[prompt.id, boxes] = dice(made, self.targets[prompt.id])
        return self.dsc[prompt.id, boxes]

    def best_rules(
        self, prompts: Sequence[Prompt], known: Sequence[Prompt], task: Task
    ) -> list[tuple[Rule, list[Answer]]]:
        """Return the rules and what they said of the pool."""
        return [(rule, [said[prompt.id] for prompt in prompts]) for rule, said in self.learnt]

    def agree(self, prompts: Sequence[Prompt], said: Sequence[Answer], task: Task) -> None:
        """Raise if the evaluation itself measures anything else."""
        answers = [Answers(prompts, said)]
        (own,), (whole,) = self.score(answers, task, ""), super().score(answers, task, "")
        if not np.allclose(own.values("dsc"), whole.values("dsc")):
            raise RuntimeError(f"{own.values('dsc')} is not {whole.values('dsc')}")


class Header(planted.HeightOnly):
    """The usual place, moved by the distance of slices that the header states."""

    def facts(self, prompt: Prompt) -> np.ndarray[Any, Any]:
        """Return the distance."""
        return np.array(read_geometry(prompt.crops()[0].volume).spacing_mm_zyx[:1])


class Histogram(planted.HeightOnly):
    """The usual place, moved by intensities without a place."""

    def facts(self, prompt: Prompt) -> np.ndarray[Any, Any]:
        """Return quantiles of HU."""
        return np.quantile(planted.shown(prompt), np.linspace(0.01, 0.99, 33))


class Registered(planted.Planted):
    """Says what registration says of each showing: the usual place in the outline, moved by its profile."""

    def __init__(self, world: planted.World, showings: Sequence[Prompt]) -> None:
        super().__init__(world)
        look = functools.partial(outlined, cache_folder=world.folder / "cache")
        scans = [on_its_own(prompt, world.folder / "changed") for prompt in showings]
        _, answers = best_answers(scans, world.training, world.task, REGISTRATION, look)
        self.said = {
            showing(prompt): planted.written(box.z, box.y0, box.y1, box.x0, box.x1)
            for prompt, answer in zip(showings, answers, strict=True)
            for box in answer.evidence.boxes
        }

    def answer(self, prompt: Prompt) -> str:
        """Return what it says to one."""
        return self.said[showing(prompt)]


class Memory(planted.Planted):
    """Knows the pool's scans by their exact voxels, and every place in them; else it registers."""

    def __init__(self, world: planted.World, otherwise: planted.Planted) -> None:
        super().__init__(world)
        self.otherwise, self.of = otherwise, {}
        for prompt in world.prompts:
            self.of[content(prompt), planted.asked(prompt)] = self.known(prompt)

    def answer(self, prompt: Prompt) -> str:
        """Return the place that it knows."""
        place = self.of.get((content(prompt), planted.asked(prompt)))
        return self.otherwise.answer(prompt) if place is None else planted.written(*place)


def content(prompt: Prompt) -> bytes:
    """Return a hash of the voxels as shown."""
    return hashlib.blake2b(planted.shown(prompt).tobytes()).digest()


def showing(prompt: Prompt) -> Showing:
    """Return what is shown and asked."""
    crop = prompt.crops()[0]
    return crop.volume.path, crop.blank, crop.change, planted.asked(prompt)


def on_its_own(prompt: Prompt, folder: Path) -> Prompt:
    """Return the question about a case whose volume is what is shown, in a file where it was changed."""
    crop = prompt.crops()[0]
    ref = crop.volume
    if crop.blank or crop.change:
        path = folder / f"{crop_key(crop)}.nii"
        if not path.exists():
            folder.mkdir(exist_ok=True)
            save_volume(dataclasses.replace(read(ref), array=planted.shown(prompt)), path)
        ref = VolumeRef(path=str(path))
    return dataclasses.replace(prompt, case=dataclasses.replace(prompt.case, volumes=(ref,)))


class Prepared(Policy):
    """Says what a planted policy says, worked out once for each showing."""

    def __init__(self, policy: planted.Planted, showings: Sequence[Prompt]) -> None:
        self.said = {showing(prompt): policy.answer(prompt) for prompt in showings}

    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[str]:
        """Return what it says."""
        return [self.said[showing(prompt)] for prompt in prompts]

    def log_likelihoods(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """Refuse: boxes are read."""
        raise NotImplementedError("boxes are read, not weighed")


class Scans(planted.World):
    """The pool, and what every policy says to each showing of it."""

    def __init__(self, folder: Path, pool: int, training: int, share: float) -> None:
        super().__init__(folder, training, pool, mirrored=0.5)
        self.of_case: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            self.of_case.setdefault(prompt.case.id, []).append(prompt)
        self.keep_covers()
        showings = list(self.showings())
        registered = Registered(self, showings)
        policies = [planted.Planted(self), planted.HeightOnly(self), planted.OutlineOnly(self), registered]
        policies += [Header(self), Histogram(self), Memory(self, registered)]
        policies += [planted.Looker(self, registered, share)]
        self.policies = {type(item).__name__: Prepared(item, showings) for item in policies}
        self.evaluation = Remembering(self)
        some, looker = self.prompts[:20], self.policies["Looker"]
        said = self.evaluation.answer(looker, some, self.task, EvalOptions(max_new_tokens=8))
        self.evaluation.agree(some, said, self.task)

    def stated(self, case: Case) -> Case:
        """Return the case with a distance of slices that tells how high its organs lie, mostly."""
        volume, rng = read(case.volumes[0]), random.Random(f"header/{case.id}")
        organs = [read_mask(case.masks[name], like=volume) for name in planted.ORGANS if name in case.masks]
        height = np.argwhere(np.any(organs, axis=0))[:, 0].mean() if organs else planted.SIZE[0] / 2
        share = rng.random() if rng.random() > HEADER_CUE else float(np.clip((height - 4) / 12, 0, 1))
        spacing = (SLICE_MM * (0.8 + 0.1 * round(4 * share)), *volume.spacing_mm_zyx[1:])
        return dataclasses.replace(
            case, volumes=(dataclasses.replace(case.volumes[0], spacing_mm_zyx=spacing),)
        )

    def keep_covers(self) -> None:
        """Have each question covered once: finding its cover again takes half of an audit's time."""
        edited, known = occlusion._edited, dict[tuple[str, occlusion.Way], Prompt | None]()
        for prompt in self.prompts:
            for condition in (Occluded, OccludedElsewhere):
                known[prompt.id, condition.way] = edited(prompt, condition.way)
        occlusion._edited = lambda prompt, way: known[prompt.id, way]

    def showings(self) -> Iterator[Prompt]:
        """Yield all that an audit can ask: each organ over each scan and its changes, and over its cover."""
        wording = {planted.asked(prompt): prompt for prompt in self.prompts}.values()
        for prompts in self.of_case.values():
            every = [prompt.showing(prompts[0].crops()) for prompt in wording]
            yield from every
            for changed in (Blank(), Scrambled(), Perturbed()):
                yield from filter(None, changed.show(every, seed=0, dataset=None))
            for covered in (Occluded(), OccludedElsewhere()):
                yield from filter(None, covered.show(prompts, seed=0, dataset=None))


SCANS: Scans


def told(policy: str, patients: int, seed: int) -> planted_rates.Told:
    """Return what the audit says of one policy on patients drawn from the pool, in a word."""
    cases = random.Random(f"pool/{seed}").sample(list(SCANS.of_case.values()), patients)
    audit = planted.audited(
        SCANS.policies[policy], SCANS, SCANS.evaluation, conditions=CONDITIONS, seed=seed,
        prompts=[prompt for prompts in cases for prompt in prompts],
    )  # fmt: skip
    return planted_rates.told_of(audit, "occluded")


def main() -> None:
    """Draw, prepare, audit, print a line for each policy, and keep them where asked."""
    global SCANS
    parser = planted_rates.rendered_options(__doc__, pool=POOL, training=TRAINING, share=0.42)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.cache or Path(scratch)
        os.environ["EVID_CACHE"] = str(folder / "shown")
        SCANS = Scans(folder, asked.pool, asked.training, asked.share)
        never = [name for name in SCANS.policies if name != planted_rates.LOOKER]
        planted_rates.sweep(
            asked, "rendered_boxes", never, told, removed="occluded", most=asked.pool,
            pool=asked.pool, training=asked.training, share=asked.share,
        )  # fmt: skip


if __name__ == "__main__":
    main()
