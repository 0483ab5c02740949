"""What holds for the commands of every package: help, and what is said without the package or the run."""

import subprocess
import sys

import pytest

PACKAGES = {
    **dict.fromkeys(("ablate", "init", "pack", "plan", "predict", "rescore"), "evidcore-plugin-lab"),
    **dict.fromkeys(("compare", "occlude", "runs"), "evidcore-plugin-audit"),
    "page": "evidcore-plugin-pages",
    "view": "evidcore-plugin-view",
}
WITHOUT = """
import sys
from importlib import metadata

everything = metadata.distributions
metadata.distributions = lambda **options: (
    dist for dist in everything(**options) if dist.metadata["Name"] != sys.argv[1]
)
from evidcore.cli import main
main(sys.argv[2:], prog_name="evid")
"""


@pytest.mark.parametrize(("name", "package"), PACKAGES.items())
def test_each_takes_json_and_is_listed_with_its_package(evid, name, package):
    assert "--json" in evid(name, "--help").output
    (line,) = [line for line in evid("--help").output.splitlines() if line.split()[:1] == [name]]
    assert line.split(maxsplit=1)[1] == f"from {package}"


@pytest.mark.parametrize(("name", "package"), PACKAGES.items())
def test_without_the_package_a_command_says_what_to_install(name, package):
    done = subprocess.run([sys.executable, "-c", WITHOUT, package, name, "x"], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"no command is called {name!r}. It comes with `pip install {package}`." in done.stderr


def test_where_no_package_is_known_for_a_command_all_of_them_are_named():
    hub = [sys.executable, "-c", WITHOUT, "evidcore-plugin-hub", "export", "x"]
    done = subprocess.run(hub, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no command is called 'export'. `pip install \"evidcore[all]\"` brings all that" in done.stderr


LISTINGS = [
    ["--help"], ["plugins"], ["plugins", "reward", "--json"],
    *([name, "--help"] for name in ("run", "export", *PACKAGES)),
]  # fmt: skip


def test_help_and_listings_import_nothing_slow_and_no_component():
    code = (
        "import sys; from click.testing import CliRunner; from evidcore.cli import main;"
        f"assert not any(CliRunner().invoke(main, words).exit_code for words in {LISTINGS});"
        "heavy = {'torch', 'transformers', 'trl', 'monai', 'pydantic', 'numpy', 'PIL', 'jinja2',"
        "         'evidcore_plugin_med3d_r1'};"
        "print([name for name in sys.modules if name.partition('.')[0] in heavy or '.builtin' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("words", [["export", "model"], ["page"], ["view", "--no-open"]])
def test_a_folder_that_is_no_run_is_refused(evid, tmp_path, words):
    name, *others = words
    assert f"{tmp_path}: not a run folder" in evid(name, tmp_path, *others, exit_code=2).stderr
