import collections
import dataclasses
import string

import pytest
import torch

from evidcore.api import Crop, Episode, RolloutStrategy, TextPart, VisualPart
from evidcore.builtin.rollouts import Plain
from evidcore.case import written
from evidcore.errors import ContractError
from evidcore.evaluate.eval_stage import AnonymizedPolicy
from evidcore.model import generation
from evidcore.model.policy import VLMPolicy, sampling_of
from evidcore.reward.composer import NamedReward
from evidcore.train.sampler import PolicySampler, RolloutPolicy, parents
from evidcore.train.trl import stage


def sampler_of(bench, model, processor, prompts, temperature=1.0, **changed):
    sampling = sampling_of(model, processor, max_new_tokens=7, temperature=temperature)
    positions = {id(prompt): number for number, prompt in enumerate(prompts)}
    return PolicySampler(model, processor, sampling, positions, seed=1, **changed)


@pytest.fixture
def parts(bench):
    model, processor = bench.model()
    prompts = [bench.source()[index].prompt for index in range(2)]
    return model, processor, prompts


def test_answers_of_a_prompt_differ_and_come_again_in_the_same_step(bench, parts):
    _, _, prompts = parts
    episodes = [Episode(prompt=prompt) for prompt in prompts for _ in range(3)]
    first = sampler_of(bench, *parts).sample(episodes)
    again = sampler_of(bench, *parts).sample(episodes)
    assert [one.ids for one in first] == [one.ids for one in again]
    assert len({one.ids for one in first}) == 6
    # a prompt's answers do not depend on the other prompts of the step
    alone = sampler_of(bench, *parts).sample(episodes[3:])
    assert [one.ids for one in alone] == [one.ids for one in first[3:]]
    apart = sampler_of(bench, *parts, rows_per_pass=2).sample(episodes)  # in several passes
    assert [one.ids for one in apart] == [one.ids for one in first]
    assert {one.entropies for one in first} == {()}  # for strategies that read them alone


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(6, [[0, 1, 2, 3, 4, 5]]), (5, [[0, 1, 2], [3, 4, 5]]), (2, [[0, 1], [2], [3, 4], [5]])],
)
def test_a_group_stays_whole_in_a_pass_that_can_hold_it(bench, parts, rows, expected):
    episodes = [Episode(prompt=prompt) for prompt in parts[2] for _ in range(3)]
    sampler = sampler_of(bench, *parts, rows_per_pass=rows)
    assert list(sampler._passes(episodes, range(6))) == expected


def test_a_prompt_that_is_gone_leaves_its_tokens_to_no_other(bench, parts):
    _, processor, prompts = parts
    sampler = sampler_of(bench, *parts)
    for number in range(50):  # Python gives the id of what is gone to the next
        short_lived = dataclasses.replace(prompts[0], parts=(TextPart(text=f"Question {number}?"),))
        expected = tuple(processor.encode(short_lived).ids)
        assert tuple(sampler.prefix(Episode(prompt=short_lived)).ids) == expected


def test_what_a_fork_inherited_counts_to_its_budget_though_it_is_not_trained(bench, parts):
    sampler = sampler_of(bench, *parts)
    (whole,) = sampler.sample([Episode(prompt=parts[2][0])])
    fork = sampler.fork(whole, 3)
    untrained = dataclasses.replace(fork, loss_mask=(0,) * 3)
    (went_on,) = sampler.sample([untrained])
    assert went_on.written == len(went_on.ids) <= 7  # the most that it may write
    assert went_on.loss_mask == (0,) * 3 + (1,) * (len(went_on.ids) - 3)
    assert sampler.fork(untrained, 1).ids == whole.ids[:1]  # the model wrote it all the same


def test_a_tool_turn_is_read_with_its_image_and_not_trained(bench, parts):
    _, processor, prompts = parts
    sampler = sampler_of(bench, *parts)
    [episode] = sampler.sample([Episode(prompt=prompts[0])])
    episode = dataclasses.replace(episode, finished=False)
    crop = dataclasses.replace(prompts[0].crops()[0], box_zyx=(2, 10, 0, 16, 0, 16))
    extended = sampler.extend(episode, (TextPart(text="closer:"), VisualPart(crop=crop)))
    added = len(extended.ids) - len(episode.ids)
    assert extended.loss_mask == (*episode.loss_mask, *[0] * added)
    [(place, shown)] = extended.crops
    assert shown == crop
    [turn] = sampler.past_turns(extended)
    assert turn.text == sampler.text(episode) == sampler.decode(episode.ids)
    assert (written(turn.reply), turn.crops) == ("closer:<image>", (crop,))
    assert sampler.text(extended) == ""
    assert extended.ids[place : place + 4] == (processor.image_token_id,) * 4
    assert processor.image_token_id not in extended.ids[:place]
    assert len(sampler.prefix(extended).handles) == 2


def test_a_fork_keeps_what_came_before(bench, parts):
    sampler = sampler_of(bench, *parts)
    [episode] = sampler.sample([Episode(prompt=parts[2][0])])
    crop = parts[2][0].crops()[0]
    extended = sampler.extend(episode, (VisualPart(crop=crop),))
    sampler.sampling = dataclasses.replace(sampler.sampling, max_new_tokens=12)
    [whole] = sampler.sample([dataclasses.replace(extended, finished=False)])
    late = sampler.fork(whole, len(extended.ids) + 1)
    assert (late.ids, late.crops) == (whole.ids[: len(extended.ids) + 1], whole.crops)
    assert (late.replies, late.parent) == (whole.replies, (whole, len(extended.ids) + 1))
    early = sampler.fork(whole, 2)
    assert (early.replies, early.parent) == ((), (whole, 2))
    assert (early.ids, early.loss_mask, early.crops, early.finished) == (whole.ids[:2], (1, 1), (), False)
    with pytest.raises(
        ValueError, match=f"token {len(episode.ids)} of {len(whole.ids)} was not written by the model"
    ):
        sampler.fork(whole, len(episode.ids))


def test_an_answer_that_has_spent_its_tokens_or_would_outgrow_the_context_is_finished(bench, parts):
    sampler = sampler_of(bench, *parts)
    [whole] = sampler.sample([Episode(prompt=parts[2][0])])
    extended = sampler.extend(whole, (TextPart(text="x" * 2000),))
    assert extended.finished
    assert extended.ids == whole.ids
    assert [turn.reply for turn in sampler.past_turns(extended)] == [()]
    assert sampler.text(extended) == ""  # nothing was written after the call
    spent = dataclasses.replace(whole, finished=False)
    sampler.sampling = dataclasses.replace(sampler.sampling, max_new_tokens=len(whole.ids))
    assert sampler.sample([spent]) == [dataclasses.replace(whole, finished=True)]


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(0.6, 1.0, 0), (1.0, 0.7, 0), (0.6, 0.7, 0), (1.0, 1.0, 5)]
)
def test_a_stage_samples_with_the_temperature_and_the_tail_of_its_recipe(bench, temperature, top_p, top_k):
    model, processor = bench.model()
    changed = {"max_new_tokens": 1, "temperature": temperature, "trl": {"top_p": top_p, "top_k": top_k}}
    trainer = bench.grpo_trainer(model=(model, processor), **changed)
    prompt = bench.source()[0].prompt
    model.eval()
    sampler = trainer.make_sampler(model, [prompt], [0])
    drawn = collections.Counter(one.ids for one in sampler.sample([Episode(prompt=prompt)] * 3000))
    encoded = sampler.prefix(Episode(prompt=prompt))
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor([encoded.ids]), pixel_values=torch.tensor([encoded.handles])
        ).logits[0, -1]
    logits[list(sampler.sampling.forbidden_ids)] = -torch.inf
    chances = (logits / temperature).softmax(-1)
    order = chances.argsort(descending=True)[: top_k or None]
    before = chances[order].cumsum(0) - chances[order]
    kept = order[before < top_p]  # the fewest tokens that together reach top_p
    expected = torch.zeros_like(chances)
    expected[kept] = chances[kept] / chances[kept].sum()
    found = torch.zeros_like(chances)
    for (token,), count in drawn.items():
        found[token] = count / 3000
    assert {token for (token,) in drawn} <= set(kept.tolist())
    spread = (expected * (1 - expected) / 3000).sqrt()
    assert ((found - expected).abs() <= 5 * spread + 1e-3).all()
    assert (found - expected).abs().sum() < 3 * spread.sum()


@pytest.mark.parametrize("field", ["entropies", "log_probs", "credit"])
def test_an_episode_whose_numbers_do_not_fit_its_tokens_is_refused(parts, field):
    with pytest.raises(ValueError, match=f"3 tokens but 2 values of {field}"):
        Episode(prompt=parts[2][0], ids=(1, 2, 3), loss_mask=(1, 1, 1), **{field: (0.5, 0.5)})


def test_the_parent_of_a_fork_is_found_in_its_group(bench, parts):
    sampler = sampler_of(bench, *parts)
    root, other = sampler.sample([Episode(prompt=parts[2][0])] * 2)
    [child] = sampler.sample([sampler.fork(root, 3)])
    [grandchild] = sampler.sample([sampler.fork(child, 5)])
    [early] = sampler.sample([sampler.fork(child, 2)])
    [unfinished] = [dataclasses.replace(root, ids=root.ids[:4], loss_mask=(1,) * 4, finished=False)]
    late = sampler.fork(unfinished, 1)
    group = [other, root, child, grandchild, early, late]
    assert parents(group) == [None, None, (1, 3), (2, 5), (2, 2), (1, 1)]
    # the child was dropped: what is shared with the root is shared up to the earlier of both cuts
    assert parents([other, root, grandchild, early]) == [None, None, (1, 3), (1, 2)]
    assert parents([other, grandchild]) == [None, None]


class LooksOnce(RolloutStrategy):
    """Where an answer pauses it is shown the upper half of the volume; remembers what was shown."""

    def __init__(self, stop_texts):
        self.stop_texts, self.shown = tuple(stop_texts), []

    def __call__(self, sampler, prompts, answers_per_prompt):
        episodes = sampler.sample([Episode(prompt=one) for one in prompts for _ in range(answers_per_prompt)])
        for place, episode in enumerate(episodes):
            if not episode.finished:
                crop = dataclasses.replace(episode.prompt.crops()[0], box_zyx=(6, 12, 0, 16, 0, 16))
                episodes[place] = sampler.extend(episode, (TextPart(text="closer:"), VisualPart(crop=crop)))
                self.shown.append((episode.prompt.crops()[0], crop))
        return sampler.sample(episodes)


@pytest.mark.slow
def test_a_model_that_is_shown_more_trains_on_its_own_words_and_sees_the_crop(bench):
    trainer = bench.grpo_trainer(
        rewards=[bench.letters(), NamedReward(name="silent", reward=bench.Silence())], steps=1,
        strategy=LooksOnce("e"), prompts_per_step=2, max_new_tokens=60, trl={"beta": 0.01},
    )  # fmt: skip
    stage.train(trainer, bench.folder, resume=False)
    answers = [answer for group in trainer.announce.groups[0] for answer in group["rollouts"]]
    assert [one["length"] for one in answers] == [len(each.ids) for each in trainer.episodes]
    assert {len(episode.crops) for episode in trainer.episodes} == {0, 1}
    batch, processor = trainer._buffered_inputs[0], trainer.processing_class
    image = processor.image_processor.tokens(bench.source()[0].prompt.crops()[0])
    for row, episode in enumerate(trainer.episodes):
        assert batch["num_images"][row] == 1 + len(episode.crops)
        in_answer = int((batch["completion_ids"][row] == processor.image_token_id).sum())
        assert in_answer == image * len(episode.crops)
        trained = batch["tool_mask"][row] * batch["completion_mask"][row]
        assert trained.tolist()[: len(episode.ids)] == list(episode.loss_mask)
    for answer in answers:
        for turn in answer["turns"]:
            assert (turn["text"][-1], turn["reply"]) == ("e", "closer:<image>")
            assert [Crop.parse_uri(uri).box_zyx for uri in turn["crops"]] == [(6, 12, 0, 16, 0, 16)]
            assert "closer" not in answer["text"] + turn["text"]


class Letters(Plain):
    """Pauses at letters."""

    stop_texts = tuple(string.ascii_letters)
    reads_entropies = True


@pytest.fixture(params=["volume", pytest.param("qwen2_5_vl", marks=pytest.mark.slow), "qwen3_vl"])
def looking(request, bench, tmp_path):
    """What makes a sampler whose answers pause at letters, and two prompts of different lengths."""
    made = bench.model() if request.param == "volume" else bench.qwen(tmp_path / "published", request.param)
    first, second = (bench.source()[index].prompt for index in range(2))
    longer = dataclasses.replace(second, parts=(*second.parts, TextPart(text="Look twice."), second.parts[0]))
    prompts = [first, longer]

    def sampler(**changed):
        return sampler_of(bench, *made, prompts, strategy=Letters(), **changed)

    return sampler, prompts


def shown(sampler, episodes):
    """Show each answer that pauses a crop of its own; every third one is told something instead."""
    found = []
    for number, one in enumerate(episodes):
        if not one.finished:
            crop = dataclasses.replace(one.prompt.crops()[0], box_zyx=(number % 4, 12, 0, 16, 0, 16))
            parts = (TextPart(text="closer:" * (1 + number % 2)), VisualPart(crop=crop))
            one = sampler.extend(one, parts[: 1 if number % 3 == 2 else 2])
        found.append(one)
    return found


def several_turns(sampler, prompts):
    """Sample answers, unevenly many, over three turns with forks at several places."""

    def sampled(episodes, written):
        sampler.sampling = dataclasses.replace(sampler.sampling, max_new_tokens=written)
        ends = sampler.sampling.end_ids
        return [dataclasses.replace(one, finished=one.ids[-1] in ends) for one in sampler.sample(episodes)]

    first, second = prompts
    begun = sampled([Episode(prompt=one) for one in (first, second, first, first, second)], 6)
    forks = [sampler.fork(begun[0], 0), sampler.fork(begun[1], len(begun[1].ids) - 1)]
    again = sampled([*shown(sampler, begun), Episode(prompt=second), *forks], 10)
    places = [max(n for n, own in enumerate(one.loss_mask) if own) for one in again[:3]]
    forks = [sampler.fork(one, place) for one, place in zip(again[:3], places, strict=True)]
    return sampled([*shown(sampler, again)[::-1], *forks], 14)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_of_several_turns_are_those_that_go_on_from_nothing(looking, monkeypatch, temperature):
    sampler, prompts = looking
    kept = several_turns(sampler(temperature=temperature), prompts)
    assert sum(len(one.crops) > 0 for one in kept) >= 3
    assert sum(one.parent is not None for one in kept) == 5
    assert sum(len(one.replies) > 1 for one in kept) >= 3
    bounded = several_turns(sampler(temperature=temperature, rows_per_pass=3), prompts)
    forgetful = sampler(temperature=temperature)
    forgetful.continue_rows.keywords["memory"] = None
    computed = several_turns(forgetful, prompts)
    monkeypatch.setattr(generation, "fits", lambda model: False)
    apart = several_turns(sampler(temperature=temperature), prompts)
    for others in (bounded, computed, apart):
        assert [one.ids for one in others] == [one.ids for one in kept]
        for one, other in zip(kept, others, strict=True):
            assert one.entropies == pytest.approx(other.entropies, abs=1e-4)


def test_entropies_of_several_turns_are_those_of_a_pass_over_the_whole_answer(looking):
    make, prompts = looking
    sampler = make(temperature=0.7)
    for episode in several_turns(sampler, prompts):
        prefix = sampler.prefix(episode)
        handles = torch.tensor(prefix.handles)[:, None]
        with torch.no_grad():
            logits = sampler.model(input_ids=torch.tensor([prefix.ids]), pixel_values=handles).logits[0]
        log_probs = (logits[-len(episode.ids) - 1 : -1] / 0.7).log_softmax(-1)
        expected = torch.special.entr(log_probs.exp()).sum(-1) * torch.tensor(episode.loss_mask)
        assert episode.entropies == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_turn_computes_what_is_new_in_it_alone(looking):
    make, prompts = looking
    sampler, places = make(), []
    hook = sampler.model.model.language_model.register_forward_pre_hook(
        lambda module, given, named: places.append(named["inputs_embeds"].shape[:2]), with_kwargs=True
    )
    begun = sampler.sample([Episode(prompt=one) for one in prompts for _ in range(2)])
    assert places[0] == (2, max(len(sampler.prefix(Episode(prompt=one)).ids) for one in prompts))
    paused = [dataclasses.replace(one, finished=False) for one in begun]
    told = [sampler.extend(one, (TextPart(text="go on"),)) for one in paused]
    [turn] = {len(one.ids) - len(other.ids) for one, other in zip(told, begun, strict=True)}
    before = len(places)
    sampler.sampling = dataclasses.replace(sampler.sampling, max_new_tokens=12)
    went_on = sampler.sample(told)
    # the last token that a row wrote was not read before
    assert places[before] == (4, turn + 1)
    assert {count for _, count in places[before + 1 :]} == {1}
    fork = sampler.fork(went_on[0], len(told[0].ids))
    before = len(places)
    sampler.sample([fork])
    assert places[before] == (1, 1)
    hook.remove()


def test_a_policy_with_a_plain_strategy_answers_as_one_without(bench, parts):
    model, processor, prompts = parts
    model.train()
    plain = RolloutPolicy(model, processor, Plain(), prompts_per_pass=1)
    bare = VLMPolicy(model, processor)
    for kind in ("own", "sealed"):
        one, other = (plain, bare) if kind == "own" else (AnonymizedPolicy(plain), AnonymizedPolicy(bare))
        assert one.complete(prompts, max_new_tokens=9) == other.complete(prompts, max_new_tokens=9)
    assert plain.log_likelihoods(prompts, [["A"]] * 2) == bare.log_likelihoods(prompts, [["A"]] * 2)
    assert model.training

    def hot(size, seed):
        policy = RolloutPolicy(model, processor, Plain(), prompts_per_pass=size, seed=seed)
        return policy.generate(prompts, max_new_tokens=9, temperature=1.0)

    assert hot(1, 0) == hot(2, 0) != hot(2, 1)


def test_a_policy_that_is_measured_looks_at_what_it_is_shown(bench, parts):
    model, processor, prompts = parts
    strategy = LooksOnce(string.ascii_letters)
    policy = AnonymizedPolicy(RolloutPolicy(model, processor, strategy))
    other = bench.source()[5].prompt.crops()[0]
    swapped = [prompts[0], prompts[0].showing([other]), prompts[0].with_blank_volumes()] * 4
    texts = policy.generate(swapped, max_new_tokens=60, temperature=1.0)
    assert {shown for shown, _ in strategy.shown} == {one.crops()[0] for one in swapped}
    for shown, crop in strategy.shown:
        assert (crop.volume, crop.blank) == (shown.volume, shown.blank)
    assert all("closer" not in text for text in texts)
    found = policy.complete(swapped, max_new_tokens=60, temperature=1.0)
    assert [one.text for one in found] == texts
    looked = [one for one in found if one.turns]  # others ended before
    for one, (_, crop) in zip(looked, strategy.shown[len(looked) :], strict=True):
        assert [turn.crops for turn in one.turns] == [(crop,)]


def test_a_strategy_that_drops_an_answer_is_named_where_it_is_measured(parts):
    class Drops(Plain):
        def __call__(self, *given):
            return super().__call__(*given)[1:]

    model, processor, prompts = parts
    with pytest.raises(ContractError, match="rollout Drops: must give 1 answers to each of 2 prompts, got 1"):
        RolloutPolicy(model, processor, Drops()).generate(prompts, max_new_tokens=4)
