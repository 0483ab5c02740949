"""Components of the core keep their contracts, and whatever is installed is built without a file or a socket.

Each package holds its own components to the checks of the kit; `test_structure.py` sees that it does.
"""

import dataclasses
import inspect

import evidcore_testing as testing
import numpy as np
import pytest
import torch
from evidcore_plugin_ct_data.miniatures import WRITERS as SETS
from evidcore_plugin_reports.endpoint import Endpoint
from evidcore_plugin_reports.labelers import NegationRules
from evidcore_plugin_reports.scorers import FindingsF1
from evidcore_plugin_reports.text_models import Pretrained
from evidcore_testing.checks_evaluation import Says
from evidcore_testing.data import save_nifti
from evidcore_testing.fixtures import volume_cases
from evidcore_testing.recipes import phantoms, recipe_text
from PIL import Image

from evidcore.api import VolumeRef, find
from evidcore.builtin.choice import Choice
from evidcore.builtin.rollouts import Plain
from evidcore.builtin.scorers import TokenF1
from evidcore.builtin.uniform import Uniform
from evidcore.builtin.views import Slices, Volume
from evidcore.contracts import KINDS
from evidcore.contracts.stage import NullSink
from evidcore.recipe import load
from evidcore.registry import factory, offers
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context, StageOutputs
from evidcore.train.sampler import InProcess

NATIVE = testing.tiny_vision("qwen3_vl")
WIDTHS = {"published-tokens": 3 * 4 * 32}  # which fits one tower and one language model
cases = volume_cases(4)


def test_every_kind_has_its_check():
    assert all(callable(getattr(testing, f"check_{kind}")) for kind in KINDS)


def write_array(path, array):
    np.save(path, array) if path.endswith("npy") else np.savez(path, array)
    return VolumeRef(path=path, axes="SPL", spacing_mm_zyx=(3.0, 2.0, 1.0))


def write_picture(path, array):
    Image.fromarray(array[0].astype(np.uint8)).save(path)
    return VolumeRef(path=path, intensity="arbitrary")


WRITE = {
    **dict.fromkeys(("nii", "nii.gz"), lambda path, array: VolumeRef(path=save_nifti(path, array))),
    **dict.fromkeys(("npy", "npz"), write_array),
    **dict.fromkeys(("png", "jpg", "jpeg"), write_picture),
}


@pytest.mark.parametrize("ending", WRITE)
def test_formats(ending, tmp_path):
    one_slice = {"slices": 1, "spacing_mm_zyx": (1.0, 1.0, 1.0)} if WRITE[ending] is write_picture else {}
    testing.check_written(made("format", ending), ending, WRITE[ending], tmp_path, **one_slice)


def test_the_evaluation_and_the_audit(cases):
    task = factory.build("task", {"use": "choice"}, given={"view": Slices()}, where="test")
    prompts = [prompt for case in cases for prompt in task.prompts(case, Slices(), 0)]
    evaluation = factory.build("evaluation", {"use": "choice"}, given={}, where="test")
    testing.check_evaluation(evaluation, task, prompts)
    audit = factory.build("audit", {"use": "policy"}, given={}, where="test")
    testing.check_audit(audit, evaluation, task, prompts)


def test_the_sampler_and_a_pretrained_language_model(tmp_path):
    torch.set_num_threads(1)
    testing.check_sampler(InProcess(), *testing.sampler_parts())
    testing.tiny_language(tmp_path / "language")
    table, given = {"use": "pretrained", "folder": "language"}, {"recipe_folder": tmp_path}
    testing.check_language(factory.build("language", table, given=given, where="test"))


def test_the_reweighter_gives_every_token_one():
    testing.check_reweighter(Uniform())
    assert Uniform()("abc", (), [(0, 1), (1, 3), (3, 3)]) == [1.0, 1.0, 1.0]


def test_the_scorer_counts_words_with_repetition():
    testing.check_scorer(TokenF1())
    # 3 of 4 words shared with 3 of 5: 2 * 3 / 9
    assert TokenF1()(["No NODULE, no mass"], ["no nodule. No effusion seen"]) == [pytest.approx(6 / 9)]
    assert TokenF1()(["", "word"], ["", ""]) == [1.0, 0.0]


def test_the_plain_rollout(tmp_path, cases):
    prompts = [prompt for case in cases[:2] for prompt in Choice().prompts(case, Volume(), 0)]
    sampler = testing.TinySampler(testing.tiny_language(tmp_path / "tiny"), budget_tokens=5)
    testing.check_rollout(Plain(), sampler, prompts, answers_per_prompt=3)


ASKED = [{"dataset": "chest", "task": "choice"}]
TEST = [{"dataset": "chest", "task": "choice", "split": "test"}]
SMALL_FIT = {"steps": 2, "documents_per_step": 2, "validation_questions": 2, "restarts": 0}
STAGES = recipe_text(
    {"kind": "fit", "component": "model.language", "data": ASKED, "options": SMALL_FIT},
    {"kind": "sft", "train": ["bridge", "language"], "data": ASKED, "steps": 2, "rows_per_step": 2,
     "learning_rate": 1e-3},
    {"kind": "grpo", "train": ["bridge"], "data": ASKED, "steps": 1, "prompts_per_step": 2,
     "answers_per_prompt": 2, "learning_rate": 1e-3, "max_new_tokens": 8, "reward": [{"use": "random"}]},
    {"kind": "evaluate", "data": TEST, "max_new_tokens": 8},
    {"kind": "audit", "data": TEST, "max_new_tokens": 8},
    dataset={"chest": phantoms(6, 3, 3, questions_per_finding=1)},
    task={"choice": {"use": "choice"}},
)  # fmt: skip


def test_every_stage_of_the_core(tmp_path):
    (tmp_path / "stages.toml").write_text(STAGES, encoding="utf-8")
    recipe = load(tmp_path / "stages.toml")
    own = {offer.name for offer in offers("stage") if offer.package == "evidcore"}
    assert {stage.kind for stage in recipe.stages} == own
    assembly, before = Assembly(recipe), StageOutputs()
    for index, stage in enumerate(recipe.stages):
        name = recipe.stage_name(index)
        (tmp_path / name).mkdir()
        context = Context(assembly, name, before=before, folder=tmp_path / name, announce=NullSink())
        testing.check_stage(stage, context)
        before = before.after(stage, tmp_path / name / "checkpoint")


MUTE = Says(lambda prompt: "")


def made(kind, name, *given):
    return find(kind, name).load()(*given)


def options_without_default(folder):
    """Return what components have no default for, those that the core would build from tables among it."""
    endpoint = Endpoint(url="http://127.0.0.1:9/v1", model="tiny", sends_text_away=True)
    grower = made("segmenter", "region-growing")
    sees = dataclasses.replace(endpoint, sends_text_away=False, sends_images_away=True)
    source, model, zoom = testing.TinyDataset(folder), Pretrained(folder="x"), made("tool", "zoom", Slices())
    return {
        **{name: {"path": "x"} for name in ("folder", "ct-org", "kits23", "m3d-vqa", *SETS)},
        "table": {"path": "x", "option_columns": ("A", "B")}, "m3d-seg": {"path": "x", "codes": ("0004",)},
        "mask-questions": {"source": source, "midline": "grid"},
        "predicted-masks": {"source": source, "names": ("x",), "segmenter": grower},
        "implant": {"source": source, "kinds": ("stone",), "prevalence": 1.0},
        "sometimes-right": {"source": source, "answers": "x"},
        **{name: {"tool": zoom} for name in ("zoom-choice", "zoom-free-text", "zoom-onto")},
        "cross-view": {"reader": made("reader", "policy-reader", MUTE, MUTE), "control": "none"},
        "report-consistency": {"scorer": FindingsF1()}, "emphasis": {"words": {"present": 3.0}},
        "volume-consistency": {"segmenter": grower}, "zoom-consensus": {"success": "choice-accuracy"},
        **{name: {"model": model} for name in ("embedding", "embedding-f1", "reward-model")},
        "labels-file": {"path": "x", "sha256": "0" * 64},
        **{name: {"endpoint": endpoint} for name in ("endpoint", "judge")},
        "endpoint-reader": {"endpoint": sees}, "scorer": {"scorer": TokenF1()}, "medsam2": {"folder": "x"},
        "sam3": {"folder": "x"}, "voxtell": {"folder": "x", "sha256": "0" * 64},
        "stored": {"features": "x", "size_zyx": (8, 8, 8), "patch_zyx": (4, 4, 4)},
        "vllm": {"url": "http://127.0.0.1:9", "model": "x", "weights": "x", "sends_images_away": True},
        "pretrained": {"folder": "x"}, "model-reader": {"folder": "x"},
    }  # fmt: skip


BUILT = [offer for kind in KINDS if kind != "stage" for offer in offers(kind)]


@pytest.mark.parametrize("offer", BUILT, ids=lambda offer: f"{offer.kind}-{offer.name}")
def test_construction_reads_no_file_and_opens_no_socket(offer, tmp_path):
    given = {
        "recipe_folder": tmp_path, "cache_folder": tmp_path / "cache", "view": Slices(), "tools": (),
        "policy": MUTE, "start_policy": MUTE, "cases": list, "labeler": NegationRules(),
        "vision": NATIVE, "width": WIDTHS.get(offer.name, 24), "text_width": 64, "grid_zyx": (1, 3, 3),
    }  # fmt: skip
    factory_, options = offer.load(), options_without_default(tmp_path).get(offer.name, {})
    parameters = inspect.signature(factory_).parameters
    if offer.kind == "evaluation" and "metric" in parameters:
        options = options | {"metric": ()}  # its defaults are tables, which a recipe builds
    asked = {name: given[name] for name in parameters if name in given}
    gathered = factory.gathered(factory.options(factory_), options)
    testing.check_construction(lambda: factory_(**asked, **gathered))
