import json


def test_export_says_what_it_wrote(evid, small_run, tmp_path):
    found = json.loads(evid("export", small_run, tmp_path / "model", "--json").output)
    assert found["folder"] == str(tmp_path / "model")
    assert found["files"] == sorted(path.name for path in (tmp_path / "model").iterdir())
    assert "Read the card" in evid("export", small_run, tmp_path / "other").output


def test_a_folder_that_is_no_run_is_refused(evid, tmp_path):
    assert "not a run folder" in evid("export", tmp_path, tmp_path / "model", exit_code=2).stderr
