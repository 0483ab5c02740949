"""`evid page`, and what is said where this package is not installed."""

import json
import subprocess
import sys

WITHOUT = """
import sys
from importlib import metadata

everything = metadata.distributions
metadata.distributions = lambda **options: (
    dist for dist in everything(**options) if dist.metadata["Name"] != "evidcore-plugin-pages"
)
from evidcore.cli import main
main(["page", "x"], prog_name="evid")
"""


def test_the_page_is_written_again_and_its_place_printed(evid, bare_run):
    place = str(bare_run.folder / "page" / "index.html")
    assert evid("page", bare_run.folder).stdout.strip() == place
    assert json.loads(evid("page", bare_run.folder, "--json").stdout) == {"page": place}


def test_a_folder_that_is_no_run_is_refused(evid, tmp_path):
    assert "not a run folder" in evid("page", tmp_path, exit_code=2).stderr


def test_without_the_package_the_command_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 2
    assert "no command is called 'page'. It comes with `pip install evidcore-plugin-pages`." in done.stderr


def test_help_imports_nothing_slow():
    code = (
        "import sys; from click.testing import CliRunner; from evidcore.cli import main;"
        "assert CliRunner().invoke(main, ['page', '--help']).exit_code == 0;"
        "slow = {'torch', 'numpy', 'PIL', 'jinja2', 'pydantic'};"
        "print(sorted(slow & {name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
