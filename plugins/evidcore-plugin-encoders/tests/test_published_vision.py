"""Vision-language models of transformers, tiny and random: equal to their own forward, and in every stage."""

import csv
import inspect
import json

import numpy as np
import pytest
import torch
from evidcore_plugin_encoders.published_vision import PublishedTokens, PublishedVision
from evidcore_testing import check_bridge, check_encoder, tiny_language, tiny_vision_language
from evidcore_testing.data import save_nifti
from evidcore_testing.recipes import recipe_text
from PIL import Image
from published import FAMILIES, write_published
from transformers import AutoConfig, AutoModelForImageTextToText, Qwen2VLImageProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from evidcore.api import Case, Prompt, TextPart, VolumeRef
from evidcore.contracts import Sampling
from evidcore.data.preparation import prepare
from evidcore.errors import RecipeError, RunError
from evidcore.model import assemble
from evidcore.model.architecture import shipped
from evidcore.model.generation import continue_rows
from evidcore.model.language import Pretrained
from evidcore.model.packed_attention import answer_log_probs, pack
from evidcore.model.parts import build_bridge, build_encoder
from evidcore.model.policy import VLMPolicy
from evidcore.registry import factory

ENCODER = {"use": "published-vision", "slices": 1, "windows": [[-1000, 400]]}
TOKENS = {"use": "published-tokens"}
SLICES = {"use": "slices", "slices": 2}
ANSWER = "left lung"
FIT = [family for family, facts in FAMILIES.items() if "unfit" not in facts]
STAGES = [family for family, facts in FAMILIES.items() if not facts.get("by_hand")]
PLANNED = [family for family in FIT if not FAMILIES[family].get("unplanned") and family in STAGES]
QWENS = {"qwen2_5_vl": 112, "qwen3_vl": 96}  # pixels of a slice's side
MEDGEMMA = [[-1024, 1024], [-135, 215], [0, 80]]  # HU: wide, mediastinum and brain as red, green and blue


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory):
    if needed := FAMILIES.get(request.param, {}).get("needs"):
        pytest.importorskip(needed)
    write = tiny_vision_language if request.param in QWENS else write_published
    return write(tmp_path_factory.mktemp(request.param), request.param)


def vision_of(folder):
    language = Pretrained(folder=str(folder))
    return {**assemble.vision_of(language.vision()), "published": PublishedVision.read_published(language)}


def own(folder, bridge=TOKENS, view=SLICES, **options):
    """Assemble the model from its folder, as a run does."""
    language, tokenizer = Pretrained(folder=str(folder)).load()
    vision, size = vision_of(folder), QWENS.get(language.config.model_type)
    table = {**ENCODER, **({} if size is None else {"size": size}), **options}
    encoder = build_encoder(table, vision)
    encoder.load_from(language)
    return assemble.assemble(
        language, tokenizer, encoder, encoder_table=table, bridge_table=bridge, view_table=view, vision=vision
    )


@pytest.fixture(scope="module")
def made(folder):
    return own(folder)


@pytest.fixture(scope="module")
def stock(folder):
    return AutoModelForImageTextToText.from_pretrained(folder).eval()


def prompts_of(cases, view=SLICES):
    view = factory.build("view", view, given={}, where="view")
    return [
        Prompt(id=case.id, case=case, task="test", parts=(*view.render(case), TextPart(text="What is it?")))
        for case in cases
    ]


def pictures_of(processor, encoder, crops):
    """Return the pictures of crops on 0..1, (colour, y, x)."""
    sizes = [processor.image_processor.size_zyx(crop) for crop in crops]
    volumes = [prepare(crop, encoder.input, size) for crop, size in zip(crops, sizes, strict=True)]
    return [(one.expand(3, -1, -1) + 1) / 2 for volume in volumes for one in volume.unbind(1)]


def shown(encoder, pictures):
    """Return what the published image processor makes of pictures."""
    images = getattr(encoder.eyes, "images", None)
    if images is None:
        config, colours = encoder.eyes.visual.config, (encoder.eyes.mean, encoder.eyes.spread)
        mean, spread = (item.flatten().tolist() for item in colours)
        images = Qwen2VLImageProcessor(
            patch_size=config.patch_size, do_resize=False, image_mean=mean, image_std=spread
        )
    return images(images=pictures, return_tensors="pt", do_rescale=False)


def stock_logits(stock, ids, given):
    """Ask the published class itself."""
    whole = torch.tensor([ids])
    config = stock.config
    image_token = getattr(config, "image_token_id", None) or config.image_token_index
    is_image = (whole == image_token).long()
    given = {**given, "token_type_ids": is_image, "mm_token_type_ids": is_image}
    known = inspect.signature(stock.forward).parameters
    taken = {name: value for name, value in given.items() if name in known}
    return stock(input_ids=whole, attention_mask=torch.ones_like(whole), **taken).logits[0]


@torch.no_grad()
def log_probability(stock, processor, encoded, given):
    answer = processor.tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    logits = stock_logits(stock, [*encoded.ids, *answer], given)[-len(answer) - 1 : -1]
    return float(logits.float().log_softmax(-1)[torch.arange(len(answer)), torch.tensor(answer)].sum())


@pytest.mark.slow
@pytest.mark.parametrize("folder", [*FIT, *QWENS], indirect=True)
def test_the_parts_are_the_published_model(made, stock, cases, tmp_path):
    model, processor = made
    prompts, answers = prompts_of(cases), [[ANSWER]] * len(cases)
    ours = [scores[0] for scores in VLMPolicy(model, processor).log_likelihoods(prompts, answers)]
    theirs = []
    for prompt in prompts:
        encoded = processor.encode(prompt)
        pictures = pictures_of(processor, model.model.encoder, encoded.crops)
        given = shown(model.model.encoder, pictures)
        theirs.append(log_probability(stock, processor, encoded, given))
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours[0] != ours[1]
    assemble.save(model, processor, tmp_path / "saved")
    again = VLMPolicy(*assemble.load(tmp_path / "saved"))
    assert again.log_likelihoods(prompts, answers) == [[score] for score in ours]


@pytest.mark.parametrize("folder", ["gemma3", "qwen2_5_vl"], indirect=True)
def test_a_montage_in_three_windows_is_seen_in_their_colours(folder, stock, tmp_path):
    """Four slices of half the picture's side lie in it pixel by pixel, so that their colours are known."""
    side = own(folder)[0].model.encoder.input.size_zyx[1]
    values = np.random.default_rng(1).integers(-1200, 1200, (4, side // 2, side // 2)).astype(np.int16)
    scan = VolumeRef(path=str(save_nifti(tmp_path / "scan.nii.gz", values, (1.0, 1.0, 1.0))), intensity="hu")
    view = {"use": "montage", "rows": 2, "columns": 2}
    model, processor = own(folder, view=view, windows=MEDGEMMA)
    prompts = prompts_of([Case(id="scan", patient=None, volumes=(scan,))], view)
    encoded, encoder = processor.encode(prompts[0]), model.model.encoder
    tiled = np.block([[values[0], values[1]], [values[2], values[3]]]).astype(np.float32)
    colours = [np.clip((tiled - low) / (high - low), 0, 1) for low, high in MEDGEMMA]
    (picture,) = pictures_of(processor, encoder, encoded.crops)
    np.testing.assert_allclose(picture.numpy(), np.stack(colours), atol=1e-5)
    theirs = log_probability(stock, processor, encoded, shown(encoder, [torch.tensor(np.stack(colours))]))
    ours = VLMPolicy(model, processor).log_likelihoods(prompts, [[ANSWER]])[0][0]
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours != VLMPolicy(*own(folder, view=view)).log_likelihoods(prompts, [[ANSWER]])[0][0]


@pytest.mark.parametrize("folder", QWENS, indirect=True)
def test_answers_are_scored_and_taught_as_transformers_does_it(made, stock, cases):
    model, processor = made
    model.train_only(("encoder", "bridge", "language"))
    stock.requires_grad_(True)
    rng = torch.Generator().manual_seed(2)
    written = torch.randint(10, 200, (2, 3, 5), generator=rng)
    encoded = [processor.encode(prompt) for prompt in prompts_of(cases[:2])]
    longest = max(len(item.ids) for item in encoded)
    pad = processor.tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (longest - len(item.ids)) + list(item.ids) for item in encoded])
    mask = (ids != pad).long()
    handles = [processor.image_processor.handle(crop) for item in encoded for crop in item.crops]
    pixels = torch.tensor(handles)[:, None]
    packed = pack(ids, mask, written, torch.ones_like(written), model.model.positions(ids, mask, pixels))
    scores = answer_log_probs(model, packed, pixels)
    expected = torch.zeros_like(scores)
    for row, item in enumerate(encoded):
        given = shown(model.model.encoder, pictures_of(processor, model.model.encoder, item.crops))
        for number, answer in enumerate(written[row]):
            logits = stock_logits(stock, [*item.ids, *answer.tolist()], given)
            log_probs = logits.log_softmax(-1)[-len(answer) - 1 : -1]
            expected[row, number] = log_probs.gather(-1, answer[:, None])[:, 0]
    torch.testing.assert_close(scores, expected, rtol=0, atol=5e-5)

    weight = torch.randn(scores.shape, generator=rng)
    (scores * weight).sum().backward()
    (expected * weight).sum().backward()
    projection = "model.language_model.layers.0.self_attn.q_proj.weight"
    names = {
        "model.encoder.eyes.visual.blocks.0.attn.qkv.weight": "model.visual.blocks.0.attn.qkv.weight",
        "model.bridge.visual": "model.visual",
        projection: projection,
    }
    theirs = dict(stock.named_parameters())
    for name, item in model.named_parameters():
        for prefix in filter(name.startswith, names):
            other = theirs[name.replace(prefix, names[prefix])].grad
            assert other.norm() > 0
            assert (item.grad - other).norm() <= 1e-3 * other.norm(), name
    model.zero_grad()
    stock.zero_grad()
    model.train_only(())
    model.eval()


@pytest.mark.parametrize("folder", QWENS, indirect=True)
def test_answers_are_written_as_transformers_writes_them(made, stock, cases):
    model, processor = made
    policy, prompts = VLMPolicy(model, processor), prompts_of(cases)
    end_ids = (processor.tokenizer.eos_token_id,)
    sampling = Sampling(max_new_tokens=6, end_ids=end_ids, pad_id=0, temperature=0)
    greedy = {"max_new_tokens": 6, "do_sample": False}
    prefixes = [policy.prefix(prompt) for prompt in prompts]
    alone = continue_rows(model, prefixes, sampling)
    siblings = continue_rows(model, [prefixes[0]] * 2, sampling)
    assert siblings[0].ids == siblings[1].ids == alone[0].ids
    for prompt, prefix, item in zip(prompts, prefixes, alone, strict=True):
        crops = processor.encode(prompt).crops
        given = shown(model.model.encoder, pictures_of(processor, model.model.encoder, crops))
        ids = torch.tensor([prefix.ids])
        kinds = (ids == stock.config.image_token_id).long()
        theirs = stock.generate(input_ids=ids, mm_token_type_ids=kinds, **given, **greedy)
        ours = model.generate(input_ids=ids, pixel_values=torch.tensor(prefix.handles)[:, None], **greedy)
        for whole in (theirs, ours):
            assert tuple(whole[0, len(prefix.ids) :].tolist()) == item.ids


@pytest.mark.parametrize("folder", QWENS, indirect=True)
def test_photographs_are_read_as_the_published_model_reads_them(folder, stock, tmp_path):
    """In their own aspect and colours, larger and smaller than the model takes."""
    step = 32 if stock.config.model_type == "qwen3_vl" else 28
    bounds = {"least_pixels": 2 * step**2, "most_pixels": 8 * step**2}
    view = {"use": "image", "multiple_px": step, **bounds}
    model, processor = own(folder, view=view, windows=[])
    encoder = model.model.encoder
    published = Qwen2VLImageProcessorPil(
        patch_size=step // 2, min_pixels=bounds["least_pixels"], max_pixels=bounds["most_pixels"],
        image_mean=encoder.eyes.mean.flatten().tolist(), image_std=encoder.eyes.spread.flatten().tolist(),
    )  # fmt: skip
    rng = np.random.default_rng(3)
    for height, width in [(60, 150), (130, 70), (20, 24)]:
        path = tmp_path / f"{height}.{'jpg' if height > 60 else 'png'}"
        coarse = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
        Image.fromarray(coarse).resize((width, height)).save(path)
        case = Case(id="photo", patient=None, volumes=(VolumeRef(path=str(path), intensity="arbitrary"),))
        encoded = processor.encode(prompts_of([case], view)[0])
        handle = processor.image_processor.handle(encoded.crops[0])
        pixels = model.model.bank.pixels([handle])
        given = {"input_ids": torch.tensor([encoded.ids])}
        with torch.no_grad():
            expected = stock_logits(stock, encoded.ids, published(Image.open(path), return_tensors="pt"))
            result = model(**given, pixel_values=torch.tensor([[handle]])).logits[0]
            grey = model(**given, pixel_values=pixels.mean(dim=1, keepdim=True).expand_as(pixels)).logits[0]
        torch.testing.assert_close(result, expected, rtol=0, atol=2e-5)
        assert (grey - result).abs().max() > 1e-3  # the colours matter


@pytest.mark.parametrize("folder", ["gemma3", *QWENS], indirect=True)
def test_encoder_and_bridge_keep_their_contracts(made, folder, cases):
    vision, encoder, text_width = vision_of(folder), made[0].model.encoder, made[0].config.text_config
    check_encoder(encoder, depths=(1, 3))
    check_bridge(
        lambda: build_bridge(TOKENS, encoder, text_width.hidden_size, vision), width=encoder.width,
        text_width=text_width.hidden_size, grid_zyx=encoder.grid(encoder.input.size_zyx),
        other_grids=[(2, 2, 2), (1, 3, 3)],
    )  # fmt: skip
    another = VLMPolicy(*own(folder, {"use": "projection", "pool_zyx": [1, 1, 1]}))
    assert np.isfinite(another.log_likelihoods(prompts_of(cases), [["A"]] * 2)).all()


@pytest.mark.parametrize("id", [id for id in sorted(shipped()) if "-VL-" in id])
def test_shapes_that_come_with_the_core_have_eyes(id):
    given = Pretrained(id=id, revision="abc")
    vision = assemble.vision_of(given.vision())
    with torch.device("meta"):
        encoder = build_encoder({"use": "published-vision"}, vision)
        bridge = build_bridge(TOKENS, encoder, given.width(), vision)
        published = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(shipped()[id].folder))
    assert encoder.input.size_zyx[1] == (256 if "Qwen3" in id else 252)
    parts = sum(weight.numel() for part in (encoder, bridge) for weight in part.parameters())
    assert parts == sum(weight.numel() for weight in published.model.visual.parameters())


def quiz(folder):
    """Write eight scans and a question about each, half of them for the test."""
    rows = [["id", "image", "patient", "split", "question", "A", "B", "answer"]]
    for number in range(8):
        values = np.random.default_rng(number).normal(40, 200, (16, 32, 32)).astype(np.int16)
        save_nifti(folder / f"{number}.nii.gz", values, (8.0, 5.0, 5.0))
        split, answer = ("train", "test")[number // 4], "AB"[number % 2]
        patient = [number, f"{number}.nii.gz", f"p{number}", split]
        rows.append([*patient, "What is this?", "air", "tissue", answer])
    with (folder / "questions.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.mark.slow
@pytest.mark.parametrize("folder", STAGES, indirect=True)
def test_every_stage_takes_it(folder, evid, tmp_path, monkeypatch, request):
    quiz(tmp_path)
    asked = {"data": [{"dataset": "quiz", "task": "choice", "split": "test"}], "max_new_tokens": 24}
    learns = {
        "data": [{"dataset": "quiz", "task": "choice"}], "train": ["language"], "steps": 1,
        "learning_rate": 1e-3,
    }  # fmt: skip
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
            "language": {"folder": str(folder)}, "encoder": {"use": "published-vision"}, "bridge": TOKENS,
            "view": SLICES,
        },
    )  # fmt: skip
    (tmp_path / "r.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    facts = FAMILIES[request.node.callspec.params["folder"]]
    refused = facts.get("refused") or facts.get("unfit", "")
    assert refused in evid("run", "r.toml", exit_code=2 if refused else 0).stderr


@pytest.mark.slow
@pytest.mark.parametrize("folder", PLANNED, indirect=True)
def test_evid_init_writes_a_recipe_for_it(folder, evid, tmp_path, monkeypatch, request):
    quiz(tmp_path)
    monkeypatch.chdir(tmp_path)
    asked = ("--data", "questions.csv", "--model", folder, "--gpu", 24)
    assert "questions.toml: nothing wrong found" in evid("init", *asked).output
    if request.node.callspec.params["folder"] == "gemma3":  # one is run as it was written, but for its length
        short = {
            "model.view.slices": 2, "stage.sft.steps": 10, "stage.grpo.steps": 1,
            **{f"stage.grpo.{key}": 2 for key in ("prompts_per_step", "prompts_per_forward")},
            **{f"stage.{name}.max_new_tokens": 8 for name in ("evaluate[0]", "grpo", "evaluate[1]", "audit")},
        }  # fmt: skip
        evid("run", "questions.toml", *[f"--set={key}={value}" for key, value in short.items()])
        (results,) = tmp_path.glob("runs/questions/*/results")
        assert json.loads((results / "02-sft.json").read_text())["figures"]["steps"] == 10
        assert json.loads((results / "05-audit.json").read_text())["rows"]


@pytest.mark.parametrize("folder", ["llava"], indirect=True)
def test_what_is_no_published_model_with_eyes_is_refused_by_name(folder, tmp_path):
    with pytest.raises(RecipeError, match=r"model.encoder: the language model has no eyes of its own"):
        build_encoder(ENCODER, None)
    encoder = build_encoder(ENCODER, vision_of(folder))
    with pytest.raises(RecipeError, match=r"trained on pictures of 56 pixels and takes no others, got 112\."):
        build_encoder({**ENCODER, "size": 112}, vision_of(folder))
    with pytest.raises(RecipeError, match="published-tokens takes features of 64 numbers"):
        build_bridge(TOKENS, encoder, 64, None)
    with pytest.raises(ValueError, match=r"slices of \(56, 56\) pixels \(y, x\), got \(64, 64\)"):
        encoder.grid((1, 64, 64))
    for file in folder.glob("*processor_config.json"):
        file.unlink()
    with pytest.raises(RecipeError, match=r"the processor of .* shows no picture"):
        PublishedVision.read_published(Pretrained(folder=str(folder)))


@pytest.mark.parametrize("folder", QWENS, indirect=True)
def test_what_does_not_fit_a_qwen_is_refused(made, folder, tmp_path):
    encoder, vision = made[0].model.encoder, vision_of(folder)
    with pytest.raises(RecipeError, match=r"model.encoder.size: 100 pixels are no whole number of tokens"):
        build_encoder({**ENCODER, "size": 100}, vision)
    with pytest.raises(RecipeError, match=r"model.encoder.windows: 2 windows, and a picture has 3 channels"):
        build_encoder({**ENCODER, "windows": MEDGEMMA[:2]}, vision)
    with pytest.raises(
        RecipeError, match=r"of \d+ numbers, as encoder 'published-vision' gives them, and th"
    ):
        PublishedTokens(24, 64, (1, 3, 3), vision)
    with pytest.raises(
        RecipeError, match=r"gives embeddings of 64 numbers, and the language model's have 32"
    ):
        build_bridge(TOKENS, encoder, 32, vision)
    with pytest.raises(ValueError, match=r"multiples of \d+ pixels \(y, x\), got \(50, 56\)"):
        encoder.grid((1, 50, 56))
    text, _ = Pretrained(folder=str(tiny_language(tmp_path))).load()
    with pytest.raises(RunError, match=r"model.encoder: model.visual.\S+ of Qwen2ForCausalLM is missing"):
        encoder.load_from(text)
    language, _ = Pretrained(folder=str(folder)).load()
    language.model.visual.blocks[0].attn.proj = torch.nn.Linear(8, 8)
    with pytest.raises(
        RunError, match=r"model.encoder: model.visual.blocks.0.attn.proj.weight of .* \(8, 8\)"
    ):
        encoder.load_from(language)
