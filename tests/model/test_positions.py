"""Packing of Qwen-VL models: tiny ones of transformers' own classes, with pictures and a video."""

import pytest
import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from evidcore.model.packing import answer_log_probs, pack
from evidcore.model.positions import prompt_positions

IMAGE, VIDEO, START, END = 290, 291, 292, 293
TEXT = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": 0,
}  # fmt: skip
TOKENS = {
    "image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": START,
    "vision_end_token_id": END,
}  # fmt: skip
SEEN = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
GRID = torch.tensor([[1, 4, 6], [1, 8, 4], [1, 4, 4]])  # patches of three pictures: time, height, width
FILM = torch.tensor([[2, 4, 4], [2, 4, 4], [2, 4, 4]])


def qwen2_5():
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    vision = {**SEEN, "patch_size": 14, "fullatt_block_indexes": [1], "window_size": 56}
    config = Qwen2_5_VLConfig(
        text_config={**TEXT, "rope_parameters": rope, "bos_token_id": None, "eos_token_id": None},
        vision_config=vision, **TOKENS,
    )  # fmt: skip
    return Qwen2_5_VLForConditionalGeneration(config), 3 * 2 * 14 * 14


def qwen3():
    rope = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    }
    vision = {**SEEN, "patch_size": 16, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64}
    config = Qwen3VLConfig(
        text_config={**TEXT, "rope_parameters": rope, "head_dim": 16}, vision_config=vision, **TOKENS
    )
    return Qwen3VLForConditionalGeneration(config), 3 * 2 * 16 * 16


@pytest.fixture(params=[qwen2_5, qwen3], ids=["qwen2_5_vl", "qwen3_vl"])
def qwen(request):
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model, patch = request.param()
        for weight in model.model.language_model.parameters():
            if weight.dim() > 1:
                weight.mul_(4)
    return model.eval(), patch


def frames(model, grid):
    """Give the tokens of one video: Qwen3-VL has text between its frames."""
    time, height, width = grid.tolist()
    frame = [START, *[VIDEO] * (height * width // 4), END]
    if model.config.model_type == "qwen3_vl":
        return [token for number in range(time) for token in (20 + number, *frame)]
    return [START, *[VIDEO] * (time * height * width // 4), END]


def prompts_of(model, patch, kind):
    """Give left-padded prompts with a picture or a video each, mask, and what each shows."""
    dice = torch.Generator().manual_seed(1)
    texts, shown = [], []
    for number, (grid, film) in enumerate(zip(GRID, FILM, strict=True)):
        if kind == "picture":
            seen = [START, *[IMAGE] * (int(grid.prod()) // 4), END]
            pixels = torch.randn(int(grid.prod()), patch, generator=dice)
            shown.append({"pixel_values": pixels, "image_grid_thw": grid[None]})
        else:
            seen = frames(model, film)
            pixels = torch.randn(int(film.prod()), patch, generator=dice)
            shown.append({"pixel_values_videos": pixels, "video_grid_thw": film[None]})
        words = torch.randint(6, 280, (4 + 3 * number,), generator=dice).tolist()
        texts.append([words[0], *seen, *words[1:]])
    longest = max(map(len, texts))
    ids = torch.tensor([[0] * (longest - len(text)) + text for text in texts])
    mask = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts])
    return ids, mask, shown


def one_by_one(model, ids, mask, shown, written, there):
    """Score each answer in a row of its own; the model finds the positions of the whole row itself."""
    found = torch.zeros(written.shape)
    for row in range(len(ids)):
        prompt = ids[row][mask[row].bool()]
        for number in range(written.shape[1]):
            answer = written[row, number][there[row, number].bool()]
            whole = torch.cat([prompt, answer])[None]
            kinds = (whole == IMAGE).long() + 2 * (whole == VIDEO).long()
            logits = model(input_ids=whole, mm_token_type_ids=kinds, **shown[row]).logits[0]
            log_probs = logits.log_softmax(-1)[len(prompt) - 1 : -1]
            found[row, number, : len(answer)] = log_probs.gather(-1, answer[:, None])[:, 0]
    return found


@pytest.mark.parametrize("kind", ["picture", "video"])
def test_answers_of_qwen_vl_in_one_row_score_and_teach_as_in_rows_of_their_own(qwen, kind):
    model, patch = qwen
    ids, mask, shown = prompts_of(model, patch, kind)
    dice = torch.Generator().manual_seed(2)
    written = torch.randint(6, 280, (3, 4, 8), generator=dice)
    there = (torch.arange(8) < torch.randint(1, 9, (3, 4, 1), generator=dice)).long()
    together = {name: torch.cat([one[name] for one in shown]) for name in shown[0]}
    grids = {name: value for name, value in together.items() if name.endswith("thw")}
    weight = torch.randn(written.shape, generator=dice)
    found = {}
    for name in ("packed", "apart"):
        model.zero_grad()
        if name == "packed":
            positions = prompt_positions(model, ids, mask, **grids)
            scores = answer_log_probs(model, pack(ids, mask, written, there, positions), **together)
        else:
            scores = one_by_one(model, ids, mask, shown, written, there)
        (scores * weight).sum().backward()
        found[name] = (
            scores.detach(),
            {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None},
        )
    (packed, packed_gradients), (apart, gradients) = found["packed"], found["apart"]
    assert apart.abs().max() > 5
    torch.testing.assert_close(packed, apart, rtol=0, atol=1e-5)
    assert any(name.startswith("model.visual") for name in gradients)
    most = max(one.norm() for one in gradients.values())
    for name, one in gradients.items():
        assert (packed_gradients[name] - one).norm() <= 1e-4 * max(one.norm(), 1e-3 * most), name


def test_positions_are_by_hand_those_of_time_height_and_width(qwen):
    model, _ = qwen
    # two words, a picture of 2 x 3 tokens between its marks, one word
    ids = torch.tensor([[0, 7, 8, START, *[IMAGE] * 6, END, 9]])
    mask = (ids != 0).long()
    time = [0, 0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7]
    height = [0, 0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7]
    width = [0, 0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7]
    found = prompt_positions(model, ids, mask, image_grid_thw=torch.tensor([[1, 4, 6]]))
    assert found[:, 0].tolist() == [time, height, width]
    written = torch.tensor([[[10, 11], [12, 13]]])
    packed = pack(ids, mask, written, torch.ones_like(written), found)
    assert packed.position_ids[:, 0].tolist() == [[*axis[:-1], 7, 8, 7, 8] for axis in (time, height, width)]


def test_a_prompt_that_ends_in_an_image_is_refused(qwen):
    model, _ = qwen
    ids = torch.tensor([[7, 8, 9, 10, 11], [7, *[IMAGE] * 4]])
    grid = torch.tensor([[1, 4, 4]])
    with pytest.raises(ValueError, match=f"prompt 1 ends with token {IMAGE} of an image or video"):
        prompt_positions(model, ids, torch.ones_like(ids), image_grid_thw=grid)


def test_positions_of_other_models_count_tokens(small):
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    assert prompt_positions(small.model, mask, mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
