from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from evidcore.builtin.embedding_f1 import EmbeddingF1, greedy_f1
from evidcore.errors import RecipeError
from evidcore.testing import check_scorer, tiny_text_encoder

PAIRS = (
    ("There is a nodule.", "No nodule is seen."),
    ("größer", "A 5.5 mm nodule in the left lung."),
    ("x", "x"),
    ("", "Clear."),
    ("", ""),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_text_encoder(tmp_path_factory.mktemp("encoder"))


def by_hand(folder, ours, theirs, layer=-1):
    """Match greedily with loops, one text a pass."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    vectors = []
    for text in (ours, theirs):
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            hidden = model(ids, output_hidden_states=True).hidden_states[layer][0, 1:-1]
        vectors.append([row / row.norm() for row in hidden])
    best = [
        [max(float(one @ other) for other in vectors[1 - side]) for one in vectors[side]] for side in (0, 1)
    ]
    precision, recall = (sum(values) / len(values) for values in best)
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("layer", [-1, 1])
def test_f1_is_that_of_greedy_matching_by_hand(folder, layer):
    scorer = EmbeddingF1(folder=str(folder), layer=layer, texts_per_pass=2)
    found = scorer([ours for ours, _ in PAIRS], [theirs for _, theirs in PAIRS])
    expected = [by_hand(folder, ours, theirs, layer) for ours, theirs in PAIRS[:3]]
    assert found == pytest.approx([*expected, 0.0, 1.0], abs=1e-5)
    assert found[2] == pytest.approx(1.0)
    assert found[0] < 0.99


def test_f1_of_two_vectors_by_hand():
    ours = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    theirs = torch.tensor([[0.6, 0.8]])
    # precision (0.6 + 0.8) / 2, recall 0.8
    assert greedy_f1(ours, theirs) == pytest.approx(2 * 0.7 * 0.8 / 1.5)
    assert greedy_f1(ours[:1], -theirs) == 0.0  # nothing alike: no harmonic mean below 0


def test_a_long_text_is_read_in_pieces_to_its_end(folder):
    scorer = EmbeddingF1(folder=str(folder))
    long = "clear lungs. " * 30  # 390 bytes, the model reads 62 at once
    (vectors,) = scorer._embedded([long])
    assert len(vectors) == len(long)
    assert scorer([long], [long]) == pytest.approx([1.0])
    assert scorer([long], [f"{long}nodule"])[0] < 1.0


def test_it_keeps_the_contract_of_a_scorer(folder):
    check_scorer(EmbeddingF1(folder=str(folder)))


def test_weights_that_a_folder_lacks_are_never_made_up(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "part")
    weights = load_file(tmp_path / "part" / "model.safetensors")
    gone = next(name for name in weights if "layer.1.attention.self.query.weight" in name)
    del weights[gone]
    save_file(weights, tmp_path / "part" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RecipeError, match=rf"part lacks 1 of the model's weights, such as '{gone}'"):
        EmbeddingF1(folder=str(tmp_path / "part"))(["a"], ["b"])


def test_exactly_one_source_is_named():
    with pytest.raises(RecipeError, match="exactly one of folder and id, got '' and ''"):
        EmbeddingF1()
    with pytest.raises(RecipeError, match="exactly one of folder and id, got 'a' and 'b'"):
        EmbeddingF1(folder="a", id="b")
    with pytest.raises(RecipeError, match="id and revision go together, got 'org/model' and ''"):
        EmbeddingF1(id="org/model")


def test_what_is_not_here_is_named_and_not_downloaded(tmp_path, folder, monkeypatch):
    with pytest.raises(RecipeError, match=f"{tmp_path}/none holds no transformers model"):
        EmbeddingF1(tmp_path, folder="none").ready()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    revision = "0" * 40
    with pytest.raises(RecipeError, match=f"hf download org/absent --revision {revision}"):
        EmbeddingF1(id="org/absent", revision=revision).ready()
    with pytest.raises(RecipeError, match="hidden states 0 to 2, got 3"):
        EmbeddingF1(folder=str(folder), layer=3).ready()
