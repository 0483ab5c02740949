import contextlib
import dataclasses
import re
import types

import pytest
import torch
from torch import nn

from evidcore.contracts import Patches, Prefix
from evidcore.errors import RunError
from evidcore.evaluate.eval_stage import AnonymizedPolicy
from evidcore.model.policy import VLMPolicy
from evidcore.proof.flow import Tolerance, prove_gradient
from evidcore.proof.passes import prove_groups, prove_policy, prove_targets
from evidcore.proof.places import prove_images
from evidcore.train.sampler import PolicySampler
from evidcore.train.settings import Lora, Replay
from evidcore.train.trl import grpo, stage

SMALL = {"prompts_per_step": 2, "answers_per_prompt": 2, "max_new_tokens": 4, "steps": 1}


def grpo_trainer(bench, *, model=None, **changed):
    model, processor = model or bench.model()
    return bench.grpo_trainer(model=(model.eval(), processor), **{**SMALL, **changed})  # as from a checkpoint


def sft_trainer(bench, *, model=None, **changed):
    model, processor = model or bench.model()
    return bench.sft_trainer(model=(model.eval(), processor), **{"steps": 1, **changed})


def replaying(bench, **changed):
    replay = Replay(data=(), rows_per_step=2, weight=1.0)
    return grpo_trainer(bench, replay=replay, replayed=bench.source(bench.set_of("report")), **changed)


# --- what is planted: each takes a trainer, or a policy in evaluation, and breaks it


def of_handles(tokens, handles):
    made = []
    for item, handle in zip(tokens, handles.flatten().tolist(), strict=True):
        noise = torch.randn(item.shape, generator=torch.Generator().manual_seed(handle % 2**31))
        made.append(0.02 * noise + 0 * item)
    return made


TOKENS = {  # what is made of the tokens of each volume of a pass, and of their handles
    "rolled": lambda tokens, _: tokens[1:] + tokens[:1],
    "first": lambda tokens, _: [tokens[0]] * len(tokens),
    "of handles": of_handles,
    "less the mean": lambda tokens, _: [
        item - 0.5 * torch.stack(tokens).mean(0) if len(tokens) > 1 else item for item in tokens
    ],
    "not finite": lambda tokens, _: [item * torch.nan for item in tokens],
    "rolled in training": lambda tokens, _: tokens[1:] + tokens[:1] if torch.is_grad_enabled() else tokens,
    "blind in training": lambda tokens, _: [0 * item if torch.is_grad_enabled() else item for item in tokens],
}


def seen(kind):
    """Break what the language model is given for all volumes of a pass."""
    change = TOKENS[kind]

    def plant(trainer):
        body = trainer.vlm.model
        real = body.get_image_features

        def broken(pixel_values, *args, **kwargs):
            output = real(pixel_values, *args, **kwargs)
            output.pooler_output = change(list(output.pooler_output), pixel_values)
            return output

        body.get_image_features = broken

    return plant


def encoder_given(change):
    """Break what the encoder is given."""

    def plant(trainer):
        encoder = trainer.vlm.model.encoder
        real = encoder.forward
        encoder.forward = lambda volumes: real(change(volumes.clone(), trainer.vlm.model))

    return plant


def blanked(is_kept):
    """Blank the slices of which something does not hold."""

    def change(volumes, body):
        depth = volumes.shape[2]
        volumes[:, :, [place for place in range(depth) if not is_kept(place, depth)]] = -1
        return volumes

    return encoder_given(change)


def flipped_in_training(axis):
    return encoder_given(lambda volumes, body: volumes.flip(axis) if body.training else volumes)


HALF = blanked(lambda place, depth: place < depth // 2)
IN_EIGHT = blanked(lambda place, _: place % 8 == 0)


def encoder_gives(change):
    """Break the encoder's features."""

    def plant(trainer):
        encoder = trainer.vlm.model.encoder
        real = encoder.forward

        def broken(volumes):
            result = real(volumes)
            return dataclasses.replace(result, features=change(result.features))

        encoder.forward = broken

    return plant


ONE_PATCH = encoder_gives(lambda all_: torch.cat([all_[:, :1], 0 * all_[:, 1:]], dim=1))


def bridged(before=lambda features: features, after=lambda tokens: tokens):
    """Break what the bridge is given, or gives."""

    def plant(trainer):
        body = trainer.vlm.model
        real = body._tokens
        body._tokens = lambda patches: after(
            real(Patches(before(patches.features), patches.grid_zyx, patches.centres_mm))
        )

    return plant


MEAN = bridged(lambda features: features.mean(dim=1, keepdim=True).expand_as(features))
ONE_LEARNS = bridged(after=lambda all_: torch.cat([all_[:, :1], all_[:, 1:].detach()], 1))
FAINT = bridged(after=lambda tokens: 1e-4 * tokens)


def with_gradient(change):
    return bridged(after=lambda tokens: tokens.detach() + change(tokens) - change(tokens).detach())


def padding_shifts(trainer):
    body = trainer.vlm.model
    pad = body.config.text_config.pad_token_id
    real = body.embed

    def broken(input_ids, pixel_values=None, encoded=None, embeds=None):
        shifted = torch.stack([row.roll(1) if row[0] == pad else row for row in input_ids])
        words = body.get_input_embeddings()(input_ids) if embeds is None else embeds
        return real(shifted, pixel_values, encoded, words)

    body.embed = broken


def kept_features(trainer):
    """The bank serves features of an encoder that is trained."""
    body = trainer.vlm.model
    body.__class__ = type("Kept", (type(body),), {"encoder_is_frozen": True})


def encoder_without_gradient(trainer):
    encoder = trainer.vlm.model.encoder
    encoder.forward = torch.no_grad()(encoder.forward)


def language_is_held(trainer):
    for weight in trainer.vlm.model.language_model.parameters():
        weight.requires_grad_(False)
    trainer.vlm.lm_head.requires_grad_(False)


def shown(name):
    """Break the volumes that the policy's pass of GRPO is given."""

    def plant(trainer):
        real = trainer._compute_loss

        def broken(model, inputs):
            handles = inputs["pixel_values"]
            other = trainer.source[5].prompt.crops()[0]
            lost = torch.full_like(handles, trainer.processing_class.image_processor.handle(other))
            return real(model, {**inputs, "pixel_values": SHOWN[name](trainer, handles.clone(), lost)})

        trainer._compute_loss = broken

    return plant


SHOWN = {  # to each row, of its own handle and one that is lost
    "one of each group": lambda trainer, handles, lost: torch.where(
        (torch.arange(len(handles)) % trainer.num_generations == 0)[:, None], handles, lost
    ),
    "all lost": lambda trainer, handles, lost: lost,
    "first micro-batch": lambda trainer, handles, lost: (
        lost if trainer._step % trainer.args.gradient_accumulation_steps else handles
    ),
    "first step": lambda trainer, handles, lost: handles if trainer.state.global_step == 0 else lost,
}


def scored_by(name):
    """Break the volumes that one of GRPO's other passes is given."""

    def plant(trainer):
        real, passes = trainer._get_per_token_logps_and_entropies, trainer._compute_loss
        in_loss = []

        def loss(model, inputs):
            in_loss.append(True)
            try:
                return passes(model, inputs)
            finally:
                in_loss.pop()

        def broken(model, *args, **kwargs):
            which = "reference" if model is trainer.ref_model else "policy" if in_loss else "old policy"
            if which == name:
                kwargs["pixel_values"] = torch.full_like(
                    kwargs["pixel_values"], int(kwargs["pixel_values"][0])
                )
            return real(model, *args, **kwargs)

        kind = type("Broken", (type(trainer),), {})
        kind._get_per_token_logps_and_entropies = lambda self, *args, **kwargs: broken(*args, **kwargs)
        trainer.__class__, trainer._compute_loss = kind, loss

    return plant


def sampled(change):
    """Break GRPO's sampler."""

    def plant(trainer):
        real = trainer.make_sampler

        def broken(*args):
            sampler = real(*args)
            change(sampler, trainer)
            return sampler

        trainer.make_sampler = broken

    return plant


def random_volumes(sampler, trainer):
    real, handles = sampler.asked, []

    def broken(prompt):
        whole = real(prompt)
        if whole.handles:
            handles.append(whole.handles[0])
        return Prefix(whole.ids, tuple(handles[hash(whole.ids) % len(handles)] for _ in whole.handles))

    sampler.score = lambda episodes: PolicySampler.score(
        types.SimpleNamespace(model=sampler.model, sampling=sampler.sampling, asked=broken), episodes
    )


def hotter(sampler, trainer):
    sampler.sampling = dataclasses.replace(sampler.sampling, temperature=2 * sampler.sampling.temperature)


def one_volume_for_all(trainer):
    real = trainer.compute_loss

    def broken(model, inputs, *args, **kwargs):
        handles = inputs["pixel_values"]
        return real(model, {**inputs, "pixel_values": handles[:1].expand_as(handles)}, *args, **kwargs)

    trainer.compute_loss = broken


def replay_exchanged(trainer):
    real = trainer.targets.batch

    def broken(rows):
        batch = real(rows)
        return {**batch, "pixel_values": batch["pixel_values"].roll(1, 0)}

    trainer.targets.batch = broken


WHOLE = {"train": ("encoder", "bridge", "language")}
EYES = {"train": ("encoder", "bridge")}
NEVER = {"share_prompts": "never"}
BY_FOUR = {"prompts_per_step": 4, "prompts_per_forward": 1}

PLANTED = {  # name -> trainer, settings, what is broken, the clauses of which one stops it
    # the twenty of the review
    "rows: permuted": (grpo_trainer, {}, seen("rolled"), "own row|no other row"),
    "rows: the first's for all": (grpo_trainer, {}, seen("first"), "own row|no other row"),
    "rows: left padding shifts": (grpo_trainer, NEVER, padding_shifts, "row alone"),
    "rows: one of each group": (grpo_trainer, {}, shown("one of each group"), "own row"),
    "features of handles": (grpo_trainer, {}, seen("of handles"), "pixels, not names"),
    "half of the slices": (grpo_trainer, {}, HALF, "every slab|every token"),
    "one slice in eight": (grpo_trainer, {}, IN_EIGHT, "every slab|every token"),
    "one patch left": (grpo_trainer, {}, ONE_PATCH, "every token|every slab|places"),
    "mean of patches": (grpo_trainer, {}, MEAN, "places"),
    "faint": (grpo_trainer, {}, FAINT, "as loud as words"),
    "z flipped in training": (grpo_trainer, EYES, flipped_in_training(2), "orientation"),
    "encoder trained, features kept": (grpo_trainer, WHOLE, kept_features, "gradient"),
    "gradient x 1e-6": (grpo_trainer, {}, with_gradient(lambda one: 1e-6 * one), "slope"),
    "one token learns": (grpo_trainer, {}, ONE_LEARNS, "slope"),
    "first micro-batch alone": (grpo_trainer, BY_FOUR, shown("first micro-batch"), "."),
    "lost after step 1": (
        grpo_trainer, {"steps": 2, "pixel_check_every_steps": 1}, shown("first step"), "own row",
    ),
    "SFT: one volume for all": (sft_trainer, {}, one_volume_for_all, "own row|no other row"),
    "SFT: bridge detached": (sft_trainer, {}, bridged(after=lambda one: one.detach()), "gradient"),
    "rollouts over other volumes": (grpo_trainer, {}, sampled(random_volumes), "own row|no other row|="),
    # ours
    "policy blind": (grpo_trainer, {}, shown("all lost"), "own row|="),
    "old policy: one for all": (grpo_trainer, {}, scored_by("old policy"), "old policy = policy|row"),
    "reference: one for all": (grpo_trainer, {"trl": {"beta": 0.1}}, scored_by("reference"), "row"),
    "rollouts hotter": (grpo_trainer, {}, sampled(hotter), "rollout = policy"),
    "y flipped in training": (grpo_trainer, EYES, flipped_in_training(3), "orientation|training"),
    "x flipped in training": (sft_trainer, EYES, flipped_in_training(4), "orientation|training"),
    "y and x exchanged": (
        sft_trainer, EYES, encoder_given(lambda volumes, body: volumes.transpose(3, 4)), "orientation",
    ),
    "patches reversed": (sft_trainer, {}, bridged(lambda one: one.flip(1)), "places"),
    "less the batch's mean": (sft_trainer, {}, seen("less the mean"), "no other row|row alone"),
    "gradient turned round": (sft_trainer, {}, with_gradient(lambda one: -one), "slope"),
    "encoder without gradient": (sft_trainer, WHOLE, encoder_without_gradient, "gradient"),
    "language held": (sft_trainer, WHOLE, language_is_held, "gradient"),
    "permuted with gradients": (grpo_trainer, {}, seen("rolled in training"), "own row|no other row|="),
    "SFT: permuted with gradients": (
        sft_trainer, {"rows_per_forward": 2}, seen("rolled in training"), "own row|no other row|row alone",
    ),
    "gradient x 0.8": (grpo_trainer, {}, with_gradient(lambda one: 0.8 * one), "slope"),
    "SFT: gradient x 1.2": (sft_trainer, {}, with_gradient(lambda one: 1.2 * one), "slope"),
    "replayed rows exchange volumes": (replaying, {}, replay_exchanged, "own row|no other row"),
    "SFT: blind with gradients": (sft_trainer, {}, seen("blind in training"), "own row"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_broken_is_named_before_it_is_trained_on(bench, name):
    make, settings, plant, clause = PLANTED[name]
    trainer = make(bench, **settings)
    plant(trainer)
    before = bench.flat(trainer.model)
    step = settings.get("steps", 1)
    stage_name = "sft" if make is sft_trainer else "grpo"
    message = f"stage.{stage_name}[^,]*, step {step}: pixel-flow proof, clause '[^']*({clause})"
    with pytest.raises(RunError, match=message):
        stage.train(trainer, bench.folder, resume=False)
    assert len(trainer.announce.steps) == step - 1
    assert step > 1 or torch.equal(bench.flat(trainer.model), before)


def dealt_late(method, images_of):
    """Exchange the images of rows once the first step is over, when the proof at the start is too."""

    def plant(trainer):
        real = getattr(trainer, method)

        def broken(*args, **kwargs):
            result = real(*args, **kwargs)
            return images_of(result) if trainer.proof is None and trainer.state.global_step else result

        setattr(trainer, method, broken)

    return plant


def rolled_pixels(batch):
    return {**batch, "pixel_values": batch["pixel_values"].roll(1, 0)}


LATE = {  # between two proofs
    "GRPO": (grpo_trainer, {}, dealt_late("_generate_and_score_completions", rolled_pixels)),
    "SFT": (sft_trainer, {}, dealt_late("data_collator", rolled_pixels)),
}


@pytest.mark.parametrize("name", LATE)
def test_images_that_are_dealt_to_other_rows_later_are_named_at_that_step(bench, name):
    make, settings, plant = LATE[name]
    trainer = make(bench, steps=3, pixel_check_every_steps=0, **settings)
    trainer.proof = getattr(trainer, "proof", None)
    plant(trainer)
    message = r"step [23]: pixel-flow proof, clause 'own images': row \d+ of a pass"  # 3: collated ahead
    with pytest.raises(RunError, match=message):
        stage.train(trainer, bench.folder, resume=False)


ASKED = {  # in an evaluation
    "rows: permuted": (seen("rolled"), "own row"),
    "rows: the first's for all": (seen("first"), "own row|no other row"),
    "rows: left padding shifts": (padding_shifts, "row alone"),
    "rows: less the batch's mean": (seen("less the mean"), "no other row|row alone"),
    "features of handles": (seen("of handles"), "pixels, not names"),
    "half of the slices": (HALF, "every slab|every token"), "mean of patches": (MEAN, "places"),
    "faint": (FAINT, "as loud as words"), "not finite": (seen("not finite"), "finite"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_what_is_broken_is_named_before_it_is_measured(bench, name):
    plant, clause = ASKED[name]
    model, processor = bench.model()
    plant(types.SimpleNamespace(vlm=model))
    prompts = [bench.source()[place].prompt for place in range(4)]
    with pytest.raises(RunError, match=f"02-evaluate: pixel-flow proof, clause '[^']*({clause})"):
        prove_policy(VLMPolicy(model, processor), prompts, "02-evaluate")


@pytest.mark.slow
@pytest.mark.parametrize("dealt", ["to the next", "the first's to all", "to their own"])
def test_answers_of_other_questions_are_named_before_they_are_measured(bench, monkeypatch, dealt):
    model, processor = bench.model()
    with torch.no_grad():
        model.lm_head.weight.mul_(100)  # it is sure of what it says, and says other things of other volumes
    policy = VLMPolicy(model, processor)
    real = policy.complete

    def broken(prompts, **asked):
        written = real(prompts, **asked)
        if dealt == "to their own":
            return written
        return written[1:] + written[:1] if dealt == "to the next" else written[:1] * len(written)

    monkeypatch.setattr(policy, "complete", broken)
    prompts = [bench.source()[place].prompt for place in range(12)]
    asked = AnonymizedPolicy(policy, "02-evaluate")
    if dealt == "to their own":
        assert len(set(asked.generate(prompts, max_new_tokens=8))) > 3
        return
    with pytest.raises(RunError, match="02-evaluate: pixel-flow proof, clause 'own answer'"):
        asked.generate(prompts, max_new_tokens=8)


# --- what is healthy


def with_text_alone(bench):
    """A stream whose first prompt shows nothing."""
    text = dataclasses.replace(bench.set_of("report"), view=bench.NoPixels())
    result = bench.source(text, bench.set_of())
    assert not result[0].prompt.crops()
    return result


@pytest.fixture
def watching(monkeypatch):
    """What proofs gave, in order."""
    moved = []

    def watched(prove):
        return lambda *args, **kwargs: moved.append(prove(*args, **kwargs))

    monkeypatch.setattr("evidcore.train.trl.trainer.prove_groups", watched(prove_groups))
    monkeypatch.setattr("evidcore.train.trl.sft.prove_targets", watched(prove_targets))
    return moved


HEALTHY = {
    "plain": {}, "all parts": WHOLE, "the encoder alone": {"train": ("encoder",)},
    "the language alone": {"train": ("language",)}, "LoRA": {"lora": Lora(rank=2, alpha=4.0)},
    "shared prompts": {"share_prompts": "always"},
    "colder": {"temperature": 0.6, "trl": {"top_k": 5, "beta": 0.04}},
    "each step, in micro-batches": {**BY_FOUR, "steps": 3, "pixel_check_every_steps": 1},
    "two updates": {"steps": 4, "save_every_steps": 4, "pixel_check_every_steps": 1,
                    "trl": {"num_iterations": 2}},
    "truncated answers left out": {"trl": {"mask_truncated_completions": True}},
    "16 bits": {**WHOLE, "trl": {"bf16": True, "use_cpu": True}},
    "dropout": {"lora": Lora(rank=2, alpha=4.0, dropout=0.2), "dropout": 0.2},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_policy_learns_on(bench, watching, name):
    settings = dict(HEALTHY[name])
    dropout = settings.pop("dropout", 0.0)
    model, processor = bench.model()
    for layer in model.model.language_model.layers:
        layer.self_attn.attention_dropout = dropout
    trainer = grpo_trainer(bench, model=(model, processor), **settings)
    stage.train(trainer, bench.folder, resume=False)
    steps = settings.get("steps", 1)
    assert len(trainer.announce.steps) == steps
    assert len(watching) == (steps if "pixel_check_every_steps" in settings else 1)
    assert all({"rollout", "policy", "old policy"} <= item.keys() for item in watching)
    assert all(1e-4 < item < 10 for moved in watching for item in moved.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "all parts", "the encoder alone", "LoRA", "16 bits"])
def test_healthy_fine_tuning_goes_on(bench, watching, name):
    settings = {"train": ("bridge", "language"), **HEALTHY[name]}
    trainer = sft_trainer(bench, rows_per_forward=2, steps=2, pixel_check_every_steps=1, **settings)
    stage.train(trainer, bench.folder, resume=False)
    assert len(watching) == 2
    assert all(item["policy"] > 1e-4 for item in watching)


@pytest.mark.slow
@pytest.mark.parametrize("make", [grpo_trainer, sft_trainer])
def test_several_volumes_a_prompt_and_prompts_without_any_are_healthy(bench, watching, make):
    several = bench.source(bench.set_of(cases=bench.two_volumes()))
    stage.train(make(bench, source=several), bench.folder, resume=False)
    stage.train(make(bench, source=with_text_alone(bench)), bench.folder, resume=False)
    assert len(watching) == 2
    assert all("policy" in item for item in watching)
    text = dataclasses.replace(bench.set_of("report"), view=bench.NoPixels())
    only_text = make(bench, source=bench.source(text), train=("language",))
    stage.train(only_text, bench.folder, resume=False)
    assert watching[2] == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("make", [grpo_trainer, sft_trainer])
def test_published_models_with_eyes_are_healthy(bench, tmp_path, watching, kind, make):
    model = bench.qwen(tmp_path / "published", kind)
    trainer = make(bench, model=model, source=bench.source(), **WHOLE)
    stage.train(trainer, bench.folder, resume=False)
    assert watching[0]["policy"] > 1e-5
    prompts = [bench.source()[place].prompt for place in range(4)]
    assert prove_policy(VLMPolicy(*model), prompts, "02-evaluate")["answer"] > 1e-5


def test_replay_is_healthy(bench, watching):
    trainer = replaying(bench, pixel_check_every_steps=1)
    stage.train(trainer, bench.folder, resume=False)
    assert trainer.announce.steps[0]["replay_kl"] < 1e-6
    assert watching[0]["replay"] > 1e-4


def test_what_all_tokens_share_hides_no_place(bench):
    model, processor = bench.model()
    model.eval().model.bridge.register_forward_hook(lambda module, given, tokens: tokens + 2e4 * tokens.std())
    prove_images("here", model, processor, bench.source()[0].prompt)


# --- what the proof leaves alone


class Drawing(grpo.GroupTrainer):
    """Draws in its policy pass, as dropout does."""

    def _compute_loss(self, model, inputs):
        torch.rand(7)
        return super()._compute_loss(model, inputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "settings", "rows"),
    [
        (grpo_trainer, {"prompts_per_forward": 1, "share_prompts": "never"}, {SMALL["answers_per_prompt"]}),
        (replaying, {"prompts_per_forward": 1, "share_prompts": "never", "answers_per_prompt": 3}, {3, 1}),
        (sft_trainer, {"rows_per_forward": 1}, {1}),
    ],
)
def test_no_pass_of_the_proof_keeps_more_rows_for_its_gradient_than_a_pass_of_training(
    bench, make, settings, rows
):
    model, processor = bench.model()
    kept = []

    def look(module, given, output):
        if torch.is_grad_enabled():
            kept.append((len(output), module.training))  # else activations are not computed again

    model.get_decoder().layers[0].register_forward_hook(look)
    stage.train(make(bench, model=(model, processor), **settings), bench.folder, resume=False)
    assert set(kept) == {(count, True) for count in rows}


@pytest.mark.slow
@pytest.mark.parametrize("make", [grpo_trainer, sft_trainer])
def test_training_is_not_disturbed(bench, monkeypatch, make):
    trained = []
    for every in (1, 0):
        if not every:
            monkeypatch.setattr("evidcore.train.trl.trainer.prove_groups", lambda *_, **__: {})
            monkeypatch.setattr("evidcore.train.trl.sft.prove_targets", lambda *_, **__: {})
        forward = {"prompts_per_step": 4, "prompts_per_forward": 2} if make is grpo_trainer else {}
        trainer = make(bench, steps=3, pixel_check_every_steps=every, **forward)
        trainer.__class__ = Drawing if make is grpo_trainer else trainer.__class__
        stage.train(trainer, bench.folder, resume=False)
        trained.append((trainer, bench.flat(trainer.model), torch.rand(1)))
    (proven, weights, drawn), (unproven, also, drawn_also) = trained
    assert torch.equal(weights, also)
    assert torch.equal(drawn, drawn_also)
    assert proven.state.num_input_tokens_seen == unproven.state.num_input_tokens_seen
    figures = [
        [{key: value for key, value in item.items() if not re.search(r"_s(/|$)", key)} for item in steps]
        for steps in (proven.announce.steps, unproven.announce.steps)
    ]
    assert figures[0] == figures[1]


WRONG_SLOPE = "clause 'slope': moving the bridge along its gradient changes"


def prove_slope(bridge, objective, scale, **options):
    """Prove the slope of an objective of a bridge's weight, whose gradient is taken `scale` times."""
    model = nn.Module()
    model.model = nn.Module()
    model.model.bridge = bridge

    def scaled():
        weight = bridge.weight
        return objective(weight.detach() + scale * (weight - weight.detach()))

    tolerance = Tolerance.of(model, **options)
    prove_gradient("here", model, ["bridge"], scaled, torch.Tensor.backward, tolerance, slopes=True)


def slope_of(seed, scale):
    """Prove the slope of rows whose large sums cancel, in 16 bits."""
    draw, bridge = torch.Generator().manual_seed(seed), nn.Linear(32, 4, bias=False)
    nn.init.normal_(bridge.weight, generator=draw)
    rows = torch.randn(16, 32, generator=draw)
    large = torch.tensor([100.0, -100.0]).repeat(8)[:, None]
    prove_slope(
        bridge, lambda weight: (rows @ weight.T + large).bfloat16().float().mean(), scale, is_mixed=True
    )


@pytest.mark.parametrize("seed", range(20))
def test_roundings_of_a_pass_of_16_bits_are_no_wrong_slope(seed):
    slope_of(seed, scale=1.0)


def test_a_wrong_slope_is_told_in_16_bits():
    with pytest.raises(RunError, match=WRONG_SLOPE):
        slope_of(0, scale=10.0)


@pytest.mark.parametrize(("scale", "is_straight"), [(1.0, False), (1.0, True), (4.0, True)])
def test_a_saturated_model_is_healthy_and_a_wrong_slope_of_a_straight_one_is_not(scale, is_straight):
    bridge = nn.Linear(32, 4, bias=False)
    nn.init.constant_(bridge.weight, 1.25)

    def objective(weight):
        moved = (weight - 1.25).sum() / 128**0.5
        return -0.2 + 4.8e-5 * (moved if is_straight else torch.tanh(moved))

    is_refused = pytest.raises(RunError, match=WRONG_SLOPE)
    with contextlib.nullcontext() if scale == 1.0 else is_refused:
        prove_slope(bridge, objective, scale)


def test_another_kind_of_policy_is_left_alone():
    assert prove_policy(types.SimpleNamespace(), [], "02-evaluate") == {}
