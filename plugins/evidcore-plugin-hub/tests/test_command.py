"""`evid export`, and what is said where this package is not installed."""

import json
import subprocess
import sys

import pytest

WITHOUT = """
import sys
from importlib import metadata

everything = metadata.distributions
metadata.distributions = lambda **options: (
    dist for dist in everything(**options) if dist.metadata["Name"] != "evidcore-plugin-hub"
)
from evidcore.cli import main
main(sys.argv[1:], prog_name="evid")
"""


@pytest.mark.slow
def test_export_says_what_it_wrote(evid, small_run, tmp_path):
    result = json.loads(evid("export", small_run, tmp_path / "model", "--json").output)
    assert result["folder"] == str(tmp_path / "model")
    assert result["files"] == sorted(path.name for path in (tmp_path / "model").iterdir())
    assert "Read it before you pass the model on" in evid("export", small_run, tmp_path / "other").output


def test_a_folder_that_is_no_run_is_refused(evid, tmp_path):
    assert "not a run folder" in evid("export", tmp_path, tmp_path / "model", exit_code=2).stderr


def test_without_the_package_it_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT, "export", "x"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "no command is called 'export'. `pip install \"evidcore[all]\"` brings all that" in done.stderr


def test_help_imports_nothing_slow():
    code = (
        "import sys; from click.testing import CliRunner; from evidcore.cli import main;"
        "assert CliRunner().invoke(main, ['export', '--help']).exit_code == 0;"
        "slow = {'torch', 'transformers', 'trl', 'monai', 'pydantic', 'numpy'};"
        "print(sorted(slow & {name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
