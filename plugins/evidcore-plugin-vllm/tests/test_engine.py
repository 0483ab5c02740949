"""A server that speaks vLLM's protocol writes what the model itself writes."""

import dataclasses

import pytest
import torch

from evidcore.api import Episode, TextPart, VisualPart


@pytest.fixture(params=["volume_model", "seeing_model"])
def parts(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def component(parts, served):
    with served(parts) as (_, component):
        yield component


def full_pass(parts, sampler, episode, temperature=1.0):
    """Return the log-probability of each token of an episode by one pass of the model over all of it."""
    model = parts[0]
    prefix = sampler.prefix(episode)
    handles = torch.tensor(prefix.handles).reshape(-1, 1)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prefix.ids]), pixel_values=handles).logits[0]
    logits[:, [*sampler.sampling.forbidden_ids]] = -torch.inf
    count = len(episode.ids)
    log_probs = (logits[-count - 1 : -1] / temperature).log_softmax(-1)
    return log_probs.gather(-1, torch.tensor(episode.ids)[:, None])[:, 0]


def test_greedy_tokens_are_those_of_the_model_itself(parts, component, sampler):
    episodes = [Episode(prompt=prompt) for prompt in parts[2] for _ in range(2)]
    there = sampler(parts, component, temperature=0.0).sample(episodes)
    here = sampler(parts, temperature=0.0).sample(episodes)
    assert [item.ids for item in there] == [item.ids for item in here]
    assert len({item.ids for item in here}) > 1  # what is shown matters
    assert [item.finished for item in there] == [item.finished for item in here]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_of_sampling_are_those_of_a_full_pass(parts, component, sampler, temperature):
    served = sampler(parts, component, temperature=temperature)
    result = served.sample([Episode(prompt=prompt) for prompt in parts[2] for _ in range(3)])
    assert len({item.ids for item in result}) == len(result)
    for item in result:
        expected = full_pass(parts, served, item, temperature)
        torch.testing.assert_close(torch.tensor(item.log_probs), expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_fork_and_a_tools_turn_go_on_from_exactly_their_tokens(parts, component, sampler):
    served = sampler(parts, component, tokens=12)
    first = served.sample([Episode(prompt=prompt) for prompt in parts[2][:2]])
    forks = [served.fork(item, 3) for item in first]
    [crop] = parts[2][0].crops()
    told = [served.extend(item, (TextPart(text="closer:"), VisualPart(crop=crop))) for item in forks]
    for item in served.sample([*forks, *told]):
        assert len(item.log_probs) == len(item.ids) > 3
        expected = full_pass(parts, served, item)
        for token, (own, wanted) in enumerate(zip(item.log_probs, expected.tolist(), strict=True)):
            is_told = any(reply.start <= token < reply.stop for reply in item.replies)
            assert own == (0.0 if is_told else pytest.approx(wanted, abs=1e-4))
    greedy = {"temperature": 0.0, "tokens": 12}
    there = sampler(parts, component, **greedy).sample(told)
    here = sampler(parts, **greedy).sample([dataclasses.replace(item, log_probs=()) for item in told])
    assert [item.ids for item in there] == [item.ids for item in here]
