"""What a server may do wrong, each named; and what is refused before anything is asked."""

import contextlib
import dataclasses
import re
import socket

import pytest
from evidcore_plugin_vllm.engine import Vllm
from evidcore_plugin_vllm.testing import Spoilt, protocol_server
from evidcore_plugin_vllm.weights import write_whole

from evidcore.api import Episode, Workload
from evidcore.builtin.rollouts import Plain
from evidcore.errors import RecipeError, RunError


@pytest.fixture
def asked(volume_model, engine, sampler, tmp_path):
    """Return a function that asks a server for answers, with what it does wrong."""

    def ask(spoil=None, settings=None, timeout_s=60.0, **flags):
        write_whole(volume_model[0], volume_model[1], tmp_path / "weights", "embeddings")
        with protocol_server(tmp_path / "weights", **flags) as server:
            served = sampler(volume_model, engine(server, **(settings or {})))
            server.spoil, rows = spoil, served.continue_rows
            rows.server = dataclasses.replace(rows.server, timeout_s=timeout_s)  # of what comes now alone
            return served.sample([Episode(prompt=prompt) for prompt in volume_model[2][:1] for _ in range(2)])

    return ask


def on_completions(change):
    """Return what changes the answers of completions alone."""
    return lambda path, answer: change(answer) if path == "/v1/completions" else answer


def with_choice(**changed):
    """Return what changes the first answer of a completion."""

    def change(answer):
        first, *others = answer["choices"]
        return {**answer, "choices": [{**first, **changed}, *others]}

    return on_completions(change)


def one_less(answer):
    first, *others = answer["choices"]
    return {**answer, "choices": [{**first, "token_ids": first["token_ids"][:-1]}, *others]}


FAULTS = {
    "HTTP 500": (
        on_completions(lambda answer: Spoilt(status=500, content=b"a patient's words")),
        r"vLLM server http://127\.0\.0\.1:\d+: /v1/completions answered HTTP 500\. See the server's own log",
    ),
    "the path is not there": (
        on_completions(lambda answer: Spoilt(status=404)),
        r"/v1/completions answered HTTP 404\. Check url \(without /v1\) and model",
    ),
    "a key is asked for": (
        on_completions(lambda answer: Spoilt(status=401)),
        r"/v1/completions answered HTTP 401\. Check key_env",
    ),
    "no JSON": (
        on_completions(lambda answer: Spoilt(content=b"<html>")),
        r"/v1/completions answered what is no JSON\. Check url",
    ),
    "another JSON": (
        on_completions(lambda answer: {"choices": [{"index": 0, "text": "a"}]}),
        r"an answer has no token ids with log-probabilities \(KeyError\).*return_token_ids",
    ),
    "a list": (
        on_completions(lambda answer: Spoilt(content=b"[1]")),
        r"an answer has no token ids with log-probabilities \(TypeError\)",
    ),
    "a prompt of another length": (
        on_completions(lambda answer: {**answer, "usage": {"prompt_tokens": 3}}),
        r"it read a prompt of 3 tokens and was sent \d+\. The served model is not",
    ),
    "one answer of two": (
        on_completions(lambda answer: {**answer, "choices": answer["choices"][:1]}),
        r"it gave 1 answers, 2 were asked for",
    ),
    "a token too few": (
        on_completions(one_less),
        r"an answer has 6 tokens and 7 log-probabilities; expected as many of each, from 1 to 7",
    ),
    "no token": (
        with_choice(token_ids=[], logprobs={"token_logprobs": []}),
        r"an answer has 0 tokens and 0 log-probabilities; expected as many of each, from 1 to 7",
    ),
    "tokens too many": (
        with_choice(token_ids=[5] * 8, logprobs={"token_logprobs": [-1.0] * 8}),
        r"an answer has 8 tokens and 8 log-probabilities; expected as many of each, from 1 to 7",
    ),
    "NaN": (
        with_choice(token_ids=[5, 6], logprobs={"token_logprobs": [-1.0, float("nan")]}),
        r"a token was sampled with log-probability nan, which none can have",
    ),
    "null": (
        with_choice(token_ids=[5, 6], logprobs={"token_logprobs": [-1.0, None]}),
        r"a token was sampled with log-probability nan, which none can have",
    ),
    "above 0": (
        with_choice(token_ids=[5], logprobs={"token_logprobs": [0.5]}),
        r"a token was sampled with log-probability 0\.5, which none can have",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_server_is_named(asked, fault):
    spoil, said = FAULTS[fault]
    with pytest.raises(RunError, match=said) as caught:
        asked(spoil)
    assert "patient" not in str(caught.value)


def test_a_server_that_hangs_is_given_up_at_the_deadline(asked):
    with pytest.raises(RunError, match=r"/v1/completions gave no whole answer within 0\.5 s.*evid resume"):
        asked(on_completions(lambda answer: Spoilt(after_s=3.0)), timeout_s=0.5)


def test_a_server_that_is_gone_is_named(volume_model, sampler, tmp_path):
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    engine = Vllm(url=url, model="policy", weights=str(tmp_path / "weights"), sends_images_away=True)
    said = rf"vLLM server {re.escape(url)}: /v1/models gave a broken connection \(ConnectError\)\. Start it"
    with pytest.raises(RunError, match=said):
        sampler(volume_model, engine)
    assert (tmp_path / "weights" / "model.safetensors").is_file()  # from which it can be started


def test_a_server_of_another_model_is_named(asked):
    with pytest.raises(RunError, match=r"it serves 'policy', not 'other'.*--served-model-name other"):
        asked(settings={"model": "other"})


def test_a_server_without_a_list_of_models_is_named(asked, volume_model, engine, sampler, tmp_path):
    write_whole(volume_model[0], volume_model[1], tmp_path / "weights", "embeddings")
    with (
        protocol_server(tmp_path / "weights", spoil=lambda path, answer: {"data": [1]}) as server,
        pytest.raises(RunError, match=r"its /v1/models lists no models\. Check url"),
    ):
        sampler(volume_model, engine(server))


def test_log_probabilities_before_the_temperature_are_refused(asked):
    said = r"a token that alone could be sampled has log-probability -\d.*--logprobs-mode processed_logprobs"
    with pytest.raises(RunError, match=said):
        asked(processed=False)


def test_a_server_that_cannot_be_given_whole_weights_is_refused(asked):
    said = r"/collective_rpc answered HTTP 404: it cannot be given the weights.*VLLM_SERVER_DEV_MODE=1"
    with pytest.raises(RunError, match=said):
        asked(dev_mode=False)


def test_a_key_that_is_not_set_is_named_by_its_variable(asked, monkeypatch):
    monkeypatch.delenv("VLLM_KEY", raising=False)
    with pytest.raises(RunError, match="the environment variable 'VLLM_KEY' that should hold the key is not"):
        asked(settings={"key_env": "VLLM_KEY"})


def test_entropies_are_refused_before_anything_runs_and_after(engine, sampler, volume_model, asked):
    strategy = Plain()
    strategy.reads_entropies = True
    made = Vllm(url="http://127.0.0.1:9", model="policy", weights="w", sends_images_away=True)
    assert made.refusals(Workload(text=""), Plain()) == []
    assert made.refusals(Workload(text=""), strategy) == [
        "the rollout reads entropies of tokens, which it does not give."
    ]


def test_eyes_that_are_trained_beside_an_adapter_are_refused_where_the_server_has_its_own():
    work = Workload(text="", train=("bridge", "language"), lora_rank=4)
    given = {"url": "http://127.0.0.1:9", "model": "policy", "weights": "w", "sends_images_away": True}
    assert Vllm(**given).refusals(work, Plain()) == []
    [said] = Vllm(**given, inputs="images").refusals(work, Plain())
    assert said.startswith("train names bridge, which no adapter holds, and with inputs = 'images'")


def test_nothing_is_sent_before_the_recipe_allows_it():
    said = r"sampler: images and questions would be sent to 'host\.example'.*sends_images_away = true"
    with pytest.raises(RecipeError, match=said):
        Vllm(url="https://host.example", model="policy", weights="w")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"url": "host.example"}, r"sampler\.url: must be an address such as .* got 'host\.example'"),
        ({"key_env": "a key"}, r"sampler\.key_env: must be the name of an environment variable"),
    ],
)
def test_an_address_or_a_key_that_is_none_is_refused(changed, said):
    usual = {"url": "http://127.0.0.1:9", "model": "policy", "weights": "w", "sends_images_away": True}
    with pytest.raises(RecipeError, match=said):
        Vllm(**{**usual, **changed})


def test_a_model_that_takes_more_than_embeddings_is_refused(seeing_model, sampler):
    made = Vllm(url="http://127.0.0.1:9", model="policy", weights="w", sends_images_away=True)
    with pytest.raises(
        RunError, match=r"of type 'qwen2_5_vl_text' take more than embeddings.*inputs = 'images'"
    ):
        sampler(seeing_model, made)


def test_a_model_that_was_not_published_is_shown_no_pictures(volume_model, sampler):
    made = Vllm(
        url="http://127.0.0.1:9", model="policy", weights="w", sends_images_away=True, inputs="images"
    )
    said = r"this one has encoder 'vit3d' and bridge 'projection'.*inputs = 'embeddings'"
    with pytest.raises(RunError, match=said):
        sampler(volume_model, made)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"token_ids": [1]}, r"/v1/chat/completions/render gave no prepared picture.*`features`"),
        (
            {
                "token_ids": [1, 7, 8],
                "features": {
                    "mm_hashes": {"image": ["a"]},
                    "mm_placeholders": {"image": [{"offset": 1, "length": 2}]},
                    "kwargs_data": {"image": ["b"]},
                },
            },
            r"the picture's place in the prompt holds tokens \[7, 8\], expected \d+ alone",
        ),
    ],
)
def test_what_is_no_prepared_picture_is_named(seeing_model, engine, sampler, tmp_path, answer, said):
    write_whole(seeing_model[0], seeing_model[1], tmp_path / "weights", "images")

    def spoil(path, right):
        return answer if path.endswith("/render") else right

    with protocol_server(tmp_path / "weights", spoil=spoil) as server:
        served = sampler(seeing_model, engine(server, inputs="images"))
        with pytest.raises(RunError, match=said):
            served.sample([Episode(prompt=seeing_model[2][0])])


def test_a_picture_that_the_server_resized_is_named(seeing_model, engine, sampler, tmp_path):
    write_whole(seeing_model[0], seeing_model[1], tmp_path / "weights", "images")
    image = seeing_model[1].image_processor.tokens(seeing_model[2][0].crops()[0])

    def spoil(path, right):
        if path.endswith("/render"):
            right["features"]["mm_placeholders"]["image"][0]["length"] -= 1
        return right

    with protocol_server(tmp_path / "weights", spoil=spoil) as server:
        served = sampler(seeing_model, engine(server, inputs="images"))
        said = rf"pictures are \[{image - 1}\] tokens there and {image} in all here.*--mm-processor-kwargs"
        with pytest.raises(RunError, match=said):
            served.sample([Episode(prompt=seeing_model[2][0])])


def test_a_crop_of_several_slices_is_no_picture(seeing_model, engine, sampler, tmp_path, cases):
    model, processor, _ = seeing_model
    write_whole(model, processor, tmp_path / "weights", "images")
    shown = processor.image_processor.bank
    rows_of = sampler((model, processor, seeing_model[2]))  # whatever it samples by, prefixes are the same
    prefix = rows_of.prefix(Episode(prompt=seeing_model[2][0]))
    assert shown is not None
    deep = shown.handle(shown.crop(prefix.handles[0]), (2, 112, 112))
    with protocol_server(tmp_path / "weights") as server:
        rows = engine(server, inputs="images").begin(model, processor, ())
        with pytest.raises(RunError, match=r"a crop of 2 slices cannot be shown as one picture.*'slices'"):
            rows._picture(deep)


def test_entropies_that_are_asked_for_all_the_same_are_refused(volume_model, engine, tmp_path, sampler):
    model, processor, _ = volume_model
    write_whole(model, processor, tmp_path / "weights", "embeddings")
    with protocol_server(tmp_path / "weights") as server:
        rows = engine(server).begin(model, processor, ())
        with pytest.raises(
            RunError, match=r"a server gives no entropies of tokens\. Use the sampler 'in-process'"
        ):
            rows([], None, seeds=[], entropies=True)
