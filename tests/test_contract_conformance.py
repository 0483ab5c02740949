"""Every installed component keeps the contract of its kind."""

import base64
import contextlib
import csv
import dataclasses
import hashlib
import inspect
import io
import json
import re
from pathlib import Path

import evidcore_testing as testing
import nibabel
import nrrd
import numpy as np
import pytest
from evidcore_plugin_ct_data.miniatures import WRITERS, write
from evidcore_plugin_dicom.phantom import write_series
from evidcore_plugin_emrl.policy_reader import PolicyReader
from evidcore_plugin_encoders.testing import tiny_vlm
from evidcore_plugin_medsam2.seeded import seeded_model, small_config
from evidcore_plugin_medvr.free_text import FreeText
from evidcore_plugin_medvr.tools import CropTool, Zoom
from evidcore_plugin_segmenters.region_growing import RegionGrowing
from evidcore_plugin_tables.folder import Folder
from evidcore_plugin_text_metrics.endpoint import Endpoint
from evidcore_plugin_text_metrics.judge import DIMENSIONS
from evidcore_plugin_text_metrics.testing import Reply, chat_server, tiny_reward_model, tiny_text_encoder
from evidcore_plugin_text_metrics.text_models import Pretrained
from evidcore_plugin_vllm.testing import protocol_server
from evidcore_plugin_vllm.weights import write_whole
from evidcore_testing.data import FINDINGS
from PIL import Image

from evidcore.builtin.choice import Choice
from evidcore.builtin.labelers import NegationRules
from evidcore.builtin.report import ReportTask
from evidcore.builtin.scorers import FindingsF1
from evidcore.builtin.views import Slices, Volume
from evidcore.case import Case, Crop, Finding, MaskRef, Score, Turn, VisualPart, VolumeRef
from evidcore.contracts import KINDS, Dataset, EncoderInput, ImageQuestion, Policy, Prefix
from evidcore.formats import Geometry
from evidcore.formats import Volume as ScanVolume
from evidcore.model.policy import sampling_of
from evidcore.recipe import load
from evidcore.registry import factory, offers
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context
from evidcore.runs.model import StageOutputs
from evidcore.train.settings import Silent
from evidcore.volume import read, read_mask

OFFERS = [
    offer for kind in KINDS if kind != "stage" for offer in offers(kind)
]  # those have a run around them
SMALL = EncoderInput(size_zyx=(8, 16, 16), spacing_mm_zyx=None, windows=((-1000.0, 400.0),), any_depth=True)
VISION = testing.tiny_vision("qwen3_vl")
CALL = '<tool_call>{"name": "crop", "arguments": {"slice": 6, "box": [0, 0, 500, 500]}}</tool_call>'

# What a component is built with here, where its defaults are missing or too large for a test.
OPTIONS = {
    "folder": {"path": "."},
    "table": {"path": ".", "option_columns": ["A", "B"]},
    "mask-questions": {"source": {"use": "folder", "path": "."}, "midline": "grid"},
    "sometimes-right": {
        "source": {"use": "table", "path": ".", "option_columns": ["A", "B"]},
        "answers": "answers.jsonl",
    },
    "implant": {"source": {"use": "folder", "path": "."}, "kinds": ["stone"], "prevalence": 1.0},
    "hearsay": {"source": {"use": "folder", "path": "."}},
    "vit3d": {"size_zyx": [8, 16, 16], "patch_zyx": [4, 8, 8], "width": 24},
    "timm-slices": {"size": 32, "slices": 2},
    "native-vision": {"size": 96, "slices": 2},
    "phantom-abdomen": {
        "train_cases": 3,
        "validation_cases": 2,
        "test_cases": 2,
        "size_zyx": [20, 48, 64],
    },
    "phantom-slices": {"train_cases": 3, "validation_cases": 2, "test_cases": 4},
    "slice-propagator": {"size": 32, "width": 8},
    "slice-reader": {"size_yx": [32, 32], "channels": [8, 8]},
    "model-reader": {
        "folder": "vision-language",
        "encoder": {"use": "native-vision", "size": 96, "slices": 1},
        "max_new_tokens": 4,
    },
    "phantom-chest": {
        "train_cases": 6,
        "validation_cases": 3,
        "test_cases": 3,
        "questions_per_finding": 0,
    },
    "labels-file": {"path": "labels.json", "sha256": "0" * 64},
    "endpoint": {
        "endpoint": {"url": "http://127.0.0.1:9/v1", "model": "tiny", "sends_text_away": True},
    },
    "endpoint-reader": {
        "endpoint": {"url": "http://127.0.0.1:9/v1", "model": "tiny", "sends_images_away": True},
    },
    "reward-model": {"model": {"folder": "reward-model"}},
    "embedding": {"model": {"folder": "encoder"}},
    "judge": {
        "endpoint": {"url": "http://127.0.0.1:9/v1", "model": "tiny", "sends_text_away": True},
    },
    "scorer": {"scorer": {"use": "token-f1"}},
    "embedding-f1": {"model": {"folder": "encoder"}},
    "medsam2": {"folder": "sam2"},
    "cross-view": {"reader": {"use": "policy-reader"}, "control": "none"},
    "report-consistency": {"scorer": {"use": "findings-f1"}},
    "reasoning-segmentation": {"ask": "masks"},
    "volume-consistency": {"segmenter": {"use": "region-growing"}},
    "vllm": {
        "url": "http://127.0.0.1:9",
        "model": "policy",
        "weights": "served",
        "sends_images_away": True,
    },
    "zoom": {"smallest_side": 4},
    "zoom-choice": {"tool": {"use": "zoom"}},
    "zoom-free-text": {"tool": {"use": "zoom"}},
    "zoom-onto": {"tool": {"use": "zoom"}, "structures": list(FINDINGS)},
    "zoom-consensus": {"success": "choice-accuracy"},
    **{name: {"path": f"published/{name}"} for name in WRITERS},
    "m3d-seg": {"path": "published/m3d-seg", "codes": ["0004"]},
    "tiny": {"width": 32, "layers": 1},
    "pretrained": {"folder": "language"},
}
# How a component that a `fit` stage can train is trained here.
FITS = {
    "vit3d": {"steps": 2, "cases_per_step": 2, "supervision": ("contrastive", "labels")},
    "timm-slices": {"steps": 2, "cases_per_step": 2},
    "slice-propagator": {"steps": 2, "objects_per_step": 2},
    "slice-reader": {"steps": 2, "slices_per_step": 4},
}
# Another table that must give other cases.
OTHERS = {
    "phantom-abdomen": {"seed": 18},
    "phantom-chest": {"seed": 18},
    "phantom-slices": {"seed": 18},
    "folder": {"intensity": "arbitrary"},
    **{name: {"limit": 1} for name in WRITERS},
    "table": {"intensity": "hu"},
    "mask-questions": {"seed": 18},
    "implant": {"seed": 18},
    "hearsay": {"seed": 18},
    "sometimes-right": {"most": 0.4},
}
UNTRAINED = {"medsam2"}  # its weights are seeded here: it finds something, and not what was asked for
CALLS = {
    "crop": [{"slice": 6, "box": [0, 0, 500, 1000]}, {"slice": 0, "box": [250, 250, 750, 750]}],
    "measure": [{"slice": 6, "from": [0, 0], "to": [500, 250]}],
    "zoom": [{"slice": 6, "box": [0, 0, 500, 1000], "label": "nodule"}],
}
GARBAGE = {
    "choice": ["<think>a</think><answer>Q</answer>", "B"],
    "free-text": ["lung nodule", "<think>a</think><answer></answer>"],
    "report": ["7 7 7"],
    "slice-findings": ["7 7 7", "<report>A nodule.</report>"],
    "report-evidence": [
        "No nodule.",
        "<report>A nodule.</report><evidence>here</evidence>",
        '<report>A nodule.</report><evidence>{"slice": 999}</evidence>',
    ],
}


class Affirming(Policy):
    """Affirms every finding, wherever it is shown something."""

    def generate(self, prompts, *, max_new_tokens, temperature=0.0):
        every = " ".join(f"There is a {name}." for name in FINDINGS)
        return [every if prompt.crops() else "" for prompt in prompts]

    def log_likelihoods(self, prompts, completions):
        return [[0.0] * len(some) for some in completions]


@dataclasses.dataclass
class World:
    """What components are tried on."""

    folder: object
    cases: list
    language: object

    def given(self, kind, name=""):
        """Return what the core gives to a kind."""
        if name == "native-merger":  # fits one tower and one language model
            return {"width": 3 * 4 * 32, "text_width": 64, "grid_zyx": (1, 3, 3), "vision": VISION}
        return {
            "encoder": {"vision": VISION},
            "dataset": {"recipe_folder": self.folder, "cache_folder": self.folder / "cache"},
            "evaluation": {"recipe_folder": self.folder, "cache_folder": self.folder / "cache"},
            "audit": {"recipe_folder": self.folder},
            "language": {"recipe_folder": self.folder},
            "labeler": {"recipe_folder": self.folder},
            "reader": {"recipe_folder": self.folder, "policy": Affirming(), "start_policy": Affirming()},
            "reward": {
                "policy": Affirming(),
                "start_policy": Affirming(),
                "cases": lambda: self.cases,
                "cache_folder": self.folder / "cache",
            },
            "scorer": {"recipe_folder": self.folder},
            "metric": {
                "recipe_folder": self.folder,
                "cache_folder": self.folder / "cache",
                "labeler": NegationRules(),
            },
            "segmenter": {"recipe_folder": self.folder, "cache_folder": self.folder / "cache"},
            "bridge": {"width": 24, "text_width": 32, "grid_zyx": (4, 2, 2)},
            "task": {
                "view": Slices(),
                "recipe_folder": self.folder,
                "cache_folder": self.folder / "cache",
            },
            "tool": {"view": Volume()},
            "rollout": {"tools": [CropTool(Volume())]},
        }.get(kind, {})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    cases = [testing.volume_case(folder, seed) for seed in range(4)]
    with (folder / "cases.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "volume", "patient", "split", "report", "masks"])
        for case, split in zip(cases, ("train", "train", "validation", "test"), strict=True):
            masks = ";".join(f"{name}=case-{case.id[5:]}.npz#{name}" for name in case.masks)
            table.writerow([case.id, f"{case.id}.nii.gz", case.patient, split, case.report.text, masks])
    tiny_reward_model(folder / "reward-model")
    tiny_text_encoder(folder / "encoder", places=2048)
    testing.tiny_vision_language(folder / "vision-language", "qwen3_vl")
    seeded_model(small_config()).save_pretrained(folder / "sam2")
    for name in WRITERS:
        write(name, folder / "published" / name)
    with (folder / "questions.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "image", "patient", "split", "question", "A", "B", "answer"])
        for case, split in zip(cases, ("train", "train", "validation", "test"), strict=True):
            table.writerow([
                case.id,
                f"{case.id}.nii.gz",
                case.patient,
                split,
                "Is it cold?",
                "yes",
                "no",
                "B",
            ])
    given = {"recipe_folder": folder, "cache_folder": folder / "cache"}
    source = factory.build("dataset", OPTIONS["table"] | {"use": "table"}, given=given, where="test")
    with (folder / "answers.jsonl").open("w") as file:
        for votes, case in zip(("BA", "ABAA"), source.cases("train"), strict=True):
            asked = f"{case.id}:{case.questions[0].id}"
            line = {"case_id": case.id, "prompt_id": asked, "answer": "B", "votes": [*votes]}
            file.write(json.dumps(line) + "\n")
    return World(folder, cases, testing.tiny_language(folder / "language"))


@pytest.mark.parametrize("offer", OFFERS, ids=[f"{offer.kind}-{offer.name}" for offer in OFFERS])
def test_an_installed_component_keeps_its_contract(offer, world):
    def build(**options):
        table = {"use": f"{offer.package}/{offer.name}", **OPTIONS.get(offer.name, {}), **options}
        return factory.build(offer.kind, table, given=world.given(offer.kind, offer.name), where=offer.name)

    build()
    testing.check_construction(lambda: bare(offer, world))  # `build` looks through the installed packages
    globals()[f"conform_{offer.kind}"](offer.name, build, world)


def bare(offer, world):
    """Call the component's factory itself."""
    made, given = offer.load(), world.given(offer.kind, offer.name)
    asked = [name for name in inspect.signature(made).parameters if name in given]
    inner = {
        "scorer": lambda table: FindingsF1(),
        "segmenter": lambda table: RegionGrowing(),
        "endpoint": lambda table: Endpoint(**table),
        "model": lambda table: Pretrained(**table) if isinstance(table, dict) else table,
        "reader": lambda table: PolicyReader(Affirming(), Affirming()),
        "tool": lambda table: Zoom(Slices()),
        "source": lambda table: Folder(world.folder, world.folder / "cache", path=table["path"]),
    }
    options = {
        name: inner[name](value) if name in inner else tuple(value) if isinstance(value, list) else value
        for name, value in OPTIONS.get(offer.name, {}).items()
    }
    if offer.kind == "evaluation" and "metric" in inspect.signature(made).parameters:
        options["metric"] = ()  # its defaults are tables, which a recipe builds
    return made(**{name: given[name] for name in asked}, **factory.gathered(factory.options(made), options))


@pytest.mark.parametrize("name", FITS)
def test_a_component_that_can_be_fitted_keeps_that_contract(name, world, tmp_path):
    (offer,) = [offer for offer in OFFERS if offer.name == name]
    testing.check_fit(lambda: bare(offer, world), world.cases, world.cases, tmp_path, options=FITS[name])


def test_every_component_that_can_be_fitted_is_tried():
    fitted = {offer.name for offer in OFFERS if getattr(offer.load(), "fit", None)}
    assert fitted == {*FITS, "tiny"}  # a language model is fitted with tasks and a view: by the recipe below


def test_every_kind_has_its_check_and_its_conformance():
    for kind in KINDS:
        assert callable(getattr(testing, f"check_{kind}"))
        assert kind == "stage" or callable(globals()[f"conform_{kind}"])


STAGES = """\
schema = 1
name = "stages"
seed = 17

[dataset.chest]
use = "phantom-chest"
train_cases = 6
validation_cases = 3
test_cases = 3
questions_per_finding = 1

[task.choice]
use = "choice"

[model]
language = { use = "tiny", width = 32, layers = 1 }
view = { use = "volume" }
encoder = { use = "vit3d", width = 48, layers = 1, heads = 4, patch_zyx = [8, 16, 16] }
bridge = { use = "projection" }

[[stage]]
kind = "fit"
component = "model.language"
data = [{ dataset = "chest", task = "choice" }]
options = { steps = 2, documents_per_step = 2, validation_questions = 2, restarts = 0 }

[[stage]]
kind = "sft"
train = ["bridge", "language"]
data = [{ dataset = "chest", task = "choice" }]
steps = 2
rows_per_step = 2
learning_rate = 1e-3

[[stage]]
kind = "grpo"
train = ["bridge"]
data = [{ dataset = "chest", task = "choice" }]
steps = 1
prompts_per_step = 2
answers_per_prompt = 2
learning_rate = 1e-3
max_new_tokens = 8
reward = [{ use = "random" }]

[[stage]]
kind = "evaluate"
data = [{ dataset = "chest", task = "choice", split = "test" }]
max_new_tokens = 8

[[stage]]
kind = "audit"
data = [{ dataset = "chest", task = "choice", split = "test" }]
max_new_tokens = 8
"""


def test_every_installed_stage_keeps_its_contract(tmp_path):
    (tmp_path / "stages.toml").write_text(STAGES, encoding="utf-8")
    recipe = load(tmp_path / "stages.toml")
    assert {stage.kind for stage in recipe.stages} == {offer.name for offer in offers("stage")}
    assembly, before = Assembly(recipe), StageOutputs()
    for index, stage in enumerate(recipe.stages):
        name = recipe.stage_name(index)
        (tmp_path / name).mkdir()
        context = Context(assembly, name, before=before, folder=tmp_path / name, announce=Silent())
        testing.check_stage(stage, context)
        before = before.after(stage, tmp_path / name / "checkpoint")


def test_no_table_speaks_of_a_component_that_is_gone():
    names = {offer.name for offer in OFFERS}
    assert {*OPTIONS, *OTHERS, *CALLS, *GARBAGE, *FITS} <= names


def conform_dataset(name, build, world):
    testing.check_dataset(build(), other=build(**OTHERS[name]) if name in OTHERS else None)


def conform_encoder(name, build, world):
    encoder = build()
    testing.check_encoder(encoder, depths=(1, 3) if encoder.input.any_depth else ())


def conform_bridge(name, build, world):
    given = {key: value for key, value in world.given("bridge", name).items() if key != "vision"}
    testing.check_bridge(build, **given, other_grids=[(2, 2, 2), (3, 3, 2)])


def conform_reweighter(name, build, world):
    testing.check_reweighter(build())


def conform_reward(name, build, world):
    reward = build()
    good, bad = ANSWERS.get(name, answers_to_questions)(world)
    testing.check_reward(reward, good, None if name == "random" else bad, earlier=right_and_well_formed)


def right_and_well_formed(rollouts):
    return {
        "format": [Score(value=float(each.answer.malformed is None)) for each in rollouts],
        "choice-accuracy": [
            Score(value=float(each.answer.choice == each.prompt.reference.get("letter"))) for each in rollouts
        ],
    }


def answers_to_questions(world):
    """Gold answers, and malformed ones that reason wrongly and choose the wrong letter."""
    task, good, bad = Choice(), [], []
    for group, case in enumerate(world.cases):
        (prompt,) = task.prompts(case, Volume(), 0)
        right, options = prompt.reference["letter"], prompt.reference["options"]
        wrong = "ABCD"[("ABCD".index(right) + 1) % 4]
        gold, _ = task.gold(prompt)
        lies = " ".join(f"There is {'no ' if name in case.present() else ''}{name}." for name in options)
        good += testing.answer_group(task, prompt, [gold, gold], group)
        bad += testing.answer_group(
            task, prompt, [f"<think>{lies}</think>{wrong}", "<think>No.</think>"], group
        )
    return good, bad


def answers_about_reports(world):
    """The radiologist's reports, and their opposites."""
    task, good, bad = ReportTask(), [], []
    for group, case in enumerate(world.cases):
        (prompt,) = task.prompts(case, Volume(), 0)
        gold, _ = task.gold(prompt)
        lies = " ".join(
            f"There is {'no ' if each.state == 'present' else 'a '}{each.name}." for each in case.findings
        )
        good += testing.answer_group(task, prompt, [gold, gold], group)
        bad += testing.answer_group(task, prompt, [lies, ""], group)
    return good, bad


def answers_with_boxes(world):
    """The gold boxes of each mask, and answers that name none."""
    table = {"use": "reasoning-segmentation", "ask": "masks"}
    task = factory.build("task", table, given=world.given("task"), where="test")
    good, bad = [], []
    for group, case in enumerate(world.cases):
        (prompt,) = task.prompts(case, Slices(), 0)
        gold, _ = task.gold(prompt)
        good += testing.answer_group(task, prompt, [gold, gold], group)
        bad += testing.answer_group(task, prompt, ["<think>No.</think>", ""], group)
    return good, bad


def answers_with_slices(world):
    """The report with the slice that shows it, and without."""
    table = {"use": "report-evidence"}
    task = factory.build("task", table, given=world.given("task"), where="test")
    good, bad = [], []
    for group, case in enumerate(world.cases):
        (prompt,) = task.prompts(case, Slices(), 0)
        gold, _ = task.gold(prompt)
        report = gold.split("<evidence>")[0]
        good += testing.answer_group(task, prompt, [gold, gold], group)
        bad += testing.answer_group(task, prompt, [f"{report}<evidence>null</evidence>", report], group)
    return good, bad


def answers_in_a_few_words(world):
    """The right option's words, and others."""
    task, good, bad = FreeText(), [], []
    for group, case in enumerate(world.cases):
        (prompt,) = task.prompts(case, Volume(), 0)
        gold, _ = task.gold(prompt)
        good += testing.answer_group(task, prompt, [gold, gold], group)
        bad += testing.answer_group(task, prompt, ["<think>a</think><answer>nothing</answer>", "no"], group)
    return good, bad


def answers_that_looked(world):
    """Right answers that looked at the same box, and wrong ones that did."""
    good, bad = answers_to_questions(world)
    for some in (good, bad):
        for place, each in enumerate(some):
            crop = dataclasses.replace(each.prompt.crops()[0], box_zyx=(3, 4, 2, 9, 1, 8))
            turn = Turn(text=CALL, actions=(), reply=(VisualPart(crop=crop),))
            some[place] = dataclasses.replace(each, turns=(turn,))
    return good, bad


ANSWERS = {
    "zoom-consensus": answers_that_looked,
    "free-text-accuracy": answers_in_a_few_words,
    "cross-view": answers_with_slices,
    "consistent-evidence": answers_with_slices,
    "report-findings": answers_about_reports,
    **dict.fromkeys(
        ("box-overlap", "evidence-format", "key-slice", "volume-consistency"), answers_with_boxes
    ),
}


def conform_format(name, build, world):
    array = np.random.default_rng(0).integers(0, 200, (6, 12, 14)).astype(np.int16)
    folder = world.folder / f"format-{name}"
    for part in ("scan", "labels"):
        (folder / part).mkdir(parents=True)
    if name in {"jpg", "jpeg"}:  # lossy: any values, as long as they come back
        array = np.full_like(array, 70)
    if name in {"png", "jpg", "jpeg"}:
        array = array[:1]
    labels = (array % 5).astype(np.uint8)
    scan, labels_path = (str(folder / part / f"a.{name}") for part in ("scan", "labels"))
    ref, spacing = WRITTEN[name](scan, array)
    WRITTEN[name](labels_path, labels)
    mask = None if name in {"jpg", "jpeg"} else MaskRef(path=labels_path, label=3)
    mask = MaskRef(path=str(folder / "labels"), label=3) if name == "dcm" else mask
    geometry = Geometry(shape_zyx=array.shape, affine=np.diag([*spacing, 1.0]))
    expected = ScanVolume(array=array, geometry=geometry, intensity=ref.intensity)
    testing.check_format(build(), ref, expected, mask=mask, inside=labels == 3, by_content=name == "dcm")


def write_nifti(path, array):
    nibabel.save(nibabel.Nifti1Image(array.T, np.diag([-1.0, -2.0, 3.0, 1.0])), path)
    return VolumeRef(path=path), (3.0, 2.0, 1.0)


def write_array(path, array):
    np.save(path, array) if path.endswith("npy") else np.savez(path, array)
    return VolumeRef(path=path, axes="SPL", spacing_mm_zyx=(3.0, 2.0, 1.0)), (3.0, 2.0, 1.0)


def write_picture(path, array):
    Image.fromarray(array[0].astype(np.uint8)).save(path)
    return VolumeRef(path=path, intensity="arbitrary"), (1.0, 1.0, 1.0)


def write_nrrd(path, array):
    header = {"space": "LPS", "space directions": np.diag([1.0, 2.0, 3.0]), "encoding": "raw"}
    nrrd.write(path, array.T, header)
    return VolumeRef(path=path), (3.0, 2.0, 1.0)


def write_dicom(path, array):
    folder = Path(path).parent
    write_series(folder, array)
    return VolumeRef(path=str(folder)), (3.0, 2.0, 1.0)


WRITTEN = {
    "dcm": write_dicom,
    **dict.fromkeys(("nii", "nii.gz"), write_nifti),
    **dict.fromkeys(("npy", "npz"), write_array),
    **dict.fromkeys(("png", "jpg", "jpeg"), write_picture),
    **dict.fromkeys(("nrrd", "nhdr"), write_nrrd),
}


def conform_view(name, build, world):
    boxes = {(0, 0, 1000, 1000): (0.0, 1.0, 0.0, 1.0), (0, 500, 250, 1000): (0.5, 1.0, 0.0, 0.25)}
    outside = [(0, 0, 1001, 10), (-1, 0, 5, 5), (5, 5, 4, 4)]
    if name == "montage":  # 3 rows of 4 tiles
        boxes = {(250, 0, 500, 333): (0.0, 1.0, 0.0, 1.0), (0, 500, 125, 666): (0.5, 1.0, 0.0, 0.5)}
        outside.append((200, 0, 300, 10))
    if name == "image":
        ref, _ = write_picture(
            str(world.folder / "view.png"), np.arange(12 * 20, dtype=np.uint8).reshape(1, 12, 20)
        )
        photo = Case(id="photo", patient=None, volumes=(ref,))
        spec = dataclasses.replace(SMALL, windows=(), multiple_px=28, colours=True)
        testing.check_view(build(), photo, spec, boxes=boxes, outside=outside)
        return
    for case in world.cases[:2]:
        testing.check_view(build(), case, SMALL, boxes=boxes, outside=outside)


def conform_task(name, build, world):
    testing.check_task(build(), Slices(), world.cases, garbage=GARBAGE.get(name, ()))


TASKS = {
    "choice": {"use": "choice"},
    "free-text": {"use": "free-text"},
    "majority-choice": {"use": "choice"},
    "report": {"use": "report"},
    "report-evidence": {"use": "report-evidence"},
    "segmentation": {"use": "reasoning-segmentation", "ask": "masks"},
}


def asked_by(evaluation, world):
    """Return the task that an evaluation of this name measures, and prompts."""
    task = factory.build("task", TASKS[evaluation], given=world.given("task"), where="test")
    return task, [prompt for case in world.cases for prompt in task.prompts(case, Slices(), 0)]


def conform_evaluation(name, build, world):
    testing.check_evaluation(build(), *asked_by(name, world))


class Removes(Dataset):
    """Shows a case without a finding as its volumes under another name."""

    def cases(self, split):
        return []

    def fingerprint(self):
        return "none"

    def without(self, case, finding):
        return tuple(dataclasses.replace(ref, path=f"{ref.path}-{finding}") for ref in case.volumes)


def conform_condition(name, build, world):
    names = "abcdefgh"
    cases = [
        dataclasses.replace(
            case,
            findings=tuple(
                Finding(name=one, state="present" if one in {"g", names[number]} else "absent")
                for one in names
            ),
            masks={names[number]: next(iter(case.masks.values()))},
            questions=(),
        )
        for number, case in enumerate(world.cases)
    ]
    task = factory.build("task", {"use": "choice"}, given=world.given("task"), where="test")
    prompts = [prompt for case in cases for prompt in task.prompts(case, Volume(), 1)]
    testing.check_condition(build(), prompts, Removes())


def conform_audit(name, build, world):
    for measured in TASKS:
        table, given = {"use": measured}, world.given("evaluation")
        evaluation = factory.build("evaluation", table, given=given, where="test")
        testing.check_audit(build(), evaluation, *asked_by(measured, world))


def conform_language(name, build, world):
    testing.check_language(build())


def conform_rollout(name, build, world):
    prompts = [prompt for case in world.cases for prompt in Choice().prompts(case, Volume(), 0)]
    needs = {"stop_texts": build().stop_texts, "reads_entropies": build().reads_entropies}
    sampler = testing.TinySampler(world.language, **needs, budget_tokens=8)
    testing.check_rollout(build(), sampler, prompts[:2], most_tokens=8)
    turns = [CALL, "<think>seen</think><answer>A</answer>"]
    sampler = testing.TinySampler(world.language, turns=turns, **needs, budget_tokens=200)
    testing.check_rollout(build(), sampler, prompts)


def conform_sampler(name, build, world):
    model, processor = tiny_vlm(world.language, sharpness=3.0)
    prefixes = [Prefix(tuple(processor.tokenizer(text)["input_ids"])) for text in ("What is it?", "Which?")]
    sampling = sampling_of(model, processor, max_new_tokens=6, temperature=1.0)
    engine = build()
    with contextlib.ExitStack() as running:
        if name == "vllm":  # it is asked here, at the address that the recipe would name
            engine.weights = world.folder / "served"
            write_whole(model, processor, engine.weights, "embeddings")
            server = running.enter_context(protocol_server(engine.weights))
            engine.server = dataclasses.replace(engine.server, url=server.url)
        testing.check_sampler(engine, model.eval(), processor, prefixes, sampling)


def conform_tool(name, build, world):
    (prompt,) = Choice().prompts(world.cases[0], Volume(), 0)
    assert name in CALLS, f"say in CALLS how {name!r} is called"
    testing.check_tool(build(), prompt, CALLS[name], bad=[{}, {"slice": 99, "box": [0, 0, 9, 9]}])


EXPECTED = {
    "There is no pleural effusion.": {"pleural effusion": "absent"},
    "There is a lung nodule on the left side.": {"lung nodule": "present"},
}


def conform_labeler(name, build, world):
    texts = [*testing.TEXTS, *(case.report.text for case in world.cases)]
    if name == "labels-file":
        content = written_labels(EXPECTED)
        (world.folder / "labels.json").write_bytes(content)
        labeler = build(sha256=hashlib.sha256(content).hexdigest())
        testing.check_labeler(labeler, texts=texts, expected=EXPECTED)
    elif name == "endpoint":
        with chat_server(answer_by_rules) as server:
            labeler = build(endpoint={"url": server.url, "model": "tiny", "sends_text_away": True})
            testing.check_labeler(labeler, texts=texts, expected=EXPECTED)
    else:
        testing.check_labeler(build(), texts=texts, expected=EXPECTED)


def written_labels(expected):
    cases = {
        f"case-{number}": {
            "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
            "findings": [{"name": name, "state": state} for name, state in states.items()],
        }
        for number, (text, states) in enumerate(expected.items())
    }
    return json.dumps({"schema": 1, "cases": cases}).encode()


def answer_by_rules(body, number):
    text = body["messages"][-1]["content"]
    entries = [
        {"name": item.name, "state": item.state, "quote": text[item.span.start : item.span.end]}
        for item in NegationRules()(text)
    ]
    return Reply(content=json.dumps({"findings": entries}))


def conform_scorer(name, build, world):
    testing.check_scorer(build())


def conform_metric(name, build, world):
    if name == "judge":
        with chat_server(graded_by_overlap) as server:
            testing.check_metric(
                build(endpoint={"url": server.url, "model": "tiny", "sends_text_away": True})
            )
    else:
        testing.check_metric(build())


def graded_by_overlap(body, number):
    """Grade 5 where the text repeats the report, else 1."""
    said = body["messages"][-1]["content"]
    report, text = (re.search(rf"<{tag}>\n(.*?)\n</{tag}>", said, re.S)[1] for tag in ("report", "text"))
    grade = {"score": 5 if text == report else 1, "reason": "as it is"}
    return Reply(content=json.dumps(dict.fromkeys(DIMENSIONS, grade)))


def conform_segmenter(name, build, world):
    case = world.cases[0]
    (mask,) = case.masks.values()
    truth = read_mask(mask, like=read(case.volumes[0]))
    segmenter = build()
    if name in FITS:  # it has no weights before
        options = factory.arguments(segmenter.fit, {**FITS[name], "steps": 150}, name)
        segmenter.fit(world.cases, world.cases, world.folder / name, 1, lambda figures: None, **options)
    known = None if name in UNTRAINED else truth
    testing.check_segmenter(segmenter, case.volumes[0], testing.prompts_from(truth), truth=known)


def conform_reader(name, build, world):
    if name == "endpoint-reader":
        with chat_server(told_by_brightness) as server:
            endpoint = {"url": server.url, "model": "tiny", "sends_images_away": True}
            _conform_reader(name, build(endpoint=endpoint, most_slices=64), world)
    else:
        _conform_reader(name, build(), world)


def told_by_brightness(body, number):
    """Name a finding where the picture shows anything but air."""
    url = body["messages"][-1]["content"][0]["image_url"]["url"]
    picture = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    return Reply(content="A mass." if picture.getextrema()[1] else "Nothing.")


def _conform_reader(name, reader, world):
    if name in FITS:  # it has no weights before
        options = factory.arguments(reader.fit, FITS[name], name)
        folder = world.folder / name
        reader.fit(world.cases, world.cases, folder, 1, lambda figures: None, **options)
    volume = world.cases[0].volumes[0]
    crops = [Crop(volume=volume), Crop(volume=volume, blank=True)]
    questions = [ImageQuestion(crops=(crop,), text="Which finding is present?") for crop in crops]
    testing.check_reader(reader, questions, world.folder / f"alone-{name}")
