"""Names of this repository's packages are known, and look-alikes of its components are marked."""

import pytest
from evidcore_plugin_hub.trust.names import look_alikes

from evidcore.registry import offers


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that puts a package offering one reward on `sys.path`."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(package, name):
        info = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[evidcore.reward]\n{name} = json:loads\n")

    return put


def test_names_that_can_be_mistaken_are_marked(install, evid):
    install("evid-claims", "f0rrnat")
    install("evid-early", "my-reward")
    install("evid-late", "my_rew4rd".replace("4", "a"))
    marked = {row.package: other.package for row, other in look_alikes(offers("reward")).items()}
    assert marked == {"evid-claims": "evidcore", "evid-late": "evid-early"}
    said = evid("plugins", "reward").output
    assert "can be mistaken for reward 'format' from evidcore" in said
    assert "broken: a component's name has small letters, digits and dashes" in said
