"""Vision-language models of transformers, tiny and random: equal to their own forward, and in every stage."""

import csv
import inspect

import nibabel
import numpy as np
import pytest
import torch
from evidcore_plugin_encoders.published_vision import PublishedVision
from evidcore_testing import check_bridge, check_encoder
from evidcore_testing.recipes import recipe_text
from published import FAMILIES, write_published
from transformers import AutoModelForImageTextToText

from evidcore.api import Prompt, TextPart
from evidcore.data.preparation import prepare
from evidcore.errors import RecipeError
from evidcore.model import assemble
from evidcore.model.language import Pretrained
from evidcore.model.parts import build_bridge, build_encoder
from evidcore.model.policy import VLMPolicy
from evidcore.registry import factory

ENCODER = {"use": "published-vision", "slices": 1, "windows": [[-1000, 400]]}
SLICES = {"use": "slices", "slices": 2}
ANSWER = "left lung"


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory):
    return write_published(tmp_path_factory.mktemp(request.param), request.param)


def facts_of(folder):
    language = Pretrained(folder=str(folder))
    return {**assemble.vision_of(language.vision()), "published": PublishedVision.read_published(language)}


def own(folder):
    """Assemble the model from its folder, as a run does."""
    language, tokenizer = Pretrained(folder=str(folder)).load()
    vision = facts_of(folder)
    encoder = build_encoder(ENCODER, vision)
    encoder.load_from(language)
    return assemble.assemble(
        language, tokenizer, encoder, encoder_table=ENCODER, bridge_table={"use": "published-tokens"},
        view_table=SLICES, vision=vision,
    )  # fmt: skip


def log_probability(folder, processor, encoder, encoded):
    """Ask the published class itself for the log-probability of the answer."""
    published = AutoModelForImageTextToText.from_pretrained(folder).eval()
    volumes = [
        prepare(crop, encoder.input, processor.image_processor.size_zyx(crop)) for crop in encoded.crops
    ]
    pictures = [(one.expand(3, -1, -1) + 1) / 2 for volume in volumes for one in volume.unbind(1)]
    shown = encoder.eyes.images(images=pictures, return_tensors="pt", do_rescale=False)
    answer = processor.tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    ids = torch.tensor([[*encoded.ids, *answer]])
    is_image = (ids == processor.image_token_id).long()
    given = {**shown, "token_type_ids": is_image, "mm_token_type_ids": is_image}
    taken = {
        name: value
        for name, value in given.items()
        if name in inspect.signature(published.forward).parameters
    }
    with torch.no_grad():
        logits = published(input_ids=ids, attention_mask=torch.ones_like(ids), **taken).logits
    places = torch.arange(len(encoded.ids) - 1, ids.shape[1] - 1)
    return float(logits.float().log_softmax(-1)[0, places, torch.tensor(answer)].sum())


@pytest.mark.slow
@pytest.mark.parametrize("folder", FAMILIES, indirect=True)
def test_the_parts_are_the_published_model(folder, cases, tmp_path):
    model, processor = own(folder)
    view = factory.build("view", SLICES, given={}, where="view")
    prompts = [
        Prompt(id=case.id, case=case, task="test", parts=(*view.render(case), TextPart(text="What is it?")))
        for case in cases
    ]
    ours = [
        scores[0] for scores in VLMPolicy(model, processor).log_likelihoods(prompts, [[ANSWER]] * len(cases))
    ]
    encoder = model.model.encoder
    theirs = [log_probability(folder, processor, encoder, processor.encode(prompt)) for prompt in prompts]
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours[0] != ours[1]
    assemble.save(model, processor, tmp_path / "saved")
    again = VLMPolicy(*assemble.load(tmp_path / "saved"))
    assert again.log_likelihoods(prompts, [[ANSWER]] * len(cases)) == [[score] for score in ours]


@pytest.mark.parametrize("folder", ["gemma3"], indirect=True)
def test_encoder_and_bridge_keep_their_contracts(folder):
    vision, encoder = facts_of(folder), own(folder)[0].model.encoder
    check_encoder(encoder, depths=(1, 3))
    width = encoder.width
    check_bridge(
        lambda: build_bridge({"use": "published-tokens"}, encoder, width, vision),
        width=width, text_width=width, grid_zyx=(1, 2, 2), other_grids=[(2, 2, 2), (1, 3, 3)],
    )  # fmt: skip


def quiz(folder):
    """Write eight scans and a question about each, half of them for the test."""
    rows = [["id", "image", "patient", "split", "question", "A", "B", "answer"]]
    for number in range(8):
        values = np.random.default_rng(number).normal(40, 200, (32, 32, 16)).astype(np.int16)
        nibabel.save(
            nibabel.Nifti1Image(values, np.diag([-5.0, -5.0, 8.0, 1.0])), folder / f"{number}.nii.gz"
        )
        split, answer = ("train", "test")[number // 4], "AB"[number % 2]
        rows.append([
            number,
            f"{number}.nii.gz",
            f"p{number}",
            split,
            "What is this?",
            "air",
            "tissue",
            answer,
        ])
    with (folder / "questions.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.mark.slow
@pytest.mark.parametrize("folder", FAMILIES, indirect=True)
def test_every_stage_takes_it(folder, evid, tmp_path, monkeypatch, request):
    quiz(tmp_path)
    asked = {"data": [{"dataset": "quiz", "task": "choice", "split": "test"}], "max_new_tokens": 24}
    learns = {
        "data": [{"dataset": "quiz", "task": "choice"}],
        "train": ["language"],
        "steps": 1,
        "learning_rate": 1e-3,
    }
    text = recipe_text(
        {"kind": "sft", **learns, "rows_per_step": 2, "lora": {"rank": 2}},
        {
            "kind": "grpo", **learns, "prompts_per_step": 1, "answers_per_prompt": 2, "max_new_tokens": 24,
            "reward": [{"use": "format", "weight": 1.0}],
        },
        {"kind": "evaluate", **asked},
        {"kind": "audit", **asked},
        dataset={"quiz": {"use": "table", "path": ".", "intensity": "hu", "option_columns": ["A", "B"]}},
        task={"choice": {"use": "choice", "think": False}},
        model={
            "language": {"folder": str(folder)}, "encoder": {"use": "published-vision"},
            "bridge": {"use": "published-tokens"}, "view": SLICES,
        },
    )  # fmt: skip
    (tmp_path / "r.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert "nothing wrong found" in evid("check", "r.toml").output
    refused = FAMILIES[request.node.callspec.params["folder"]].get("refused", "")
    assert refused in evid("run", "r.toml", exit_code=2 if refused else 0).stderr


@pytest.mark.parametrize("folder", ["llava"], indirect=True)
def test_what_is_no_published_model_with_eyes_is_refused_by_name(folder, tmp_path):
    with pytest.raises(RecipeError, match=r"model.encoder: the language model has no eyes of its own"):
        build_encoder(ENCODER, None)
    encoder = build_encoder(ENCODER, facts_of(folder))
    with pytest.raises(RecipeError, match="published-tokens takes features of 64 numbers"):
        build_bridge({"use": "published-tokens"}, encoder, 64, None)
    with pytest.raises(ValueError, match=r"slices of \(56, 56\) pixels \(y, x\), got \(64, 64\)"):
        encoder.grid((1, 64, 64))
    for file in folder.glob("*processor_config.json"):
        file.unlink()
    with pytest.raises(RecipeError, match=r"the processor of .* shows no picture"):
        PublishedVision.read_published(Pretrained(folder=str(folder)))
