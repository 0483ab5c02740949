import json

from click.testing import CliRunner

from evidcore.cli import main


def evid(*arguments, exit_code=0):
    result = CliRunner().invoke(main, [str(item) for item in arguments])
    assert result.exit_code == exit_code, (result.output, result.stderr, result.exception)
    return result


def test_export_says_what_it_wrote(small_run, tmp_path):
    found = json.loads(evid("export", small_run, tmp_path / "model", "--json").output)
    assert found["folder"] == str(tmp_path / "model")
    assert found["files"] == sorted(path.name for path in (tmp_path / "model").iterdir())
    assert "Read the card" in evid("export", small_run, tmp_path / "other").output


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    assert "not a run folder" in evid("export", tmp_path, tmp_path / "model", exit_code=2).stderr
