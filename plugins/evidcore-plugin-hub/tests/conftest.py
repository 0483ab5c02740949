import sys
from pathlib import Path

import pytest
from evidcore_plugin_phantoms.testing import copied_run as copied_run
from evidcore_plugin_phantoms.testing import small_run as small_run
from evidcore_testing.fixtures import evid as evid
from evidcore_testing.fixtures import offered as offered

for folder in ("", "lint"):  # for the modules that several tests here share
    sys.path.append(str(Path(__file__).parent / folder))


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """The user's own settings, which hold nothing yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config/evidcore").mkdir(parents=True)
    return tmp_path / "config/evidcore/trust.toml"
