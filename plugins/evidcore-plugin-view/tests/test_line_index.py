"""Files of lines that grow while they are read, are replaced, or hold what is no JSON."""

import json

import pytest
from evidcore_plugin_view.opened_run import LineIndex

from evidcore.errors import RunError


def index_of(path):
    return LineIndex(path, lambda line: {"n": line["n"]})


def test_a_file_is_read_on_as_it_grows_and_a_line_being_written_is_left(tmp_path):
    path = tmp_path / "lines.jsonl"
    index = index_of(path)
    assert index.rows() == []  # it may not be there yet
    path.write_text('{"n": 0}\n{"n": 1, "text": "é"}\n{"n": 2')
    assert index.rows() == [{"n": 0}, {"n": 1}]
    with path.open("a") as file:
        file.write(', "text": "whole"}\n')
    assert index.rows() == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert index.line(1) == {"n": 1, "text": "é"}
    assert index.line(2) == {"n": 2, "text": "whole"}


def test_a_file_in_the_place_of_another_is_read_anew(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"n": 0}\n{"n": 1}\n')
    index = index_of(path)
    assert len(index.rows()) == 2
    other = tmp_path / "other"
    other.write_text('{"n": 7}\n{"n": 8}\n{"n": 9}\n')
    other.replace(path)
    assert [row["n"] for row in index.rows()] == [7, 8, 9]
    path.write_text('{"n": 3}\n')  # the same file, cut by a resume
    assert [row["n"] for row in index.rows()] == [3]
    path.unlink()
    assert index.rows() == []


def test_lines_are_found_by_their_words_whatever_the_case(tmp_path):
    path = tmp_path / "lines.jsonl"
    texts = enumerate(["Nodule", "clear", "nodules"])
    path.write_text("".join(json.dumps({"n": n, "text": text}) + "\n" for n, text in texts))
    assert index_of(path).containing("NODULE", lambda line: line["text"]) == [0, 2]


def test_errors_name_the_file_and_the_line(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"n": 0}\nnot json\n')
    with pytest.raises(RunError, match=r"lines\.jsonl, line 2: Invalid JSON"):
        index_of(path).rows()
