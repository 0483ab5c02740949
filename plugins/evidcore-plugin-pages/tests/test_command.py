"""`evid page`."""

import json
import subprocess
import sys


def test_the_page_is_written_again_and_its_place_printed(evid, bare_run):
    place = str(bare_run.folder / "page" / "index.html")
    assert evid("page", bare_run.folder).stdout.strip() == place
    assert json.loads(evid("page", bare_run.folder, "--json").stdout) == {"page": place}


def test_a_folder_that_is_no_run_is_refused(evid, tmp_path):
    assert "not a run folder" in evid("page", tmp_path, exit_code=2).stderr


def test_help_imports_nothing_slow():
    code = (
        "import sys; from click.testing import CliRunner; from evidcore.cli import main;"
        "assert CliRunner().invoke(main, ['page', '--help']).exit_code == 0;"
        "slow = {'torch', 'numpy', 'PIL', 'jinja2', 'pydantic'};"
        "print(sorted(slow & {name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
