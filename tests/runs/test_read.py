"""A run folder as it lies on disk: what is broken is named, what is being written is left out."""

import pytest

from evidcore.errors import RunError
from evidcore.runs.read import is_phantom, read_record


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "recipe.toml").write_text('name = "small"\n')
    (tmp_path / "metrics.jsonl").write_text(
        '{"stage": "01-sft", "step": 1}\n{"stage": "01-sft", "step": 2}\n'
    )
    (tmp_path / "results").mkdir()
    return tmp_path


def test_a_broken_line_is_named_and_a_line_being_written_is_left_out(folder):
    path = folder / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"stage": "05-gr')
    assert [line["step"] for line in read_record(folder).metrics] == [1, 2]
    path.write_text('{"stage": oops}\n' + whole)
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 1: not JSON, '\{\"stage\": oops"):
        read_record(folder)


def test_a_result_that_is_no_object_is_named(folder):
    (folder / "results" / "06-evaluate.json").write_text("[1]")
    with pytest.raises(RunError, match=r"06-evaluate\.json: holds a list, not an object"):
        read_record(folder)


def test_phantoms_are_known_by_the_name_of_their_component():
    assert is_phantom("phantom-chest")
    assert is_phantom("some-package/phantom-abdomen")
    assert not is_phantom("folder")


@pytest.mark.parametrize("name", ["STATUS", "results/06-evaluate.json", "metrics.jsonl", "recipe.toml"])
@pytest.mark.parametrize("damage", [b"[" * 100_000, b"\xff\xfe", b"1" * 5000, b"\0"])
def test_a_damaged_file_is_named(folder, name, damage):
    toml = name.endswith("toml")
    (folder / name).write_bytes((b"x = " if toml else b"") + damage + b"\n")
    with pytest.raises(RunError, match=rf"{name}.*: (not (JSON|TOML|UTF-8)|holds)"):
        read_record(folder)
