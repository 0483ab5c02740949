import dataclasses
import math

import pytest
import torch

from evidcore.case import Case, Crop, Episode, Prompt, TextPart, VisualPart, VolumeRef
from evidcore.contracts import RolloutStrategy
from evidcore.testing import TinySampler, check_rollout, tiny_language

CROP = Crop(volume=VolumeRef(path="v.nii.gz"))


class Plain(RolloutStrategy):
    def __call__(self, sampler, prompts, answers_per_prompt):
        return sampler.sample([
            Episode(prompt=prompt) for prompt in prompts for _ in range(answers_per_prompt)
        ])


class Looks(RolloutStrategy):
    """After 'look' the model is shown a crop, once."""

    def __call__(self, sampler, prompts, answers_per_prompt):
        episodes = Plain()(sampler, prompts, answers_per_prompt)
        for index, episode in enumerate(episodes):
            if sampler.text(episode).endswith("look"):
                answer = [TextPart(text="\nhere: "), VisualPart(crop=CROP)]
                (episodes[index],) = sampler.sample([sampler.extend(episode, answer)])
        return episodes


class Mutant(Looks):
    def __call__(self, sampler, prompts, answers_per_prompt):
        return self.spoil(super().__call__(sampler, prompts, answers_per_prompt), prompts)


class OneShort(Mutant):
    def spoil(self, episodes, prompts):
        return episodes[:-1]


class Interleaved(Mutant):
    def spoil(self, episodes, prompts):
        return [*episodes[::2], *episodes[1::2]]


class TrainsOnTools(Mutant):
    def spoil(self, episodes, prompts):
        return [dataclasses.replace(each, loss_mask=(1,) * len(each.ids)) for each in episodes]


class ForgetsHalf(Mutant):
    def spoil(self, episodes, prompts):
        return [dataclasses.replace(each, loss_mask=(0,) * len(each.ids)) for each in episodes]


class WritesItself(Mutant):
    def spoil(self, episodes, prompts):
        return [
            dataclasses.replace(each, ids=(*each.ids, 7), loss_mask=(*each.loss_mask, 1)) for each in episodes
        ]


class SaysNothing(Looks):
    def __call__(self, sampler, prompts, answers_per_prompt):
        episodes = super().__call__(sampler, prompts, answers_per_prompt)
        return [sampler.fork(each, 0) for each in episodes]


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    return tiny_language(tmp_path_factory.mktemp("language"))


@pytest.fixture(scope="module")
def prompts():
    case = Case(id="c", patient=None, volumes=(CROP.volume,))
    return [
        Prompt(id=name, case=case, task="t", parts=(VisualPart(crop=CROP), TextPart(text=f"{name}?")))
        for name in ("one", "two", "three")
    ]


def test_a_sound_strategy_passes(language, prompts):
    check_rollout(Plain(), TinySampler(language, budget_tokens=12), prompts, most_tokens=12)
    check_rollout(Looks(), TinySampler(language, turns=["look", "seen"]), prompts, most_tokens=20)


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (
            OneShort,
            "OneShort breaks its contract: exactly as many episodes .* must be 9 for 3 prompts, got 8",
        ),
        (Interleaved, "in order. episode 2 answers 'two', must answer 'one'"),
        (TrainsOnTools, r"1 where the model wrote and 0 where a tool did. wrong at tokens \[4, 5, 6, 7"),
        (ForgetsHalf, r"1 where the model wrote and 0 where a tool did. wrong at tokens \[0, 1, 2, 3"),
        (WritesItself, "every token came from the sampler. not so for "),
        (SaysNothing, r"something was written. the model wrote nothing \(episode 0, 0 tokens\)"),
    ],
)
def test_a_strategy_that_breaks_a_clause_is_caught(mutant, message, language, prompts):
    with pytest.raises(AssertionError, match=message):
        check_rollout(mutant(), TinySampler(language, turns=["look", "seen"]), prompts)


def test_a_budget_that_is_not_kept_is_caught(language, prompts):
    with pytest.raises(AssertionError, match=r"the budget is kept\. must be at most 5, got 9"):
        check_rollout(Looks(), TinySampler(language, turns=["look", "seen"]), prompts, most_tokens=5)


def test_the_tiny_sampler_keeps_books_of_tokens_and_pixels(language, prompts):
    sampler = TinySampler(language, turns=["look", "seen"])
    (episode,) = Looks()(sampler, prompts[:1], 1)
    assert sampler.text(episode) == "look\nhere: seen"
    assert (
        episode.loss_mask == (1,) * 4 + (0,) * 10 + (1,) * 5
    )  # 7 bytes and 3 image tokens came from the tool
    assert episode.crops == ((12, CROP),)
    assert episode.ids[12] == sampler.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert episode.finished
    forked = sampler.fork(episode, 6)
    assert sampler.text(forked) == "look\nh"
    assert (forked.crops, forked.finished) == ((), False)


def test_the_tiny_sampler_samples_with_the_entropy_that_it_reports(language, prompts):
    sampler = TinySampler(language, budget_tokens=6)
    episodes = Plain()(sampler, prompts, 2)
    assert len({each.ids for each in episodes}) == len(episodes)
    (entropies,) = sampler.entropies(episodes[:1])
    assert len(entropies) == len(episodes[0].ids) == 6
    # by hand: run the model over prompt and answer and sum p log p
    chat = (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>one?<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = [*sampler.tokenizer(chat)["input_ids"], *episodes[0].ids]
    with torch.no_grad():
        logits = sampler.model(torch.tensor([ids])).logits[0, -7]
    by_hand = -sum(p * math.log(p) for p in logits.double().softmax(0).tolist())
    assert entropies[0] == pytest.approx(by_hand, abs=1e-4)
