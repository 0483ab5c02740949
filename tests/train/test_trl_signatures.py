"""What of trl's inside is relied upon; a release that changes it fails here first."""

import inspect

import pytest
from trl import GRPOTrainer, SFTTrainer
from trl.trainer import utils

RELIED_ON = {
    (GRPOTrainer, "_generate"): ["self", "prompts"],
    (GRPOTrainer, "_generate_and_score_completions"): ["self", "inputs"],
    (GRPOTrainer, "_calculate_rewards"): ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    (GRPOTrainer, "_compute_loss"): ["self", "model", "inputs"],
    (GRPOTrainer, "_prepare_inputs"): ["self", "generation_batch"],
    (GRPOTrainer, "_get_train_sampler"): ["self", "dataset"],
    (GRPOTrainer, "_get_per_token_logps_and_entropies"): [
        "self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy",
        "compute_aux_loss", "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask",
        "spatial_shapes",
        "num_tiles", "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
    ],
    (SFTTrainer, "compute_loss"): ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
    (utils, "split_tensor_dict"): ["tensor_dict", "num_chunks"],
    (utils, "split_pixel_values_by_grid"): ["batch"],
    (utils, "unsplit_pixel_values_by_grid"): ["batch"],
    (utils, "add_fused_lm_head"): ["model", "temperature", "cast_lm_head_to_fp32", "outputs"],
}  # fmt: skip


@pytest.mark.parametrize(("owner", "name"), RELIED_ON, ids=lambda item: getattr(item, "__name__", item))
def test_trl_still_takes_what_is_given(owner, name):
    assert list(inspect.signature(getattr(owner, name)).parameters) == RELIED_ON[owner, name]


def test_generate_still_gives_eight_things():
    source = inspect.getsource(GRPOTrainer._generate)
    returned = source.rpartition("return ")[2].strip()
    assert returned == (
        "prompt_ids, completion_ids, tool_mask, completions, logprobs, extra_fields, images, tool_images"
    )
