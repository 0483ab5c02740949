"""What a server may do wrong, each named; and what is refused before anything is asked."""

import dataclasses
import json
import tomllib
from pathlib import Path

import pytest
from evidcore_plugin_reports.testing import Reply
from evidcore_plugin_vllm.engine import Vllm

from evidcore.api import Episode, Workload
from evidcore.builtin.rollouts import Plain
from evidcore.contracts.stage import Lora
from evidcore.errors import RecipeError, RunError

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def idle(**options):
    """Return the component for an address where no server is."""
    usual = {"url": "http://127.0.0.1:9", "model": "policy", "weights": "w", "sends_images_away": True}
    return Vllm(**{**usual, **options})


@pytest.fixture
def asked(volume_model, served, sampler):
    """Return a function that asks a server for answers, with what it does wrong."""

    def ask(spoil=None, settings=None, timeout_s=60.0, **flags):
        with served(volume_model, settings, **flags) as (server, component):
            policy = sampler(volume_model, component)
            server.spoil, rows = spoil, policy.continue_rows
            rows.server = dataclasses.replace(rows.server, timeout_s=timeout_s)  # of what comes now alone
            policy.sample([Episode(prompt=prompt) for prompt in volume_model[2][:1] for _ in range(2)])

    return ask


def on_path(end, change):
    """Return what changes the answers of a path alone."""
    return lambda path, answer: change(answer) if path.endswith(end) else answer


def answering(**fields):
    return on_path("/v1/completions", lambda answer: Reply(**fields))


def changed(fields, choice):
    """Return what changes fields of a completion, and those of its first answer."""

    def change(answer):
        first, *others = answer["choices"]
        return {**answer, "choices": [{**first, **choice}, *others], **fields}

    return on_path("/v1/completions", change)


@pytest.mark.slow
@pytest.mark.parametrize(("status", "body", "message"), TABLE["replies"])
def test_an_answer_that_is_no_completion_is_named(asked, status, body, message):
    with pytest.raises(RunError, match=message) as caught:
        asked(answering(status=status, body=body.encode()))
    assert "patient" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "choice", "message"), TABLE["completions"])
def test_a_completion_that_cannot_be_is_named(asked, fields, choice, message):
    with pytest.raises(RunError, match=message):
        asked(changed(json.loads(fields), json.loads(choice)))


def test_a_server_that_hangs_is_given_up_at_the_deadline(asked):
    with pytest.raises(RunError, match=r"/v1/completions gave no whole answer within 0\.5 s.*evid resume"):
        asked(answering(after_s=3.0), timeout_s=0.5)


def test_a_server_that_is_gone_is_named(volume_model, sampler, tmp_path):
    message = r"127\.0\.0\.1:9: /v1/models gave a broken connection \(ConnectError\)\. Start it"
    with pytest.raises(RunError, match=f"vLLM server http://{message}"):
        sampler(volume_model, idle(weights=str(tmp_path / "weights")))
    assert (tmp_path / "weights" / "model.safetensors").is_file()  # from which it can be started


@pytest.mark.parametrize(("setup", "message"), TABLE["servers"])
def test_a_server_that_is_not_the_one_that_is_meant_is_refused(asked, monkeypatch, setup, message):
    monkeypatch.delenv("VLLM_KEY", raising=False)
    with pytest.raises(RunError, match=message):
        asked(**setup)


def test_a_server_without_a_list_of_models_is_named(volume_model, served, sampler):
    with (
        served(volume_model, spoil=lambda path, answer: {"data": [1]}) as (_, component),
        pytest.raises(RunError, match=r"its /v1/models lists no models\. Check url"),
    ):
        sampler(volume_model, component)


def test_entropies_are_refused_before_anything_runs_and_after(volume_model, served):
    strategy = Plain()
    strategy.reads_entropies = True
    assert idle().refusals(Workload(text=""), Plain()) == []
    [said] = idle().refusals(Workload(text=""), strategy)
    assert said == "the rollout reads entropies of tokens, which it does not give."
    with served(volume_model) as (_, component):
        rows = component.begin(volume_model[0], volume_model[1], ())
        no_entropies = r"a server gives no entropies of tokens\. Use the sampler 'in-pro"
        with pytest.raises(RunError, match=no_entropies):
            rows([], None, seeds=[], entropies=True)


def test_eyes_that_are_trained_beside_an_adapter_are_refused_where_the_server_has_its_own():
    work = Workload(text="", train=("bridge", "language"), lora=Lora(rank=4))
    assert idle().refusals(work, Plain()) == []
    [said] = idle(inputs="images").refusals(work, Plain())
    assert said.startswith("train names bridge, which no served adapter holds; with inputs = 'images'")
    with_dora = dataclasses.replace(work, lora=Lora(use_dora=True))
    [said] = idle().refusals(with_dora, Plain())
    assert said == "vLLM serves no adapter of DoRA. Take lora.use_dora out."


@pytest.mark.parametrize(("options", "message"), TABLE["recipes"])
def test_what_a_recipe_must_not_say_is_refused(options, message):
    with pytest.raises(RecipeError, match=message):
        idle(**options)


@pytest.mark.parametrize(("model", "inputs", "message"), TABLE["models"])
def test_a_model_that_the_server_cannot_be_is_refused(request, sampler, model, inputs, message):
    with pytest.raises(RunError, match=message):
        sampler(request.getfixturevalue(model), idle(inputs=inputs))


@pytest.mark.parametrize(("ids", "fields", "message"), TABLE["pictures"])
def test_what_is_no_prepared_picture_is_named(seeing_model, served, sampler, ids, fields, message):
    def change(answer):
        return {"token_ids": ids, **{name: answer[name] for name in fields}}

    with served(seeing_model, spoil=on_path("/render", change)) as (_, component):
        policy = sampler(seeing_model, component)
        with pytest.raises(RunError, match=message):
            policy.sample([Episode(prompt=seeing_model[2][0])])


def test_a_picture_that_the_server_resized_is_named(seeing_model, served, sampler):
    image = seeing_model[1].image_processor.tokens(seeing_model[2][0].crops()[0])

    def smaller(answer):
        answer["features"]["mm_placeholders"]["image"][0]["length"] -= 1
        return answer

    with served(seeing_model, spoil=on_path("/render", smaller)) as (_, component):
        policy = sampler(seeing_model, component)
        message = rf"pictures are \[{image - 1}\] tokens there and {image} in all here.*--mm-processor-kwargs"
        with pytest.raises(RunError, match=message):
            policy.sample([Episode(prompt=seeing_model[2][0])])


def test_a_crop_of_several_slices_is_no_picture(seeing_model, served, sampler):
    model, processor, prompts = seeing_model
    bank = processor.image_processor.bank
    shown = sampler(seeing_model).prefix(Episode(prompt=prompts[0])).handles[0]
    deep = bank.handle(bank.crop(shown), (2, 112, 112))
    with served(seeing_model) as (_, component):
        rows = component.begin(model, processor, ())
        with pytest.raises(RunError, match=r"a crop of 2 slices cannot be shown as one picture.*'slices'"):
            rows._picture(deep)
