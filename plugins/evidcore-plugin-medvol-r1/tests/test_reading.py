import tomllib
from pathlib import Path

import pytest
from evidcore_plugin_medvol_r1.reading import read

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

SHOWN = [3, 9, 15]
THINK = "<think>It is large there.</think>"


def answer(inner):
    return f"{THINK}<answer>{inner}</answer>"


GOOD = answer('{"slice": 9, "bbox_2d_list": [[10, 20, 30, 40]]}')


@pytest.mark.parametrize(
    "text",
    [GOOD, answer('[{"slice": 9, "bbox_2d_list": [[10, 20, 30, 40]]}]'),
     answer('\n{"bbox_2d_list": [[10, 20, 30, 40]],\n "slice": 9}\n'),
     f'  {THINK}\n\n<answer> {{"slice":9,"bbox_2d_list":[[10,20,30,40]]}} </answer>\n'],
)  # fmt: skip
def test_the_strict_format_is_one_object_bare_or_in_an_array(text):
    result = read(text, SHOWN, think=True)
    assert (result.fault, result.slice, result.boxes) == (None, 9, ((10, 20, 30, 40),))
    assert result.parts == {"tags": 1.0, "think": 1.0, "json": 1.0, "boxes": 1.0}
    assert result.think == "It is large there."


@pytest.mark.parametrize(("inner", "fault"), TABLE["refused"])
def test_whatever_is_refused_has_its_reason(inner, fault):
    assert read(answer(inner), SHOWN, think=True).fault == fault


@pytest.mark.parametrize(("inner", "fault"), TABLE["array"])
def test_where_an_array_is_asked_for_a_bare_object_is_refused_and_read(inner, fault):
    result = read(answer(inner), SHOWN, think=True, form="array")
    assert result.fault == (fault or None)
    assert (result.slice, result.boxes) == (read(answer(inner), SHOWN, think=True).slice, result.boxes)


@pytest.mark.parametrize(("text", "fault"), TABLE["tags"])
def test_faults_of_the_tags_come_first(text, fault):
    assert read(text, SHOWN, think=True).fault == fault


def test_where_no_thinking_is_asked_for_an_answer_alone_is_right_and_thinking_is_wrong():
    bare = GOOD.replace(THINK, "")
    assert read(bare, SHOWN, think=False).fault is None
    assert read(bare, SHOWN, think=False).parts == {"tags": 1.0, "json": 1.0, "boxes": 1.0}
    assert read(GOOD, SHOWN, think=False).fault == "unexpected tag <think>"


GARBAGE = ("[" * 30000, "{" * 30000, '{"slice": ' + "9" * 5000 + "}", "[1e999]", "\x00")


@pytest.mark.parametrize(
    ("inner", "boxes", "named"),
    [*TABLE["tolerated"], *((garbage, [], "") for garbage in GARBAGE)],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_a_tolerant_reader_takes_what_can_be_told_and_no_more(inner, boxes, named):
    result = read(answer(inner), SHOWN, think=True)
    assert result.fault
    assert ([*map(list, result.boxes)], result.slice) == (boxes, named or None)


def test_of_several_answers_the_last_is_taken_and_an_open_one_is_read():
    texts = (
        GOOD.replace("9", "3") + GOOD,
        GOOD.replace("</answer>", ""),
        GOOD.split("<answer>")[0] + '{"slice": 9}',
    )
    assert [read(text, SHOWN, think=True).slice for text in texts] == [9, 9, 9]
