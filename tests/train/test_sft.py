import copy
import re
from types import SimpleNamespace

import pytest
import torch
from evidcore_plugin_med3d_r1.reweighter import Abnormality
from trl import SFTTrainer

from evidcore.api import Reweighter
from evidcore.builtin.uniform import Uniform
from evidcore.errors import RecipeError, RunError
from evidcore.model import assemble, packed_attention
from evidcore.model.vlm import VolumeVLMModel
from evidcore.prompts.targets import Targets
from evidcore.train.settings import Lora, TrainingStage
from evidcore.train.sft import Sft
from evidcore.train.trl import sft, stage
from evidcore.train.trl.sft import WeightedTrainer


class Rising(Reweighter):
    def __call__(self, text, spans, offsets):
        return [0.5 + 0.01 * index for index in range(len(offsets))]


def run(bench, name="run", **changed):
    model, heard = bench.model(), bench.heard()
    bench.sft(model=model, heard=heard, folder=name, **changed)
    return model[0], heard


@pytest.mark.slow
@pytest.mark.parametrize("reweighter", [Uniform(), Abnormality(gain=1.0)], ids=["uniform", "abnormality"])
def test_weights_of_one_are_trls_own_loss_bit_for_bit(bench, reweighter, monkeypatch):
    ones, also = run(bench, "ones", reweighter=reweighter, steps=3, rows_per_forward=2)

    def plain(self, model, inputs, *args, **kwargs):
        return SFTTrainer.compute_loss(self, model, sft._apart(inputs)[0], *args, **kwargs)

    monkeypatch.setattr(WeightedTrainer, "compute_loss", plain)
    theirs, heard = run(bench, "theirs", steps=3, rows_per_forward=2)
    start, _ = bench.model()
    assert torch.equal(bench.flat(theirs), bench.flat(ones))
    assert not torch.equal(bench.flat(theirs), bench.flat(start))
    assert [item["loss"] for item in heard.steps] == [item["loss"] for item in also.steps]


def test_bfloat16_is_warned_of_where_a_cpu_has_no_instructions_for_it(bench, caplog, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for capability, warns in [("AVX2", True), ("AVX512", False)]:
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda said=capability: said)
        caplog.clear()
        stage = Sft(kind="sft", data=(), train=("bridge",), steps=1, learning_rate=1e-3, trl={"bf16": True})
        TrainingStage.check(
            stage, SimpleNamespace(where="02-sft", is_dry_run=False, component=lambda *_, **__: None)
        )
        said = (
            "02-sft.trl.bf16: this CPU has no instructions for bfloat16, which then takes many times as long "
            "as float32. Set it to false."
        )
        assert [item.getMessage() for item in caplog.records] == [said] * warns


def plain_loss(bench, reweighter, loss_per="token"):
    """The loss of a step from plain logits, row by row: the weighted mean, or each row's sum, averaged."""
    model, processor = bench.model()
    targets = Targets(processor, bench.source(bench.set_of("report")), reweighter)
    total = weight = 0.0
    for index in range(4):
        row = targets.row(index)
        ids = torch.tensor([[*row.prompt_ids, *row.answer_ids]])
        with torch.no_grad():
            logits = model(input_ids=ids, pixel_values=torch.tensor([row.handles])).logits[0]
        log_probs = logits.log_softmax(-1)
        for number, (token, item) in enumerate(zip(row.answer_ids, row.weights, strict=True)):
            total -= item * float(log_probs[len(row.prompt_ids) + number - 1, token])
            weight += item
    return total / (weight if loss_per == "token" else 4)


@pytest.mark.slow
@pytest.mark.parametrize("rows_per_forward", [0, 1])
@pytest.mark.parametrize(
    ("loss_per", "reweighter"), [("token", None), ("token", Rising()), ("row", Uniform()), ("row", Rising())]
)
def test_the_loss_is_the_weighted_mean_over_the_step_or_the_sum_over_a_row(
    bench, rows_per_forward, loss_per, reweighter
):
    """The paper's formula, which is that of a row, has no denominator."""
    changed = {"reweighter": reweighter, "steps": 1, "rows_per_forward": rows_per_forward}
    _, heard = run(bench, loss_per=loss_per, **changed)
    assert heard.steps[0]["loss"] == pytest.approx(plain_loss(bench, reweighter, loss_per), rel=1e-5)
    if loss_per == "row":
        assert heard.steps[0]["loss"] > 10 * plain_loss(bench, reweighter)


@pytest.mark.parametrize("reweighter", [None, Rising()], ids=["plain", "weighted"])
def test_the_head_computes_nothing_before_the_first_answer(bench, monkeypatch, reweighter):
    seen, own = [], VolumeVLMModel.forward

    def noted(self, *args, **kwargs):
        output = own(self, *args, **kwargs)
        if kwargs.get("skip_positions"):
            seen.append((kwargs["attention_mask"].sum(1).tolist(), output.last_hidden_state.shape[1]))
        return output

    monkeypatch.setattr(VolumeVLMModel, "forward", noted)
    _, heard = run(bench, "head", reweighter=reweighter, steps=1)
    rows = [Targets(bench.model()[1], bench.source(bench.set_of("report"))).row(place) for place in range(4)]
    lengths = [len(row.prompt_ids) + len(row.answer_ids) for row in rows]
    [places] = {places for tokens, places in seen if tokens == lengths}
    # from the last token of a prompt, which predicts the first of an answer
    assert places == max(lengths) - min(len(row.prompt_ids) for row in rows) + 1
    assert heard.steps[0]["loss"] == pytest.approx(plain_loss(bench, reweighter), abs=2e-6)


@pytest.mark.slow
def test_four_rows_at_once_are_one_row_four_times(bench):
    # plain gradient descent: Adam would blow a gradient of 1e-12 up to a whole step
    changed = {"reweighter": Rising(), "steps": 3, "learning_rate": 0.1, "trl": {"optim": "sgd"}}
    once, _ = run(bench, "once", rows_per_forward=4, **changed)
    apart, _ = run(bench, "apart", rows_per_forward=1, **changed)
    start, _ = bench.model()
    assert (bench.flat(once) - bench.flat(start)).abs().max() > 1e-3
    torch.testing.assert_close(bench.flat(once), bench.flat(apart), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["bridge", "language", "encoder"])
def test_only_the_named_part_changes(bench, part):
    start, _ = bench.model()
    trained, _ = run(bench, train=(part,))
    changed = {
        name.split(".")[1]
        for (name, item), other in zip(trained.named_parameters(), start.parameters(), strict=True)
        if not torch.equal(item, other)
    }
    assert changed == {"language": {"language_model", "weight"}}.get(part, {part})  # lm_head.weight


@pytest.mark.parametrize(
    ("lora", "adapted"),
    [
        ({}, r"language_model.*(q|k|v|o|gate|up|down)_proj"),
        ({"target_modules": ("q_proj", "v_proj"), "dropout": 0.2}, r"language_model.*(q|v)_proj"),
        ({"parts": ("encoder",)}, r"encoder.*blocks.*(qkv|proj)"),
        ({"parts": ("encoder", "language"), "target_modules": ("qkv", "v_proj")}, r".*(qkv|v_proj)"),
    ],
    ids=["language", "named layers", "encoder", "both"],
)  # fmt: skip
def test_lora_is_merged_into_its_layers_beside_a_fully_trained_bridge(bench, tmp_path, lora, adapted):
    model, lora = bench.qwen(tmp_path / "published", "qwen2_5_vl"), Lora(rank=2, alpha=4.0, **lora)
    start, trained = copy.deepcopy(model[0]), model[0]
    train = ("bridge", *lora.parts)
    bench.sft(model=model, train=train, lora=lora, steps=2, learning_rate=1e-2, pixel_check_every_steps=0)
    names = [name for name, _ in trained.named_parameters()]
    assert names == [name for name, _ in start.named_parameters()]
    before, after = dict(start.named_parameters()), dict(trained.named_parameters())
    changed = {name for name in names if not torch.equal(before[name], after[name])}
    assert any(".bridge." in name for name in changed)
    expected = {name for name in names if re.fullmatch(rf"model\.{adapted}\.weight", name)}
    assert {name for name in changed if ".bridge." not in name} == expected != set()
    for name in expected:
        added = after[name] - before[name]
        assert int(torch.linalg.matrix_rank(added, rtol=1e-3)) <= 2


def test_dora_is_merged_with_the_magnitudes_that_it_learnt(bench):
    outputs = []
    for use_dora in (False, True):
        lora = Lora(rank=2, alpha=4.0, use_dora=use_dora)
        trainer = bench.sft_trainer(train=("language",), lora=lora, steps=2, learning_rate=1e-2)
        stage.train(trainer, bench.folder / f"{use_dora}", resume=False)
        batch, model = trainer.data_collator([{"prompt": "0"}]), stage.vlm_of(trainer.model)
        batch.pop("weights", None)
        with torch.no_grad():
            before = model.eval()(**batch).logits
            stage.unwrap(trainer, model)
            torch.testing.assert_close(model(**batch).logits, before, rtol=1e-4, atol=1e-5)
        outputs.append(before)
    assert not torch.allclose(*outputs, atol=1e-4)


def test_a_name_that_no_layer_has_is_refused_with_those_that_there_are(bench):
    text = (
        r"stage.lora.target_modules: must name linear layers of each part, got \['q_proj', 'c_attn'\]. Of mo"
    )
    with pytest.raises(RecipeError, match=text):
        bench.sft_trainer(train=("language",), lora=Lora(target_modules=("q_proj", "c_attn")))


def test_a_loss_that_is_no_number_ends_the_stage(bench):
    with pytest.raises(RunError, match=r"the loss of step \d is (nan|inf), so the stage ends here"):
        run(bench, train=("language",), steps=6, learning_rate=1e18, trl={"max_grad_norm": 0.0})
    assert not (bench.folder / "run" / "model.safetensors").exists()


def test_the_trained_model_is_in_the_folder_and_as_it_was(bench):
    trained, _ = run(bench)
    loaded, _ = assemble.load(bench.folder / "run")
    assert torch.equal(bench.flat(trained), bench.flat(loaded))
    assert "forward" not in vars(trained)
    assert not any(weight.requires_grad for weight in trained.parameters())
    assert not trained.training


@pytest.mark.slow
def test_a_model_learns_its_reports(bench):
    _, heard = run(bench, train=("bridge", "language"), steps=25, learning_rate=5e-3)
    assert heard.steps[-1]["loss"] < 0.6 * heard.steps[0]["loss"]
    assert heard.steps[-1]["token_accuracy"] > heard.steps[0]["token_accuracy"]
    assert [item["step"] for item in heard.steps] == list(range(1, 26))


def test_rows_that_cannot_be_dealt_are_refused(bench):
    with pytest.raises(RecipeError, match="6 rows cannot be dealt to 1 processes of 4 rows"):
        bench.sft_trainer(rows_per_step=6, rows_per_forward=4)


@pytest.mark.slow
def test_muon_trains_another_way_than_adamw_and_momentum_reaches_it(bench):
    result = {}
    for name, changed in {
        "adamw": {},
        "muon": {"optimizer": "muon"},
        "usual": {"optimizer": "muon", "momentum": 0.95},
        "less": {"optimizer": "muon", "momentum": 0.5},
    }.items():
        model, heard = run(bench, name, steps=3, **changed)
        assert heard.steps[-1]["loss"] < heard.steps[0]["loss"]
        result[name] = bench.flat(model)
    assert torch.equal(result["muon"], result["usual"])
    assert not torch.equal(result["muon"], result["adamw"])
    assert not torch.equal(result["muon"], result["less"])


MANY = {"rows_per_step": 6, "questions_per_volume": 3, "steps": 1}


def in_turn(bench, many=3):
    sets = [bench.set_of("report", share=1.0), bench.set_of("choice", share=1.0)]
    return bench.source(*sets, in_turn=many)


@pytest.mark.parametrize("loss_per", ["token", "row"])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3_vl"])
def test_questions_behind_one_volume_have_loss_and_gradient_of_rows_apart(bench, kind, loss_per, tmp_path):
    """Texts of unequal lengths and weights; a qwen3_vl has positions of three axes."""

    def learn(many):
        model = bench.model() if kind == "qwen2" else bench.qwen(tmp_path / "qwen", kind)
        given = {**MANY, "questions_per_volume": many, "train": ("bridge", "language"), "model": model}
        trainer = bench.sft_trainer(
            source=in_turn(bench), reweighter=Rising(), loss_per=loss_per, trl={"bf16": False}, **given
        )
        trainer.model.eval()
        batch = trainer.targets.batch([{"prompt": str(place)} for place in range(6)])
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        return loss, {name: item.grad for name, item in model[0].named_parameters() if item.grad is not None}

    (apart, expected), (together, gradients) = learn(1), learn(3)
    assert bench.model()[0].config.text_config.model_type in packed_attention.PLAIN
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-6)
    assert gradients.keys() == expected.keys()
    most = max(float(item.abs().max()) for item in expected.values())
    for name, item in expected.items():
        torch.testing.assert_close(gradients[name], item, rtol=1e-4, atol=1e-5 * most, msg=name)


def test_the_layers_see_what_rows_of_a_volume_begin_with_once(bench, monkeypatch):
    seen, own = [], VolumeVLMModel.forward
    monkeypatch.setattr(
        VolumeVLMModel, "forward",
        lambda self, *args, **given: (seen.append(given["input_ids"].shape), own(self, *args, **given))[1],
    )  # fmt: skip
    _, heard = run(bench, source=in_turn(bench), reweighter=Uniform(), **MANY)
    _, apart = run(bench, "apart", source=in_turn(bench), reweighter=Uniform(), rows_per_step=6, steps=1)
    assert (seen[len(seen) // 2 - 1][0], seen[-1][0]) == (2, 6)
    assert heard.steps[0]["loss"] == pytest.approx(apart.steps[0]["loss"], rel=1e-5)


def test_rows_that_cannot_be_packed_are_refused_or_told(bench, caplog):
    with pytest.raises(RecipeError, match="4 rows of a forward pass are no whole number of volumes with 3"):
        run(bench, source=in_turn(bench), reweighter=Uniform(), rows_per_step=4, questions_per_volume=3)
    model = bench.model()
    model[0].model.language_model.config.layer_types = ["sliding_attention"] * 2
    with pytest.raises(
        RecipeError, match=r"questions_per_volume: its layers attend by sliding_attention. Take 1"
    ):
        bench.sft(source=in_turn(bench), reweighter=Uniform(), model=model, **MANY)
    _, heard = run(bench, source=in_turn(bench, 1), reweighter=Uniform(), **MANY)  # other volumes
    assert "row by row: not all rows of a volume begin with the same images" in caplog.text
    assert heard.steps[0]["loss"] > 0


def test_the_proof_finds_that_packed_rows_see_another_volume(bench, monkeypatch):
    own = WeightedTrainer._packed

    def exchanged(self, rows):
        given, weights = own(self, rows)
        return given | {"pixel_values": given["pixel_values"].flip(0)}, weights

    monkeypatch.setattr(WeightedTrainer, "_packed", exchanged)
    with pytest.raises(RunError, match="the policy pass"):
        run(bench, source=in_turn(bench), reweighter=Uniform(), **MANY)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"rows_per_forward": 3},  # gradient accumulation
        {"train": ("bridge", "language"), "lora": Lora(rank=2, alpha=4.0)},
        {"train": ("encoder", "bridge"), "trl": {"optim": "sgd", "activation_checkpointing": True}},
    ],
    ids=["accumulation", "lora", "checkpointing"],
)
def test_steps_over_packed_rows_end_where_rows_apart_do(bench, changed):
    usual = {"learning_rate": 0.05, "rows_per_step": 6, "steps": 3, "trl": {"optim": "sgd"}, **changed}
    ends = [
        run(bench, name, source=in_turn(bench), reweighter=Rising(), questions_per_volume=many, **usual)[0]
        for name, many in (("packed", 3), ("apart", 1))
    ]
    start, _ = bench.model()
    assert (bench.flat(ends[0]) - bench.flat(start)).abs().max() > 1e-3
    torch.testing.assert_close(bench.flat(ends[0]), bench.flat(ends[1]), rtol=0, atol=1e-5)
