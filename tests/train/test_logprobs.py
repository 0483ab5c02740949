import dataclasses
import logging

import pytest
import torch

from evidcore.builtin.rollouts import Plain
from evidcore.case import Crop
from evidcore.train.settings import Lora
from evidcore.train.trl import stage
from evidcore.train.trl.grpo import make_trainer
from evidcore.train.trl.logprobs import PromptSharing


def train(bench, kit, share, source, **changed):
    """Train four steps; return the model and what was heard."""
    model, processor = bench.model()
    heard = kit.heard()
    folder = bench.folder / share
    trainer = make_trainer(
        model, processor, source, [kit.letters()], kit.grpo_settings(steps=4, share_prompts=share, **changed),
        folder, seed=3, strategy=Plain(), announce=heard,
    )  # fmt: skip
    stage.train(trainer, folder, resume=False)
    stage.unwrap(trainer, model)
    return model, heard


def two_volumes(bench):
    """Give cases with two scans each, whose prompts are of different lengths."""
    others = bench.cases[1:] + bench.cases[:1]
    return [
        dataclasses.replace(case, volumes=case.volumes + other.volumes[:1]) if number % 2 else case
        for number, (case, other) in enumerate(zip(bench.cases, others, strict=True))
    ]


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
def test_four_steps_with_prompts_computed_once_are_those_that_trl_takes(bench, kit, changed):
    start, _ = bench.model()
    plain = {"learning_rate": 0.05, "save_every_steps": 50, **changed}  # plain descent: no tiny divisors
    source = bench.source(bench.set_of(cases=two_volumes(bench)))
    found = {share: train(bench, kit, share, source, **plain) for share in ("always", "never")}
    (shared, one), (apart, other) = found["always"], found["never"]
    assert (kit.flat(shared) - kit.flat(start)).abs().max() > 1e-4
    torch.testing.assert_close(kit.flat(shared), kit.flat(apart), rtol=0, atol=1e-6)
    figures = ("loss", "entropy", *(["kl"] if "beta" in changed["trl"] else []))
    for mine, theirs in zip(one.steps, other.steps, strict=True):
        assert [mine[name] for name in figures] == pytest.approx([theirs[name] for name in figures], abs=1e-6)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
    if "beta" in changed["trl"]:
        assert one.steps[-1]["kl"] > 1e-6
    texts = [[[one["text"] for one in line["rollouts"]] for line in step] for step in one.groups]
    assert texts == [[[one["text"] for one in line["rollouts"]] for line in step] for step in other.groups]


@pytest.fixture
def scoring(bench, kit):
    """A trainer's scoring of one group over its own volume: rows, what is asked, and the trainer."""
    model, processor = bench.model()
    trainer = make_trainer(
        model, processor, bench.source(), [kit.letters()], kit.grpo_settings(), bench.folder, seed=3,
        strategy=Plain(), announce=kit.heard(),
    )  # fmt: skip
    model.eval()
    row = processor.encode(bench.source()[0].prompt)
    own, other = (processor.image_processor.handle(Crop(volume=case.volumes[0])) for case in bench.cases[:2])
    ids = torch.tensor([[*row.ids, 50, 51]] * 4)
    return model, trainer, ids, own, other


def scores(model, trainer, ids, handles, num_images=None, after=2):
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


def test_images_in_answers_are_scored_row_by_row_and_that_is_said_once(scoring, caplog):
    model, trainer, ids, own, other = scoring
    caplog.set_level(logging.INFO, logger="evidcore")
    image = model.config.image_token_id
    tokens = int((ids[0] == image).sum())
    turn = torch.full((4, tokens), image)  # a tool shows each answer another scan
    rows = torch.cat([ids, turn, ids[:, -2:]], dim=1)
    handles = torch.tensor([[own], [other], [own], [own], [own], [other], [own], [own]])
    found = [scores(model, trainer, rows, handles, [2] * 4, after=tokens + 4) for _ in range(2)]
    assert torch.equal(*found)
    for row in range(4):
        whole = rows[row : row + 1]
        with torch.no_grad():
            logits = model(input_ids=whole, pixel_values=handles[2 * row : 2 * row + 2]).logits[0]
        expected = logits.log_softmax(-1)[-3:-1].gather(-1, whole[0, -2:, None])[:, 0]
        torch.testing.assert_close(found[0][row, -2:], expected, rtol=0, atol=1e-5)
    assert [record.message for record in caplog.records] == [
        "prompts are scored once for each answer (answers of several turns hold images)"
    ]


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
        assert sharing.applies(model, ids, torch.ones_like(ids), after) == ("fewer" in reason)
    form = "once for all answers" if "fewer" in reason else "once for each answer"
    assert [record.message for record in caplog.records] == [f"prompts are scored {form} ({reason})"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model, ids: ids[:7], "7 rows are no whole groups of 4"),
        (lambda model, ids: ids.index_fill(1, torch.tensor([3]), 51), ""),
        (lambda model, ids: ids + torch.arange(8)[:, None], "the prompts of a group differ"),
        (
            lambda model, ids: model.set_attn_implementation("eager") or ids,
            "its attention is 'eager', neither",
        ),
    ],
)
def test_rows_that_are_no_groups_are_scored_apart(bench, caplog, change, reason):
    caplog.set_level(logging.INFO, logger="evidcore")
    model, _ = bench.model()
    ids = change(model, torch.full((8, 68), 50))
    assert PromptSharing("always", 4).applies(model, ids, torch.ones_like(ids), 8) == (not reason)
    assert reason in caplog.records[0].message
