import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from evidcore.compute.loading import load_weights, refuse_random, share_of_peak
from evidcore.errors import DataError

ROOT = Path(__file__).parents[2]
LOADS = {  # a call and why its weights are whole
    "evidcore/compute/loading.py": "compares names and shapes",
    "evidcore/train/trl/optimizers.py": "state of an optimizer, not of a model",
    "evidcore_plugin_hub/export.py": "weights of the model itself, strictly",
    "evidcore_plugin_medsam2/checkpoint.py": "has names of its own to compare",
    "evidcore_plugin_encoders/slice_encoders.py": "of a module of the same class, strictly",
    "evidcore_testing/checks_model.py": "a check of the same module",
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"weight": None}, r"weight \(none, the network has 2 x 3\)\. Fit it"),
        ({"bias": torch.zeros(3)}, r"bias \(3, the network has 2\)"),
        ({"more": torch.tensor(1.0)}, r"more \(one number, the network has none\)"),
        ({name: torch.zeros(1) for name in "abcd"}, r"a \(1, .* and 1 more\. Fit it anew"),
    ],
)
def test_weights_that_are_not_all_of_a_network_and_nothing_else_are_refused(change, says, tmp_path):
    network, path = nn.Linear(3, 2), tmp_path / "weights.safetensors"
    whole = {**nn.Linear(3, 2).state_dict()}
    save_file(whole, path)
    load_weights(network, path, "Fit it anew.")
    assert torch.equal(network.weight, whole["weight"])
    save_file({name: value for name, value in (whole | change).items() if value is not None}, path)
    with pytest.raises(DataError, match=rf"{path}: holds other weights than this network: {says}"):
        load_weights(network, path, "Fit it anew.")
    path.write_bytes(path.read_bytes()[:20])
    for file in (path, tmp_path / "gone"):
        with pytest.raises(DataError, match=rf"{file}: weights cannot be read from it \(.*Get it anew"):
            load_weights(network, file, "Fit it anew.")


def test_tensors_without_a_place_are_told_but_buffers_that_a_model_works_out(caplog):
    extra = {"h.attn.bias", "rotary_emb.inv_freq", "cls.x", *"dcba"}
    refuse_random(
        "x", {"missing_keys": (), "mismatched_keys": (), "unexpected_keys": extra}, unused=("cls.",)
    )
    assert caplog.messages == ["x: the model has no place for 4 of its tensors: a; b; c and 1 more"]


def test_no_module_loads_weights_without_comparing_them():
    files = [*ROOT.glob("evidcore/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
    loading = {file for file in files if re.search(r"\.load_state_dict\(", file.read_text())}
    listed = {file for file in loading if any(file.as_posix().endswith(name) for name in LOADS)}
    assert loading == listed
    assert len(listed) == len(LOADS)


def test_the_rate_rises_then_falls_along_a_cosine():
    rates = [share_of_peak(step, 1000) for step in range(1000)]
    assert rates[0] == pytest.approx(1 / 60, rel=0.01)
    assert max(rates) == pytest.approx(1, abs=0.02)
    assert rates[500] == pytest.approx(0.5)
    assert rates[-1] < 1e-4
    assert share_of_peak(0, 1) == 1
