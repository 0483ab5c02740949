import errno

import pytest

from evidcore.errors import DataError, RunError
from evidcore.runs.folder import RunFolder, create, difference, link, naming_remedy, open_run


def test_two_runs_of_one_second_have_two_folders(tmp_path):
    first, second = create("r", "x", tmp_path), create("r", "x", tmp_path)
    assert first.path != second.path
    assert first.path.parent == second.path.parent == tmp_path / "r"
    assert first.store == tmp_path / "r" / "stages"


def test_what_is_no_run_is_answered_with_the_nearest(tmp_path):
    run = create("r", "x", tmp_path)
    for name in ("lock.toml", "resolved.toml"):
        (run.path / name).write_text("")
    assert open_run(run.path).path == run.path
    with pytest.raises(RunError, match=rf"not a run folder .* Did you mean '{run.path.name}'"):
        open_run(run.path.with_name(run.path.name + "x"))
    with pytest.raises(RunError, match=rf"The newest there: {run.path}"):
        open_run(tmp_path / "r")


@pytest.mark.slow
def test_a_folder_is_held_by_one_process(tmp_path, warm):
    run = RunFolder(tmp_path)
    run.set_status("running")
    code = (
        "from pathlib import Path; from evidcore.runs.folder import RunFolder\n"
        f"with RunFolder(Path({str(tmp_path)!r})).locked(): print('held')"
    )
    with run.locked():
        other = warm("-c", code, folder=tmp_path)
        assert "another process (pid" in other.communicate()[1]
        assert other.returncode == 1
    assert warm("-c", code, folder=tmp_path).communicate()[0] == "held\n"


def test_a_link_replaces_what_stood_there(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a").write_text("new")
    (tmp_path / "run").mkdir()
    place = tmp_path / "run" / "a"
    place.write_text("old")
    link(tmp_path / "store" / "a", place)
    assert place.read_text() == "new"
    assert place.is_symlink()
    link(tmp_path / "store" / "a", place)
    assert place.read_text() == "new"


def test_a_full_disk_is_named_with_what_to_do(tmp_path):
    run = RunFolder(tmp_path)
    with (
        pytest.raises(RunError, match=rf"/dev/full: the disk is full. .*evid resume {tmp_path}"),
        naming_remedy(run),
    ):
        raise OSError(errno.ENOSPC, "No space left on device", "/dev/full")
    with pytest.raises(RunError, match=rf"{tmp_path}: the disk is full"), naming_remedy(run):
        raise RuntimeError("I/O error: No space left on device (os error 28)")
    with pytest.raises(RuntimeError, match="something else"), naming_remedy(run):
        raise RuntimeError("something else")
    with pytest.raises(DataError, match="as it is"), naming_remedy(run):
        raise DataError("as it is")


def test_differences_are_named_by_their_path():
    before = {"a": {"b": 1, "c": 2}, "d": 3}
    assert difference(before, {"a": {"b": 1, "c": 4}, "e": 5}) == [
        "a.c: 2 -> 4", "d: 3 -> missing", "e: missing -> 5",
    ]  # fmt: skip
    assert difference(before, before) == []
