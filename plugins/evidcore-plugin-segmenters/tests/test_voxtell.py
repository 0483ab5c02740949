"""Segmenter `voxtell` on a stand-in with VoxTell's interface, which knows the halves of a body."""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_segmenters.voxtell import VoxTell
from evidcore_testing import check_segmenter
from evidcore_testing.data import save_nifti

from evidcore.api import DataError, Segmenter, VolumeRef, read
from evidcore.errors import PluginError

SHAPE = (6, 12, 16)
HALVES = {"right": np.s_[:, :, :8], "front": np.s_[:, :6], "Head": np.s_[3:]}  # z, y, x to head, back, left


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent / "stand_in")


@pytest.fixture
def options(tmp_path):
    weights = tmp_path / "model" / "fold_0" / "checkpoint_final.pth"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    (tmp_path / "model" / "plans.json").write_text("{}")
    names = [name.lower() for name in HALVES]
    np.savez(tmp_path / "texts.npz", labels=names, embeddings=np.zeros((3, 4), np.float16))
    digest = hashlib.sha256(b"weights").hexdigest()
    files = {"folder": "model", "sha256": digest, "embeddings": "texts.npz"}
    return {"recipe_folder": tmp_path, "device": "cpu", **files}


@pytest.fixture
def ref(tmp_path):
    """Noise that a scanner stored head first and patient's right first."""
    hu = np.random.default_rng(5).normal(40, 100, SHAPE).round()
    path = save_nifti(tmp_path / "scan.nii", hu[::-1, ::-1, ::-1].astype(np.int16), (3.0, 1.0, 1.0), "RAI")
    return VolumeRef(path=str(path))


def asked(words):
    return [Segmenter.TextPrompt(words=words)]


def test_the_contract_holds(installed, options, ref):
    check_segmenter(VoxTell(**options), ref, asked("right") + asked("front"))


@pytest.mark.parametrize("words", HALVES)
def test_it_sees_the_body_in_ras_and_its_masks_lie_on_the_grid(installed, options, ref, words):
    wanted = np.zeros(SHAPE, dtype=np.bool_)
    wanted[HALVES[words]] = True
    wanted &= read(ref).array > 0
    assert wanted.any()
    assert np.array_equal(VoxTell(**options).session(ref).mask(asked(words)), wanted)


def test_texts_without_an_embedding_are_refused_unless_a_text_model_is_named(installed, options, ref):
    del options["embeddings"]
    with pytest.raises(ValueError, match=r"scan.nii: voxtell has no embedding of 'front'. Name embeddings"):
        VoxTell(**options).session(ref).mask(asked("front"))
    segmenter = VoxTell(**options, text_model="qwen")
    assert segmenter.session(ref).mask(asked("front")).any()
    assert segmenter.predictor.text_encoding_model == str(options["recipe_folder"] / "qwen")


def test_a_checkpoint_that_the_recipe_does_not_trust_is_not_read(installed, options, ref):
    digest = options["sha256"]
    with pytest.raises(DataError, match=rf"checkpoint_final.pth has the sha256 {digest}, not '00'"):
        VoxTell(**options | {"sha256": "00"}).session(ref).mask(asked("front"))
    with pytest.raises(DataError, match=r"checkpoint_final.pth.* Name the folder of a VoxTell model"):
        VoxTell(**options | {"folder": "."}).session(ref).mask(asked("front"))


def test_it_names_the_command_where_voxtell_is_not_installed(options, ref, monkeypatch):
    monkeypatch.setitem(sys.modules, "voxtell.inference.predictor", None)  # as if it could not be imported
    with pytest.raises(PluginError, match=r'voxtell.*pip install "evidcore-plugin-segmenters\[voxtell\]"'):
        VoxTell(**options).session(ref).mask(asked("front"))
