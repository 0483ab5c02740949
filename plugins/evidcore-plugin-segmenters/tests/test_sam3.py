"""Segmenter `sam3` on small random weights of transformers' own classes; none here has published ones."""

import numpy as np
import pytest
import torch
import transformers
from evidcore_plugin_segmenters.sam3 import Sam3
from evidcore_testing import check_segmenter
from evidcore_testing.data import save_nifti
from safetensors.torch import load_file, save_file

from evidcore.api import DataError, Segmenter, VolumeRef
from evidcore.errors import RecipeError

LIVER = Segmenter.TextPrompt(words="liver")
LOW, HIGH = -160.0, 240.0
PX = 64
SHAPE = (5, 12, 16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Sam3VideoModel that finds something on every slice, and its processor with a tokenizer of letters."""
    folder = tmp_path_factory.mktemp("sam3")
    small = {"num_attention_heads": 2, "hidden_size": 128}
    part = {**small, "num_layers": 1, "intermediate_size": 32}
    body = {
        "model_type": "sam3_vit_model", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": PX, "patch_size": 8, "window_size": 4,
        "pretrain_image_size": PX // 2, "global_attn_indexes": [0],
    }  # fmt: skip
    vision = {"model_type": "sam3_vision_model", "backbone_config": body, "fpn_hidden_size": 128}
    vision["backbone_feature_sizes"] = [[32, 32], [16, 16], [8, 8]]
    text = {
        "model_type": "clip_text_model", "vocab_size": 60, "hidden_size": 16, "intermediate_size": 32,
        "projection_dim": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32,
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
    }  # fmt: skip
    detector = transformers.Sam3Config(
        vision_config=vision, text_config=text, geometry_encoder_config=part, detr_encoder_config=part,
        detr_decoder_config={**part, "num_queries": 4}, mask_decoder_config=small,
    )  # fmt: skip
    tracker = transformers.Sam3TrackerVideoConfig(
        vision_config=vision, image_size=PX,
        prompt_encoder_config={"hidden_size": 128, "patch_size": 8},
        mask_decoder_config={**small, "mlp_dim": 32, "iou_head_hidden_dim": 32},
        memory_attention_hidden_size=128, memory_attention_num_layers=1,
        memory_attention_feed_forward_hidden_size=32, memory_attention_rope_feat_sizes=[8, 8],
        memory_encoder_hidden_size=128, mask_downsampler_embed_dim=128, memory_fuser_embed_dim=128,
        memory_fuser_intermediate_dim=32, memory_fuser_num_layers=1,
    )  # fmt: skip
    config = transformers.Sam3VideoConfig(
        detector_config=detector.to_dict(), tracker_config=tracker.to_dict(), low_res_mask_size=32,
        score_threshold_detection=0.1, new_det_thresh=0.1, hotstart_delay=2, hotstart_unmatch_thresh=2,
        hotstart_dup_thresh=2,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.Sam3VideoModel(config).save_pretrained(folder)
    letters = [letter + end for letter in "abcdefghijklmnopqrstuvwxyz" for end in ("", "</w>")]
    vocabulary = {word: index for index, word in enumerate(["<|startoftext|>", "<|endoftext|>", *letters])}
    size = {"height": PX, "width": PX}
    transformers.Sam3VideoProcessor(
        transformers.Sam3ImageProcessor(size=size),
        transformers.Sam2VideoVideoProcessor(size=size),
        transformers.CLIPTokenizer(vocab=vocabulary, merges=[]),
    ).save_pretrained(folder)
    return folder


def scan(path, intensity="hu"):
    """Write noise with a bright block that moves from slice to slice; return it, (z, y, x)."""
    hu = np.random.default_rng(3).normal(0, 80, SHAPE).round()
    for z in range(SHAPE[0]):
        hu[z, 2 + z : 6 + z, 3 + 2 * z : 7 + 2 * z] = 400
    save_nifti(path, hu.astype(np.int16), (3.0, 1.0, 1.0))
    return VolumeRef(path=str(path), intensity=intensity), hu


@pytest.mark.slow
def test_the_contract_holds(folder, tmp_path):
    prompts = [LIVER, Segmenter.TextPrompt(words="left kidney")]
    check_segmenter(Sam3(folder, folder="."), scan(tmp_path / "scan.nii")[0], prompts)


@pytest.mark.slow
@pytest.mark.parametrize("intensity", ["hu", "arbitrary"])
def test_masks_are_those_of_the_model_on_the_slices_in_their_order(folder, tmp_path, intensity):
    ref, hu = scan(tmp_path / "scan.nii", intensity=intensity)
    low, high = (LOW, HIGH) if intensity == "hu" else np.percentile(hu, (0.5, 99.5))
    grey = np.rint(255 * np.clip((hu - low) / (high - low), 0, 1)).astype(np.uint8)
    model = transformers.Sam3VideoModel.from_pretrained(folder).eval()
    processor = transformers.Sam3VideoProcessor.from_pretrained(folder)
    state = processor.init_video_session(video=[np.stack([plane] * 3, axis=-1) for plane in grey])
    processor.add_text_prompt(state, "liver")
    wanted = [
        processor.postprocess_outputs(state, output)["masks"].numpy().max(axis=0)
        for output in model.propagate_in_video_iterator(state)
    ]
    assert len(wanted) == SHAPE[0]
    result = Sam3(folder, folder=".").session(ref).mask([LIVER])
    assert np.array_equal(result, np.stack(wanted))
    assert 0.05 < result.mean() < 0.95


def test_a_model_without_its_commit_and_a_window_without_width_are_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"sam3: id and revision go together.*id = 'facebook/sam3', revisi"):
        Sam3(tmp_path, id="facebook/sam3")
    with pytest.raises(RecipeError, match=r"sam3: window_hu is \[low, high\], .* got \[5.0, 5.0\]"):
        Sam3(tmp_path, folder=".", window_hu=(5.0, 5.0))


@pytest.mark.slow
def test_texts_that_are_too_long_and_models_that_are_incomplete_are_refused(folder, tmp_path):
    ref, _ = scan(tmp_path / "scan.nii")
    with pytest.raises(ValueError, match=r"scan.nii: 'liver.*' has 62 tokens, and sam3 reads 32. Say it"):
        Sam3(folder, folder=".").session(ref).mask([Segmenter.TextPrompt(words="liver " * 12)])
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    weights = load_file(folder / "model.safetensors")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=r"sam3: '.*' holds no processor of a Sam3VideoModel"):
        Sam3(tmp_path, folder=".").session(ref).mask([LIVER])
    missing = "detector_model.mask_decoder.instance_projection.weight"
    del weights[missing]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=rf"its weights leave the model random: {missing} is missing"):
        Sam3(tmp_path, folder=".").session(ref).mask([LIVER])
