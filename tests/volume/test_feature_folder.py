from __future__ import annotations

import multiprocessing
import random
from pathlib import Path

import torch

from evidcore.contracts import Patches
from evidcore.volume.feature_folder import FeatureFolder


def features(handle):
    """What lies in the folder under a handle."""
    values = torch.arange(600.0).reshape(1, 20, 30) + 1000 * handle
    return Patches(values, (1, 4, 5), torch.arange(60.0).reshape(20, 3) - handle)


def use(root, most_bytes, encoder, seed, wrong):
    """Write, read and clear away in turn, as a process of a run does, and count what is read wrongly."""
    rng = random.Random(seed)
    folder = FeatureFolder(root, most_bytes)
    for number in range(300):
        if number % 60 == 0:
            folder.follow(f"{(encoder + number // 60) % 3:024x}")
        handle = rng.randrange(8)
        found = folder.read(handle)
        if found is None:
            folder.write(handle, features(handle))
        elif not torch.equal(found.features, features(handle).features):
            wrong.put((seed, handle))


def test_processes_share_a_folder(tmp_path):
    one = FeatureFolder(tmp_path / "one", 1 << 20)
    one.follow("0" * 24)
    one.write(0, features(0))
    [file] = tmp_path.rglob("*.features")
    most = 12 * file.stat().st_size  # of the 24 that three encoders have
    context = multiprocessing.get_context("fork")
    wrong = context.SimpleQueue()
    processes = [
        context.Process(target=use, args=(tmp_path / "many", most, number, number, wrong))
        for number in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert wrong.empty()
    left = list((tmp_path / "many").rglob("*.features"))
    assert {file.suffix for file in (tmp_path / "many").rglob("*") if file.is_file()} == {".features"}
    folder = FeatureFolder(tmp_path / "many", most)
    for file in left:
        folder.follow(file.parent.name)
        handle = int(file.stem, 16)
        if file.exists():  # following clears others away
            assert torch.equal(folder.read(handle).features, features(handle).features)


def test_a_folder_that_another_process_clears_while_it_is_made_is_no_error(tmp_path, monkeypatch):
    folder = FeatureFolder(tmp_path, 1 << 20)
    folder.follow("0" * 24)

    def gone_between_two_looks(self, *args, **kwargs):
        raise FileExistsError(17, "File exists", str(self))  # as pathlib's `exist_ok` does then

    with monkeypatch.context() as at_once:
        at_once.setattr(Path, "mkdir", gone_between_two_looks)
        folder.write(0, features(0))
    assert folder.read(0) is None
    folder.write(0, features(0))
    assert folder.read(0) is not None


def test_what_another_process_wrote_counts_too(tmp_path):
    most = 100 * 2600
    mine, other = FeatureFolder(tmp_path, most), FeatureFolder(tmp_path, most)
    for folder in (mine, other):
        folder.follow("0" * 24)
    for handle in range(200):
        mine.write(2 * handle, features(2 * handle))
        other.write(2 * handle + 1, features(2 * handle + 1))
    held = sum(file.stat().st_size for file in tmp_path.rglob("*.features"))
    assert 0.9 * most < held <= most * (1 + 2 / 64) + 2 * 2600
