import pytest
import torch
from evidcore_plugin_reports.embedding_f1 import EmbeddingF1, greedy_f1
from evidcore_plugin_reports.testing import tiny_text_encoder
from evidcore_plugin_reports.text_models import Pretrained
from evidcore_testing import check_scorer
from transformers import AutoModel, AutoTokenizer

from evidcore.errors import RecipeError

PAIRS = (
    ("There is a nodule.", "No nodule is seen."),
    ("größer", "A 5.5 mm nodule in the left lung."),
    ("x", "x"),
    ("", "Clear."),
    ("", ""),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_text_encoder(tmp_path_factory.mktemp("models") / "bert").parent


def scorer(folder, layer=-1, **options):
    return EmbeddingF1(folder, model=Pretrained(folder="bert", **options), layer=layer)


def by_hand(folder, ours, theirs, layer=-1):
    """Match greedily with loops, one text a pass."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "bert")
    model = AutoModel.from_pretrained(folder / "bert")
    vectors = []
    for text in (ours, theirs):
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            hidden = model(ids, output_hidden_states=True).hidden_states[layer][0, 1:-1]
        vectors.append([row / row.norm() for row in hidden])
    ours, theirs = vectors
    precision = sum(max(float(item @ other) for other in theirs) for item in ours) / len(ours)
    recall = sum(max(float(item @ other) for other in ours) for item in theirs) / len(theirs)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("layer", [-1, 1, 0])
@pytest.mark.parametrize("budget", [0, 100])
def test_f1_is_that_of_greedy_matching_by_hand(folder, layer, budget):
    ours, theirs = zip(*PAIRS, strict=True)
    result = scorer(folder, layer, tokens_per_pass=budget)(ours, theirs)
    expected = [by_hand(folder, *pair, layer) for pair in PAIRS[:3]]
    assert result == pytest.approx([*expected, 0.0, 1.0], abs=1e-5)
    assert result[2] == pytest.approx(1.0)
    assert result[0] < 0.99


def test_f1_of_two_vectors_by_hand():
    ours = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    theirs = torch.tensor([[0.6, 0.8]])
    # precision (0.6 + 0.8) / 2, recall 0.8
    assert greedy_f1(ours, theirs) == pytest.approx(2 * 0.7 * 0.8 / 1.5)
    assert greedy_f1(ours[:1], -theirs) == 0.0  # nothing alike: no harmonic mean below 0


def test_a_long_text_is_read_in_pieces_to_its_end(folder):
    long = "clear lungs. " * 30  # 390 bytes, the model reads 62 at once
    (vectors,) = scorer(folder)._embedded([long])
    assert len(vectors) == len(long)
    assert scorer(folder)([long], [long]) == pytest.approx([1.0])
    assert scorer(folder)([long], [f"{long}nodule"])[0] < 1.0


def test_the_size_of_a_piece_is_the_recipes(folder):
    text = "There is a nodule."  # 18 bytes; 3 pieces of 6 beside two special tokens
    (pieces,) = scorer(folder, most_tokens=8)._embedded([text])
    alone = scorer(folder)._embedded([text[:6], text[6:12], text[12:]])
    torch.testing.assert_close(pieces, torch.cat(alone))
    (whole,) = scorer(folder)._embedded([text])
    assert not torch.allclose(pieces, whole, atol=1e-3)


@pytest.mark.parametrize("budget", [0, 500])
def test_it_keeps_the_contract_of_a_scorer(folder, budget):
    check_scorer(scorer(folder, tokens_per_pass=budget))


@pytest.mark.parametrize("too_long", ["cut", "unscored"])
def test_no_text_is_too_long(folder, too_long):
    with pytest.raises(RecipeError, match=rf"'embedding-f1' \(bert\): model.too_long = '{too_long}' has no"):
        scorer(folder, too_long=too_long)


@pytest.mark.parametrize("layer", [3, -4])
def test_a_layer_that_is_not_there_is_named_before_weights_are_read(folder, layer):
    with pytest.raises(RecipeError, match=rf"layer must be from -3 to 2, as it has 2 layers .*, got {layer}"):
        scorer(folder, layer).ready()
