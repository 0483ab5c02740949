"""Moved and scaled abdominal phantoms, and policies that know where the body lies and look no further."""

import json
import re

import nibabel
import numpy as np
import pytest
from evidcore_plugin_medvol_r1.evaluation import SegmentationEvaluation
from evidcore_plugin_medvol_r1.followed import gold_evidence
from evidcore_plugin_medvol_r1.masks import target_mask
from evidcore_plugin_medvol_r1.scan_facts import HEIGHTS, outlined, stated
from evidcore_plugin_medvol_r1.task import ReasoningSegmentation
from evidcore_plugin_phantoms.abdomen.dataset import PhantomAbdomen

from evidcore.builtin.views import Slices
from evidcore.case import VolumeRef
from evidcore.contracts import Asking, Policy, Segmenter, SegmenterSession
from evidcore.registry import factory
from evidcore.volume import read

ORGANS = ("liver", "spleen", "left kidney", "right kidney", "bladder")
SIZE = (20, 48, 64)
SEES = ("The volume is used", "What is asked is seen")


class Alike(SegmenterSession):
    def __init__(self, hu):
        self.hu = hu

    def mask(self, prompts, z_window=None):
        mask = np.zeros(SIZE, dtype=bool)
        for prompt in prompts:
            z, rows, columns = prompt.box.z, *(slice(*edges) for edges in edges_of(prompt.box))
            reach = round(0.3 * ((rows.stop - rows.start) * (columns.stop - columns.start)) ** 0.5)
            part = slice(max(0, z - reach), z + reach + 1), rows, columns
            mask[part] |= np.abs(self.hu[part] - np.median(self.hu[z, rows, columns])) < 60
        return mask


class Likes(Segmenter):
    """Makes of a box what is like most of it, a little deeper than it is wide."""

    def session(self, volume):
        return Alike(read(volume).array)


def edges_of(box):
    return (box.y0, box.y1), (box.x0, box.x1)


class World:
    """Questions about the organs of phantoms, training and test."""

    def __init__(self, folder):
        self.folder = folder
        self.view = Slices(slices=20)
        self.task = ReasoningSegmentation(self.view, folder, folder / "cache", ask="masks", names=ORGANS)
        data = PhantomAbdomen(
            folder / "cache", train_cases=160, validation_cases=0, test_cases=40, size_zyx=SIZE,
            prevalence=0.01, queries_per_case=0, scan_shift_mm=60.0, in_plane_shift_mm=25.0, size_spread=0.1,
        )  # fmt: skip
        self.training, self.prompts = (
            [prompt for case in data.cases(split) for prompt in self.task.prompts(case, self.view, 0)]
            for split in ("train", "test")
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("abdomen"))


class Planted(Policy):
    """Answers with the usual place of what is asked, moved by what it reads of a volume."""

    def __init__(self, world):
        self.world = world
        self.place, off = {}, []
        places = [self.known(prompt) for prompt in world.training]
        for name in ORGANS:
            own = [
                place for prompt, place in zip(world.training, places, strict=True) if asked(prompt) == name
            ]
            self.place[name] = np.median(own, axis=0)
        for prompt, place in zip(world.training, places, strict=True):
            off.append(place - self.place[asked(prompt)])
        self.learn(world.training, np.array(off))

    def known(self, prompt):
        evidence = gold_evidence(prompt, self.world.task)
        (box,) = evidence.boxes
        return np.array([box.z + 0.5, box.y0, box.y1, box.x0, box.x1], float)

    def learn(self, training, off):
        pass

    def moved(self, crop, place):
        return place

    def generate(self, prompts, *, max_new_tokens, temperature=0.0):
        return [self.answer(prompt) for prompt in prompts]

    def answer(self, prompt):
        z, y0, y1, x0, x1 = self.moved(prompt.crops()[0], self.place[asked(prompt)])
        return written(np.clip(int(z), 0, 19), y0, y1, x0, x1)

    def log_likelihoods(self, prompts, completions):
        raise NotImplementedError("boxes are read, not weighed")


def asked(prompt):
    """Return the organ that the words name."""
    return re.search("|".join(ORGANS), prompt.words()).group()


def written(z, y0, y1, x0, x1):
    box = [round(float(np.clip(1000 * edge, 0, 1000))) for edge in (x0 / 64, y0 / 48, x1 / 64, y1 / 48)]
    box[2:] = max(box[2], box[0] + 1), max(box[3], box[1] + 1)
    answer = json.dumps({"slice": int(z), "bbox_2d_list": [box]})
    return f"<think>There.</think><answer>{answer}</answer>"


def array(crop):
    return np.full(SIZE, -1000) if crop.blank else read(crop.volume).array


class HeightOnly(Planted):
    """One offset a scan, for all organs, by a ridge on five numbers a slice: how high the scan was taken."""

    def learn(self, training, off):
        facts = np.array([self.facts(prompt.crops()[0]) for prompt in training])
        self.mean, self.spread = facts.mean(axis=0), facts.std(axis=0) + 1e-6
        shown = (facts - self.mean) / self.spread
        self.weights = np.linalg.solve(shown.T @ shown + 30 * np.eye(shown.shape[1]), shown.T @ off[:, 0])

    def facts(self, crop):
        hu = array(crop).reshape(SIZE[0], -1)
        shares = [(hu < -300), (hu > 200), (hu > -150) & (hu < -30)]
        return np.concatenate([hu.mean(axis=1), hu.std(axis=1), *(each.mean(axis=1) for each in shares)])

    def moved(self, crop, place):
        return place + np.array([self.weights @ ((self.facts(crop) - self.mean) / self.spread), 0, 0, 0, 0])


class OutlineOnly(Planted):
    """The usual place in the box around what is no air."""

    def known(self, prompt):
        return self.turned(prompt.crops()[0], super().known(prompt), into=True)

    def moved(self, crop, place):
        return self.turned(crop, place, into=False)

    def turned(self, crop, place, *, into):
        tissue = array(crop)[:, 1:-1] > -300
        rows, columns = np.flatnonzero(tissue[:, :40].any((0, 2))), np.flatnonzero(tissue.any((0, 1)))
        if not rows.size:
            return place
        first = np.array([0, rows[0], rows[0], columns[0], columns[0]])
        last = np.array([1, rows[-1], rows[-1], columns[-1], columns[-1]])
        return (place - first) / (last - first) if into else first + place * (last - first)


class Looker(Planted):
    """Boxes an organ where its voxels are those of the patient whose scan it is; else it guesses."""

    def __init__(self, world):
        super().__init__(world)
        self.of = {}
        for prompt in world.prompts:
            volume = read(prompt.case.volumes[0])
            mask = target_mask(prompt, volume)
            self.of[self.person(volume.array), asked(prompt)] = mask, volume.array[mask], self.known(prompt)

    def person(self, hu):
        """Return what no cover reaches."""
        return hu[:, :, :4].tobytes()

    def answer(self, prompt):
        hu, name = array(prompt.crops()[0]), asked(prompt)
        mask, own, place = self.of.get((self.person(hu), name), (None, None, None))
        is_seen = mask is not None and not prompt.crops()[0].change and (hu[mask] == own).mean() > 0.5
        return written(*(place if is_seen else self.place[name]))


def audited(policy, world, offered):
    offered("evid-likes", "[evidcore.segmenter]\nlikes = evid_likes:It\n", It=Likes)
    segmenter = factory.build("segmenter", {"use": "likes"}, given={}, where="test")
    evaluation = SegmentationEvaluation(world.folder / "cache", segmenter=segmenter)
    names = ("blank", "scrambled", "occluded", "occluded-elsewhere")
    conditions = [{"use": name} for name in names]
    audit = factory.build("audit", {"use": "policy", "conditions": conditions}, given={}, where="test")
    asking = Asking(max_new_tokens=8)
    return audit(policy, world.prompts, world.task, evaluation, lambda: world.training, asking, "reasoning")


@pytest.mark.parametrize("planted", [HeightOnly, OutlineOnly])
def test_who_knows_where_the_body_lies_and_no_organ_is_not_told_to_look(planted, world, offered):
    audit = audited(planted(world), world, offered)
    assert not audit.verdict().startswith(SEES)
    assert audit.gain.name == "registration"
    assert "registration (the usual place in the body's outline" in audit.verdict()


def test_who_looks_is_told_so_and_registration_has_a_row(world, offered):
    audit = audited(Looker(world), world, offered)
    assert audit.verdict().startswith("What is asked is seen")
    covered = "over the same patients with what is asked covered"
    assert covered in audit.verdict()
    kept_still = next(rung for rung in audit.rungs if rung.name == "occluded-elsewhere")
    assert abs(kept_still.above.value) < 0.02
    assert len(kept_still.differences) > 0.8 * len(world.prompts)
    rows = {row.metric: row for row in audit.rows()}
    assert rows["blind_dsc"].value < 0.25
    assert rows["registration_dsc"].value == pytest.approx(0.85, abs=0.02)  # the docs say so
    assert audit.score("own").value == pytest.approx(0.89, abs=0.02)  # its boxes are the gold ones
    assert rows["own_minus_registration"].value < rows["own_minus_blind_rule"].value
    kept = [line for line in audit.lines() if line["condition"] == "registration"]
    assert np.mean([line["figures"]["dsc"] for line in kept]) == pytest.approx(rows["registration_dsc"].value)


def test_an_outline_is_the_body_s_box_and_the_header_alone_knows_nothing_of_it(tmp_path):
    hu = np.full((10, 60, 80), -1000, np.int16)
    hu[2:9, 20:50, 10:60] = 40  # z, y, x
    hu[2:9, 54:55, 5:75] = 100  # a table
    hu[8, 20:50, 10:35] = 500  # half of the top slice is bone
    refs = []
    for name, array in (("body", hu), ("air", np.full_like(hu, -1000))):
        path = tmp_path / f"{name}.nii"
        nibabel.save(nibabel.Nifti1Image(array.transpose(2, 1, 0), np.diag([-2.0, -2.0, 3.0, 1.0])), path)
        refs.append(VolumeRef(path=str(path)))
    body = outlined(refs[0], tmp_path / "cache")
    assert body.frame == ((2, 9), (20, 50), (10, 60))
    box_mm, profile = body.facts[12:18], np.reshape(body.facts[18:], (5, HEIGHTS))
    assert box_mm == pytest.approx((6, 27, 40, 100, 20, 120))
    assert profile[4, 0] == 0.0
    assert profile[4, -1] == pytest.approx(0.5)
    assert profile[0, 0] == pytest.approx(40)
    assert stated(refs[0]) == stated(refs[1])
    assert outlined(refs[1], tmp_path / "cache").frame == ((0, 10), (0, 60), (0, 80))
