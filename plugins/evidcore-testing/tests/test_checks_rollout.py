import dataclasses
import math

import pytest
import torch
from evidcore_testing import TinySampler, check_rollout
from mutants import altered, caught

from evidcore.api import Case, Crop, Prompt, TextPart, VisualPart, VolumeRef
from evidcore.builtin.rollouts import Plain

CROP = Crop(volume=VolumeRef(path="v.nii.gz"))
LOOK = (TextPart(text="\nhere: "), VisualPart(crop=CROP))
TURNS = ["look", "seen"]


class Looks(Plain):
    """After 'look' the model is shown a crop, once."""

    def __call__(self, sampler, prompts, answers_per_prompt):
        episodes = super().__call__(sampler, prompts, answers_per_prompt)
        for index, episode in enumerate(episodes):
            if sampler.text(episode).endswith("look"):
                (episodes[index],) = sampler.sample([sampler.extend(episode, LOOK)])
        return episodes


def going_on(change):
    """Return the strategy that looks, with `change` made to all its episodes."""
    return altered(Looks, __call__=lambda self, *given: change(given[0], Looks.__call__(self, *given)))


def each(change):
    return going_on(lambda sampler, episodes: [change(item) for item in episodes])


def masked(mask):
    return each(lambda item: dataclasses.replace(item, loss_mask=tuple(mask(item))))


def first_turn_alone(episode):
    start = episode.replies[0].start
    return (*episode.loss_mask[:start], *(0 for _ in episode.ids[start:]))


def inherits(extra):
    """Keep what a fork inherited out of training, and `extra` tokens more."""

    def change(sampler, episodes):
        forked = [dataclasses.replace(sampler.fork(item, 2), loss_mask=(0, 0)) for item in episodes]
        masks = [(item, (0,) * (2 + extra) + item.loss_mask[2 + extra :]) for item in sampler.sample(forked)]
        return [dataclasses.replace(item, loss_mask=mask) for item, mask in masks]

    return going_on(change)


def forgets_parents(sampler, episodes):
    forked = sampler.sample([sampler.fork(item, 1) for item in episodes])
    return [dataclasses.replace(item, parent=None) for item in forked]


def adds_a_token(episode):
    return dataclasses.replace(episode, ids=(*episode.ids, 7), loss_mask=(*episode.loss_mask, 1))


WRONG_AT = "1 where the model wrote and 0 where a tool did. wrong at tokens"
STAY = r"replies of tools and the parent of a fork stay as .* changed \(episode 0, "
MUTANTS = {
    "exactly as many episodes .* must be 9 for 3 prompts, got 8": going_on(lambda _, episodes: episodes[:-1]),
    "in order. episode 2 answers 'two', must answer 'one'": going_on(
        lambda _, episodes: [*episodes[::2], *episodes[1::2]]
    ),
    rf"{WRONG_AT} \[4, 5, 6, 7": masked(lambda item: (1,) * len(item.ids)),
    rf"{WRONG_AT} \[2, 3, 4, 5\]": inherits(1),
    "every token came from the sampler. not so for ": each(adds_a_token),
    STAY: each(lambda item: dataclasses.replace(item, replies=())),
    f"{STAY}.*": going_on(forgets_parents),
    r"something is trained. no token of the model \(episode 0, ": masked(lambda item: (0,) * len(item.ids)),
}


@pytest.fixture(scope="module")
def prompts():
    case = Case(id="c", patient=None, volumes=(CROP.volume,))
    return [
        Prompt(id=name, case=case, task="t", parts=(VisualPart(crop=CROP), TextPart(text=f"{name}?")))
        for name in ("one", "two", "three")
    ]


def test_a_sound_strategy_passes(language, prompts):
    check_rollout(Plain(), TinySampler(language, budget_tokens=12), prompts, most_tokens=12)
    check_rollout(Looks(), TinySampler(language, turns=TURNS), prompts, most_tokens=20)


def test_a_turn_of_the_model_or_what_a_fork_inherited_may_be_kept_out_of_training(language, prompts):
    check_rollout(masked(first_turn_alone)(), TinySampler(language, turns=TURNS), prompts)
    check_rollout(inherits(0)(), TinySampler(language, budget_tokens=12), prompts, most_tokens=12)


@pytest.mark.parametrize("message", MUTANTS)
def test_a_strategy_that_breaks_a_clause_is_caught(message, language, prompts):
    with caught(message):
        check_rollout(MUTANTS[message](), TinySampler(language, turns=TURNS), prompts)


def test_a_budget_that_is_not_kept_is_caught(language, prompts):
    with caught(r"the budget is kept\. must be at most 5, got 9"):
        check_rollout(Looks(), TinySampler(language, turns=TURNS), prompts, most_tokens=5)


def test_the_tiny_sampler_keeps_books_of_tokens_and_pixels(language, prompts):
    sampler = TinySampler(language, turns=TURNS)
    (episode,) = Looks()(sampler, prompts[:1], 1)
    assert sampler.text(episode) == "seen"
    [turn] = sampler.past_turns(episode)
    assert (turn.text, turn.reply, turn.crops) == ("look", LOOK, (CROP,))
    assert episode.loss_mask == (1,) * 4 + (0,) * 10 + (1,) * 5  # 7 bytes, 3 image tokens came from the tool
    assert episode.crops == ((12, CROP),)
    assert episode.ids[12] == sampler.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert episode.finished
    forked = sampler.fork(episode, 2)
    assert (sampler.text(forked), forked.parent) == ("lo", (episode, 2))
    assert (forked.crops, forked.replies, forked.finished) == ((), (), False)
    late = sampler.fork(episode, 16)
    assert (sampler.text(late), late.replies, late.crops) == ("se", episode.replies, episode.crops)
    with pytest.raises(ValueError, match="token 6 of 19 was not written by the model; fork others"):
        sampler.fork(episode, 6)


def test_a_sampler_that_pauses_elsewhere_than_the_strategy_is_refused(language, prompts):
    pausing = type("Pausing", (Plain,), {"stop_texts": ("k",)})()
    with pytest.raises(ValueError, match=r"pauses behind \(\), Pausing behind \('k',\); give the sampler"):
        check_rollout(pausing, TinySampler(language), prompts)
    sampler = TinySampler(language, turns=["looking", "seen"], stop_texts=("k",))
    check_rollout(pausing, sampler, prompts)
    assert {sampler.text(item) for item in pausing(sampler, prompts, 1)} == {"look"}


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
