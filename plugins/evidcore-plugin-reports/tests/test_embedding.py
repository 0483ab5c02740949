import itertools
import logging

import pytest
import torch
from evidcore_plugin_reports.embedding import Embedding
from evidcore_plugin_reports.embedding_f1 import EmbeddingF1
from evidcore_plugin_reports.testing import tiny_text_encoder
from evidcore_plugin_reports.text_models import Pretrained
from evidcore_testing import check_scorer
from transformers import AutoModel, AutoTokenizer, BertForMaskedLM, T5Config, T5ForConditionalGeneration

from evidcore.api import DataError

TEXTS = ["there is emphysema.", "no emphysema", "a mass of 4 cm in the left lower lobe, and no effusion"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_text_encoder(tmp_path_factory.mktemp("models") / "bert", places=2048).parent


def scorer(folder, pooling="mean", zero_at=-1.0, **options):
    return Embedding(folder, model=Pretrained(folder="bert", **options), pooling=pooling, zero_at=zero_at)


def cosine(folder, one, other, pooling):
    """The cosine of two texts' embeddings, each text alone, summed token by token."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "bert")
    model = AutoModel.from_pretrained(folder / "bert")
    vectors = []
    for text in (one, other):
        with torch.inference_mode():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].double()
        vectors.append(hidden[0] if pooling == "cls" else sum(hidden) / len(hidden))
    left, right = vectors
    return float((left * right).sum() / (left.square().sum() * right.square().sum()).sqrt())


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("budget", [0, 100_000])
def test_a_score_is_the_mapped_cosine(folder, pooling, budget):
    pairs = list(itertools.combinations(TEXTS, 2))
    wanted = [cosine(folder, *pair, pooling) for pair in pairs]
    for floor in (-1.0, sorted(wanted)[1]):
        result = scorer(folder, pooling, floor, tokens_per_pass=budget)(*zip(*pairs, strict=True))
        mapped = [max(0.0, (item - floor) / (1 - floor)) for item in wanted]
        assert result == pytest.approx(mapped, abs=2e-5 / (1 - floor))
    assert min(result) == 0.0


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_it_keeps_the_contract_of_a_scorer(folder, pooling):
    check_scorer(scorer(folder, pooling))
    check_scorer(scorer(folder, pooling, 0.5, tokens_per_pass=4096))


def test_neither_embedding_claims_to_tell_a_denial():
    assert not Embedding.detects_negation
    assert not EmbeddingF1.detects_negation


def test_a_text_that_says_nothing_is_not_compared(folder):
    assert scorer(folder)([" ", "mass", ""], ["mass", "\n", ""]) == [None, None, None]


def test_a_text_that_is_too_long_is_refused_unscored_or_cut_as_the_recipe_says(folder, caplog):
    long = "mass " * 500
    with pytest.raises(DataError, match=r"\(bert\): a text of 2502 tokens is longer than the 2048"):
        scorer(folder)([long], ["mass"])
    with caplog.at_level(logging.WARNING):
        assert scorer(folder, too_long="unscored")([long], ["mass"]) == [None]
        (cut,) = scorer(folder, too_long="cut", most_tokens=6)([long], ["mass"])
    assert "1 of 2 texts are longer than 2048 tokens and unscored; the longest has 2502" in caplog.text
    assert "1 of 2 texts are longer than 6 tokens and cut; the longest has 2502" in caplog.text
    assert cut == pytest.approx(1.0)  # what is left is "mass" and the two signs around it


def test_a_pooler_that_was_not_published_is_not_missed(tmp_path, folder):
    encoder = AutoModel.from_pretrained(folder / "bert")
    without = BertForMaskedLM(encoder.config)
    without.bert.load_state_dict(encoder.state_dict(), strict=False)
    without.save_pretrained(tmp_path / "bert")
    AutoTokenizer.from_pretrained(folder / "bert").save_pretrained(tmp_path / "bert")
    assert scorer(tmp_path)(TEXTS, TEXTS[::-1]) == scorer(folder)(TEXTS, TEXTS[::-1])


def test_an_encoder_with_a_decoder_is_refused(tmp_path, folder):
    config = T5Config(vocab_size=99, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "bert")
    AutoTokenizer.from_pretrained(folder / "bert").save_pretrained(tmp_path / "bert")
    with pytest.raises(DataError, match=r"\(bert\): is an encoder with a decoder \(t5\)"):
        scorer(tmp_path)(["mass"], ["mass"])
