"""Commands of packages, by dist-info folders on disk."""

import errno
import os
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from evidcore.cli import main
from evidcore.errors import printable

COUNT = '''
import click

@click.command()
@click.argument("number", type=int)
def count(number):
    """Count to NUMBER."""
    click.echo(" ".join(map(str, range(1, number + 1))))
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that puts a package with one command on `sys.path`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "evid_counting", raising=False)

    def put(name, target="evid_counting:count", package="evid-counting", body=COUNT):
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[evidcore.command]\n{name} = {target}\n")
        (tmp_path / "evid_counting.py").write_text(body)

    return put


def evid(*words):
    return CliRunner().invoke(main, words)


def test_a_package_adds_a_command(package):
    package("count")
    assert evid("count", "3").output == "1 2 3\n"
    assert evid("count", "--help").output.startswith("Usage: evid count [OPTIONS] NUMBER")


def test_a_package_adds_a_command_to_a_group_of_the_core(package):
    package("audit.count")
    assert evid("audit", "count", "2").output == "1 2\n"
    assert "from evid-counting" in evid("audit", "--help").output
    assert evid("count", "2").exit_code == 2


def test_help_runs_no_code_of_a_package(package):
    package("count", body="raise RuntimeError('imported')")
    done = evid("--help")
    assert done.exit_code == 0
    assert "from evid-counting" in done.output


def test_a_broken_command_names_its_package(package):
    package("count", body="raise RuntimeError('half written')")
    done = evid("count", "3")
    assert done.exit_code == 2
    assert "command 'count' from evid-counting 1.0 could not be imported: RuntimeError: half written" in (
        done.stderr
    )


def test_what_is_no_click_command_is_refused(package):
    package("count", body="def count(): ...")
    done = evid("count")
    assert done.exit_code == 2
    assert "evid_counting:count must be a click command, got <function count" in done.stderr


def test_a_misspelt_command_is_answered_with_the_nearest():
    done = evid("resme")
    assert done.exit_code == 2
    assert "no command is called 'resme'. Did you mean 'resume'?" in done.stderr
    assert "no command is called 'audit.polcy'. Did you mean 'audit.policy'?" in evid("audit", "polcy").stderr


def test_two_packages_with_one_command_are_an_error_and_ours_stays_ours(package):
    package("run", package="evid-other")
    assert "x.toml: no such file" in evid("run", "x.toml").stderr
    package("sing", package="evid-first")
    package("sing", package="evid-second")
    done = evid("sing")
    assert done.exit_code == 2
    assert "2 installed packages have a command called 'sing'" in done.stderr


def test_what_a_terminal_would_obey_is_written_as_escapes():
    assert printable("a\x1b[31mb\u202e\ud83d\nä … \t.") == "a\\x1b[31mb\\u202e\\ud83d\nä … \t."
    assert printable("one\nline", keep="") == "one\\nline"
    done = evid("check", "no\x1b[31m.toml")
    assert done.exit_code == 2
    assert "error: no\\x1b[31m.toml: no such file." in done.stderr


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_place_that_cannot_be_written_is_named_without_a_traceback(package, number):
    body = f"""
import click, os

@click.command()
def count():
    raise OSError({number}, os.strerror({number}), "/mnt/read\\x1bonly")
"""
    package("count", body=body)
    done = evid("count")
    assert done.exit_code == 2
    assert f"[Errno {number}] {os.strerror(number)}: '/mnt/read\\x1bonly'. Give a place that" in done.stderr


def test_other_errors_of_files_are_no_mistake_of_a_person(package):
    package("count", body="import click\n\n@click.command()\ndef count():\n    raise OSError(5, 'broken')\n")
    assert isinstance(evid("count").exception, OSError)


@pytest.mark.parametrize(
    ("words", "some", "others"),
    [
        ("sh", {"show"}, {"run"}),
        ("show cho", {"choice", "choice-accuracy"}, {"format"}),
        ("show --kind reward cho", {"choice-accuracy"}, {"choice"}),
    ],
)
def test_a_shell_completes_commands_and_components(words, some, others):
    *before, last = words.split()
    shell = ShellComplete(main, {}, "evid", "_EVID_COMPLETE")
    result = {item.value for item in shell.get_completions(before, last)}
    assert some <= result
    assert not others & result


@pytest.mark.parametrize(
    "command",
    [
        "run", "check", "plan", "audit reward", "audit segmenter", "data prepare", "data check", "data view",
        "data profile",
    ],
)  # fmt: skip
def test_a_recipe_that_is_not_there_is_told_before_torch_is_imported(command, tmp_path):
    asked = [*command.split(), str(tmp_path / "x.toml")]
    program = (
        "import sys; from evidcore.cli import main\n"
        f"try: main({asked})\n"
        "finally: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "x.toml: no such file" in done.stderr
    assert done.stdout == "False\n"
