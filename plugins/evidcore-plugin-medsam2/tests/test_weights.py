import logging

import pytest
import torch
from evidcore_plugin_medsam2.segmenter import MedSam2
from seeded import seeded_model, small_config, write_checkpoint

from evidcore.api import DataError, VolumeRef
from evidcore.errors import RecipeError, RunError
from evidcore.registry import card, downloads


def test_the_model_is_loaded_once_and_when_it_is_needed(home, tmp_path):
    made = MedSam2(home, home, folder="small")
    assert made.network() is made.network()
    with pytest.raises(DataError, match=r"gone: holds no config\.json"):
        MedSam2(home, home, folder="gone").session(VolumeRef(path=str(home / "scan.nii.gz")))
    with pytest.raises(DataError, match=r"gone\.pt: there is no such file"):
        MedSam2(home, home, file="gone.pt").session(VolumeRef(path=str(home / "scan.nii.gz")))


def test_a_small_checkpoint_is_refused_for_the_published_size(home, tmp_path):
    write_checkpoint(seeded_model(small_config()), tmp_path / "small.pt")
    with pytest.raises(DataError, match=r"no_mem_embed \(1, 1, 128\) instead of \(1, 1, 256\)"):
        MedSam2(tmp_path, tmp_path, file="small.pt").network()


def test_a_folder_that_lacks_weights_or_is_another_model_is_refused(home, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "config.json").write_text((home / "small" / "config.json").read_text())
    with pytest.raises(DataError, match=r"odd: cannot be loaded: .+save_pretrained"):
        MedSam2(tmp_path, tmp_path, folder="odd").network()
    tensors = load_file(home / "small" / "model.safetensors")
    del tensors["no_memory_embedding"]
    tensors["extra"] = torch.zeros(1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    logging.disable(logging.WARNING)  # transformers prints a table of its own
    try:
        with pytest.raises(DataError, match=r"1 missing: no_memory_embedding; 1 unexpected: extra"):
            MedSam2(tmp_path, tmp_path, folder="odd").network()
    finally:
        logging.disable(logging.NOTSET)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(DataError, match=r"of type 'bert'"):
        MedSam2(tmp_path, tmp_path, folder="odd").network()


def test_weights_that_are_not_at_hand_say_how_to_get_them(home, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        DataError, match=r"wanglab/MedSAM2@e4a6f35\w+/MedSAM2_latest\.pt: cannot be loaded"
    ) as caught:
        MedSam2(home, home).session(VolumeRef(path=str(home / "scan.nii.gz")))
    assert "hf download wanglab/MedSAM2 MedSAM2_latest.pt --revision e4a6f35" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"file": "a.pt", "folder": "b"}, RecipeError, r"file or folder, not both; got 'a\.pt' and 'b'"),
        ({"id": "someone/sam2", "revision": ""}, RecipeError, r"id = 'someone/sam2', revision = ''"),
        ({"window_hu": (240.0, -160.0)}, RecipeError, r"low below high; got \[240\.0, -160\.0\]"),
        ({"device": "gpu"}, RecipeError, r"got 'gpu'"),
    ],
)
def test_options_that_contradict_are_refused(home, options, error, told):
    with pytest.raises(error, match=told):
        MedSam2(home, home, **options)


def test_a_device_that_is_not_there_is_told(home):
    with pytest.raises(
        RunError, match=rf"'cuda:99' is not there; torch sees {torch.cuda.device_count()} GPUs"
    ):
        MedSam2(home, home, folder="small", device="cuda:99").network()


def test_loading_leaves_the_random_numbers_where_they_are(home):
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    MedSam2(home, home, folder="small").network()
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_card_tells_what_is_downloaded():
    (told,) = downloads(card("evidcore-plugin-medsam2"), ["medsam2"])
    for word in ("wanglab/MedSAM2", "e4a6f35edd7e091619cbc0750f462f1574e23955", "156 MB", "research"):
        assert word in told
