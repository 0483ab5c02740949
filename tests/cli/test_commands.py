"""Commands of packages, by dist-info folders on disk."""

import errno
import os
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from evidcore.cli import main
from evidcore.errors import printable

COUNT = '''
import click

@click.command("count")
@click.argument("number", type=int)
def It(number):
    """Count to NUMBER."""
    click.echo(" ".join(map(str, range(1, number + 1))))
'''


@pytest.fixture
def package(install):
    """Return a function that puts a package with one command on `sys.path`."""
    return lambda name, package="evid-counting", body=COUNT: install(package, name, body, kind="command")


def test_a_package_adds_a_command_also_to_a_group_of_the_core(package, evid):
    package("count")
    assert evid("count", "3").output == "1 2 3\n"
    assert evid("count", "--help").output.startswith("Usage: evid count [OPTIONS] NUMBER")
    package("audit.count", package="evid-auditing")
    assert evid("audit", "count", "2").output == "1 2\n"
    assert "from evid-auditing" in evid("audit", "--help").output


def test_a_broken_command_is_in_the_help_which_runs_no_code_and_names_its_package(package, evid):
    package("count", body="raise RuntimeError('half written')")
    assert "from evid-counting" in evid("--help").output
    said = "command 'count' from evid-counting 1.0 could not be imported: RuntimeError: half written"
    assert said in evid("count", "3", exit_code=2).stderr


def test_what_is_no_click_command_is_refused(package, evid):
    package("count", body="def It(): ...")
    assert "evid_counting:It must be a click command, got <function It" in evid("count", exit_code=2).stderr


def test_a_misspelt_command_is_answered_with_the_nearest(evid):
    for words, said in (
        (["resme"], "'resme'. Did you mean 'resume'?"),
        (["audit", "polcy"], "'audit.polcy'. Did you mean 'audit.policy'?"),
    ):
        assert f"no command is called {said}" in evid(*words, exit_code=2).stderr


def test_two_packages_with_one_command_are_an_error_and_ours_stays_ours(package, evid):
    package("run", package="evid-other")
    assert "x.toml: no such file" in evid("run", "x.toml", exit_code=2).stderr
    package("sing", package="evid-first")
    package("sing", package="evid-second")
    assert "2 installed packages have a command called 'sing'" in evid("sing", exit_code=2).stderr


def test_what_a_terminal_would_obey_is_written_as_escapes(evid):
    assert printable("a\x1b[31mb\u202e\ud83d\nä … \t.") == "a\\x1b[31mb\\u202e\\ud83d\nä … \t."
    assert printable("one\nline", keep="") == "one\\nline"
    assert "error: no\\x1b[31m.toml: no such file." in evid("check", "no\x1b[31m.toml", exit_code=2).stderr


def test_what_a_command_prints_logs_or_raises_moves_no_cursor(package, evid):
    body = r"""
import click, sys

@click.command()
def It():
    text = "mass\x1b]0;owned\x07\r\x9b2K\x1b[8m"
    click.echo(text)
    print(text, file=sys.stderr)
    sys.stdout.write("\r1 of 2 done\u3000\n")
"""
    package("count", body=body)
    done, line = evid("count"), "mass\\x1b]0;owned\\x07\\r\\x9b2K"
    assert (done.stdout, done.stderr) == (f"{line}\n\r1 of 2 done\u3000\n", f"{line}\\x1b[8m\n")


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EIO])
def test_a_place_that_cannot_be_written_is_named_without_a_traceback(package, evid, number):
    body = f"""
import click, os

@click.command()
def It():
    raise OSError({number}, os.strerror({number}), "/mnt/read\\x1bonly")
"""
    package("count", body=body)
    done = evid("count", exit_code=1 if number == errno.EIO else 2)
    if number == errno.EIO:  # no mistake of a person
        assert isinstance(done.exception, OSError)
        return
    assert f"[Errno {number}] {os.strerror(number)}: '/mnt/read\\x1bonly'. Give a place that" in done.stderr


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


ASKING = (
    "run", "check", "plan", "audit reward", "audit segmenter", "data prepare", "data check", "data view",
    "data profile",
)  # fmt: skip


def test_a_recipe_that_is_not_there_is_told_before_torch_is_imported():
    program = (
        "import sys; from click.testing import CliRunner; from evidcore.cli import main\n"
        f"for words in {ASKING}:\n"
        "    done = CliRunner().invoke(main, [*words.split(), '/gone/x.toml'])\n"
        "    print('x.toml: no such file' in done.stderr, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n" * len(ASKING)
