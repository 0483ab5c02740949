"""No process of ours runs a file of the folder that it was started in."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import evidcore

ROOT = Path(evidcore.__file__).parent.parent
SPAWNS = """
from multiprocessing import get_context
from click.testing import CliRunner
from evidcore.cli import main
if __name__ == "__main__":
    assert CliRunner().invoke(main, ["plugins"]).exit_code == 0
    process = get_context("spawn").Process(target=print)
    process.start()
    process.join()
    assert process.exitcode == 0
"""


LISTS = ["-m", "evidcore", "plugins", "task", "--check"]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "json"), ([], "pickle"),
        *((LISTS, name) for name in ("dataclasses", "json", "click", "evidcore_plugin_reports")),
    ],
)  # fmt: skip
def test_neither_a_spawned_process_nor_python_m_evidcore_runs_a_file_of_its_folder(tmp_path, words, name):
    marker = tmp_path / "was-run"
    (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'w')\n")
    script = tmp_path.parent / f"{tmp_path.name}.py"
    script.write_text(SPAWNS)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    command = [sys.executable, *(words or [str(script)])]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env=environment)
    assert not marker.exists()


def test_each_process_of_ours_is_started_without_the_current_folder():
    sources = [*ROOT.glob("evidcore/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
    started = [line for path in sources for line in re.findall(r"\[sys\.executable, .*", path.read_text())]
    assert started
    assert [line for line in started if not line.startswith('[sys.executable, "-P", ')] == []
