import pytest
from evidcore_plugin_medvol_r1.reading import read

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


@pytest.mark.parametrize(
    ("inner", "fault"),
    [
        ("slice 9", "the answer is no JSON (Expecting value): 'slice 9'"),
        ('{"slice": 9', "the answer is no JSON (Expecting ',' delimiter): '{\"slice\": 9'"),
        ("[]", "the answer holds 0 objects, expected one"),
        ('[{"slice": 9}, {"slice": 3}]', "the answer holds 2 objects, expected one"),
        ("[9]", "the answer is 9, expected an object with 'slice' and 'bbox_2d_list'"),
        ('{"bbox_2d_list": [[1, 2, 3, 4]]}', "the object has no 'slice'"),
        ('{"slice": 9}', "the object has no 'bbox_2d_list'"),
        ('{"slice": 9, "bbox_2d_list": [], "label": 1}', "the object has another key, 'label'"),
        ('{"slice": "9", "bbox_2d_list": []}', "the slice is '9', expected a whole number"),
        ('{"slice": true, "bbox_2d_list": []}', "the slice is true, expected a whole number"),
        ('{"slice": 9.0, "bbox_2d_list": []}', "the slice is 9.0, expected a whole number"),
        ('{"slice": 4, "bbox_2d_list": []}', "slice 4 was not shown; shown are 3, 9, 15"),
        ('{"slice": 9, "bbox_2d_list": []}', "'bbox_2d_list' is [], expected a list of boxes"),
        ('{"slice": 9, "bbox_2d_list": 5}', "'bbox_2d_list' is 5, expected a list of boxes"),
        *(
            (f'{{"slice": 9, "bbox_2d_list": [{box}]}}', f"the box {box} must be four numbers x0, y0, x1, y1")
            for box in ("[1, 2, 3]", '[1, 2, 3, "4"]', "[NaN, 2, 3, 4]")
        ),
        *(
            (
                f'{{"slice": 9, "bbox_2d_list": [[1, 2, 3, 4], {box}]}}',
                f"the box {box} must have 0 <= x0 < x1 <= 1000 and 0 <= y0 < y1 <= 1000",
            )
            for box in ([5, 0, 5, 9], [1, 2, 3, 1001], [1, 2, 1001, 4], [-1, 2, 3, 4], [1, -1, 3, 4])
        ),
        ('{"slice": 9, "bbox_2d_list": [[1.5, 2, 3, 4]]}', "the box [1.5, 2, 3, 4] must be of whole numbers"),
        (
            '{"slice": 9, "bbox_2d_list": [[1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4]]}',
            "the box [1, 2, 3, 4] is written twice",
        ),
    ],
)
def test_whatever_is_refused_has_its_reason(inner, fault):
    assert read(answer(inner), SHOWN, think=True).fault == fault


@pytest.mark.parametrize(
    ("inner", "fault"),
    [
        ('[{"slice": 9, "bbox_2d_list": [[10, 20, 30, 40]]}]', None),
        (
            '{"slice": 9, "bbox_2d_list": [[10, 20, 30, 40]]}',
            'the answer is {"slice": 9, "bbox_2d_list": [[10, 20, 3…, expected an array with one object: '
            "[{'slice': …}]",
        ),
        ("9", "the answer is 9, expected an array with one object: [{'slice': …}]"),
        ('[{"slice": 9}, {"slice": 3}]', "the answer holds 2 objects, expected one"),
        ('[{"bbox_2d_list": [[10, 20, 30, 40]]}]', "the object has no 'slice'"),
    ],
)
def test_where_an_array_is_asked_for_a_bare_object_is_refused_and_read(inner, fault):
    result = read(answer(inner), SHOWN, think=True, form="array")
    assert result.fault == fault
    assert (result.slice, result.boxes) == (read(answer(inner), SHOWN, think=True).slice, result.boxes)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no tags, expected <think></think><answer></answer>"),
        (GOOD.replace(THINK, ""), "no <think>"),
        (GOOD.replace("It is large there.", " "), "the think text is empty"),
        (f"Well, {GOOD}", "text outside the tags: 'Well,'"),
        (GOOD + GOOD, "2 times <think>, expected once"),
        (GOOD.replace("answer>", "box>"), "unexpected tag <box>"),
        (GOOD.replace(THINK, "") + THINK, "tags in the order <answer></answer><think></think>, expected "
         "<think></think><answer></answer>"),
    ],
)  # fmt: skip
def test_faults_of_the_tags_come_first(text, fault):
    assert read(text, SHOWN, think=True).fault == fault


def test_where_no_thinking_is_asked_for_an_answer_alone_is_right_and_thinking_is_wrong():
    bare = GOOD.replace(THINK, "")
    assert read(bare, SHOWN, think=False).fault is None
    assert read(bare, SHOWN, think=False).parts == {"tags": 1.0, "json": 1.0, "boxes": 1.0}
    assert read(GOOD, SHOWN, think=False).fault == "unexpected tag <think>"


BOX = ((1.0, 2.0, 3.0, 4.0),)


@pytest.mark.parametrize(
    ("inner", "boxes", "named"),
    [
        ('The box: {"slice": 9, "bbox_2d_list": [[1, 2, 3, 4]]}, I think.', BOX, 9),
        ('```json\n[{"slice": 9, "bbox_2d_list": [[1, 2, 3, 4]]}]\n```', BOX, 9),
        ('{"entities": [{"slice": 9, "bbox_2d": [1, 2, 3, 4]}]}', BOX, 9),
        ('{"slice": "slice 9", "bbox_2d_list": [[1.0, 2.0, 3.0, 4.0]]}', BOX, 9),
        ('{"slice": 9, "bbox_2d_list": [[1, 2, 3, 4], [1, 2, 3, 4]]}', BOX * 2, 9),
        ('{"slice": 9.0, "bbox_2d_list": [[1, 2, 3, 4], [9, 9, 9, 9], "x"]}', BOX, 9),
        ('[{"slice": 9, "bbox_2d_list": [[1, 2, 3, 4]]}, {"slice": 3}]', BOX, 9),
        ('[1, 2] {"slice": 9, "bbox_2d_list": [[1, 2, 3, 4]]}', BOX, 9),
        ('{"slice": 9}', (), 9),
        ('{"slice": 10, "bbox_2d_list": [[1, 2, 3, 4]]}', BOX, None),
        ('{"slice": "3 or 9", "bbox_2d_list": [[1, 2, 3, 4]]}', BOX, None),
        ('{"slice": -9, "bbox_2d_list": [[-1, 2, 3, 4]]}', (), None),
        ('{"slice": 1e400, "bbox_2d_list": [[1e400, 2, 3, 4]]}', (), None),
        *((garbage, (), None) for garbage in (
            "[" * 30000, "{" * 30000, '{"slice": ' + "9" * 5000 + "}", "[1e999]", "\x00"
        )),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_a_tolerant_reader_takes_what_can_be_told_and_no_more(inner, boxes, named):
    result = read(answer(inner), SHOWN, think=True)
    assert result.fault
    assert (result.boxes, result.slice) == (boxes, named)


def test_of_several_answers_the_last_is_taken_and_an_open_one_is_read():
    texts = (
        GOOD.replace("9", "3") + GOOD,
        GOOD.replace("</answer>", ""),
        GOOD.split("<answer>")[0] + '{"slice": 9}',
    )
    assert [read(text, SHOWN, think=True).slice for text in texts] == [9, 9, 9]
