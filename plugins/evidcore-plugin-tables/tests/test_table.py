import csv
import json
import logging
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidcore_plugin_tables.table import Table
from evidcore_testing import check_dataset
from tables_home import SECRET, SPLITS, Home, refusal

from evidcore.api import DataError, Question
from evidcore.errors import RecipeError

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

HEADER = "id,image,patient,split,question,A,B,C,D,answer\n"
ROWS: list[dict[str, Any]] = list(csv.DictReader(f"""{HEADER}\
q0,a.nii.gz,p0,train,Which organ is largest?,liver,spleen,kidney,pancreas,A
q1,a.nii.gz,p0,train,Is there a stone?,yes,no,,,b
q2,b.nii.gz,p1,validation,Which phase?,arterial,venous,native,,(C)
q3,a.nii.gz; c.nii.gz,p2,test,What is new?,nodule,effusion,,,B.
""".splitlines()))  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    for name in "abc":
        home.scan(f"{name}.nii.gz", np.arange(120, dtype=np.int16).reshape(4, 5, 6))
    home.csv(ROWS)
    return home


def changed(number: int, **cells: Any) -> list[dict[str, Any]]:
    return [row | cells if index == number else row for index, row in enumerate(ROWS)]


def answers(dataset: Table, split: str = "train") -> list[str]:
    return [question.options[question.answer] for case in dataset.cases(split) for question in case.questions]


def test_the_dataset_keeps_its_contract(home):
    home.csv(changed(0, answer="C"), "other.csv")
    check_dataset(home.dataset(), other=home.dataset(table="other.csv"))


def test_questions_about_one_image_make_one_case(home):
    (case,) = home.dataset(intensity="hu").cases("train")
    assert (case.id, case.patient, case.report, case.findings) == ("a.nii.gz", "p0", None, ())
    assert [(ref.path, ref.intensity) for ref in case.volumes] == [(str(home.folder / "a.nii.gz"), "hu")]
    assert case.questions == (
        Question(id="q0", text="Which organ is largest?", options=("liver", "spleen", "kidney", "pancreas"),
                 answer=0),
        Question(id="q1", text="Is there a stone?", options=("yes", "no"), answer=1),
    )  # fmt: skip
    assert answers(home.dataset(), "validation") == ["native"]
    (both,) = home.dataset().cases("test")
    assert [Path(ref.path).name for ref in both.volumes] == ["a.nii.gz", "c.nii.gz"]


def test_pictures_are_arbitrary_whatever_the_volumes_are(home):
    home.csv([ROWS[0] | {"image": "x.PNG;a.nii.gz"}])
    (home.folder / "x.PNG").write_bytes(b"")
    (case,) = home.dataset(intensity="hu").listed("train")
    assert [ref.intensity for ref in case.volumes] == ["arbitrary", "hu"]


@pytest.mark.parametrize(("options", "answer", "settings"), TABLE["forms"])
def test_options_of_one_cell_and_answers_in_every_form(home, options, answer, settings):
    home.csv([{"id": "q", "image": "a.nii.gz", "patient": "p", "split": "train", "question": "Which?",
               "choices": options, "answer": answer}])  # fmt: skip
    dataset = home.dataset(options_column="choices", **settings)
    assert answers(dataset) == ["spleen"]
    (case,) = dataset.cases("train")
    assert case.questions[0].options == ("liver", "spleen")


def test_columns_after_d_are_options_where_all_before_them_are(home):
    home.csv([ROWS[0] | {"E": "lung", "answer": "E"}])
    assert answers(home.dataset()) == ["lung"]
    home.csv([ROWS[1] | {"A": "yes", "B": "no", "E": "a note"}])
    assert home.dataset().asked.among({"A", "B", "E"}).option_columns == ("A", "B")


def test_indices_of_which_none_is_0_are_refused_until_it_is_said_what_they_count_from(home):
    home.csv([row | {"answer": answer} for row, answer in zip(ROWS, "1231", strict=True)])
    with pytest.raises(
        DataError, match=r"csv: column 'answer': no answer is 0, so they may be counted from 1\. W"
    ):
        answers(home.dataset(answer_is="index"))
    assert answers(home.dataset(answer_is="index", first_index=1)) == ["liver", "no"]
    home.csv([ROWS[0] | {"answer": "1" * 5000}])
    with pytest.raises(DataError, match="expected a whole number from 0 to 3"):
        answers(home.dataset(answer_is="index"))
    home.csv([row | {"answer": answer} for row, answer in zip(ROWS, "0121", strict=True)])
    assert answers(home.dataset(answer_is="index")) == ["liver", "no"]


def test_letters_stay_where_they_are_not_in_order(home):
    home.csv(changed(0, A="A. vein", B="C. difficile"))
    (case, *_) = home.dataset().cases("train")
    assert case.questions[0].options[:2] == ("A. vein", "C. difficile")


@pytest.mark.parametrize("name", ["q.json", "q.jsonl"])
def test_json_says_the_same_as_csv(home, name):
    records = [
        {key: row[key] for key in ("id", "image", "patient", "split", "question")}
        | {"options": [row[letter] for letter in "ABCD" if row[letter]], "answer": "ABC".index(letter)}
        for row, letter in zip(ROWS, "ABCB", strict=True)
    ]
    text = json.dumps(records) if name == "q.json" else "\n".join(json.dumps(each) for each in records) + "\n"
    (home.folder / name).write_text(text)
    from_json = home.dataset(table=name, options_column="options", answer_is="index")
    for split in SPLITS:
        assert list(from_json.cases(split)) == list(home.dataset().cases(split))


def test_what_pandas_writes_for_an_empty_cell_is_one(home):
    records = [{key: value if value != "" else float("nan") for key, value in row.items()} for row in ROWS]
    (home.folder / "q.json").write_text(json.dumps(records))
    assert "NaN" in (home.folder / "q.json").read_text()
    for split in SPLITS:
        assert list(home.dataset(table="q.json").cases(split)) == list(home.dataset().cases(split))


def test_columns_of_other_names_words_of_the_split_caption_and_kind(home):
    row = {"img": "b.nii.gz", "subject": "s", "fold": "val", "ask": "Which?", "1": "x", "2": "y",
           "key": "A", "caption": "A liver.", "type": "organ"}  # fmt: skip
    home.csv([row])
    dataset = home.dataset(
        id_column="", image_column="img", patient_column="subject", split_column="fold",
        question_column="ask", option_columns=("1", "2"), answer_column="key",
        report_column="caption", kind_column="type", split_names={"val": "validation"},
    )  # fmt: skip
    (case,) = dataset.cases("validation")
    assert case.report is not None
    assert case.report.text == "A liver."
    (item,) = case.questions
    assert item == Question(id="line-2", text="Which?", options=("x", "y"), answer=0, kind="organ")


def test_shares_keep_patients_together_and_move_nobody_when_one_is_added(home):
    def homes(count):
        cells = ({"id": f"q{n}", "image": f"{n}.nii.gz", "patient": f"p{n // 2}"} for n in range(count))
        home.csv(ROWS[1] | changes for changes in cells)
        dataset = home.dataset(split_column="", test_share=0.3, validation_share=0.2)
        return {case.patient: split for split in SPLITS for case in dataset.listed(split)}

    few, many = homes(800), homes(1000)
    assert len(many) == 500
    assert {patient: many[patient] for patient in few} == few
    counts = [list(many.values()).count(split) for split in ("test", "validation", "train")]
    # binomial standard deviations 10.2, 8.9, 11.2
    assert np.allclose(counts, [150, 100, 250], atol=45)
    assert home.dataset(split_column="", seed=18).fingerprint() != home.dataset(split_column="").fingerprint()


def test_without_patients_a_case_is_shared_out_by_its_image(home):
    home.csv([{key: value for key, value in row.items() if key not in ("patient", "split")} for row in ROWS])
    dataset = home.dataset(patient_column="", split_column="", test_share=1.0, validation_share=0.0)
    assert [(case.id, case.patient) for case in dataset.cases("test")] == [
        ("a.nii.gz", None), ("b.nii.gz", None), ("a.nii.gz; c.nii.gz", None),
    ]  # fmt: skip


@pytest.mark.parametrize(("cells", "message"), TABLE["cells"])
def test_a_bad_cell_is_named_with_line_case_value_and_remedy(home, cells, message):
    home.csv(changed(0, **cells))
    said = refusal(home.dataset())
    assert said.startswith(f"{home.folder / 'questions.csv'}: line")
    assert message in said


@pytest.mark.parametrize(("options", "message"), TABLE["options"])
def test_options_that_contradict_each_other_are_refused(home, options, message):
    with pytest.raises(RecipeError, match=message):
        home.dataset(**options)


def test_free_text_is_refused_by_name_or_left_out_with_their_number(home, caplog):
    home.csv([*changed(0, A="", B="", C="", D="", answer="the liver")])
    told = "question 'q0': has no options, so its answer is free text, got 'the liver'"
    assert f"line 2, case 'a.nii.gz', {told}" in refusal(home.dataset())
    with caplog.at_level(logging.WARNING):
        assert answers(home.dataset(free_text="skip")) == ["no"]
    assert "left out, free text without options: 1 of the questions" in caplog.text


def test_free_text_may_be_kept_beside_the_choices(home):
    bare = {"A": "", "B": "", "C": "", "D": ""}
    native = ROWS[2] | {**bare, "answer": "native"}  # the only question about its image
    home.csv([*changed(0, **bare, answer=" the liver ")[:2], native, ROWS[3]])
    dataset = home.dataset(free_text="keep")
    kept = [
        (case.id, [item.id for item in case.questions], case.notes)
        for split in SPLITS
        for case in dataset.cases(split)
    ]
    liver = {"id": "q0", "text": "Which organ is largest?", "answers": ["the liver"]}
    phase = {"id": "q2", "text": "Which phase?", "answers": ["native"]}
    assert kept == [
        ("a.nii.gz", ["q1"], {"open_questions": (liver,)}),
        ("b.nii.gz", [], {"open_questions": (phase,)}),
        ("a.nii.gz; c.nii.gz", ["q3"], {}),
    ]
    home.csv(changed(0, **bare, answer=" "))
    assert "column 'answer' is empty. Write the answer, or drop" in refusal(home.dataset(free_text="keep"))


def test_all_mistakes_come_at_once(home):
    home.csv([row | {"answer": "H"} for row in ROWS])
    assert refusal(home.dataset()).count("got 'H'") == 4
    home.csv([ROWS[0] | {"id": f"q{number}", "answer": "H"} for number in range(25)])
    said = refusal(home.dataset())
    assert said.count("got 'H'") == 20
    assert said.endswith("… and 5 more")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        *TABLE["files"],
        ("q.json", f"[{'1' * 5000}]", r"q\.json: is not JSON \(Exceeds the limit \(4300 digits\)"),
        ("q.json", "[" * 200_000, r"q\.json: is not JSON \(maximum recursion depth exceeded"),
        ("q.json", json.dumps([[SECRET]]), "an object with the columns as keys, got a text of [0-9]+ char"),
        ("q.jsonl", "\n" + "[" * 200_000, r"q\.jsonl: line 2: is not JSON \(maximum recursion depth"),
        ("q.csv", HEADER, "holds no records"),
        ("q.csv", HEADER + "1\n", "line 2: 10 columns are named"),
        ("q.csv", HEADER.replace("answer", "answr") + "1,a,p,train,q,x,y,,,A\n",
         r"q\.csv: has no column 'answer'\. Did you mean 'answr'\?"),
        ("q.csv", b"id,image\n\xff\xfe,a\n", r"q\.csv: is not a readable CSV file \(.*Save it as UTF-8"),
        ("q.csv", None, r"q\.csv: there is no such file"),
    ],
)  # fmt: skip
def test_a_bad_table_is_named(home, name, text, message):
    if text is not None:
        (home.folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=message) as caught:
        list(home.dataset(table=name).cases("train"))
    assert "Miller" not in str(caught.value)


def test_a_list_that_is_none_and_a_missing_separator_are_named(home):
    cells = ("[liver, spleen]", "yes/no", f"[{'1' * 5000}]")
    home.csv([row | {"choices": cell} for row, cell in zip(ROWS, cells, strict=False)])
    said = refusal(home.dataset(options_column="choices"))
    assert "column 'choices': begins like a JSON list but is none" in said
    assert "got '[liver, spleen]'" in said
    assert "begins like a JSON list but is none (Exceeds the limit" in said
    assert "column 'choices': expected a JSON list or options with '|' between, got 'yes/no'" in said


def test_bad_records_are_told_apart_and_the_rest_is_listed(home):
    home.csv([*changed(1, answer="Z"), ROWS[2] | {"id": "q9", "image": "d.nii.gz", "answer": "9"}])
    with (home.folder / "questions.csv").open("a") as file:
        file.write("cut,off\n")
    dataset = home.dataset()
    ragged, letter, number = dataset.unlisted()
    assert "line 7: 10 columns are named" in ragged
    assert "line 3, case 'a.nii.gz', question 'q1', column 'answer'" in letter
    assert "line 6, case 'd.nii.gz'" in number
    assert [[question.id for question in case.questions] for case in dataset.listed("train")] == [["q0"]]
    # a scan is looked at even if nothing can be asked about it
    assert [case.id for case in dataset.listed("validation")] == ["b.nii.gz", "d.nii.gz"]
    said = refusal(dataset, "test")
    assert all(message in said for message in (ragged, letter, number))


def test_rows_inside_of_a_quoted_cell_are_told(home):
    home.csv(ROWS)
    lines = (home.folder / "questions.csv").read_text().splitlines()
    cells = [line.split(",") for line in lines]
    place = cells[0].index("question")
    cells[1][place], cells[3][place] = f'"{cells[1][place]}', f'{cells[3][place]}"'
    (home.folder / "questions.csv").write_text("\n".join(",".join(row) for row in cells))
    told = "; ".join(home.dataset().unlisted())
    assert "line 4: the cell of 'question' holds whole rows: a quote that begins a cell ends in a" in told


def test_a_patient_in_two_splits_is_listed_in_both_and_refused(home):
    home.csv(changed(2, patient="p0"))
    dataset = home.dataset()
    assert [case.patient for split in ("train", "validation") for case in dataset.listed(split)] == ["p0"] * 2
    assert list(dataset.unlisted()) == []
    told = "line 4, case 'b.nii.gz': patient 'p0' is in two splits: case 'a.nii.gz' in 'train', this one"
    assert f"{told} in 'validation'" in refusal(dataset)


def test_json_records_that_say_nothing_are_told_apart(home):
    lines = [json.dumps(ROWS[0]), "{", "[3]", '{"id": "q", "image": "a.nii.gz"}']
    (home.folder / "q.jsonl").write_text("\n".join(lines))
    dataset = home.dataset(table="q.jsonl", option_columns=("A", "B"))
    for number, message in enumerate(dataset.unlisted(), start=2):
        assert message.startswith(f"{home.folder / 'q.jsonl'}: line {number}")
    assert number == 4
    assert [case.id for case in dataset.listed("train")] == ["a.nii.gz"]


@pytest.mark.parametrize(("cells", "options"), TABLE["long"])
def test_long_cells_are_told_by_their_length_alone(home, cells, options):
    home.csv(changed(0, **{name: cell.replace("SECRET", SECRET) for name, cell in cells.items()}))
    said = refusal(home.dataset(**options))
    assert "a text of " in said
    assert "rare disease" not in said
    assert "Miller" not in said
