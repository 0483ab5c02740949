"""What is kept from call to call; that it changes no token is tested in tests/train/test_sampler.py."""

import pytest
import torch

from evidcore.contracts import Prefix
from evidcore.model.policy import VLMPolicy
from evidcore.model.shared_prefix import DecodedRows, PrefixCache


@pytest.fixture
def prompts(small):
    policy = VLMPolicy(small.model, small.processor)
    return [policy.prefix(prompt) for prompt in small.prompts[:3]]


def keys(value):
    return torch.full((1, 2, 1, 1, 1), float(value))


def test_a_row_goes_on_from_the_longest_beginning_that_its_prompt_has_had(small, prompts):
    memory = PrefixCache(8)
    memory.prompts(small.model, prompts[:2], 0)
    for number, content in enumerate([(5, 6), (5, 6, 7, 8), (5, -3, 7)]):
        memory.put(prompts[0], content, keys(number))
    memory.put(prompts[1], (5, 6, 7, 9, 9), keys(3))
    for content, count, row in [
        ((5, 6, 7, 9, 9), 3, 1),
        ((5, 6, 7, 8), 3, 1),  # the last token is read again: the next one comes from it
        ((5, -3, 7, 8), 3, 2),
        ((5, -4, 7), 1, 1),  # another image
        ((6, 5), 0, None),
        ((5,), 0, None),
    ]:
        result, held = memory.longest(prompts[0], content)
        assert (result, None if held is None else held.flatten()[0].item()) == (count, row), content


def test_the_prompt_that_was_used_longest_ago_leaves_first(small, prompts):
    memory = PrefixCache(3)
    for prompt in prompts:
        memory.prompts(small.model, [prompt], 0)
        memory.put(prompt, (5, 6), keys(0))
    memory.prompts(small.model, prompts[:1], 0)  # used again
    memory.put(prompts[2], (5, 6, 7), keys(0))  # in the place of the row that it continues
    memory.put(prompts[2], (5, 8), keys(0))
    assert set(memory._kept) == {prompts[0], prompts[2]}
    memory.put(prompts[1], (5,), keys(0))  # left meanwhile
    assert memory.longest(prompts[0], (5, 6, 7))[0] == 2
    memory.prompts(small.model, prompts[:1], 0)
    for number in range(5):  # more rows than may be kept
        memory.put(prompts[0], (number,), keys(0))
    assert memory._kept == {}


def test_keys_are_kept_in_the_type_of_products(small, prompts):
    for dtype in (torch.float32, torch.bfloat16):
        memory = PrefixCache(8)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            layers, _, _ = memory.prompts(small.model, prompts, 0)
        kept = [item for layer in layers for item in layer]
        kept += [item for held in memory._kept.values() for layer in held.layers for item in layer]
        assert {item.dtype for item in kept} == {dtype}


def test_images_in_what_was_written_are_told_apart(small, prompts):
    image = small.model.config.image_token_id
    prompt, handles = prompts[0], tuple(item.handles[0] for item in prompts[:2])
    whole = Prefix((*prompt.ids, 7, *[image] * 4, 8, *[image] * 4, 9), (*prompt.handles, *handles), prompt)
    result = DecodedRows.of(small.model, whole)
    item, other = (-1 - handle for handle in handles)
    assert result.content == (7, *[item] * 4, 8, *[other] * 4, 9)
    assert [result.shown_from(start) for start in (0, 1, 5, 6, 10)] == [
        handles, handles, handles[1:], handles[1:], (),
    ]  # fmt: skip
    assert DecodedRows.of(small.model, prompt) == DecodedRows((), (), ())
