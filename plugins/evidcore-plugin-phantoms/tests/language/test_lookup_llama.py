"""The tiny model's start: what its heads look at before any training."""

import pytest
import torch
from evidcore_plugin_phantoms.language.lookup_llama import tiny_config, tiny_model
from evidcore_plugin_phantoms.language.word_tokenizer import build_tokenizer

from evidcore.api import DataError

WORDS = (
    "Which finding is present?\nA) lung nodule\nB) cardiomegaly\nLung nodule on the left. Cardiomegaly.",
    "<think>A lung nodule present. B cardiomegaly absent.</think><answer>A</answer>",
)


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(WORDS, ("lung nodule", "cardiomegaly", "pleural effusion"))


@pytest.fixture(scope="module")
def model(tokenizer):
    made = tiny_model(tiny_config(tokenizer), tokenizer, seed=0)
    made.set_attn_implementation("eager")
    return made


def test_spellings_of_a_word_start_close_and_other_words_far(model, tokenizer):
    rows = model.get_input_embeddings().weight.detach()

    def row(text):
        (token,) = tokenizer(text).input_ids
        return rows[token]

    same = torch.cosine_similarity(row("Lung nodule"), row(" lung nodule"), dim=0)
    other = torch.cosine_similarity(row("Lung nodule"), row(" cardiomegaly"), dim=0)
    assert same > 0.5
    assert abs(other) < 0.35
    assert torch.cosine_similarity(row("A"), row(" B"), dim=0).abs() < 0.35


def test_numbers_start_like_their_neighbours_where_that_is_asked_for():
    texts = [" ".join(map(str, range(0, 1000, 10)))]
    tokenizer = build_tokenizer(texts, ())

    def alike(first, second, **options):
        model = tiny_model(tiny_config(tokenizer), tokenizer, seed=0, **options)
        rows = model.get_input_embeddings().weight.detach()
        item, other = (rows[tokenizer(f" {number}").input_ids[0]] for number in (first, second))
        return float(torch.cosine_similarity(item, other, dim=0)), float(item.norm() / other.norm())

    near, as_long = alike(400, 410, ordered_numbers=True)
    assert near > alike(400, 500, ordered_numbers=True)[0] > alike(400, 900, ordered_numbers=True)[0]
    assert near > 0.5
    assert as_long == pytest.approx(1.0, abs=0.5)
    assert abs(alike(400, 410)[0]) < 0.35


def test_two_heads_of_the_first_layer_start_by_looking_one_and_two_tokens_back(model, tokenizer):
    ids = torch.tensor([tokenizer(WORDS[0] + WORDS[1]).input_ids])
    heads = model(ids, output_attentions=True).attentions[0][0]
    for head, back in ((0, 1), (1, 2)):
        assert heads[head].diagonal(-back).min() > 0.5
    assert heads[2].diagonal(-1).mean() < 0.5


def test_half_of_the_heads_of_later_layers_start_by_looking_at_the_same_word(model, tokenizer):
    filler = tokenizer("." * 60).input_ids
    there = tokenizer("Lung nodule.").input_ids
    asked = tokenizer("A) lung nodule").input_ids
    said = torch.tensor([[*there, *filler, *asked], [*tokenizer("Cardiomegaly.").input_ids, *filler, *asked]])
    for heads in model(said, output_attentions=True).attentions[1:]:
        same, other = heads[:, :2, -1, 0]  # from the name in the question to the first word
        assert same.mean() > 5 * other.mean()


def test_heads_do_not_share_an_odd_width(tokenizer):
    with pytest.raises(DataError, match="3 heads of an even width do not share 100; take a multiple of 6"):
        tiny_config(tokenizer, width=100, heads=3)
