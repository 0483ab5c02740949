import dataclasses
import json
import math
import random

import pytest
import torch
from evidcore_plugin_phantoms.language.documents import DocumentDrawer
from evidcore_plugin_phantoms.language.lookup_llama import tiny_config, tiny_model
from evidcore_plugin_phantoms.language.tiny import TextFit, Tiny, _token_weights, answer_loss
from evidcore_plugin_reports.task import ReportTask
from evidcore_testing import check_language
from evidcore_testing.data import FINDINGS

from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.contracts import Corpus, FitData
from evidcore.model.language import Pretrained
from evidcore.registry.factory import build

TASKS = {"choice": Choice(), "report": ReportTask()}
SMALL = {"width": 32, "layers": 1, "heads": 2}
CORPUS = Corpus(lambda: ["Which finding is present? A lung nodule.", "There is no cardiomegaly."], FINDINGS)


def test_it_keeps_the_contract_of_a_language_model():
    check_language(build("language", {"use": "tiny", "width": 32, "layers": 1}, given={}, where="test"))


@pytest.fixture
def model(tokenizer):
    return tiny_model(tiny_config(tokenizer, **SMALL), tokenizer, seed=0)


@pytest.fixture
def documents(cases, tokenizer):
    drawer = DocumentDrawer(tokenizer, TASKS, Volume(), 20, cases, {})
    return [drawer.draw(random.Random(seed), 0.0) for seed in range(12)]


def test_the_loss_is_the_weighted_mean_over_answer_tokens_alone(model, documents, tokenizer):
    weights = torch.rand(model.config.vocab_size) + 0.5
    together = answer_loss(model, documents, tokenizer.pad_token_id, weights, abnormal_gain=3.0)
    assert any(any(one.is_abnormal) for one in documents)
    total, weight = 0.0, 0.0
    for one in documents:  # one by one, without padding
        logs = model(torch.tensor([one.ids])).logits[0].log_softmax(-1)
        for index, (token, told) in enumerate(
            zip(one.answer_ids, one.is_abnormal, strict=True), len(one.prompt_ids)
        ):
            gain = weights[token].item() * (3.0 if told else 1.0)
            total -= logs[index - 1, token].item() * gain
            weight += gain
    assert together.item() == pytest.approx(total / weight, rel=1e-5)


def test_noise_blurs_what_stands_for_the_volume_and_nothing_else(model, documents, tokenizer):
    blind = [dataclasses.replace(one, shows=[False] * len(one.shows)) for one in documents]
    weights = torch.ones(model.config.vocab_size)

    def loss(documents, noise):
        generator = torch.Generator().manual_seed(1)
        return answer_loss(
            model, documents, tokenizer.pad_token_id, weights, noise=noise, generator=generator
        ).item()

    assert loss(blind, 3.0) == loss(blind, 0.0) == loss(documents, 0.0)
    assert loss(documents, 3.0) != loss(documents, 0.0)


def fit(cases, folder, **options):
    told = []
    part = Tiny(**SMALL)
    asked = {"tasks": TASKS, "view": Volume(), "image_tokens": 20, "phrases": FINDINGS}
    given = FitData(cases, cases[:2], folder, 7, told.append, **asked)
    part.fit(given, options=TextFit(**{"restarts": 0, **options}))
    return part, told


def test_fitting_learns_and_writes_what_load_reads(cases, tmp_path):
    part, told = fit(
        cases, tmp_path, steps=60, documents_per_step=8, learning_rate=1e-2, emphasis={" present": 3.0}
    )
    assert [figures["step"] for figures in told] == list(range(1, 61))
    assert sum(figures["loss"] for figures in told[-5:]) < 0.5 * sum(figures["loss"] for figures in told[:5])
    figures = json.loads((tmp_path / "fit.json").read_text(encoding="utf-8"))
    assert figures["steps"] == 60
    assert figures["choice_questions"] == 2
    assert 0.0 <= figures["choice_text_accuracy"] <= 1.0
    model, tokenizer = Pretrained(folder=str(tmp_path)).load()
    ids = torch.tensor([tokenizer("Lung nodule. Which finding is present?").input_ids])
    torch.testing.assert_close(model(ids).logits, part.model(ids).logits)


def test_the_same_seed_fits_the_same_weights(cases, tmp_path):
    one, _ = fit(cases, tmp_path / "one", steps=3, documents_per_step=2)
    two, _ = fit(cases, tmp_path / "two", steps=3, documents_per_step=2)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))


def test_emphasis_weighs_exactly_the_tokens_of_its_text(tokenizer):
    weights = _token_weights(tokenizer, len(tokenizer), {" lung nodule": 6.0})
    (token,) = tokenizer(" lung nodule").input_ids
    assert weights[token] == 6.0
    assert math.isclose(weights.sum().item(), len(tokenizer) + 5.0)


def test_a_fit_that_reads_nothing_half_way_begins_anew_from_other_weights(cases, tmp_path):
    part, told = fit(cases, tmp_path, steps=4, documents_per_step=2, learning_rate=1e-9, restarts=2)
    assert [figures["step"] for figures in told] == [1, 2, 1, 2, 1, 2, 3, 4]
    assert json.loads((tmp_path / "fit.json").read_text(encoding="utf-8"))["restarts"] == 2
    once, _ = fit(cases, tmp_path / "once", steps=4, documents_per_step=2, learning_rate=1e-9)
    rows = [one.model.get_input_embeddings().weight for one in (part, once)]
    assert not torch.equal(*rows)


def test_building_moves_no_random_number_of_training():
    state = torch.get_rng_state()
    Tiny(**SMALL).load(CORPUS, 5)
    assert torch.equal(state, torch.get_rng_state())
