import dataclasses
import logging
import random

import pytest
import torch

from evidcore.api import Crop
from evidcore.train.settings import Lora
from evidcore.train.trl.logprobs import Groups, PromptSharing


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"trl": {"beta": 0.04, "optim": "sgd"}},
        {"prompts_per_forward": 1, "trl": {"beta": 0.04, "optim": "sgd"}},  # gradient accumulation
        {"lora": Lora(rank=2, alpha=4.0), "trl": {"beta": 0.04, "optim": "sgd"}},
        {"prompts_per_forward": 2, "trl": {"num_iterations": 2, "optim": "sgd"}},
        {"trl": {"activation_checkpointing": True, "optim": "sgd"}},
    ],
    ids=["beta", "accumulation", "lora", "iterations", "checkpointing"],
)
@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_(en|dis)able. is deprecated:FutureWarning")  # trl
def test_four_steps_with_prompts_computed_once_are_those_that_trl_takes(bench, changed):
    start, _ = bench.model()
    plain = {"learning_rate": 0.05, "steps": 4, "save_every_steps": 50, **changed}  # no tiny divisors
    plain["source"] = bench.source(bench.set_of(cases=bench.two_volumes()))
    shared, item = bench.run("shared", share_prompts="always", **plain)
    apart, other = bench.run("apart", share_prompts="never", **plain)
    assert (bench.flat(shared) - bench.flat(start)).abs().max() > 1e-4
    torch.testing.assert_close(bench.flat(shared), bench.flat(apart), rtol=0, atol=1e-6)
    figures = ("loss", "entropy", *(["kl"] if "beta" in changed["trl"] else []))
    for mine, theirs in zip(item.steps, other.steps, strict=True):
        wanted = [theirs[name] for name in figures]
        assert [mine[name] for name in figures] == pytest.approx(wanted, rel=1e-6, abs=1e-6)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
    if "beta" in changed["trl"]:
        assert item.steps[-1]["kl"] > 1e-6
    for lines, others in zip(item.groups, other.groups, strict=True):
        for line, also in zip(lines, others, strict=True):
            assert [one["text"] for one in line["rollouts"]] == [one["text"] for one in also["rollouts"]]


@pytest.fixture
def scoring(bench):
    """A trainer's scoring of one group over its own volume: rows, what is asked, and the trainer."""
    model, processor = bench.model()
    trainer = bench.grpo_trainer(model=(model, processor))
    model.eval()
    row = processor.encode(bench.source()[0].prompt)
    own, other = (processor.image_processor.handle(Crop(volume=case.volumes[0])) for case in bench.cases[:2])
    ids = torch.tensor([[*row.ids, 50, 51]] * 4)
    return model, trainer, ids, own, other


def scores(model, trainer, ids, handles, num_images=None, after=2):
    for row, images in zip(ids, handles.split(num_images or [1] * 4), strict=True):
        trainer.given.add(row.tolist(), images.flatten().tolist())
    with torch.no_grad():
        return trainer._get_per_token_logps_and_entropies(
            model, ids, torch.ones_like(ids), after, pixel_values=handles, num_images=num_images or [1] * 4
        )[0]


def test_rows_over_another_volume_are_scored_over_their_own(scoring, caplog):
    model, trainer, ids, own, other = scoring
    caplog.set_level(logging.INFO, logger="evidcore")
    of_own, of_other = torch.full((4, 1), own), torch.full((4, 1), other)
    mixed = torch.tensor([[own], [own], [other], [own]])  # one text, but not a group
    shared, apart = scores(model, trainer, ids, of_own), scores(model, trainer, ids, of_other)
    assert (shared - apart).abs().max() > 1e-4
    expected = torch.stack([shared[0], shared[1], apart[2], shared[3]])
    torch.testing.assert_close(scores(model, trainer, ids, mixed), expected, rtol=0, atol=1e-5)
    before = ids.shape[1] - 2
    assert [record.message for record in caplog.records] == [
        f"prompts are scored once for all answers ({4 * (before + 2) / (before - 1 + 8):.1f} times fewer "
        f"tokens, 4 answers of 2 to prompts of {before})",
        "prompts are scored once for each answer (the images of a group differ)",
    ]


@dataclasses.dataclass
class Turns:
    """Two groups of four answers, some of which are shown one or two images of several sizes."""

    ids: torch.Tensor
    mask: torch.Tensor
    after: int
    images: list[list[int]]  # of each row


def turns_of(bench, model, processor):
    """Lay prompts of one and of two volumes out with answers of several turns, padded on either side."""
    bank, image = model.model.bank, model.config.image_token_id
    depth, height, width = model.model.encoder.input.size_zyx
    source = bench.source(bench.set_of(cases=bench.two_volumes()))
    prompts = sorted((source[place].prompt for place in range(2)), key=lambda item: len(item.crops()))
    encoded = [processor.encode(prompt) for prompt in prompts]
    before, rng = max(len(item.ids) for item in encoded), random.Random(0)
    rows, images = [], []
    for row in range(8):
        prompt = encoded[row // 4]
        shown = list(map(processor.image_processor.handle, prompt.crops))
        answer = rng.choices(range(6, 200), k=rng.randint(2, 5))
        for number in range((1, 0, 2, 1, 0, 1, 1, 2)[row]):
            crop = Crop(volume=bench.cases[row - number].volumes[0], box_zyx=(row % 4, 12, 0, 16, 0, 16))
            shown.append(bank.handle(crop, (depth // (1 + row % 2), height, width)))
            [tokens] = model.model.image_tokens(torch.tensor([[shown[-1]]]))
            answer += [7, *[image] * tokens, 8, *rng.choices(range(6, 200), k=rng.randint(1, 4))]
        rows.append(([0] * (before - len(prompt.ids)) + list(prompt.ids), len(prompt.ids), answer))
        images.append(shown)
    after = max(len(answer) for *_, answer in rows)
    ids = torch.tensor([left + answer + [0] * (after - len(answer)) for left, _, answer in rows])
    places = torch.arange(before + after)
    mask = [(places >= before - length) & (places < before + len(answer)) for _, length, answer in rows]
    return Turns(ids, torch.stack(mask).long(), after, images)


@pytest.fixture(params=["volume", pytest.param("qwen2_5_vl", marks=pytest.mark.slow), "qwen3_vl"])
def several_turns(request, bench, tmp_path):
    """A trainer over a model of each kind, and rows of several turns."""
    made = bench.model() if request.param == "volume" else bench.qwen(tmp_path / "published", request.param)
    trainer = bench.grpo_trainer(model=made)
    made[0].eval()
    return made[0], trainer, turns_of(bench, *made)


def scored(model, trainer, turns, choice):
    """Return log-probabilities and entropies of the answers' tokens, and gradients."""
    trainer.sharing = PromptSharing(choice, 4)
    model.zero_grad()
    handles = torch.tensor([item for own in turns.images for item in own])[:, None]
    for row, is_token, images in zip(turns.ids, turns.mask.bool(), turns.images, strict=True):
        trainer.given.add(row[is_token].tolist(), images)
    log_probs, entropies, _ = trainer._get_per_token_logps_and_entropies(
        model, turns.ids, turns.mask, turns.after, compute_entropy=True, pixel_values=handles,
        num_images=list(map(len, turns.images)),
    )  # fmt: skip
    there = turns.mask[:, -turns.after :]
    weight = torch.randn(there.shape, generator=torch.Generator().manual_seed(1)) * there
    (log_probs * weight).sum().backward()
    gradients = {name: item.grad for name, item in model.named_parameters() if item.grad is not None}
    return (log_probs * there).detach(), (entropies * there).detach(), gradients


def test_images_in_answers_are_scored_as_row_by_row(several_turns, caplog):
    caplog.set_level(logging.INFO, logger="evidcore")
    model, trainer, turns = several_turns
    shared, apart = (scored(model, trainer, turns, choice) for choice in ("always", "never"))
    assert shared[0].abs().max() > 1
    torch.testing.assert_close(shared[:2], apart[:2], rtol=0, atol=1e-5)
    assert shared[2].keys() == apart[2].keys()
    most = max(item.norm() for item in apart[2].values())
    for name, item in apart[2].items():
        assert (shared[2][name] - item).norm() <= 1e-5 * max(item.norm(), most), name
    assert [record.message.partition(" (")[0] for record in caplog.records] == [
        "prompts are scored once for all answers",
        "prompts are scored once for each answer",
    ]
    # one answer's images say something, and to this answer alone
    swapped = turns.images[:]
    swapped[7] = turns.images[7][:2] + turns.images[7][:1:-1]
    other = dataclasses.replace(turns, images=swapped)
    moved = (scored(model, trainer, other, "always")[0] - shared[0]).abs().amax(1)
    assert moved[7] > 1e-3
    assert moved[:7].max() == 0


def groups_of(ids, after):
    return Groups(input_ids=ids, attention_mask=torch.ones_like(ids), after=after, answers=4)


def test_rows_that_end_within_an_image_are_scored_apart(bench, caplog):
    caplog.set_level(logging.INFO, logger="evidcore")
    model, _ = bench.model()
    for place in (59, 67):  # the last of the prompt, of the answer
        ids = torch.full((4, 68), 50)
        ids[:, place] = model.config.image_token_id
        assert not PromptSharing("always", 4).applies(model, groups_of(ids, 8))
    assert [record.message for record in caplog.records] == [
        "prompts are scored once for each answer (a prompt or an answer ends within an image)"
    ] * 2


@pytest.mark.parametrize(
    ("choice", "before", "after", "reason"),
    [
        ("auto", 60, 8, "3.0 times fewer tokens, 4 answers of 8 to prompts of 60"),
        ("auto", 2, 40, "their prompts are too short beside the answers for it to pay"),
        ("always", 2, 40, "1.0 times fewer tokens, 4 answers of 40 to prompts of 2"),
        ("never", 60, 8, "share_prompts = 'never'"),
    ],
)
def test_the_choice_follows_the_rule_or_the_recipe_and_is_said_once(
    bench, caplog, choice, before, after, reason
):
    caplog.set_level(logging.INFO, logger="evidcore")
    model, _ = bench.model()
    sharing = PromptSharing(choice, 4)
    ids = torch.full((8, before + after), 50)
    for _ in range(2):
        assert sharing.applies(model, groups_of(ids, after)) == ("fewer" in reason)
    form = "once for all answers" if "fewer" in reason else "once for each answer"
    assert [record.message for record in caplog.records] == [f"prompts are scored {form} ({reason})"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model, ids: ids[:7], "7 rows are no whole groups of 4"),
        (lambda model, ids: ids.index_fill(1, torch.tensor([3]), 51), ""),
        (lambda model, ids: ids + torch.arange(8)[:, None], "the prompts of a group differ"),
        (lambda model, ids: model.set_attn_implementation("eager") or ids, "attention is 'eager', neither"),
    ],
)
def test_rows_that_are_no_groups_are_scored_apart(bench, caplog, change, reason):
    caplog.set_level(logging.INFO, logger="evidcore")
    model, _ = bench.model()
    ids = change(model, torch.full((8, 68), 50))
    assert PromptSharing("always", 4).applies(model, groups_of(ids, 8)) == (not reason)
    assert reason in caplog.records[0].message
