import os
import pickle

import pytest
import torch

from evidcore.errors import RunError
from evidcore.runs.folder import RunFolder, naming_remedy
from evidcore.train.trl.stage import atomic_checkpoint, last_checkpoint


@pytest.mark.slow
def test_a_checkpoint_that_was_cut_short_is_not_resumed_from(bench):
    changed = {"steps": 5, "save_every_steps": 2, "rows_per_forward": 2, "optimizer": "muon"}
    whole, rest, heard = bench.model(), bench.model(), bench.heard()
    bench.sft(model=whole, folder="whole", **changed)
    with pytest.raises(bench.Stopped):
        bench.sft(heard=bench.stopping(5), folder="cut", **changed)
    (bench.folder / "cut" / "steps" / "checkpoint-4" / "model.safetensors").write_bytes(b"cut")
    bench.sft(model=rest, heard=heard, folder="cut", resume=True, **changed)
    assert [item["step"] for item in heard.steps] == [3, 4, 5]
    assert torch.equal(bench.flat(rest[0]), bench.flat(whole[0]))


def test_a_pickle_in_a_checkpoint_runs_nothing_and_is_named_with_its_remedy(bench):
    class Foreign:
        def __reduce__(self):
            return os.mkdir, (str(bench.folder / "ran"),)

    with pytest.raises(bench.Stopped):
        bench.sft(heard=bench.stopping(2), folder="cut", steps=2, save_every_steps=1)
    place = bench.folder / "cut" / "steps" / "checkpoint-1"
    with atomic_checkpoint(place, marks=True):
        (place / "optimizer.pt").write_bytes(pickle.dumps(Foreign(), protocol=2))
    said = rf"/working: a checkpoint holds more than tensors\. Delete .*, then `evid resume {bench.folder}`"
    with pytest.raises(RunError, match=said), naming_remedy(RunFolder(bench.folder)):
        bench.sft(folder="cut", resume=True, steps=2, save_every_steps=1)
    assert not (bench.folder / "ran").exists()


def test_the_newest_whole_checkpoint_is_resumed_from(tmp_path):
    assert last_checkpoint(tmp_path) is None
    for step in (9, 10, 2):
        place = tmp_path / "steps" / f"checkpoint-{step}"
        place.mkdir(parents=True)
        with atomic_checkpoint(place, marks=True):
            (place / "model.safetensors").write_bytes(b"whole")
    assert last_checkpoint(tmp_path).name == "checkpoint-10"
    (tmp_path / "steps" / "checkpoint-11").mkdir()  # without its mark
    assert last_checkpoint(tmp_path).name == "checkpoint-10"
