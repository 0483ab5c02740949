import dataclasses
import math

import pytest
import torch
from evidcore_testing import TinySampler, check_rollout, tiny_language

from evidcore.case import Case, Crop, Episode, Prompt, TextPart, VisualPart, VolumeRef
from evidcore.contracts import RolloutStrategy

CROP = Crop(volume=VolumeRef(path="v.nii.gz"))
LOOK = (TextPart(text="\nhere: "), VisualPart(crop=CROP))


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
                (episodes[index],) = sampler.sample([sampler.extend(episode, LOOK)])
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
        return [dataclasses.replace(each, loss_mask=(0, 0, *each.loss_mask[2:])) for each in episodes]


class TrainsNothing(Mutant):
    def spoil(self, episodes, prompts):
        return [dataclasses.replace(each, loss_mask=(0,) * len(each.ids)) for each in episodes]


class KeepsATurnOut(Mutant):
    def spoil(self, episodes, prompts):
        firsts = [each.replies[0].start for each in episodes]
        return [
            dataclasses.replace(each, loss_mask=(*each.loss_mask[:first], *(0 for _ in each.ids[first:])))
            for first, each in zip(firsts, episodes, strict=True)
        ]


class WritesItself(Mutant):
    def spoil(self, episodes, prompts):
        return [
            dataclasses.replace(each, ids=(*each.ids, 7), loss_mask=(*each.loss_mask, 1)) for each in episodes
        ]


class ForgetsReplies(Mutant):
    def spoil(self, episodes, prompts):
        return [dataclasses.replace(each, replies=()) for each in episodes]


class ForgetsParents(Looks):
    def __call__(self, sampler, prompts, answers_per_prompt):
        episodes = super().__call__(sampler, prompts, answers_per_prompt)
        forked = sampler.sample([sampler.fork(each, 1) for each in episodes])
        return [dataclasses.replace(each, parent=None) for each in forked]


class LeavesOut(Looks):
    """Keeps what a fork inherited out of training, and `extra` tokens more."""

    extra = 0

    def __call__(self, sampler, prompts, answers_per_prompt):
        episodes = super().__call__(sampler, prompts, answers_per_prompt)
        forked = [sampler.fork(each, 2) for each in episodes]
        masked = [dataclasses.replace(each, loss_mask=(0,) * 2) for each in forked]
        found = sampler.sample(masked)
        return [
            dataclasses.replace(each, loss_mask=(0,) * (2 + self.extra) + each.loss_mask[2 + self.extra :])
            for each in found
        ]


class LeavesOutMore(LeavesOut):
    extra = 1


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


def test_a_turn_of_the_model_may_be_kept_out_of_training(language, prompts):
    check_rollout(KeepsATurnOut(), TinySampler(language, turns=["look", "seen"]), prompts)


def test_what_a_fork_inherited_may_be_kept_out_of_training(language, prompts):
    check_rollout(LeavesOut(), TinySampler(language, budget_tokens=12), prompts, most_tokens=12)


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
        (ForgetsReplies, r"replies of tools and the parent of a fork stay as .* changed \(episode 0, "),
        (ForgetsParents, r"replies of tools and the parent of a fork stay as .* changed \(episode 0, "),
        (LeavesOutMore, r"1 where the model wrote and 0 where a tool did. wrong at tokens \[2, 3, 4, 5\]"),
        (TrainsNothing, r"something is trained. no token of the model \(episode 0, "),
        (SaysNothing, r"something is trained. no token of the model \(episode 0, 0 tokens\)"),
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
    assert sampler.text(episode) == "seen"
    [turn] = sampler.past_turns(episode)
    assert (turn.text, turn.reply, turn.crops) == ("look", LOOK, (CROP,))
    assert (
        episode.loss_mask == (1,) * 4 + (0,) * 10 + (1,) * 5
    )  # 7 bytes and 3 image tokens came from the tool
    assert episode.crops == ((12, CROP),)
    assert episode.ids[12] == sampler.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert episode.finished
    forked = sampler.fork(episode, 2)
    assert sampler.text(forked) == "lo"
    assert (forked.crops, forked.replies, forked.finished) == ((), (), False)
    assert forked.parent == (episode, 2)
    late = sampler.fork(episode, 16)
    assert (sampler.text(late), late.replies, late.crops) == ("se", episode.replies, episode.crops)
    with pytest.raises(ValueError, match="token 6 of 19 was not written by the model; fork where it was"):
        sampler.fork(episode, 6)


def test_a_sampler_that_pauses_elsewhere_than_the_strategy_is_refused(language, prompts):
    class Pausing(Plain):
        stop_texts = ("k",)

    with pytest.raises(ValueError, match=r"pauses behind \(\), Pausing behind \('k',\); give the sampler"):
        check_rollout(Pausing(), TinySampler(language), prompts)
    sampler = TinySampler(language, turns=["looking", "seen"], stop_texts=("k",))
    check_rollout(Pausing(), sampler, prompts)
    assert {sampler.text(one) for one in Pausing()(sampler, prompts, 1)} == {"look"}


def test_a_sampler_without_the_entropies_that_a_strategy_reads_is_refused(language, prompts):
    strategy = Plain()
    strategy.reads_entropies = True
    with pytest.raises(ValueError, match="Plain reads entropies; give the sampler reads_entropies=True"):
        check_rollout(strategy, TinySampler(language), prompts)
    check_rollout(strategy, TinySampler(language, budget_tokens=4, reads_entropies=True), prompts)


def test_the_tiny_sampler_samples_with_the_entropy_that_it_reports(language, prompts):
    sampler = TinySampler(language, budget_tokens=6, temperature=0.5, reads_entropies=True)
    episodes = Plain()(sampler, prompts, 2)
    assert len({each.ids for each in episodes}) == len(episodes)
    entropies = episodes[0].entropies
    assert len(entropies) == len(episodes[0].ids) == 6
    looked = sampler.extend(episodes[0], LOOK)
    assert looked.entropies == (*entropies, *(0.0 for _ in looked.ids[6:]))
    assert Plain()(TinySampler(language, budget_tokens=6), prompts, 1)[0].entropies == ()
    # by hand: run the model over prompt and answer and sum p log p
    chat = (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>one?<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = [*sampler.tokenizer(chat)["input_ids"], *episodes[0].ids]
    with torch.no_grad():
        logits = sampler.model(torch.tensor([ids])).logits[0, -7]
    by_hand = -sum(p * math.log(p) for p in (logits.double() / 0.5).softmax(0).tolist())
    assert entropies[0] == pytest.approx(by_hand, abs=1e-4)
