"""A Qwen-VL checkpoint taken apart into encoder, bridge and language model is still that model."""

import numpy as np
import pytest
import torch
from einops import rearrange
from evidcore_plugin_encoders.published_vision import PublishedTokens, PublishedVision
from evidcore_testing import check_encoder, tiny_language, tiny_vision_language
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, Qwen2VLImageProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from evidcore.api import Case, Prompt, VisualPart, VolumeRef
from evidcore.contracts import Sampling
from evidcore.errors import RecipeError, RunError
from evidcore.model import assemble
from evidcore.model.architecture import shipped
from evidcore.model.generation import continue_rows
from evidcore.model.language import Pretrained
from evidcore.model.packed_attention import answer_log_probs, pack
from evidcore.model.parts import build_bridge, build_encoder
from evidcore.model.policy import VLMPolicy
from evidcore.registry import factory

SIZES = {"qwen2_5_vl": 112, "qwen3_vl": 96}
MERGER = {"use": "published-tokens"}
SLICES = {"use": "slices", "slices": 3}


@pytest.fixture(scope="module", params=sorted(SIZES))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory):
    return tiny_vision_language(tmp_path_factory.mktemp(kind), kind)


@pytest.fixture(scope="module")
def stock(folder):
    return AutoModelForImageTextToText.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def table(kind):
    return {"use": "published-vision", "size": SIZES[kind], "windows": [[-1000, 400]]}


def own(folder, table, bridge=MERGER, view_table=SLICES):
    """Assemble the model from its folder, as a run does."""
    language, tokenizer = Pretrained(folder=str(folder)).load()
    given = {"vision": assemble.vision_of(language.config)}
    encoder = factory.build("encoder", table, given=given, where="model.encoder")
    encoder.load_from(language)
    return assemble.assemble(
        language, tokenizer, encoder, encoder_table=table, bridge_table=bridge,
        view_table=view_table,
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(folder, table):
    return own(folder, table)


@pytest.fixture
def prompts(made, cases):
    view = factory.build("view", {"use": "slices", "slices": 3}, given={}, where="view")
    return [
        Prompt(id=f"{number}", case=case, task="test", parts=view.render(case)[number:])
        for number, case in enumerate(cases[:2])
    ]


def pictures_of(model, processor, prompt):
    """Return what transformers' own image processor makes of the slices that a prompt shows."""
    encoder = model.model.encoder
    config = encoder.eyes.visual.config
    images = processor.image_processor
    crops = [part.crop for part in prompt.parts if isinstance(part, VisualPart)]
    slices = model.model.bank.pixels([images.handle(crop) for crop in crops])
    grey = [((item[:, 0] + 1) / 2).expand(3, -1, -1) for item in slices]
    made = Qwen2VLImageProcessor(
        patch_size=config.patch_size, merge_size=config.spatial_merge_size, do_rescale=False, do_resize=False,
        do_convert_rgb=False, image_mean=encoder.eyes.mean.flatten().tolist(),
        image_std=encoder.eyes.spread.flatten().tolist(),
    )(grey, return_tensors="pt")  # fmt: skip
    return {"pixel_values": made["pixel_values"], "image_grid_thw": made["image_grid_thw"]}


def stock_logits(stock, ids, shown):
    whole = torch.tensor([ids])
    kinds = (whole == stock.config.image_token_id).long()
    return stock(input_ids=whole, mm_token_type_ids=kinds, **shown).logits[0]


@torch.no_grad()
def own_logits(model, encoded, pixels):
    return model(input_ids=torch.tensor([encoded.ids]), pixel_values=pixels).logits[0]


def test_it_computes_what_the_published_model_computes(made, stock, prompts):
    model, processor = made
    for prompt in prompts:
        encoded = processor.encode(prompt)
        handles = torch.tensor([processor.image_processor.handle(crop) for crop in encoded.crops])
        expected = stock_logits(stock, list(encoded.ids), pictures_of(model, processor, prompt))
        pixels = model.model.bank.pixels(handles.tolist())
        assert expected.std() > 0.1
        for given in (handles[:, None], pixels):
            torch.testing.assert_close(own_logits(model, encoded, given), expected, rtol=0, atol=2e-5)
        unseen = own_logits(model, encoded, torch.zeros_like(pixels))
        assert (unseen - expected).abs().max() > 1e-2  # the pixels matter


def test_answers_are_scored_and_taught_as_transformers_does_it(made, stock, prompts):
    model, processor = made
    model.train_only(("encoder", "bridge", "language"))
    stock.requires_grad_(True)
    rng = torch.Generator().manual_seed(2)
    written = torch.randint(10, 200, (2, 3, 5), generator=rng)
    encoded = [processor.encode(prompt) for prompt in prompts]
    longest = max(len(item.ids) for item in encoded)
    pad = processor.tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (longest - len(item.ids)) + list(item.ids) for item in encoded])
    mask = (ids != pad).long()
    handles = [processor.image_processor.handle(crop) for item in encoded for crop in item.crops]
    pixels = torch.tensor(handles)[:, None]
    packed = pack(ids, mask, written, torch.ones_like(written), model.positions(ids, mask, pixels))
    scores = answer_log_probs(model, packed, pixels)
    expected = torch.zeros_like(scores)
    for row, prompt in enumerate(prompts):
        shown = pictures_of(model, processor, prompt)
        for number, answer in enumerate(written[row]):
            logits = stock_logits(stock, [*encoded[row].ids, *answer.tolist()], shown)
            log_probs = logits.log_softmax(-1)[-len(answer) - 1 : -1]
            expected[row, number] = log_probs.gather(-1, answer[:, None])[:, 0]
    torch.testing.assert_close(scores, expected, rtol=0, atol=5e-5)

    weight = torch.randn(scores.shape, generator=rng)
    (scores * weight).sum().backward()
    (expected * weight).sum().backward()
    projection = "model.language_model.layers.0.self_attn.q_proj.weight"
    names = {
        "model.encoder.eyes.visual.blocks.0.attn.qkv.weight": "model.visual.blocks.0.attn.qkv.weight",
        "model.bridge.visual.merger": "model.visual.merger",
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


def test_answers_are_written_as_transformers_writes_them(made, stock, prompts):
    model, processor = made
    policy = VLMPolicy(model, processor)
    end_ids = (processor.tokenizer.eos_token_id,)
    sampling = Sampling(max_new_tokens=6, end_ids=end_ids, pad_id=0, temperature=0)
    greedy = {"max_new_tokens": 6, "do_sample": False}
    prefixes = [policy.prefix(prompt) for prompt in prompts]
    alone = continue_rows(model, prefixes, sampling)
    siblings = continue_rows(model, [prefixes[0]] * 2, sampling)
    assert siblings[0].ids == siblings[1].ids == alone[0].ids
    for prompt, prefix, item in zip(prompts, prefixes, alone, strict=True):
        shown = pictures_of(model, processor, prompt)
        ids = torch.tensor([prefix.ids])
        kinds = (ids == stock.config.image_token_id).long()
        theirs = stock.generate(input_ids=ids, mm_token_type_ids=kinds, **shown, **greedy)
        ours = model.generate(input_ids=ids, pixel_values=torch.tensor(prefix.handles)[:, None], **greedy)
        for whole in (theirs, ours):
            assert tuple(whole[0, len(prefix.ids) :].tolist()) == item.ids


def test_a_folder_gives_the_same_model_back(made, prompts, tmp_path):
    model, processor = made
    assemble.save(model, processor, tmp_path / "saved")
    loaded, again = assemble.load(tmp_path / "saved")
    before, after = VLMPolicy(model, processor), VLMPolicy(loaded, again)
    answers = [["A", "No"]] * 2
    assert after.log_likelihoods(prompts, answers) == before.log_likelihoods(prompts, answers)


def test_tower_and_merger_keep_the_contracts(folder, table):
    language, _ = Pretrained(folder=str(folder)).load()
    vision = assemble.vision_of(language.config)
    encoder = factory.build("encoder", table, given={"vision": vision}, where="model.encoder")
    check_encoder(encoder, depths=(1, 2))
    grid = encoder.grid((1, *encoder.input.size_zyx[1:]))
    assert grid == (1, *[SIZES[language.config.model_type] // encoder.eyes.side_pixels] * 2)
    bridge = PublishedTokens(encoder.width, language.config.get_text_config().hidden_size, grid, vision)
    assert bridge.tokens(grid) == grid[1] * grid[2]
    assert bridge.token_grid(grid) == grid


def test_another_bridge_may_follow_the_tower(folder, table, prompts):
    model, processor = own(folder, table, {"use": "projection", "pool_zyx": [1, 1, 1]})
    policy = VLMPolicy(model, processor)
    assert np.isfinite(policy.log_likelihoods(prompts, [["A"]] * 2)).all()


def test_three_windows_are_three_colours(folder, table, kind):
    vision = assemble.vision_of(Pretrained(folder=str(folder)).load()[0].config)
    colour = PublishedVision(vision, size=SIZES[kind], windows=((-1000, 400), (-160, 240), (-500, 1300)))
    grey = PublishedVision(vision, size=SIZES[kind])
    grey.load_state_dict(colour.state_dict())
    shown = torch.rand(2, 1, 1, SIZES[kind], SIZES[kind]) * 2 - 1
    with torch.no_grad():
        alike = colour.eval()(shown.expand(-1, 3, -1, -1, -1)).features
        torch.testing.assert_close(alike, grey.eval()(shown).features)


def photographs(tmp_path):
    """Cases of coloured pictures of different aspects, larger and smaller than the model takes."""
    rng = np.random.default_rng(3)
    for number, (height, width) in enumerate([(60, 150), (130, 70), (20, 24)]):
        path = tmp_path / f"{number}.{'jpg' if number else 'png'}"
        coarse = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
        Image.fromarray(coarse).resize((width, height)).save(path)
        ref = VolumeRef(path=str(path), intensity="arbitrary")
        yield Case(id=str(number), patient=None, volumes=(ref,))


def test_photographs_are_read_as_the_published_model_reads_them(folder, kind, stock, tmp_path):
    step = 32 if kind == "qwen3_vl" else 28
    bounds = {"least_pixels": 2 * step**2, "most_pixels": 8 * step**2}
    table = {"use": "published-vision", "size": SIZES[kind], "windows": []}
    view_table = {"use": "image", "multiple_px": step, **bounds}
    model, processor = own(folder, table, view_table=view_table)
    view = factory.build("view", view_table, given={}, where="view")
    config = model.model.encoder.eyes.visual.config
    published = Qwen2VLImageProcessorPil(
        patch_size=config.patch_size, merge_size=config.spatial_merge_size,
        min_pixels=bounds["least_pixels"], max_pixels=bounds["most_pixels"],
        image_mean=model.model.encoder.eyes.mean.flatten().tolist(),
        image_std=model.model.encoder.eyes.spread.flatten().tolist(),
    )  # fmt: skip
    sizes = set()
    for case in photographs(tmp_path):
        prompt = Prompt(id=case.id, case=case, task="test", parts=view.render(case))
        encoded = processor.encode(prompt)
        handle = processor.image_processor.handle(encoded.crops[0])
        made = published(Image.open(case.volumes[0].path), return_tensors="pt")
        grid = made["image_grid_thw"][0].tolist()
        size = model.model.bank.size_zyx(handle)
        assert [side // config.patch_size for side in size[1:]] == grid[1:]
        pixels = model.model.bank.pixels([handle])
        theirs = patches_as_pictures(made["pixel_values"], grid, config)
        mean, spread = model.model.encoder.eyes.mean, model.model.encoder.eyes.spread
        torch.testing.assert_close(((pixels[0, :, 0] + 1) / 2 - mean) / spread, theirs, rtol=0, atol=1e-5)
        expected = stock_logits(stock, list(encoded.ids), made)
        result = own_logits(model, encoded, torch.tensor([[handle]]))
        torch.testing.assert_close(result, expected, rtol=0, atol=2e-5)
        grey = own_logits(model, encoded, pixels.mean(dim=1, keepdim=True).expand_as(pixels))
        assert (grey - result).abs().max() > 1e-3  # the colours matter
        sizes.add(size)
    assert len(sizes) == 3


def patches_as_pictures(patches, grid, config):
    """Return the pictures that a processor of Qwen-VL cut up, (colour, y, x); both frames are the same."""
    merge = config.spatial_merge_size
    whole = rearrange(
        patches, "(y x m n) (c t p q) -> t c (y m p) (x n q)", y=grid[1] // merge, x=grid[2] // merge,
        m=merge, n=merge, t=config.temporal_patch_size, p=config.patch_size, q=config.patch_size,
    )  # fmt: skip
    assert torch.equal(whole[0], whole[1])
    return whole[0]


@pytest.mark.parametrize("id", [id for id in sorted(shipped()) if "-VL-" in id])
def test_shapes_that_come_with_the_core_have_eyes(id):
    whole = AutoConfig.from_pretrained(shipped()[id].folder)
    given = Pretrained(id=id, revision="abc")
    vision = assemble.vision_of(given.vision())
    with torch.device("meta"):
        encoder = build_encoder({"use": "published-vision", "size": 224}, vision)
        bridge = build_bridge(MERGER, encoder, given.width(), vision)
        published = AutoModelForImageTextToText.from_config(whole)
    own = sum(weight.numel() for part in (encoder, bridge) for weight in part.parameters())
    assert own == sum(weight.numel() for weight in published.model.visual.parameters())


@pytest.mark.parametrize("kind", ["smolvlm", "gemma3", "internvl"])
def test_towers_of_other_families_are_refused_by_name(kind):
    vision = assemble.vision_of(AutoConfig.for_model(kind))
    known = "are not known here; known: qwen2_5_vl, qwen3_vl"
    with pytest.raises(RecipeError, match=f"model.encoder: towers of type '{vision['model_type']}' {known}"):
        build_encoder({"use": "published-vision"}, vision)


def test_what_does_not_fit_is_refused(folder, kind, tmp_path):
    language, _ = Pretrained(folder=str(folder)).load()
    vision = assemble.vision_of(language.config)
    with pytest.raises(RecipeError, match=r"model.encoder.size: 100 pixels are no whole number of tokens"):
        PublishedVision(vision, size=100)
    with pytest.raises(RecipeError, match=r"model.encoder.windows: 2 windows, and a picture has 3 channels"):
        PublishedVision(vision, size=SIZES[kind], windows=((0, 1), (0, 2)))
    with pytest.raises(RecipeError, match=r"model.encoder: the language model has no eyes of its own"):
        PublishedVision(None)
    encoder = PublishedVision(vision, size=SIZES[kind])
    with pytest.raises(RecipeError, match=r"of encoder 'published-vision', and this encoder gives 24\."):
        PublishedTokens(24, 64, (1, 3, 3), vision)
    with pytest.raises(
        RecipeError, match=r"gives embeddings of 64 numbers, and the language model's have 32"
    ):
        PublishedTokens(encoder.width, 32, (1, 3, 3), vision)
    with pytest.raises(ValueError, match=r"multiples of \d+ pixels \(y, x\), got \(50, 56\)"):
        encoder.grid((1, 50, 56))
    text, _ = Pretrained(folder=str(tiny_language(tmp_path))).load()
    with pytest.raises(RunError, match=r"model.encoder: Qwen2ForCausalLM has no vision tower"):
        encoder.load_from(text)
    language.model.visual.blocks[0].attn.proj = torch.nn.Linear(8, 8)
    with pytest.raises(RunError, match=r"model.encoder: blocks.0.attn.proj.weight has shape \(8, 8\)"):
        encoder.load_from(language)
