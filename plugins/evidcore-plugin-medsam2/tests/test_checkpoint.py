import json
import pickle
from pathlib import Path

import pytest
import torch
from evidcore_plugin_medsam2.checkpoint import fill, read_checkpoint
from evidcore_plugin_medsam2.weights import bare_model, published_config
from seeded import original_tensors, seeded_model, small_config
from transformers import Sam2VideoModel

from evidcore.api import DataError

PUBLISHED = json.loads((Path(__file__).parent / "golden" / "checkpoint_names.json").read_text())
POINTS = "sam_prompt_encoder.point_embeddings."


@pytest.fixture(scope="module")
def small():
    return seeded_model(small_config())


@pytest.fixture
def tensors(small):
    return original_tensors(small)


def test_the_published_tensors_are_all_known_by_name_and_shape():
    with torch.device("meta"):
        model = Sam2VideoModel(published_config())
    result = {name: list(tensor.shape) for name, tensor in original_tensors(model).items()}
    assert result == PUBLISHED
    assert len(result) == 471


def test_a_checkpoint_gives_each_tensor_to_its_place(small, tensors, tmp_path):
    torch.save({"model": tensors}, tmp_path / "small.pt")
    model = bare_model(small_config())
    fill(model, read_checkpoint(tmp_path / "small.pt"), tmp_path / "small.pt")
    wanted = small.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, wanted[name]), name


def refusal(tensors):
    with pytest.raises(DataError) as caught:
        fill(bare_model(small_config()), tensors, Path("there/odd.pt"))
    return str(caught.value)


def test_missing_and_foreign_tensors_are_listed_by_their_original_names(tensors):
    count = len(tensors)
    del tensors["no_mem_embed"], tensors[f"{POINTS}2.weight"]
    del tensors["sam_prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"]
    tensors["sam_mask_decoder.extra.weight"] = torch.zeros(1)
    message = refusal(tensors)
    assert message.startswith(f"there/odd.pt: its {count - 2} tensors are not those of MedSAM2")
    assert (
        "3 missing: no_mem_embed, sam_prompt_encoder.pe_layer.positional_encoding_gaussian_matrix" in message
    )
    assert f"{POINTS}2.weight" in message
    assert "1 foreign: sam_mask_decoder.extra.weight" in message
    assert "of another shape" not in message


def test_a_tensor_of_another_shape_is_told_with_both(tensors):
    tensors["no_obj_ptr"] = torch.zeros(1, 256)
    assert "1 of another shape: no_obj_ptr (1, 256) instead of (1, 128)" in refusal(tensors)


def test_a_long_list_is_cut(tensors):
    message = refusal({"a": torch.zeros(1)})
    assert f"{len(tensors)} missing: " in message
    assert f"and {len(tensors) - 12} more" in message


def test_nothing_is_loaded_in_part(tensors):
    model = bare_model(small_config())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    del tensors["no_mem_embed"]
    with pytest.raises(DataError, match="no_mem_embed"):
        fill(model, tensors, Path("odd.pt"))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("cut", [0, 10, 5000])
def test_a_file_that_was_cut_short_is_named(tensors, tmp_path, cut):
    torch.save({"model": tensors}, tmp_path / "whole.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "whole.pt").read_bytes()[:cut])
    told = r"cut\.pt: is not a checkpoint that can be read \(\w+\): it is cut short, .+ Fetch it again"
    with pytest.raises(DataError, match=told):
        read_checkpoint(tmp_path / "cut.pt")


class Harm:
    ran = False

    def __reduce__(self):
        return (setattr, (Harm, "ran", True))


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    torch.save({"model": {"a": Harm()}}, tmp_path / "harm.pt")
    (tmp_path / "harm.pkl").write_bytes(pickle.dumps({"model": Harm()}))
    for name in ("harm.pt", "harm.pkl"):
        with pytest.raises(
            DataError, match=rf"{name}: is not a checkpoint .+ holds more than tensors"
        ) as told:
            read_checkpoint(tmp_path / name)
        assert "weights_only" not in str(told.value)  # torch advises to read it unsafely
    assert not Harm.ran


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ({"state_dict": {"a": torch.zeros(1)}}, "got 'state_dict'"),
        ([1, 2], "got list"),
        ({}, "got nothing"),
        ({"model": {"a": 1}}, "got 'model'"),
    ],
)
def test_another_layout_is_told(held, told, tmp_path):
    torch.save(held, tmp_path / "other.pt")
    with pytest.raises(DataError, match=rf"other\.pt: must hold .+ {told}"):
        read_checkpoint(tmp_path / "other.pt")
