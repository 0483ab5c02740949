"""A reward's whole life with the real client and a local Hub: written, published, found, installed, run."""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import time
import tomllib
import venv
from pathlib import Path

import made_wheels as made
import pytest
from evidcore_testing.recipes import stage_text
from local_hub import LocalHub

PAGE = Path(__file__).parents[3] / "docs/howto/publish.md"
REPOSITORY = "me/evid-reward-brevity"


class Machine:
    """A computer with a clean environment on top of this one, and a home of its own."""

    def __init__(self, hub, folder):
        self.folder = folder
        (folder / "work").mkdir(parents=True)
        home = folder / "home"
        home.mkdir()
        venv.create(folder / "venv", symlinks=True)
        self.python = folder / "venv/bin/python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site = folder / "venv/lib" / version / "site-packages"
        ours = sysconfig.get_path("purelib")
        (self.site / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
        kept = {name: os.environ[name] for name in os.environ if not name.startswith(("HF_", "PIP_", "XDG_"))}
        self.environment = {
            **kept, **hub.environment(home), "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1",
            **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }  # fmt: skip

    def run(self, *words, typed="", status=0):
        """Give a command; return what it printed, and what went to the terminal beside it."""
        program = [self.python, "-m", "evidcore"] if words[0] == "evid" else [words[0]]
        done = subprocess.run(
            [*program, *map(str, words[1:])],
            cwd=self.folder / "work", env=self.environment, input=typed, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout, done.stderr

    def evid(self, *words, **options):
        """Run a command; return all that it printed."""
        return "".join(self.run("evid", *words, **options))


@pytest.fixture
def hub():
    with LocalHub() as started:
        yield started


@pytest.mark.slow
def test_a_rewards_whole_life(hub, small_run, tmp_path):
    machine, other = Machine(hub, tmp_path / "machine"), Machine(hub, tmp_path / "other")
    follow_page(machine, other)
    source = f"hub:{REPOSITORY}@{hub.commits(REPOSITORY)[-1]}"
    lock = tomllib.loads((other.folder / "work/evid.lock").read_text())
    assert lock["plugin"]["evid-reward-brevity"]["source"] == source
    (other.folder / "work/empty").mkdir()
    recipe = recipe_with(other.folder / "work/empty", small_run, f"{source}#brevity")
    said = other.evid("run", recipe, status=2)
    assert f"is in no evid.lock beside the recipe. Look at it: `evid install {source}`" in said

    recipe = recipe_with(other.folder / "work", small_run, f"{source}#brevity")
    other.evid("run", recipe)
    (run,) = (other.folder / "work/runs").glob("*/2*")
    lock = tomllib.loads((run / "lock.toml").read_text())
    assert lock["plugin"]["evid-reward-brevity"]["source"] == source
    assert 'use = "evid-reward-brevity/brevity"' in (run / "resolved.toml").read_text()

    assert "a run and stays as it is" in other.evid("install", "--lock", run / "lock.toml", status=2)
    said = other.evid("install", "--lock", run / "evid.lock", typed="evid-reward-brevity\n")
    assert "installed evid-reward-brevity 0.1.0, pinned in" in said

    assert '"evid_reward_brevity:Brevity"' in other.evid("info", f"hub:{REPOSITORY}@v0.1.0")
    hub.stop()
    other.evid("run", recipe, "--locked", run / "lock.toml")
    said = machine.evid("install", source, typed="evid-reward-brevity\n", status=2)
    assert "the Hub cannot be reached" in said

    module = other.site / "evid_reward_brevity.py"
    text = module.read_text()
    ran = tmp_path / "ran"
    module.write_text(text + made.canary(ran).decode())
    said = other.evid("run", recipe, status=2)
    assert "evid_reward_brevity.py is not what RECORD says. None of its code was run" in said
    assert "evid_reward_brevity.py is not what RECORD says" in other.evid("plugins", "--verify", status=1)
    said = other.evid("run", recipe, "--locked", run / "lock.toml", status=2)
    assert "None of its code was run" in said
    assert not ran.exists()
    module.write_text(text)

    assert "uninstalled evid-reward-brevity" in other.evid("uninstall", "evid-reward-brevity")
    assert "evid_reward_brevity" not in (other.folder / "work/evid.lock").read_text()
    assert not module.exists()


@pytest.mark.slow
@pytest.mark.skipif("EVID_HUB_OWNER" not in os.environ, reason="set EVID_HUB_OWNER and HF_TOKEN: real Hub")
def test_the_page_on_the_real_hub(tmp_path):
    from huggingface_hub import HfApi

    class RealHub:
        @staticmethod
        def environment(home):
            return {"HF_TOKEN": os.environ["HF_TOKEN"], "HF_HOME": str(home)}

    repository = f"{os.environ['EVID_HUB_OWNER']}/evid-reward-brevity-{int(time.time())}"
    try:
        follow_page(Machine(RealHub, tmp_path / "one"), Machine(RealHub, tmp_path / "other"), repository)
    finally:
        HfApi().delete_repo(repository, missing_ok=True)


def follow_page(author, user, repository=REPOSITORY):
    """Give the commands of the page about publishing, word for word, on two machines."""
    text = PAGE.read_text().replace(REPOSITORY, repository)
    blocks = re.findall(r"^```console hub( other)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for other, block in blocks:
        machine = user if other else author
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            said, _ = machine.run(*shlex.split(command), typed="evid-reward-brevity\n")
            pattern = ".*".join(re.escape(piece.strip()) for piece in expected.strip().split("..."))
            assert re.fullmatch(rf"\s*{pattern}\s*", said, re.DOTALL), f"{command} said\n{said}"


def recipe_with(folder, run, use):
    """The recipe of a small run, with a step of GRPO that pays by `use` too."""
    recipe = folder / "brief.toml"
    grpo = stage_text(
        kind="grpo", train=["bridge", "language"], data=[{"dataset": "chest", "task": "choice"}], steps=1,
        reward=[{"use": "format"}, {"use": use}], prompts_per_step=1, answers_per_prompt=2, max_new_tokens=4,
        learning_rate=1e-3,
    )  # fmt: skip
    recipe.write_text((run / "recipe.toml").read_text() + grpo)
    return recipe
