"""A world of moved and scaled abdominal phantoms, and policies that box organs, each by its own reading."""

import functools
import json
import random
import re

import numpy as np
from evidcore_plugin_medvol_r1.followed import gold_evidence
from evidcore_plugin_medvol_r1.masks import target_mask
from evidcore_plugin_medvol_r1.task import ReasoningSegmentation
from evidcore_plugin_phantoms.abdomen.dataset import PhantomAbdomen
from evidcore_testing.checks_evaluation import Repeats

from evidcore.api import EvalOptions, Segmenter, read
from evidcore.builtin.views import Slices
from evidcore.contracts import SegmenterSession
from evidcore.data.preparation import show
from evidcore.registry import factory

ORGANS = ("liver", "spleen", "left kidney", "right kidney", "bladder")
SIZE = (20, 48, 64)
SEES = ("The volume is used", "What is asked is seen")
CONDITIONS = ("blank", "scrambled", "occluded", "occluded-elsewhere")
ALIKE = 0.3  # correlation with the voxels of the own scan: above it, they are seen


class Alike(SegmenterSession):
    def __init__(self, hu):
        self.hu = hu

    def mask(self, prompts, z_window=None):
        mask = np.zeros(SIZE, dtype=bool)
        for prompt in prompts:
            box = prompt.box
            z, rows, columns = box.z, slice(box.y0, box.y1), slice(box.x0, box.x1)
            reach = round(0.3 * ((rows.stop - rows.start) * (columns.stop - columns.start)) ** 0.5)
            part = slice(max(0, z - reach), z + reach + 1), rows, columns
            mask[part] |= np.abs(self.hu[part] - np.median(self.hu[z, rows, columns])) < 60
        return mask


class Likes(Segmenter):
    """Makes of a box what is like most of it, a little deeper than it is wide."""

    def session(self, volume):
        return Alike(read(volume).array)


class World:
    """Questions about the organs of phantoms, training and test."""

    def __init__(self, folder, train_cases=160, test_cases=40, **options):
        self.folder = folder
        self.view = Slices(slices=20)
        self.task = ReasoningSegmentation(self.view, folder, folder / "cache", ask="masks", names=ORGANS)
        data = PhantomAbdomen(
            folder / "cache", train_cases=train_cases, validation_cases=0, test_cases=test_cases,
            size_zyx=SIZE, prevalence=0.01, queries_per_case=0, scan_shift_mm=60.0, in_plane_shift_mm=25.0,
            size_spread=0.1, **options,
        )  # fmt: skip
        halves = ([self.stated(case) for case in data.cases(split)] for split in ("train", "test"))
        self.training, self.prompts = (
            [prompt for case in half for prompt in self.task.prompts(case, self.view, 0)] for half in halves
        )

    def stated(self, case):
        """Return the case with whatever its headers state."""
        return case


class Planted(Repeats):
    """Answers with the usual place of what is asked, moved by what it reads of a volume."""

    def __init__(self, world):
        self.world = world
        pairs = [(asked(prompt), self.known(prompt)) for prompt in world.training]
        self.place = {
            organ: np.median([place for name, place in pairs if name == organ], axis=0) for organ in ORGANS
        }
        self.learn(world.training, np.array([place - self.place[name] for name, place in pairs]))

    def known(self, prompt):
        evidence = gold_evidence(prompt, self.world.task)
        (box,) = evidence.boxes
        return np.array([box.z + 0.5, box.y0, box.y1, box.x0, box.x1], float)

    def learn(self, training, off):
        pass

    def moved(self, prompt, place):
        return place

    def generate(self, prompts, *, max_new_tokens, temperature=0.0):
        return [self.answer(prompt) for prompt in prompts]

    def answer(self, prompt):
        z, y0, y1, x0, x1 = self.moved(prompt, self.place[asked(prompt)])
        return written(np.clip(int(z), 0, 19), y0, y1, x0, x1)


def asked(prompt):
    """Return the organ that the words name."""
    return re.search("|".join(ORGANS), prompt.words()).group()


def written(z, y0, y1, x0, x1):
    box = [round(float(np.clip(1000 * edge, 0, 1000))) for edge in (x0 / 64, y0 / 48, x1 / 64, y1 / 48)]
    box[2:] = max(box[2], box[0] + 1), max(box[3], box[1] + 1)
    answer = json.dumps({"slice": int(z), "bbox_2d_list": [box]})
    return f"<think>There.</think><answer>{answer}</answer>"


def shown(prompt):
    """Return the voxels of all slices as shown, (z, y, x)."""
    return _shown(prompt.crops())


@functools.lru_cache(maxsize=8)
def _shown(crops):
    if crops[0].blank:
        return np.full(SIZE, -1000, np.int16)
    if not crops[0].change:
        return read(crops[0].volume).array
    return np.concatenate([show(crop).array for crop in crops])


class HeightOnly(Planted):
    """One offset a scan, for all organs, by a ridge on five numbers a slice: how high the scan was taken."""

    def learn(self, training, off):
        facts = np.array([self.facts(prompt) for prompt in training])
        self.mean, self.spread = facts.mean(axis=0), facts.std(axis=0) + 1e-6
        known = (facts - self.mean) / self.spread
        self.weights = np.linalg.solve(known.T @ known + 30 * np.eye(known.shape[1]), known.T @ off[:, 0])

    def facts(self, prompt):
        hu = shown(prompt).reshape(SIZE[0], -1)
        shares = [(hu < -300), (hu > 200), (hu > -150) & (hu < -30)]
        return np.concatenate([hu.mean(axis=1), hu.std(axis=1), *(each.mean(axis=1) for each in shares)])

    def moved(self, prompt, place):
        off = self.weights @ ((self.facts(prompt) - self.mean) / self.spread)
        return place + np.array([off, 0, 0, 0, 0])


class OutlineOnly(Planted):
    """The usual place in the box around what is no air."""

    def known(self, prompt):
        return self.turned(prompt, super().known(prompt), into=True)

    def moved(self, prompt, place):
        return self.turned(prompt, place, into=False)

    def turned(self, prompt, place, *, into):
        tissue = shown(prompt)[:, 1:-1] > -300
        rows, columns = np.flatnonzero(tissue[:, :40].any((0, 2))), np.flatnonzero(tissue.any((0, 1)))
        if not rows.size:
            return place
        first = np.array([0, rows[0], rows[0], columns[0], columns[0]])
        last = np.array([1, rows[-1], rows[-1], columns[-1], columns[-1]])
        return (place - first) / (last - first) if into else first + place * (last - first)


class Looker(Planted):
    """Boxes an organ where its voxels are those of the patient whose scan it is.

    Args:
        otherwise: answers where they are not, and for organs that it does not look for.
        share: of patients' organs that it looks for.
    """

    def __init__(self, world, otherwise, share=1.0):
        super().__init__(world)
        self.otherwise, self.share = otherwise, share
        self.of, faces = {}, {}
        for prompt in world.prompts:
            volume = read(prompt.case.volumes[0])
            mask, place = target_mask(prompt, volume), self.known(prompt)
            self.of[prompt.case.id, asked(prompt)] = mask, volume.array[mask].astype(float), place
            faces[prompt.case.id] = face(volume.array)
        self.people, self.faces = list(faces), np.array(list(faces.values()))

    def answer(self, prompt):
        person, place = self.found(shown(prompt), asked(prompt))
        is_looked_for = random.Random(f"{person}/{asked(prompt)}").random() < self.share
        return written(*place) if place is not None and is_looked_for else self.otherwise.answer(prompt)

    def found(self, hu, name):
        """Return whose organ is seen and where."""
        person = self.people[np.argmin(np.abs(self.faces - face(hu)).sum(axis=1))]
        mask, own, place = self.of.get((person, name), (None, None, None))
        return (person, place) if mask is not None and is_alike(hu[mask], own) else (None, None)


def face(hu):
    """Return a coarse picture of a scan, which no cover and no noise makes another's."""
    return hu.reshape(5, 4, 6, 8, 8, 8).mean(axis=(1, 3, 5)).ravel()


def is_alike(held, own):
    here, there = held - held.mean(), own - own.mean()
    return here @ there > ALIKE * np.sqrt((here @ here) * (there @ there))


def audited(policy, world, evaluation, *, conditions=CONDITIONS, prompts=None, seed=0):
    """Audit a planted policy over a world."""
    table = {"use": "policy", "conditions": [{"use": name} for name in conditions]}
    audit = factory.build("audit", table, given={}, where="test")
    asking = EvalOptions(max_new_tokens=8, seed=seed)
    prompts = world.prompts if prompts is None else prompts
    return audit(policy, prompts, world.task, evaluation, lambda: world.training, asking, "reasoning")
