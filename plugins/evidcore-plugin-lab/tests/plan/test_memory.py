"""The formula against what torch was seen to keep, and against sums by hand."""

import dataclasses
import inspect

import pytest
import torch
from evidcore_plugin_lab.plan import memory
from evidcore_plugin_lab.plan.fake_pass import Count
from evidcore_plugin_lab.plan.memory import Batch, Trained, Weights, answering, kept_for_backward, training
from evidcore_plugin_lab.plan.shapes import TextShape
from peft import LoraConfig, get_peft_model
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM
from trl.kernels.chunked_logprob import TOKEN_CHUNK_SIZE
from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

from evidcore.train.sampler import PolicySampler

CONFIG = Qwen2Config(
    vocab_size=128, hidden_size=128, intermediate_size=344, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip
TEXT = TextShape.of(CONFIG)
ROWS, BEFORE, AFTER = 3, 40, 24
WHOLE = Weights(parameters=1000)
BATCH = Batch(prompts=ROWS, answers=1, prompt_tokens=BEFORE, answer_tokens=AFTER)


def kept(saved, model, is_half):
    """Return the bytes that a real forward pass keeps beside weights and their casts, padding in the rows."""
    embeddings = torch.zeros(ROWS, BEFORE + AFTER, 128, requires_grad=True)
    mask = torch.ones(ROWS, BEFORE + AFTER, dtype=torch.long)
    mask[:, 0] = 0
    with torch.autocast("cpu", torch.bfloat16, enabled=is_half), saved(model.parameters()) as storages:
        model.model(inputs_embeds=embeddings, attention_mask=mask, use_cache=False)
    matrices = TEXT.layers * sum(before * after for before, after in TEXT.matrices())
    return sum(storages.values()) - (2 * matrices if is_half else 0)


@pytest.mark.parametrize("is_trained", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_layers_keep_what_the_formula_says(saved, precision, is_trained):
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(CONFIG).requires_grad_(is_trained)
    seen = kept(saved, model, precision == "bfloat16")
    told = kept_for_backward(TEXT, BATCH, precision, is_trained=is_trained)
    positions = ROWS * (BEFORE + AFTER)
    # beside the layers: the last norm's input, and its output where its weight is trained; norms' scales and
    # what softmax divided by; biases and cosines
    last = positions * 128 * 4 * (2 if is_trained else 1)
    small = positions * 4 * (7 + 3 * 4)
    assert told <= seen <= told + last + small + 60_000


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT asks by the old name
@pytest.mark.parametrize("is_adapted", [True, False])
def test_checkpointed_layers_keep_casts_of_trained_matrices_alone(is_adapted):
    model = Qwen2ForCausalLM(CONFIG)
    if is_adapted:
        get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    layers = model.model.train()
    layers.activation_checkpointing_enable({"use_reentrant": False})
    embeddings = torch.zeros(ROWS, BEFORE + AFTER, 128, requires_grad=True)
    count = Count()
    for tensor in (embeddings, *layers.parameters()):
        count.known(tensor)
    with torch.autocast("cpu", torch.bfloat16), count:
        output = layers(inputs_embeds=embeddings, use_cache=False)[0]
        seen = count.alive_bytes
    del output
    told = training(
        TEXT, WHOLE, Trained(parameters=100, is_language=True, is_adapted=is_adapted), BATCH, "bfloat16",
        is_checkpointed=True,
    )  # fmt: skip
    inputs = TEXT.layers * ROWS * (BEFORE + AFTER) * 128 * 4
    matrices = 2 * TEXT.layers * sum(before * after for before, after in TEXT.matrices())
    assert told.casts == (matrices // TEXT.layers if is_adapted else matrices)
    kept_casts = 0 if is_adapted else matrices  # those of one layer are there while it is computed
    assert inputs + kept_casts <= seen <= inputs + kept_casts + 250_000


def test_the_formula_is_right_by_hand():
    n, h, q, f, layers = 192, 128, 128, 344, 3
    mask = ROWS * 64 * 64 * 4
    a_layer = n * 4 * (6 * h + 2 * q + 4 * f) + n * 2 * q * 4 + mask
    assert kept_for_backward(TEXT, BATCH, "float32", is_trained=True) == layers * a_layer
    again = kept_for_backward(TEXT, BATCH, "float32", is_trained=True, is_checkpointed=True)
    assert again == a_layer + layers * n * h * 4


def test_the_cache_is_that_of_a_real_pass():
    model = Qwen2ForCausalLM(CONFIG).eval()
    cache = DynamicCache(config=CONFIG)
    with torch.no_grad():
        model(input_ids=torch.zeros(ROWS, BEFORE + AFTER, dtype=torch.long), past_key_values=cache)
    real = sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))
    assert memory.cache_bytes(TEXT, BATCH, "float32") == real


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_prompts_take_what_a_real_pass_takes_beside_the_cache(precision):
    is_half, count = precision == "bfloat16", Count()
    model = Qwen2ForCausalLM(CONFIG).eval().requires_grad_(False)
    for weight in model.parameters():
        count.known(weight)
    mask = torch.ones(ROWS, 200, dtype=torch.long)
    mask[:, 0] = 0
    cache = DynamicCache(config=CONFIG)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=is_half), count:
        model(input_ids=torch.zeros_like(mask), attention_mask=mask, logits_to_keep=1, past_key_values=cache)
    asked = Batch(prompts=ROWS, answers=1, prompt_tokens=200, answer_tokens=0)
    a_cast = 2 * max(before * after for before, after in TEXT.matrices()) if is_half else 0
    taken = count.peak_bytes - a_cast - sum(item.keys.nbytes + item.values.nbytes for item in cache.layers)
    assert 0.85 < taken / memory.prompts_bytes(TEXT, asked, precision, WHOLE) < 1.1


def test_adapters_beside_weights_in_bfloat16_make_one_more_of_the_inner_width():
    rounded = dataclasses.replace(WHOLE, in_bfloat16=900, adapters=30, is_language_rounded=True)
    plain = memory.prompts_bytes(TEXT, BATCH, "bfloat16", dataclasses.replace(rounded, adapters=0))
    assert memory.prompts_bytes(TEXT, BATCH, "bfloat16", rounded) - plain == ROWS * BEFORE * 344 * 2


def test_the_answers_of_a_whole_step_are_sampled_together_up_to_the_samplers_bound():
    step = Batch(prompts=2, answers=4, prompt_tokens=10, answer_tokens=5, passes=3)
    item = dataclasses.replace(step, prompts=1, passes=1)
    assert memory.cache_bytes(TEXT, item, "float32") == (10 + 4 * 5) * 3 * 2 * 64 * 4  # of one prompt
    assert memory.cache_bytes(TEXT, step, "float32") == (6 * 10 + 24 * 5) * 3 * 2 * 64 * 4
    many = dataclasses.replace(step, passes=1000)
    assert memory.cache_bytes(TEXT, many, "float32") == (64 * 10 + 256 * 5) * 3 * 2 * 64 * 4
    assert memory.cache_bytes(TEXT, step, "bfloat16") == (6 * 10 + 24 * 5) * 3 * 2 * 64 * 2
    bound = inspect.signature(PolicySampler).parameters["rows_per_pass"].default
    assert bound == memory.SAMPLED_ROWS


def test_the_tiles_of_the_head_are_those_of_trl():
    assert (memory.HEAD_TOKENS, memory.HEAD_WORDS) == (TOKEN_CHUNK_SIZE, _CHUNKED_LOGPROB_CHUNK_SIZE)


def test_shared_prompts_are_seen_once_and_read_by_each_answer():
    group = Batch(prompts=2, answers=3, prompt_tokens=10, answer_tokens=5, shares_prompts=True)
    assert group.positions == 2 * (10 + 3 * 5)
    assert group.read == 6 * 15 + 2 * 10
    assert group.mask_cells == 6 * 5 * 15 + 2 * 10 * 10
    apart = dataclasses.replace(group, shares_prompts=False)
    assert (apart.positions, apart.read, apart.mask_cells) == (90, 90, 6 * 15 * 15)
    asked = dataclasses.replace(group, question_tokens=2)  # and no head computes it
    assert (asked.positions, asked.predicted, group.predicted) == (group.positions, 18, 30)


def test_states_are_counted_by_what_is_trained():
    result = training(TEXT, WHOLE, Trained(parameters=100, copied=300), BATCH, "float32")
    assert (result.weights, result.gradients, result.optimizer, result.reference) == (4000, 400, 800, 1200)
    muon = training(TEXT, WHOLE, Trained(parameters=100, matrices=60), BATCH, "float32")
    assert muon.optimizer == 4 * 60 + 8 * 40
    assert muon.reference == 0


def test_gradients_count_beside_activations_only_where_a_step_has_several_passes():
    trained = Trained(parameters=100, is_language=True)
    single = training(TEXT, WHOLE, trained, BATCH, "float32")
    several = training(TEXT, WHOLE, trained, dataclasses.replace(BATCH, passes=2), "float32")
    assert several.peak - single.peak == 400
    assert single.peak == 4000 + 800 + single.activations + single.head


def test_replayed_rows_are_kept_beside_the_others_with_five_copies_of_their_logits():
    trained = Trained(parameters=100, copied=100)
    again = Batch(prompts=2, answers=1, prompt_tokens=30, answer_tokens=9)
    without = training(TEXT, WHOLE, trained, BATCH, "float32")
    result = training(TEXT, WHOLE, trained, BATCH, "float32", replayed=again)
    layers = kept_for_backward(TEXT, again, "float32", is_trained=False)
    assert result.replay == layers + 2 * 9 * 5 * 4 * 128
    assert result.peak - without.peak == result.replay


def test_evaluation_trains_nothing_and_casts_as_sampling_does():
    result = answering(TEXT, WHOLE, BATCH, "float32")
    half = answering(TEXT, WHOLE, BATCH, "bfloat16")
    assert half.casts == 2 * 128 * 344  # of one matrix: none of what is frozen is kept
    assert half.peak == 4000 + half.casts + half.cache + max(half.prompts, half.logits)
    assert result.peak == 4000 + result.cache + max(result.prompts, result.logits)
    seen = answering(TEXT, WHOLE, BATCH, "float32", shown_bytes=10**6)
    assert seen.prompts - result.prompts == 10**6
    assert result.casts == result.gradients == result.activations == 0


def test_frozen_weights_in_bfloat16_take_half_and_are_cast_no_more():
    trained = Trained(parameters=100, is_language=True, is_adapted=True)
    rounded = dataclasses.replace(WHOLE, in_bfloat16=900, adapters=30, is_language_rounded=True)
    plain = training(TEXT, WHOLE, trained, BATCH, "bfloat16", samples=True)
    result = training(TEXT, rounded, trained, BATCH, "bfloat16", samples=True)
    assert (plain.weights, result.weights) == (4000, 4 * (100 + 30) + 2 * 900)
    assert plain.casts > result.casts == 0
    assert plain.head - result.head == memory.HEAD_WORDS * 128 * 2  # of a slice of the head
    assert answering(TEXT, rounded, BATCH, "bfloat16").casts == 0
    seen = dataclasses.replace(rounded, is_language_rounded=False)  # the encoder's alone are
    assert training(TEXT, seen, trained, BATCH, "bfloat16", samples=True).casts == plain.casts


def test_4_bits_take_half_a_byte_and_their_scales_and_a_product_unpacks_one_matrix():
    trained = Trained(parameters=100, is_language=True, is_adapted=True)
    rounded = dataclasses.replace(WHOLE, in_bfloat16=900, is_language_rounded=True)
    packed = dataclasses.replace(rounded, in_4bit=640)
    results = [training(TEXT, item, trained, BATCH, "bfloat16", samples=True) for item in (rounded, packed)]
    assert results[1].weights == 4 * 100 + 2 * 260 + 640 // 2 + 4 * 640 // 64
    largest = 2 * 128 * 344
    assert results[1].casts == answering(TEXT, packed, BATCH, "bfloat16").casts == largest
    assert results[1].peak - results[0].peak == largest - (2 * 640 - 320 - 40)


def test_processes_that_share_nothing_hold_gradients_once_more():
    alone = training(TEXT, WHOLE, Trained(parameters=100), BATCH, "float32")
    result = training(TEXT, WHOLE, Trained(parameters=100), BATCH, "float32", processes=4)
    assert result.buckets == 400
    assert result.peak == alone.peak + 400


@pytest.mark.parametrize(("precision", "number"), [("float32", 4), ("bfloat16", 2)])
def test_sharded_states_are_divided_and_gathered_while_answers_are_sampled(precision, number):
    trained = Trained(parameters=100, matrices=60, is_language=True, copied=200)
    many = 10**8
    whole, shared = Weights(parameters=many), {"processes": 4, "is_sharded": True}
    result = training(TEXT, whole, trained, BATCH, precision, samples=True, **shared)
    assert (result.weights, result.gradients, result.reference) == (many, 100, 200)
    assert result.optimizer == (4 * 60 + 8 * 40) // 4
    assert (result.gathered, result.casts, result.buckets) == (number * many, 0, 0)
    at_rest = result.weights + result.reference + result.optimizer
    assert result.peak == at_rest + result.gathered + result.cache + max(result.prompts, result.logits)
    matrices = sum(before * after for before, after in TEXT.matrices())  # those of one layer
    learnt = training(TEXT, whole, trained, BATCH, precision, **shared)
    assert learnt.gathered == number * matrices
    assert learnt.peak == at_rest + learnt.gathered + learnt.activations + learnt.head
