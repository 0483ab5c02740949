import dataclasses

import pytest
import torch

from evidcore.contracts import Prefix
from evidcore.model import generation
from evidcore.model.generation import continue_rows
from evidcore.model.policy import VLMPolicy, sampling_of

SHARED = ["shared prompts", "a cache per row"]


@pytest.fixture
def prefixes(small):
    policy = VLMPolicy(small.model, small.processor)
    return [policy.prefix(prompt) for prompt in small.prompts]


def sampling(small, **changed):
    usual = {"max_new_tokens": 9, "temperature": 1.0}
    return sampling_of(small.model, small.processor, **{**usual, **changed})


def asked(prefix):
    return {"input_ids": torch.tensor([prefix.ids]), "pixel_values": torch.tensor([prefix.handles])}


@pytest.mark.parametrize("shared", [True, False], ids=SHARED)
def test_greedy_tokens_are_those_of_transformers(small, prefixes, monkeypatch, shared):
    monkeypatch.setattr(generation, "fits", lambda model: shared)
    longest = max(len(prefix.ids) for prefix in prefixes)
    ids = torch.tensor([[0] * (longest - len(prefix.ids)) + list(prefix.ids) for prefix in prefixes])
    theirs = small.model.generate(
        input_ids=ids,
        attention_mask=(ids != 0).long(),
        pixel_values=torch.tensor([prefix.handles for prefix in prefixes]),
        max_new_tokens=9,
        do_sample=False,
    )[:, longest:].tolist()
    ours = continue_rows(small.model, prefixes * 2, sampling(small, temperature=0.0))
    assert len({item.ids for item in ours}) > 1
    for mine, row in zip(ours, theirs * 2, strict=True):
        assert list(mine.ids) == row[: len(mine.ids)]


@pytest.mark.parametrize("shared", [True, False], ids=SHARED)
def test_rows_that_are_over_leave_and_change_nothing(small, prefixes, monkeypatch, shared):
    monkeypatch.setattr(generation, "fits", lambda model: shared)
    rows = [prefix for prefix in prefixes for _ in range(4)]
    lengths = [1, 9, 2, 3, 9, 8, 7, 7, 1, 1, 1, 1, 5, 1, 9, 2]

    def stops(row, ids):
        return len(ids) >= lengths[row]

    counts = []
    advance = generation._Decoder.advance

    def counting(decoder, token):
        counts.append(len(token))
        advance(decoder, token)

    monkeypatch.setattr(generation._Decoder, "advance", counting)
    settings = dataclasses.replace(sampling(small), end_ids=(-1,))  # none ends by itself
    leaving = continue_rows(small.model, rows, settings, seeds=range(16), stops=stops, entropies=True)
    with_leaving, counts = counts, []
    monkeypatch.setattr(generation, "LEAST_LEAVING", 2)
    staying = continue_rows(small.model, rows, settings, seeds=range(16), stops=stops, entropies=True)
    assert [len(item.ids) for item in leaving] == lengths
    assert with_leaving == [10, 10, 7, 7, 7, 7, 4, 3]
    assert counts == [16] * 8
    for item, other in zip(leaving, staying, strict=True):
        assert item.ids == other.ids
        assert item.log_probs == pytest.approx(other.log_probs, abs=1e-5)
        assert item.entropies == pytest.approx(other.entropies, abs=1e-5)


def test_tokens_that_no_answer_holds_are_never_written_and_count_in_the_chances_of_others(small, prefixes):
    settings, rows, head = sampling(small), prefixes * 10, small.model.lm_head.weight
    ids = list(settings.forbidden_ids)
    assert small.processor.tokenizer.convert_ids_to_tokens(ids) == [
        "<|endoftext|>", "<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
    ]  # fmt: skip
    with torch.no_grad():
        head[ids] = head.mean(0) * 50
        first = [small.model(**asked(prefix)).logits[0, -1].log_softmax(-1) for prefix in rows]
    result = continue_rows(small.model, rows, settings, seeds=range(40))
    assert not {token for item in result for token in item.ids} & {*ids}
    said = [item.log_probs[0] for item in result]
    chances = [float(row[item.ids[0]]) for row, item in zip(first, result, strict=True)]
    assert said == pytest.approx(chances, abs=1e-4)
    theirs = small.model.generate(**asked(rows[0]), max_new_tokens=9, do_sample=True, num_return_sequences=20)
    assert set(theirs[:, len(rows[0].ids) :].flatten().tolist()) & {*ids} <= {settings.pad_id}


def test_forced_tokens_are_scored_as_sampling_scored_them(small, prefixes):
    sampled = continue_rows(small.model, prefixes, sampling(small), seeds=range(4))
    scored = continue_rows(small.model, prefixes, sampling(small), forced=[item.ids for item in sampled])
    for item, other in zip(sampled, scored, strict=True):
        assert item.ids == other.ids
        assert item.log_probs == pytest.approx(other.log_probs, abs=1e-5)


def test_a_row_ends_by_an_end_token_or_where_it_is_told_and_the_others_go_on(small, prefixes):
    greedy = sampling(small, temperature=0.0)
    free = continue_rows(small.model, prefixes, greedy)
    ended = continue_rows(small.model, prefixes, dataclasses.replace(greedy, end_ids=(free[0].ids[2],)))
    assert ended[0].ended
    assert ended[0].ids == free[0].ids[: free[0].ids.index(free[0].ids[2]) + 1]
    endless = dataclasses.replace(greedy, end_ids=(261,))
    told = continue_rows(small.model, prefixes, endless, stops=lambda row, ids: row == 2 and len(ids) == 4)
    assert [len(item.ids) for item in told] == [9, 9, 4, 9]
    assert not told[2].ended
    text = Prefix(tuple(small.processor.tokenizer("What is there?")["input_ids"]))  # without images
    [alone] = continue_rows(small.model, [text], greedy)
    assert 1 <= len(alone.ids) <= 9
