import pytest
import torch

from evidcore.model import policy as policies
from evidcore.model.policy import VLMPolicy, sampling_of


def by_hand(small, prompt, text):
    """Sum the log-probabilities of a completion from plain logits."""
    encoded = small.processor.encode(prompt)
    answer = small.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    handles = torch.tensor([[small.processor.image_processor.handle(crop) for crop in encoded.crops]])
    ids = torch.tensor([[*encoded.ids, *answer]])
    with torch.no_grad():
        log_probs = small.model(input_ids=ids, pixel_values=handles).logits[0].log_softmax(-1)
    return sum(float(log_probs[len(encoded.ids) - 1 + index, token]) for index, token in enumerate(answer))


@pytest.mark.parametrize("blocker", ["", "cannot be packed"])
def test_log_likelihoods_are_sums_over_plain_logits(small, monkeypatch, blocker):
    monkeypatch.setattr(policies, "packing_blocker", lambda model: blocker)
    policy = VLMPolicy(small.model, small.processor, prompts_per_pass=3)
    candidates = [["A", "left lung"], ["B"], ["A", "B", "C"], ["no nodule", "D"]]
    result = policy.log_likelihoods(small.prompts, candidates)
    for prompt, texts, values in zip(small.prompts, candidates, result, strict=True):
        assert values == pytest.approx([by_hand(small, prompt, text) for text in texts], abs=2e-3)


def test_products_are_computed_in_the_type_of_training(small):
    seen = []
    layer = small.model.model.language_model.layers[0].mlp.down_proj
    hook = layer.register_forward_hook(lambda module, given, output: seen.append(output.dtype))
    result = {}
    for dtype in (torch.float32, torch.bfloat16):
        policy = VLMPolicy(small.model, small.processor, dtype=dtype)
        policy.generate(small.prompts, max_new_tokens=2)
        result[dtype] = torch.tensor(
            policy.log_likelihoods(small.prompts, [["left lung"]] * len(small.prompts))
        )
        assert set(seen) == {dtype}
        seen.clear()
    hook.remove()
    apart = (result[torch.float32] - result[torch.bfloat16]).abs().max()
    assert 0 < float(apart) < 1


def test_answers_do_not_depend_on_the_batch(small):
    for temperature in (0.0, 1.0):
        texts = [
            VLMPolicy(small.model, small.processor, prompts_per_pass=size).complete(
                small.prompts, max_new_tokens=8, temperature=temperature
            )
            for size in (1, 3, 64)
        ]
        assert texts[0] == texts[1] == texts[2]
        assert any(item.is_cut_off for item in texts[0])


def test_sampling_ends_where_training_ends_a_turn(small):
    tokenizer = small.processor.tokenizer
    tokenizer.eos_token = "<|endoftext|>"
    small.model.generation_config.eos_token_id = tokenizer.eos_token_id
    sampling = sampling_of(small.model, small.processor, max_new_tokens=8, temperature=0.0)
    assert small.processor.encode_answer("A").ids[-1] == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert set(sampling.end_ids) == set(tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))
