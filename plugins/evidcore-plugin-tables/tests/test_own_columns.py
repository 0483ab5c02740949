"""Own scans and own questions are written in the same columns, whatever a spreadsheet makes of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidcore_plugin_tables.csv_rows import read_rows
from evidcore_plugin_tables.target import open_target
from tables_home import Home, refusal

from evidcore.api import Dataset

CASES = """id,volume,patient,split,report,masks,nodule
c0,a.nii.gz,p0,train,A nodule.,nodule=m.nii.gz,yes
c1,b.nii.gz,p1,test,,,no
"""
QUESTIONS = """id,volume,patient,split,report,masks,nodule,question,A,B,answer
q0,a.nii.gz,p0,train,A nodule.,nodule=m.nii.gz,yes,Which lobe?,upper,lower,B
q1,a.nii.gz,p0,train,A nodule.,nodule=m.nii.gz,yes,Is there a nodule?,yes,no,yes
q2,b.nii.gz,p1,test,,,no,Which side?,left,right,A
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in "abm":
        Home(tmp_path).scan(f"{name}.nii.gz", np.arange(120, dtype=np.int16).reshape(4, 5, 6))
    (tmp_path / "cases.csv").write_text(CASES)
    (tmp_path / "questions.csv").write_text(QUESTIONS)
    return tmp_path


def dataset(home: Path, use: str, **options: Any) -> Dataset:
    return Home(home).dataset(use=use, **options)


def said(made: Dataset) -> list[tuple[Any, ...]]:
    """What both data sets say of a scan."""
    return [
        (split, case.volumes[0].path, case.patient, case.report, case.findings, case.masks)
        for split in ("train", "test")
        for case in made.cases(split)  # type: ignore[arg-type]
    ]


def answers(made: Dataset) -> list[str]:
    return [item.options[item.answer] for case in made.cases("train") for item in case.questions]


def test_both_data_sets_read_the_same_columns(home):
    scans = dataset(home, "folder", findings=["nodule"])
    questions = dataset(home, "table", findings=["nodule"], intensity="hu")
    assert said(scans) == said(questions)
    assert questions.findings == ("nodule",)
    assert answers(questions) == ["lower", "yes"]


def test_image_and_volume_are_one_column(home):
    scans, questions = said(dataset(home, "folder")), said(dataset(home, "table"))
    (home / "cases.csv").write_text(CASES.replace("volume", "image"))
    (home / "questions.csv").write_text(QUESTIONS.replace("volume", "image"))
    assert said(dataset(home, "folder")) == scans
    assert said(dataset(home, "table")) == questions
    (home / "cases.csv").write_text("id,image,patient,split\nc0,,p0,train\n")
    assert "column 'image' is empty" in refusal(dataset(home, "folder"))
    (home / "questions.csv").write_text(QUESTIONS.replace("volume", "scan"))
    assert "has no column 'image'" in refusal(dataset(home, "table"))


def test_the_usual_column_is_read_where_both_are_there(home):
    (home / "cases.csv").write_text("id,volume,image,patient,split\nc0,a.nii.gz,x.png,p0,train\n")
    record = "q,x,a.nii.gz,p,train,Why?,a,b,A"
    (home / "questions.csv").write_text(f"id,volume,image,patient,split,question,A,B,answer\n{record}\n")
    for use in ("folder", "table"):
        (case,) = dataset(home, use).cases("train")
        assert case.volumes[0].path == str(home / "a.nii.gz")


@pytest.mark.parametrize("column", ["report", "masks", "nodule"])
def test_records_of_one_scan_must_agree(home, column):
    other = {"report": ("A nodule.", "None."), "masks": ("=m.nii", "=b.nii"), "nodule": ("yes,Is", "no,Is")}
    before, after = other[column]
    first, second = QUESTIONS.split("q1,")
    (home / "questions.csv").write_text(f"{first}q1,{second.replace(before, after, 1)}")
    what = "'absent', not 'present'," if column == "nodule" else "another text"
    assert f"column {column!r} says {what} than an" in refusal(dataset(home, "table", findings=["nodule"]))


def test_a_report_may_be_left_unread(home):
    (case,) = dataset(home, "table", report_column="", masks_column="").cases("train")
    assert case.report is None
    assert not case.masks


@pytest.mark.parametrize("mark", [";", "\t"])
@pytest.mark.parametrize("use", ["folder", "table"])
def test_what_spreadsheets_put_around_and_between_cells_changes_nothing(home, use, mark):
    expected = said(dataset(home, use, findings=["nodule"]))
    for name in ("cases.csv", "questions.csv"):
        lines = (home / name).read_text().replace(",", mark).replace("\n", "\r\n")
        (home / name).write_text(f"\ufeffsep={mark}\r\n{lines}{mark * 3}\r\n", encoding="utf-8", newline="")
    assert said(dataset(home, use, findings=["nodule"])) == expected


def test_decimal_commas_a_comma_in_a_heading_and_blanks_around_it_do_not_count(home):
    (home / "cases.csv").write_text(
        "id; volume; patient; split; nodule; size, mm\n"
        "c0;a.nii.gz;p0;train;1,0;12,5\nc1;b.nii.gz;p1;test;0,0;3,5\n"
    )
    made = dataset(home, "folder", findings=["nodule"])
    states = [case.state_of("nodule") for split in ("train", "test") for case in made.cases(split)]
    assert states == ["present", "absent"]
    assert read_rows(home / "cases.csv", ())[0][0][1]["size, mm"] == "12,5"


def test_a_quoted_heading_with_many_semicolons_is_no_sign_of_them(home):
    (home / "t.csv").write_text('id,"masks; name=file; name=file; name=file",split\na,b,train\n')
    assert read_rows(home / "t.csv", ("id", "split"))[0][0][1]["split"] == "train"


@pytest.mark.parametrize(
    ("cell", "state"),
    [("yes", "present"), ("No", "absent"), ("TRUE", "present"), ("False", "absent"), ("-1,0", "uncertain")],
)
def test_cells_of_findings_may_say_yes_or_no(home, cell, state):
    (home / "cases.csv").write_text(CASES.replace(".gz,yes", f'.gz,"{cell}"'))
    (case,) = dataset(home, "folder", findings=["nodule"]).cases("train")
    assert case.state_of("nodule") == state


def one_question(home, options, answer):
    record = f"q,a.nii.gz,p,train,Which?,{options},{answer}"
    (home / "questions.csv").write_text(f"id,volume,patient,split,question,A,B,answer\n{record}\n")


@pytest.mark.parametrize(
    ("options", "cell", "right"),
    [("yes,no", "Yes", "yes"), ("no,yes", "TRUE", "yes"), ("No,Yes", "no", "No"), ("yes,no", "B", "no")],
)
def test_an_answer_may_say_yes_or_no_where_these_are_the_options(home, options, cell, right):
    one_question(home, options, cell)
    assert answers(dataset(home, "table")) == [right]


def test_yes_is_no_answer_to_other_options(home):
    one_question(home, "left,right", "yes")
    assert "expected a letter from A to B, got 'yes'" in refusal(dataset(home, "table"))


def test_questions_without_options_may_be_answered_yes_or_no(home):
    (home / "questions.csv").write_text(
        "id,volume,patient,split,question,answer\n"
        "q0,a.nii.gz,p,train,Is there one?,yes\nq1,a.nii.gz,p,train,And here?,No\n"
    )
    assert answers(dataset(home, "table")) == ["yes", "no"]
    (case,) = dataset(home, "table", free_text="keep").cases("train")
    assert not case.questions
    assert [list(item["answers"]) for item in case.notes["open_questions"]] == [["yes"], ["No"]]


def test_options_that_are_named_must_be_there(home):
    made = dataset(home, "table", option_columns=["A", "B", "C"])
    assert "has no column 'C'" in refusal(made)


def test_commands_open_a_folder_of_questions_as_one_of_scans(home):
    (home / "cases.csv").unlink()
    (made,) = open_target(home, None, "hu").values()
    assert answers(made) == ["lower", "yes"]
    assert made.findings == ("nodule",)
    assert [case.intensity for item in made.cases("train") for case in item.volumes] == ["hu"]
    (home / "questions.csv").write_text("Volume;Question;Answer\na.nii.gz;Is there one?;yes\n")
    (made,) = open_target(home, None, "hu").values()
    cases = [case for split in ("train", "validation", "test") for case in made.cases(split)]
    (item,) = (item for case in cases for item in case.questions)
    assert (item.options, item.answer) == (("yes", "no"), 0)


def test_a_folder_with_both_tables_is_one_of_scans(home):
    (made,) = open_target(home, None, "hu").values()
    assert [case.id for case in made.cases("train")] == ["c0"]
    assert [case.state_of("nodule") for case in made.cases("train")] == ["present"]
