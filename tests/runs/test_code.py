import pytest

from evidcore.registry import Offer
from evidcore.runs import code


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A third party's package that imports one module of the core."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "evid_there"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "inner" / "reward.py").write_text(
        "def late():\n    from evidcore.text.findings import CT_RATE_FINDINGS\n"
    )
    (folder / "words.json").write_text("[]")
    yield folder
    forget()


def forget():
    for name in ("package_hash", "_closure", "_core_imports_of_package", "_core_imports", "_file", "_root"):
        getattr(code, name).cache_clear()


OFFER = Offer(
    kind="reward", name="there", package="evid-there", version="1", target="evid_there.inner.reward:It"
)


def test_any_file_of_a_package_changes_its_hash_and_a_compiled_one_does_not(package):
    before = code.offer_hash(OFFER)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_bytes(b"1")
    forget()
    assert code.offer_hash(OFFER) == before
    (package / "words.json").write_text("[1]")
    forget()
    assert code.offer_hash(OFFER) != before


def test_a_module_of_one_file_has_a_hash(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evid_single.py").write_text("It = dict")
    assert len(code.package_hash("evid_single")) == 64
    assert code.package_hash("evid_nowhere") == "missing"
    forget()


def test_the_modules_that_a_component_imports_are_found_however_deep():
    found = code._closure(frozenset({"evidcore.builtin.views"}))
    assert {"evidcore.volume.geometry", "evidcore.contracts", "evidcore.case"} <= found
    assert not any(name.startswith(("evidcore.train", "evidcore.cli")) for name in found)


def test_a_third_partys_imports_from_the_core_count(package):
    assert "evidcore.text.findings" in code._core_imports_of_package("evid_there")
    plain = Offer(kind="reward", name="x", package="evid-x", version="1", target="no_such_module:It")
    assert code.core_hash([OFFER], []) != code.core_hash([plain], [])


def test_grpo_counts_what_it_imports_late():
    found = code._closure(frozenset({"evidcore.train.grpo"}))
    assert {"evidcore.train.trl.grpo", "evidcore.train.trl.trainer", "evidcore.model.vlm"} <= found
