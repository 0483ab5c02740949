"""Which cases of a set are taken: limits, ids, what tables and archives may hold."""

import io
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from evidcore_plugin_ct_data.archives import unpack
from evidcore_plugin_ct_data.miniatures import WRITERS
from evidcore_plugin_ct_data.miniatures.__main__ import main
from evidcore_plugin_ct_data.published import drawn_split
from evidcore_plugin_ct_data.tables import numbers, read_list, read_rows
from evidcore_plugin_tables.case_reading import files_of

from evidcore.api import DataError
from evidcore.errors import RecipeError


@pytest.fixture
def chest(home):
    return home("ct-rate", validation_share=0.0)


def test_a_limit_takes_whole_patients_and_a_greater_one_keeps_them(chest):
    before: set[str] = set()
    for limit, count in ((1, 1), (3, 3), (6, 6), (100, 12)):
        cases = chest.cases("train", limit=limit)
        patients = {case.patient for case in cases.values()}
        assert before <= patients
        assert len(patients) == count
        assert set(cases) == {name for name in chest.cases("train") if name.rsplit("_", 2)[0] in patients}
        before = patients
    assert list(chest.cases("train", limit=5)) != list(chest.cases("train"))[:5]


def test_ids_name_patients_and_cases_here_or_in_a_file(chest):
    wanted = {"train_1_a_1", "train_1_a_2", "train_2_b_1"}
    assert set(chest.cases("train", ids=("train_1", "train_2_b_1"))) == wanted
    (chest.folder / "mine.txt").write_text("train_1\ntrain_2_b_1\n")
    assert set(chest.cases("train", ids="mine.txt")) == wanted
    assert chest.cases("test", ids=("train_1",)) == {}


def test_unknown_ids_are_named_with_the_nearest(chest):
    told = chest.refusal(ids=("train_1", "trian_2"))
    assert "ids names 'trian_2', which is no patient and no case of the set. Did you mean 'train_2'?" in told
    assert "1 of 2 names are unknown" in told
    with pytest.raises(RecipeError, match=r"ids: /.*none\.txt: cannot be read \(.* one id on each line"):
        chest.dataset(ids="none.txt").fingerprint()


def test_what_is_chosen_is_in_the_fingerprint(chest):
    choices = [{"limit": 1}, {"limit": 2}, {"ids": ("train_1",)}, {"missing": "skip"}, {"tree": "plain"}]
    assert len({chest.dataset(**options).fingerprint() for options in ({}, *choices)}) == 6


def test_a_changed_volume_or_table_changes_the_fingerprint(chest):
    before = chest.dataset().fingerprint()
    file = chest.set / "dataset/valid_fixed/valid_1/valid_1_a/valid_1_a_1.nii.gz"
    file.write_bytes(file.read_bytes() + b"\0")
    middle = chest.dataset().fingerprint()
    chest.edit("dataset/radiology_text_reports/train_reports.csv", "number 1.", "number one.")
    assert len({before, middle, chest.dataset().fingerprint()}) == 3


@pytest.mark.parametrize("name", ["kits23", "abdomen-atlas-3-mini", "ct-org"])
def test_each_file_of_a_case_is_in_the_fingerprint(home, name):
    place = home(name)
    case = next(iter(place.every().values()))
    for file in map(Path, files_of(case)):
        before = place.dataset().fingerprint()
        file.write_bytes(file.read_bytes() + b"\0")
        assert place.dataset().fingerprint() != before, file


def test_drawn_splits_have_about_their_share():
    splits = [drawn_split(f"patient{number}", validation_share=0.1, test_share=0.2) for number in range(4000)]
    assert [splits.count(name) / 4000 for name in ("train", "validation", "test")] == pytest.approx(
        [0.7, 0.1, 0.2], abs=0.02
    )  # three standard errors of the largest share


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"VolumeName,a\nx,1,2\n", "line 2: 2 columns are named, the row has another number"),
        (b"VolumeName,a\n\xff\xfe,1\n", "is not a readable CSV file ('utf-8' codec can't decode byte 0xff"),
        (b'VolumeName,a\n"x,1\n', "is not a readable CSV file (unexpected end of data)"),
        (b"", "has no column 'VolumeName'. It has: none"),
    ],
)
def test_a_table_that_is_none_is_named(tmp_path, content, message):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(read_rows(tmp_path / "t.csv", ["VolumeName"]))
    assert str(caught.value).startswith(f"{tmp_path / 't.csv'}: {message}")


def test_a_cell_may_be_long_and_have_lines(tmp_path):
    report = "line\n" * 40_000
    (tmp_path / "t.csv").write_text(f'\ufeffa,b\nx,"{report}"\n', encoding="utf-8")
    ((line, row),) = read_rows(tmp_path / "t.csv", ["a", "b"])
    assert (row["b"], line) == (report.strip(), 40_002)


BAD = ("0.7", "[0.7]", "[0.7, 'x']", "[0.7, nan]", "__import__('os')", "", f"[{10**400}, 1]", "[" * 3000)


@pytest.mark.parametrize("cell", BAD)
def test_a_list_as_text_is_numbers_or_refused(cell):
    assert numbers(" [0.7, 1] ", 2, "here") == (0.7, 1.0)
    with pytest.raises(DataError, match=r"^here: must be a list of 2 numbers as text, such as \[0.75"):
        numbers(cell, 2, "here")


def test_a_list_of_tables_has_its_keys_or_is_refused(tmp_path):
    for text, said in (
        ("{}", "must be a list of tables, got a dict. Fetch it again"),
        ("[[]]", "entry 0 must name a and b, got []. Fetch it again"),
        ('[{"a": 1, "b": 0}, {"a": "", "b": 0}]', "entry 1 must name a and b"),
    ):
        (tmp_path / "t.json").write_text(text)
        with pytest.raises(DataError, match=re.escape(f"t.json: {said}")):
            read_list(tmp_path / "t.json", "a", "b")


def write_tape(path, mode, contents):
    with tarfile.open(path, mode) as tape:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tape.addfile(member, io.BytesIO(content))


def test_a_member_that_would_leave_the_folder_is_not_written(tmp_path):
    write_tape(tmp_path / "a.tar", "w", {"set/../../outside.txt": b"hi", "set/inside.txt": b"hi"})
    unpack(tmp_path / "a.tar", {"set/"}, str, tmp_path / "here")
    assert (tmp_path / "here" / "set" / "inside.txt").read_text() == "hi"
    assert not list(tmp_path.rglob("outside.txt"))


UNPACKING = """
import sys, pathlib
from evidcore_plugin_ct_data.archives import unpack
archive, folder, *wanted = sys.argv[1:]
sys.stdin.readline()
unpack(pathlib.Path(archive), set(wanted), str, pathlib.Path(folder))
"""


def test_processes_that_unpack_one_archive_do_not_take_each_others_files(tmp_path):
    names = [f"{folder}/{number}.txt" for folder in "abc" for number in range(60)]
    write_tape(tmp_path / "a.tar.gz", "w:gz", {name: name.encode().ljust(50_000) for name in names})
    here = tmp_path / "here"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", UNPACKING, str(tmp_path / "a.tar.gz"), str(here), *wanted],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for wanted in (["a/", "b/"], ["b/", "c/"])
    ]  # fmt: skip
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        _, told = worker.communicate()
        assert worker.returncode == 0, told
    assert sorted(path.relative_to(here).as_posix() for path in here.rglob("*.txt")) == sorted(names)
    assert all((here / name).read_text().strip() == name for name in names)
    assert not list(here.glob("*.partial"))


def test_what_a_killed_process_left_is_cleared_away(tmp_path):
    (tmp_path / ".a.zip.gone.partial").mkdir()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("set/inside.txt", "hi")
    unpack(tmp_path / "a.zip", {"set/"}, str, tmp_path)
    assert (tmp_path / "set" / "inside.txt").read_text() == "hi"
    assert not list(tmp_path.glob(".*.partial"))


def test_every_data_set_has_a_miniature_that_the_command_writes(tmp_path):
    from evidcore.registry import offers

    ours = {offer.name for offer in offers("dataset") if offer.package == "evidcore-plugin-ct-data"}
    assert ours == set(WRITERS)
    ask = CliRunner().invoke
    assert ask(main, ["omni-med-vqa", str(tmp_path / "new")]).exit_code == 0
    assert (tmp_path / "new" / "OmniMedVQA").is_dir()
    assert f"{tmp_path / 'new'}: is not empty" in ask(main, ["omni-med-vqa", str(tmp_path / "new")]).output
    assert "'ct-rat' is not one of 'ct-rate'," in ask(main, ["ct-rat", str(tmp_path / "x")]).output
