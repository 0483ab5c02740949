"""Columns of unknown tables are found by name, else by what their cells hold; what is not found is named."""

import json
import tomllib
from pathlib import Path

import pytest
from evidcore_plugin_tables.csv_rows import read_rows
from evidcore_plugin_tables.placing import place
from tables_home import Home

from evidcore.api import DataError

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

SCANS = ("a.nii.gz", "b.nii.gz")


@pytest.fixture
def written(tmp_path):
    """Return a function that writes rows as a table beside two scans."""
    for name in SCANS:
        (tmp_path / name).touch()

    def write(rows):
        Home(tmp_path).csv(rows)
        return tmp_path / Home.table

    return write


def rows(**changed):
    """Give two questions in usual columns; a column of no values is left out."""
    usual = [
        {"id": "q0", "image": "a.nii.gz", "patient": "p0", "split": "train", "question": "Which organ?",
         "A": "liver", "B": "spleen", "answer": "A"},
        {"id": "q1", "image": "b.nii.gz", "patient": "p1", "split": "test", "question": "Which phase?",
         "A": "venous", "B": "arterial", "answer": "B"},
    ]  # fmt: skip
    for row, number in zip(usual, range(2), strict=True):
        for name, value in changed.items():
            row.update({name: value[number]}) if value else row.pop(name, None)
    return usual


def options(path, **named):
    return place(path, path.parent, named).options


def test_other_names_are_found_and_the_rest_is_told(written):
    names = {
        "id": "Question ID", "image": "Scan Path", "patient": "Subject", "split": "subset",
        "question": "Query", "A": "Option A", "B": "Option B", "answer": "Correct-Answer",
    }  # fmt: skip
    training = rows(split=("training", "training"), age=("61", "61"))
    table = [{names.get(key, key): cell for key, cell in row.items()} for row in training]
    placed = place(path := written(table), path.parent, {})
    assert placed.options == {
        "id_column": "Question ID", "image_column": "Scan Path", "patient_column": "Subject",
        "split_column": "subset", "question_column": "Query", "answer_column": "Correct-Answer",
        "option_columns": ["Option A", "Option B"], "split_names": {"training": "train"},
    }  # fmt: skip
    assert placed.unused == ("age",)
    assert placed.scans == SCANS


@pytest.mark.parametrize(("changed", "expected"), TABLE["placed"])
def test_what_a_column_holds_is_told_by_its_name_else_by_its_cells(written, changed, expected):
    assert options(written(rows(**changed))) == expected


def test_json_is_placed_as_csv_is(written, tmp_path):
    (tmp_path / "quiz.json").write_text(json.dumps(rows(split=(), patient=())))
    assert options(tmp_path / "quiz.json") == {
        "patient_column": "", "split_column": "", "option_columns": ["A", "B"],
    }  # fmt: skip


def test_all_that_is_not_found_is_named_at_once_with_what_to_call_it(written):
    table = [{"Bild": "x.nii", "Frage": "?", "Antwort": "A", "eins": "a"}] * 2
    with pytest.raises(DataError) as caught:
        place(path := written(table), path.parent, {})
    said = str(caught.value)
    assert "no column was found for 4 things. It has: Bild, Frage, Antwort, eins." in said
    assert "  the scan's file: none is called image, volume," in said
    assert f"no column's cells name files in {path.parent}. Call the column 'image', or name it" in said
    assert "Call the column 'question', or name it with --column question=NAME." in said
    assert "Give each option a column (A, B, C, D), or all of them one, with | between." in said


def test_a_column_may_be_named(written):
    names = {"Bild": "image", "Frage": "question", "x": "A", "y": "B", "z": "answer"}
    table = [{own: row[usual] for own, usual in names.items()} for row in rows()]
    named = {"question": "Frage", "options": "x,y", "answer": "z"}
    assert options(written(table), **named) == {
        "id_column": "", "image_column": "Bild", "patient_column": "", "split_column": "",
        "question_column": "Frage", "answer_column": "z", "option_columns": ["x", "y"],
    }  # fmt: skip


@pytest.mark.parametrize(("changed", "named", "message"), TABLE["refused"])
def test_what_may_mean_two_things_is_refused(written, changed, named, message):
    with pytest.raises(DataError, match=message):
        options(written(rows(**changed)), **named)


def test_a_table_without_a_readable_record_is_refused(written):
    path = written(rows())
    path.write_text("id,image\nq0\n")
    with pytest.raises(DataError, match="no record of it can be read"):
        options(path)


def test_a_ragged_row_says_what_to_quote(written):
    path = written(rows())
    path.write_text(path.read_text().replace(",", ";") + "q2;b.nii.gz;x;y;z;too;many;cells;here;now\n")
    assert "Quote cells that hold semicolons." in read_rows(path, ("id",))[1][0]
