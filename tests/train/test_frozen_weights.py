"""A stage over weights in bfloat16, and in 4 bits: losses, gradients, checkpoints and later stages."""

import json

import pytest
import torch
from safetensors import safe_open

from evidcore.model import assemble
from evidcore.model.parts import AdaptedLinear
from evidcore.model.policy import VLMPolicy
from evidcore.prompts.targets import Targets
from evidcore.train.settings import Lora

BOTH = ("encoder", "language")
ADAPTED = {"train": ("bridge", "language"), "lora": Lora(rank=2, alpha=4.0), "trl": {"bf16": True}}


def teach(bench, name, model, *, heard=None, resume=False, **changed):
    """Train model and processor by SFT; return what was told of its steps."""
    heard = heard or bench.heard()
    changed = {**ADAPTED, "pixel_check_every_steps": 0, **changed}
    bench.sft(model=model, heard=heard, folder=name, resume=resume, **changed)
    return heard


def frozen(model):
    """The weights in bfloat16 or 4 bits, by name."""
    return {
        name: weight.detach().clone()
        for name, weight in model.named_parameters()
        if weight.dtype in (torch.bfloat16, torch.uint8)
    }


@pytest.fixture(params=[16, 4])
def qwen(request, bench, tmp_path):
    """Return a function that gives a fresh model with frozen weights, always the same one."""
    if request.param == 4:
        pytest.importorskip("bitsandbytes", reason="pip install 'evidcore[quantization]'")
    bits = {"bfloat16": BOTH, "load_in_4bit": request.param == 4}
    return lambda: bench.qwen(tmp_path / "published", "qwen2_5_vl", **bits)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_logits_and_gradients_are_those_of_autocast_to_the_bit(bench, tmp_path, kind):
    result = []
    for bfloat16 in ((), BOTH):
        model, processor = bench.qwen(tmp_path / "published", kind, bfloat16=bfloat16)
        targets = Targets(processor, bench.source(bench.set_of("report")))
        batch = targets.batch([{"prompt": "0"}, {"prompt": "1"}])
        batch.pop("weights", None)
        model.train_only(("bridge",))
        model.train()
        with torch.autocast("cpu", torch.bfloat16):
            output = model(**batch)
        output.loss.backward()
        gradients = [weight.grad for weight in model.model.bridge.parameters() if weight.grad is not None]
        result.append([output.logits.detach(), *gradients])
    assert len(result[0]) > 4
    assert all(map(torch.equal, *result))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_losses_and_adapters_are_near_those_of_float32(bench, tmp_path, kind):
    heard, grads = {}, {}
    for name, bfloat16, trl in [("float32", (), {}), ("rounded", BOTH, {"bf16": True})]:
        model = bench.qwen(tmp_path / "published", kind, bfloat16=bfloat16)
        changed = {**ADAPTED, "trl": trl, "pixel_check_every_steps": 0}
        trainer = bench.sft_trainer(model=model, folder=name, **changed)
        adapters = {n: w for n, w in trainer.model.named_parameters() if "lora_" in n}
        assert {weight.dtype for weight in adapters.values()} == {torch.float32}
        torch.manual_seed(1)
        for weight in adapters.values():
            torch.nn.init.normal_(weight, std=0.05)
        batch = trainer.data_collator([{"prompt": str(index)} for index in range(4)])
        trainer.model.train()
        with trainer.accelerator.autocast():
            trainer.compute_loss(trainer.model, batch).backward()
        grads[name] = torch.cat([weight.grad.flatten() for weight in adapters.values()])
        model = bench.qwen(tmp_path / "published", kind, bfloat16=bfloat16)
        heard[name] = teach(bench, name, model, trl=trl, steps=4, learning_rate=1e-3)
    apart = (grads["rounded"] - grads["float32"]).norm() / grads["float32"].norm()
    assert apart < 0.03
    for item, other in zip(heard["rounded"].steps, heard["float32"].steps, strict=True):
        assert item["loss"] == pytest.approx(other["loss"], rel=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [("language",), BOTH])
def test_a_stage_moves_adapters_alone_and_the_next_adds_its_own(bench, qwen, parts):
    train = ("bridge", *parts)
    model = qwen()
    start = frozen(model[0])
    is_packed = [weight.dtype == torch.uint8 for name, weight in start.items() if "language_model" in name]
    assert sum(is_packed) == (3 * 6 if model[0].config.load_in_4bit else 0)  # rows of 96 numbers are not
    teach(bench, "first", model, steps=2, train=train, lora=Lora(rank=2, alpha=4.0, parts=parts))
    trained = model[0]
    assert all(torch.equal(weight, start[name]) for name, weight in frozen(trained).items())
    loaded = assemble.load(bench.folder / "first")
    assert frozen(loaded[0]).keys() == start.keys()
    weights, others = dict(trained.named_parameters()), dict(loaded[0].named_parameters())
    assert list(weights) == list(others)
    for name, weight in weights.items():
        assert weight.dtype == others[name].dtype
        assert torch.equal(weight, others[name])
    with safe_open(bench.folder / "first" / "model.safetensors", "pt") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (no mapping)
    assert {name for name, kind in kinds.items() if kind == "BF16"} == start.keys()
    ranks = json.loads((bench.folder / "first" / "config.json").read_text())["adapters"]
    assert {*ranks.values()} == {2}
    lora, trl = Lora(rank=3, parts=parts), {"bf16": True, "beta": 0.1}
    changed = {"train": train, "lora": lora, "trl": trl, "pixel_check_every_steps": 1}
    bench.grpo(model=loaded, heard=(heard := bench.heard()), folder="second", **changed)
    assert heard.steps[0]["kl"] == pytest.approx(0.0, abs=1e-3)  # its reference is the first stage's model
    layers = [item for item in loaded[0].modules() if isinstance(item, AdaptedLinear)]
    before = [item for item in trained.modules() if isinstance(item, AdaptedLinear)]
    assert {len(item.down) for item in layers} == {5}
    assert all(torch.equal(item.down[:2], two.down) for item, two in zip(layers, before, strict=True))
    assert all(torch.equal(weight, start[name]) for name, weight in frozen(loaded[0]).items())


@pytest.mark.slow
def test_what_is_measured_computes_as_what_was_trained(bench, qwen):
    """Answers are scored as in the last step of training, without a word of which type products have.

    What 4 bits were trained on is also what their checkpoint says in bfloat16.
    """
    model = qwen()
    teach(bench, "run", model, steps=2, pixel_check_every_steps=1)  # and its pixels are proven to count
    prompts = [bench.source()[index].prompt for index in range(3)]
    texts = [["left", "right side"]] * 3
    loaded, config = assemble.load(bench.folder / "run"), bench.folder / "run" / "config.json"
    assert loaded[0].config.load_in_4bit == model[0].config.load_in_4bit
    config.write_text(json.dumps({**json.loads(config.read_text()), "load_in_4bit": False}))
    policies = [VLMPolicy(*pair) for pair in (model, loaded, assemble.load(bench.folder / "run"))]
    result = [policy.log_likelihoods(prompts, texts) for policy in policies]
    assert result[0] == result[1] == result[2]
    assert VLMPolicy(*model).generate(prompts, max_new_tokens=4)


@pytest.mark.slow
def test_a_resumed_stage_is_the_uninterrupted_one_bit_for_bit(bench, qwen):
    for name, changed in [("adapters", {}), ("bridge", {"train": ("bridge",), "lora": None})]:
        changed = {"steps": 4, "save_every_steps": 2, **changed}
        whole, cut, rest = qwen(), qwen(), qwen()
        teach(bench, f"whole-{name}", whole, **changed)
        with pytest.raises(bench.Stopped):
            teach(bench, f"cut-{name}", cut, heard=bench.stopping(3), **changed)
        later = teach(bench, f"cut-{name}", rest, resume=True, **changed)
        assert [item["step"] for item in later.steps] == [3, 4]
        named = dict(rest[0].named_parameters())
        for key, weight in whole[0].named_parameters():
            assert torch.equal(weight, named[key]), key
