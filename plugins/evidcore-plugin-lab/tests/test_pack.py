"""A run that is packed, moved and unpacked, and one that was moved without its stages."""

import filecmp
import json
import shutil
import tarfile

import pytest
from evidcore_plugin_lab.commands.pack import pack_run

from evidcore.errors import RunError
from evidcore.recipe import load
from evidcore.runs.execute import outputs_of
from evidcore.runs.folder import RunFolder, file_lock


def test_a_packed_run_is_whole_elsewhere(copied_run, tmp_path, evid):
    (copied_run.parent / "stages" / "of-another-run").mkdir()
    archive = tmp_path / "run.tar"
    said = json.loads(evid("pack", copied_run, "--out", archive, "--json").stdout)
    assert said["archive"] == str(archive)
    assert said["bytes"] == archive.stat().st_size
    assert "of-another-run" not in said["stages"]
    shutil.move(copied_run.parent, tmp_path / "before")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "elsewhere", filter="data")
    unpacked = tmp_path / "elsewhere" / copied_run.parent.name / copied_run.name
    before = tmp_path / "before" / unpacked.name
    for path in before.rglob("*"):
        if path.is_file() and path.name != ".lock":
            assert filecmp.cmp(path, unpacked / path.relative_to(before), shallow=False), path
    recipe = load(unpacked / "resolved.toml")
    outputs = outputs_of(RunFolder(unpacked), recipe, recipe.line)
    assert outputs.model is not None
    assert outputs.model.is_relative_to(tmp_path / "elsewhere")
    evid("page", unpacked)


def test_nothing_beside_a_runs_stages_is_packed(copied_run, tmp_path):
    stages = pack_run(copied_run, tmp_path / "sound.tar")
    (place,) = (copied_run / "results").glob("02-*.json")
    place.write_text(json.dumps({**json.loads(place.read_text()), "inputs": ".."}))
    assert ".." not in pack_run(copied_run, tmp_path / "forged.tar")
    assert stages


def test_what_cannot_be_packed_is_said(copied_run, tmp_path, evid):
    (tmp_path / "there.tar").touch()
    said = evid("pack", copied_run, "--out", tmp_path / "there.tar", exit_code=2).stderr
    assert "there.tar: is there already, and nothing is overwritten" in said
    running = "a process is running it, so its files still"
    with file_lock(copied_run, "busy"), pytest.raises(RunError, match=running):
        pack_run(copied_run, tmp_path / "run.tar")
    assert not (tmp_path / "run.tar").exists()
    alone = shutil.move(copied_run, tmp_path / "alone")
    with pytest.raises(RunError, match="of its links lead nowhere"):
        pack_run(alone, tmp_path / "run.tar")


def test_a_run_that_was_moved_without_its_stages_keeps_its_page(copied_run, tmp_path, evid):
    page = copied_run / "page" / "index.html"
    evid("page", copied_run)
    written = page.read_bytes()
    alone = shutil.move(copied_run, tmp_path / "alone")
    said = evid("page", alone, exit_code=2).stderr
    assert f"{alone}: " in said
    assert "of its links lead nowhere, as answers/0" in said
    stages = tmp_path / "stages"
    assert f"A run needs the stages beside it, {stages}: move them too, or `evid pack RUN`" in said
    recipe = load(alone / "resolved.toml")
    with pytest.raises(RunError, match="of its links lead nowhere"):
        outputs_of(RunFolder(alone), recipe, recipe.line)
    assert (alone / "page" / "index.html").read_bytes() == written
