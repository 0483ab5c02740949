"""This Python's environment: what is installed in it, and its pip."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata

from evidcore.errors import PluginError

_MOST_LINES = 15  # of what pip said


def installed_version(package: str) -> str:
    """Return the version of a package that is installed here, empty if none is."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def pip(*arguments: str, failed: str, **variables: str) -> None:
    """Run pip on what it is given alone: no variable, no settings and no module of this folder reach it.

    Args:
        arguments: of pip.
        failed: what a message says if it fails, before what pip said.
        variables: of its environment, beside this one's.

    Raises:
        PluginError: if it fails.
    """
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "HF_"))}
    environment = {**kept, "PIP_CONFIG_FILE": os.devnull, **variables}
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        said = "\n".join(f"  {line}" for line in done.stderr.strip().splitlines()[-_MOST_LINES:])
        raise PluginError(f"{failed}\n{said}")
