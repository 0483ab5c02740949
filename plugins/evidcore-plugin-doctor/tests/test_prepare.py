import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from evidcore_testing.data import save_nifti
from evidcore_testing.recipes import recipe_text

from evidcore.api import Cache, VolumeRef, read
from evidcore.cli import main
from evidcore.data import volume_cache

CASES = 9
ENCODER = {"use": "vit3d", "size_zyx": [8, 16, 16], "patch_zyx": [4, 8, 8]}
STAGE = {
    "kind": "sft", "train": ["bridge", "language"], "steps": 1, "learning_rate": 1e-3,
    "data": [{"dataset": "scans", "task": "report"}],
}  # fmt: skip


@pytest.fixture
def scans(tmp_path, monkeypatch) -> Path:
    """A folder with a recipe, a table and volumes of 1.1 MB, one of them cut off."""
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(0)
    rows = ["id,volume,patient,split"]
    for number in range(CASES):
        values = noise.integers(-1000, 1000, (13, 220, 200)).astype(np.int16)
        save_nifti(tmp_path / f"{number}.nii", values, (3.0, 1.0, 1.0))
        rows.append(f"{number},{number}.nii,p{number},{'test' if number % 3 == 2 else 'train'}")
    (tmp_path / "4.nii").write_bytes((tmp_path / "4.nii").read_bytes()[:-5])
    (tmp_path / "cases.csv").write_text("\n".join(rows) + "\n")
    dataset = {"scans": {"use": "folder", "path": ".", "missing": "skip"}}
    text = recipe_text(STAGE, dataset=dataset, model={"encoder": ENCODER})
    (tmp_path / "set.toml").write_text(text)
    return tmp_path


def prepare(*words, exit_code=0):
    result = CliRunner().invoke(main, ["data", "prepare", "set.toml", *words])
    assert result.exit_code == exit_code, (result.output, result.exception)
    return json.loads(result.stdout) if "--json" in words else result


def kept(folder: Path) -> dict[str, tuple[Any, bytes]]:
    """Return header and data of each entry; safetensors writes the facts of a header in any order."""
    result = {}
    for path in sorted((folder / "cache").glob("*/*.safetensors")):
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        result[path.name] = json.loads(content[8:start]), content[start:]
    return result


def test_a_set_is_filled_once_and_the_rest_is_counted(scans):
    first = prepare("--json")
    nothing = dict.fromkeys(("already_there", "no_room", "not_needed"), 0)
    assert first["outcomes"] == {"done": CASES - 1, "left_out": 1} | nothing
    assert list(first["left_out"]) == ["scans/train/4"]
    assert f"{scans / '4.nii'}: holds {200 * 220 * 13 * 2 - 5} bytes" in first["left_out"]["scans/train/4"]
    windows_bytes = 3 * 8 * 16 * 16 * 4  # of vit3d
    assert first["size_bytes"] == (CASES - 1) * (200 * 220 * 13 * 2 + windows_bytes)
    ref = VolumeRef(path=str(scans / "2.nii"))
    np.testing.assert_array_equal(volume_cache.get(ref).volume().array, read(ref).array)
    files = kept(scans)
    second = prepare()
    assert "8 already there, 1 left out; 0 GB written" in second.output
    assert f"left out: scans/train/4: {scans / '4.nii'}: holds" in second.output
    assert kept(scans) == files


@pytest.mark.slow
def test_two_processes_keep_the_same_files_as_one(scans):
    prepare()
    alone = kept(scans)
    for path in (scans / "cache").glob("*/*.safetensors"):
        path.unlink()
    assert prepare("--json", "--processes", "2")["outcomes"]["done"] == CASES - 1
    assert kept(scans) == alone


def test_shards_share_the_set_out(scans):
    done = [prepare("--json", "--shard", f"{share}/3", "--inputs-only") for share in (1, 2, 3)]
    assert [sum(item["outcomes"].values()) for item in done] == [3, 3, 3]
    assert sum(item["outcomes"]["done"] for item in done) == CASES - 1
    assert prepare("--json", "--inputs-only")["outcomes"]["already_there"] == CASES - 1


def test_split_and_data_set_narrow_it_down(scans):
    assert prepare("--json", "--split", "test", "--dataset", "scans")["outcomes"]["done"] == 3
    said = prepare("--dataset", "scan", exit_code=2).stderr
    assert "set.toml: has no data set 'scan'. Did you mean 'scans'? It has: scans." in said
    said = prepare("--split", "validation", exit_code=2).stderr
    assert "the validation splits of scans hold no cases to prepare" in said


@pytest.mark.parametrize("share", ["0/3", "4/3", "2", "a/b"])
def test_a_share_that_is_none_is_refused(scans, share):
    assert f"must be i/n with i from 1 to n, got '{share}'" in prepare("--shard", share, exit_code=2).stderr


@pytest.mark.slow
def test_killed_it_leaves_only_whole_entries_and_goes_on_from_them(scans):
    command = [sys.executable, "-m", "evidcore", "data", "prepare", "set.toml", "--processes", "2"]
    running = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    volumes = scans / "cache" / "volumes"
    while not (volumes.exists() and any(volumes.glob("*.safetensors"))):
        assert running.poll() is None
        time.sleep(0.01)
    workers = psutil.Process(running.pid).children()
    running.kill()
    running.wait()
    result = kept(scans)
    for path in (scans / "cache").glob("*/*.safetensors"):
        array = Cache(path.parent.name, scans / "cache").get_array(path.stem)
        array.slices(0, array.shape[0])
    assert psutil.wait_procs(workers, timeout=60)[1] == [], "workers outlive the command"
    outcomes = prepare("--json")["outcomes"]
    assert outcomes["done"] + outcomes["already_there"] == CASES - 1
    assert result.items() <= kept(scans).items()


def test_a_later_share_says_what_it_deletes_of_an_earlier_one(scans, monkeypatch):
    monkeypatch.setenv("EVID_CACHE_GB", "0.0013")  # one volume
    rows = (scans / "cases.csv").read_text().splitlines()
    (scans / "cases.csv").write_text("\n".join(rows[:3]) + "\n")
    first = prepare("--json", "--shard", "1/2")
    assert (first["outcomes"]["done"], first["deleted_bytes"]) == (1, 0)
    (entry,) = (scans / "cache" / "volumes").glob("*.safetensors")
    size_bytes = entry.stat().st_size
    said = prepare("--shard", "2/2").output
    assert "1 done" in said
    assert (
        f"{size_bytes / 1e9:.3g} GB last used before this command began were deleted to make room. "
        f"If another share kept them, set EVID_CACHE_GB higher: it must hold all shares." in said
    )


def test_a_row_without_a_volume_and_an_id_that_stands_twice_are_left_out_and_told(scans):
    with (scans / "cases.csv").open("a") as table:
        table.write("empty,,p90,train\nodd,0.nii,p91,training\n")
        table.write("0,1.nii,p92,train\n0,2.nii,p93,train\n1,2.nii,p94,validation\n")
    result = prepare("--json", "--inputs-only")
    assert result["outcomes"]["done"] == CASES - 1
    assert result["outcomes"]["left_out"] == len(result["left_out"]) == 5
    assert result["left_out"].keys() > {"scans/train/4", "scans/train/0 (3)", "scans/validation/1 (2)"}
    assert result["left_out"]["scans/train/0 (2)"] == (
        "its id '0' is that of another case of the data set. Give each an id of its own."
    )
    assert result["left_out"]["scans/train/empty"] == (
        "the case names no volume. Name its file in the data set's table, or take the case out."
    )
    where = scans / "cases.csv"
    assert result["unlisted"] == [
        f"scans: {where}: line 12: case 'odd' has split 'training', expected one of train, validation, test. "
        f"Did you mean 'train'? Correct the cell.",
        f"scans: {where}: line 11, case 'empty': column 'volume' is empty. Name the case's file.",
    ]
    said = prepare("--inputs-only").output
    assert all(f"not read: {message}" in said for message in result["unlisted"])
