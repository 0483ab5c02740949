"""`evid export`."""

import json

import pytest


@pytest.mark.slow
def test_export_says_what_it_wrote(evid, small_run, tmp_path):
    result = json.loads(evid("export", small_run, tmp_path / "model", "--json").output)
    assert result["folder"] == str(tmp_path / "model")
    assert result["files"] == sorted(path.name for path in (tmp_path / "model").iterdir())
    assert "Read it before you pass the model on" in evid("export", small_run, tmp_path / "other").output
