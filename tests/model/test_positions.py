"""Multimodal rotary positions: by hand, and as transformers' own Qwen-VL classes count them."""

import pytest
import torch
from evidcore_testing import tiny_vision_language
from transformers import AutoModelForImageTextToText

from evidcore.model.positions import counted, is_multimodal, multimodal

IMAGE, START, END = 290, 291, 292


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_positions_are_those_of_transformers(kind, tmp_path):
    model = AutoModelForImageTextToText.from_pretrained(tiny_vision_language(tmp_path, kind))
    image = model.config.image_token_id
    texts = [[7, *[image] * 6, 8, 9, *[image] * 4, 10], [7, 8, 9, *[image] * 12, 10], [7, 8]]
    grids = [(1, 2, 3), (1, 1, 4), (1, 4, 3)]
    longest = max(map(len, texts))
    ids = torch.tensor([[0] * (longest - len(text)) + text for text in texts])
    mask = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts])
    patches = torch.tensor([[time, 2 * height, 2 * width] for time, height, width in grids])
    expected, _ = model.model.get_rope_index(
        ids, mm_token_type_ids=(ids == image).long(), image_grid_thw=patches, attention_mask=mask
    )
    result = multimodal(ids, mask, image, grids)
    assert torch.equal(result * mask, expected * mask)
    assert is_multimodal(model.config.get_text_config())


@pytest.mark.parametrize(
    ("grids", "message"),
    [
        ([(1, 2, 2)], f"row 1 ends with token {IMAGE} of an image"),
        ([], "row 1 has image tokens that no image of the grids given accounts for"),
        ([(1, 2, 4)], "row 1 has image tokens that no image of the grids given accounts for"),
        ([(1, 2, 2), (1, 2, 2)], "1 of 2 images have no tokens in the text"),
    ],
)
def test_tokens_and_images_must_agree(grids, message):
    row = [8, 7, *[IMAGE] * 4] if "ends" in message else [7, *[IMAGE] * 4, 8]
    ids = torch.tensor([[7, 8, 9, 10, 11, 12], row])
    with pytest.raises(ValueError, match=message):
        multimodal(ids, torch.ones_like(ids), IMAGE, grids)


def test_other_positions_count_tokens(small):
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    assert counted(mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
    assert small.model.model.positions(mask, mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
    assert not is_multimodal(small.model.config.text_config)
