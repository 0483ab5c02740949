import hashlib
import json
import tomllib
from pathlib import Path

import pytest
from evidcore_plugin_reports.labels_file import LabelsFile
from evidcore_plugin_reports.sentences import labelled

from evidcore.api import DataError, Finding, Span
from evidcore.contracts import LabelError

TEXT = "No effusion. There is a 7 mm nodule on the left."


def sha256(text):
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def entry(text=TEXT, **changed):
    finding = {"name": "lung nodule", "state": "present", "side": "left", "size_mm": 7, "span": [24, 35]}
    return {"text_sha256": sha256(text), "findings": [{**finding, **changed}]}


def labeler(folder, table):
    content = table if isinstance(table, bytes) else json.dumps(table).encode()
    (folder / "labels.json").write_bytes(content)
    return LabelsFile(folder, path="labels.json", sha256=sha256(content))


def test_a_text_gets_what_the_file_says_of_it(tmp_path):
    made = labeler(tmp_path, {"schema": 1, "cases": {"a": entry(), "b": {**entry("Other."), "findings": []}}})
    span = Span(start=24, end=35, label="present")
    result = (Finding(name="lung nodule", state="present", side="left", size_mm=7.0, span=span),)
    assert made(TEXT) == result
    assert TEXT[24:35] == "7 mm nodule"
    assert made("Other.") == ()
    assert made(" \n") == ()


def test_a_span_over_two_sentences_labels_both(tmp_path):
    made = labeler(tmp_path, {"schema": 1, "cases": {"a": entry(span=[4, 35])}})
    assert [span.label for span in labelled(TEXT, made)] == ["abnormal", "abnormal"]


def test_an_unknown_text_is_unread_and_not_quoted(tmp_path):
    made = labeler(tmp_path, {"schema": 1, "cases": {"a": entry()}})
    with pytest.raises(LabelError, match=sha256(TEXT + " ")) as caught:
        made(TEXT + " ")
    assert "49 characters" in str(caught.value)
    assert "nodule" not in str(caught.value)
    result, missing = made.read([TEXT, "unknown"])
    assert result == made(TEXT)
    assert isinstance(missing, LabelError)


WRONG = tomllib.loads(Path(__file__).with_name("wrong_labels.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *(({"a": entry(**tomllib.loads(change))}, said) for change, said in WRONG["finding"].items()),
        *((text.encode(), said) for text, said in WRONG["file"].items()),
        ({"a": entry(), "b": entry(size_mm=8)}, r"cases\.b: has the same text as case 'a'"),
        (b"[" * 200_000, r"is no JSON as it should be: maximum recursion depth"),
        (b"\xff", r"is no JSON as it should be"),
    ],
)
def test_a_wrong_entry_or_file_is_named(tmp_path, content, said):
    file = content if isinstance(content, bytes) else {"schema": 1, "cases": content}
    with pytest.raises(DataError, match=rf"(?s)labels\.json: .*{said}"):
        labeler(tmp_path, file)(TEXT)


def test_a_file_that_is_not_the_recipes_is_refused_with_its_hash(tmp_path):
    content = json.dumps({"schema": 1, "cases": {"a": entry()}}).encode()
    (tmp_path / "labels.json").write_bytes(content)
    made = LabelsFile(tmp_path, path="labels.json", sha256="0" * 64)
    told = rf"not '0+' as the recipe says.*write: sha256 = \"{sha256(content)}\""
    with pytest.raises(DataError, match=told):
        made(TEXT)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=rf"{tmp_path}/none\.json: cannot be read: No such file"):
        LabelsFile(tmp_path, path="none.json", sha256="0" * 64)(TEXT)
