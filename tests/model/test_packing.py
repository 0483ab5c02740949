import pytest
import torch

from evidcore.model.packing import answer_log_probs, can_pack, pack


def rows_of(small, answers):
    """Give left-padded prompts, right-padded random answers of different lengths, and image handles."""
    dice = torch.Generator().manual_seed(0)
    encoded = [small.processor.encode(prompt) for prompt in small.prompts]
    longest = max(len(one.ids) for one in encoded)
    ids = torch.zeros(len(encoded), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, one in enumerate(encoded):
        ids[row, longest - len(one.ids) :] = torch.tensor(one.ids)
        mask[row, longest - len(one.ids) :] = 1
    written = torch.randint(6, 262, (len(encoded), answers, 7), generator=dice)
    lengths = torch.randint(1, 8, (len(encoded), answers), generator=dice)
    there = (torch.arange(7) < lengths[..., None]).long()
    handles = [small.processor.image_processor.handle(crop) for one in encoded for crop in one.crops]
    return ids, mask, written * there, there, torch.tensor(handles).reshape(-1, 1)


def one_by_one(small, ids, mask, written, there, handles):
    """Score each answer in a row of its own, from plain logits."""
    found = torch.zeros(written.shape)
    for row in range(written.shape[0]):
        prompt = ids[row][mask[row].bool()]
        for number in range(written.shape[1]):
            answer = written[row, number][there[row, number].bool()]
            whole = torch.cat([prompt, answer])[None]
            logits = small.model(input_ids=whole, pixel_values=handles[row : row + 1]).logits[0]
            log_probs = logits.log_softmax(-1)[len(prompt) - 1 : -1]
            found[row, number, : len(answer)] = log_probs.gather(-1, answer[:, None])[:, 0]
    return found


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_answers_in_one_row_score_as_in_rows_of_their_own(small, attention):
    small.model.set_attn_implementation(attention)
    ids, mask, written, there, handles = rows_of(small, answers=3)
    additive = torch.float32 if attention == "eager" else None
    packed = pack(ids, mask, written, there, additive=additive)
    with torch.no_grad():
        together = answer_log_probs(small.model, packed, handles, 3)
        apart = one_by_one(small, ids, mask, written, there, handles)
    assert apart.abs().max() > 1  # the comparison is about something
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-4)


def test_gradients_are_the_same_too(small):
    small.model.train_only(["bridge", "language"])
    ids, mask, written, there, handles = rows_of(small, answers=2)
    gradients = []
    for score in (
        lambda: answer_log_probs(small.model, pack(ids, mask, written, there), handles, 2),
        lambda: one_by_one(small, ids, mask, written, there, handles),
    ):
        small.model.zero_grad()
        score().sum().backward()
        gradients.append([
            weight.grad.clone() for weight in small.model.parameters() if weight.grad is not None
        ])
    for together, apart in zip(*gradients, strict=True):
        assert (together - apart).norm() <= 1e-4 * apart.norm() + 1e-6


def test_a_language_model_with_a_window_is_not_packed(small):
    assert can_pack(small.model)
    small.model.config.text_config.layer_types = ["full_attention", "sliding_attention"]
    assert not can_pack(small.model)
