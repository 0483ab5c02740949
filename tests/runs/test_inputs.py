import pytest

from evidcore.registry import Offer
from evidcore.runs import inputs


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A third party's package."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "evid_there"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "inner" / "reward.py").write_text("It = dict\n")
    (folder / "words.json").write_text("[]")
    yield folder
    inputs.package_hash.cache_clear()


OFFER = Offer(
    kind="reward", name="there", package="evid-there", version="1", target="evid_there.inner.reward:It"
)


def test_any_file_of_a_package_changes_its_hash_and_a_compiled_one_does_not(package):
    before = inputs.offer_hash(OFFER)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_bytes(b"1")
    inputs.package_hash.cache_clear()
    assert inputs.offer_hash(OFFER) == before
    (package / "words.json").write_text("[1]")
    inputs.package_hash.cache_clear()
    assert inputs.offer_hash(OFFER) != before


def test_a_module_of_one_file_has_a_hash(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evid_single.py").write_text("It = dict")
    assert len(inputs.package_hash("evid_single")) == 64
    assert inputs.package_hash("evid_nowhere") == "missing"
    inputs.package_hash.cache_clear()


def test_the_data_set_that_another_stands_on_counts_too():
    table = {"use": "mask-questions", "source": {"use": "implant", "source": {"use": "folder", "path": "."}}}
    names = [offer.name for offer, _ in inputs.named_tables("dataset", table)]
    assert names == ["mask-questions", "implant", "folder"]
