"""A run folder as it lies on disk: what is broken or strange is named, what is being written is left out."""

import json
import os
import re

import pytest

from evidcore.errors import RunError
from evidcore.runs import read
from evidcore.runs.folder import open_run

RESULT = {"stage": "05-evaluate", "kind": "evaluate", "verdict": {"choice": "-"}}
ROW = {"name": "choice", "metric": "accuracy", "value": 0.5}
ROLLOUT = {"text": "B", "total": 1.0, "rewards": {}}
PROMPT = {"task": "choice", "case_id": "1", "images": []}
FILES = {
    "STATUS": {"state": "finished", "step": 1},
    "metrics.jsonl": {"stage": "01-sft", "step": 1, "time_s": 1.0},
    "results/05-evaluate.json": {**RESULT, "rows": [ROW]},
    "answers/05-evaluate.jsonl": {**PROMPT, "prompt_id": "1", "text": "B", "present": []},
    "rollouts/02-grpo.jsonl": {**PROMPT, "step": 1, "rollouts": [ROLLOUT], "reference": {}},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "stages/5e").mkdir(parents=True)
    (tmp_path / "stages/5e/result.json").write_text("{}")
    result = tmp_path / "run"
    for name in ("page", "checkpoints", "results", "answers", "rollouts"):
        (result / name).mkdir(parents=True)
    for name, value in FILES.items():
        (result / name).write_text(json.dumps(value) + "\n")
    for name in ("recipe.toml", "resolved.toml", "lock.toml"):
        (result / name).write_text('dataset.own.use = "table"\n')
    (result / "checkpoints/01-sft").symlink_to("../../stages/5e")
    return result


def read_whole(folder):
    for name in FILES:
        list(read.lines(folder / name)) if name.endswith("jsonl") else read.read_object(folder / name)
    for name in ("recipe.toml", "resolved.toml", "lock.toml"):
        read.read_tables(folder / name)


def test_a_line_that_is_being_written_is_left_out(folder):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "02-grpo", "st')
    assert [line["step"] for line in read.lines(folder / "metrics.jsonl")] == [1]


def test_a_process_that_is_no_number_is_refused_and_not_printed(folder, caplog):
    forged = {"state": "running", "stage": "01-sft", "pid": "\x1b]0;nothing wrong found\x07"}
    (folder / "STATUS").write_text(json.dumps(forged))
    with pytest.raises(RunError, match="STATUS: pid"):
        read.read_status(folder)
    assert not caplog.records


@pytest.mark.parametrize("name", [*FILES, "resolved.toml", "lock.toml"])
@pytest.mark.parametrize("damage", [b"[" * 100_000, b"\xff\xfe", b"1" * 5000, b"\0", b"[1]", b"{" * 300])
def test_a_damaged_file_is_named(folder, monkeypatch, name, damage):
    start = {"resolved.toml": b"dataset = ", "lock.toml": b"package = "}.get(name, b"")
    (folder / name).write_bytes(start + damage + b"\n")
    if damage.startswith(b"{"):
        monkeypatch.setattr(read, "MOST_BYTES", 250)
    with pytest.raises(RunError, match=f"{re.escape(str(folder / name))}.*: "):
        read_whole(folder)


def values(table, at=()):
    """Yield each key of a table, with those of the tables and lists in it."""
    for key, value in table.items() if isinstance(table, dict) else enumerate(table):
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from values(value, (*at, key))


@pytest.mark.parametrize(
    ("name", "at"), [(name, at) for name, table in FILES.items() for at in values(table)]
)
@pytest.mark.parametrize("value", [True, [[1]], {"a": [1]}, "\0"], ids=repr)
def test_a_value_of_another_type_is_named(folder, name, at, value):
    table = here = json.loads(json.dumps(FILES[name]))
    for key in at[:-1]:
        here = here[key]
    if isinstance(value, type(here[at[-1]])):
        pytest.skip("of that type")
    here[at[-1]] = value
    (folder / name).write_text(json.dumps(table) + "\n")
    with pytest.raises(
        RunError, match=rf"{re.escape(name)}(, line 1)?: {' '.join(map(str, at))}[ :].*\. Re?"
    ):
        read_whole(folder)


@pytest.mark.parametrize("make", ["link", "link of a folder", "pipe"])
@pytest.mark.parametrize("name", [
    *FILES, ".lock", "lock.toml", "page", "page/index.html", "working", "answers", "checkpoints/01-sft",
    "checkpoints/01-sft/model", "checkpoints/01-sft/result.json",
])  # fmt: skip
def test_what_is_no_file_of_the_run_is_refused_before_it_is_opened(folder, tmp_path, name, make):
    path, outside = folder / name, tmp_path / "own"
    (outside / "resolved.toml").parent.mkdir()
    (outside / "resolved.toml").write_text("own = 1")
    if os.path.lexists(path):
        path.rename(tmp_path / "taken")
    if make == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(outside if "folder" in make else outside / "resolved.toml")
    for read_it in (read.refuse_strange, open_run):
        if name == "lock.toml" and make != "link" and read_it is open_run:
            continue  # a folder without a lock is no run
        with pytest.raises(RunError, match=f"{path.name}: is (a link to|neither a file).* Remove it"):
            read_it(folder)
