import json
import re
import tomllib
from pathlib import Path

import pytest
from evidcore_plugin_reports.endpoint import Endpoint
from evidcore_plugin_reports.judge import DIMENSIONS, Judge, read_grades
from evidcore_plugin_reports.testing import Reply, chat_server

from evidcore.api import Unscored
from evidcore.contracts import Measured

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
GRADES = {"correctness": 4, "clarity": 5, "differential": 2, "concision": 3}
ASKED = {name: {"score": grade, "reason": f"{name}, because"} for name, grade in GRADES.items()}


def judge(url, **options):
    return Judge(endpoint=Endpoint(url=url, model="tiny", sends_text_away=True, **options))


@pytest.mark.parametrize(
    "answer",
    [
        json.dumps(ASKED),
        f"```json\n{json.dumps(ASKED, indent=1)}\n```",
        f"Here is my grading. {json.dumps(ASKED)} I hope it helps.",
        json.dumps(GRADES),
        json.dumps({name.upper(): f"{grade}/5" for name, grade in GRADES.items()}),
        json.dumps({"grades": {name: {"Score": str(grade)} for name, grade in GRADES.items()}}),
        "\n".join(f"1. **{name.title()}**: {grade}/5 - fine." for name, grade in GRADES.items()),
        "\n".join(f"- {name} = {grade} out of 5" for name, grade in GRADES.items()),
    ],
    ids=["json", "fenced", "within words", "bare", "as texts", "nested", "lines", "list"],
)  # fmt: skip
def test_grades_are_read_in_many_forms(answer):
    assert read_grades(answer)[0] == GRADES


@pytest.mark.parametrize(("answer", "read"), [*TABLE["ungraded"], ("{" * 3000, {})])
def test_what_is_no_grade_is_not_read_as_one(answer, read):
    assert read_grades(answer)[0] == read


@pytest.mark.parametrize("answer", ["\n" * 40_000, '{"a":' * 900 + "[0," * 65_000])
def test_a_long_answer_is_read_to_its_end(answer):  # for hours, where each place is looked at anew
    assert read_grades(answer) == ({}, {})


def test_reasons_are_kept_beside_the_grades():
    assert read_grades(json.dumps(ASKED))[1] == {name: f"{name}, because" for name in GRADES}
    assert read_grades("Clarity: 4/5 - well ordered.")[1] == {"clarity": "well ordered"}
    assert read_grades(json.dumps(GRADES))[1] == {}


def test_a_model_is_shown_question_report_and_text_and_its_grades_are_taken(written):
    with chat_server(lambda body, number: Reply(content=json.dumps(ASKED))) as server:
        metric = judge(server.url)
        (result,) = metric(written(("There is emphysema.</text>", "No emphysema, größer.")))
    assert result.figures == {f"judge_{name}": float(grade) for name, grade in GRADES.items()}
    assert result.remarks["judge_clarity"] == "clarity, because"
    system, shown = (message["content"] for message in server.requests[0]["messages"])
    assert all(name in system for name in DIMENSIONS)
    (mark,) = set(re.findall(r"</?(?:asked|report|text)-(\w{16})>", shown))
    assert shown.replace(f"-{mark}>", ">") == (
        "<asked>\nWrite the report.\n</asked>\n<report>\nNo emphysema, größer.\n</report>\n"
        "<text>\nThere is emphysema.</text>\n</text>"
    )
    assert metric.notes()["judge_clarity"].startswith("1 to 5, by 'tiny', instruction ")


def test_unread_and_unanswered_texts_are_missing_and_say_why(written):
    def reply(body, number):
        said = body["messages"][-1]["content"]
        if "refused" in said:
            return Reply(status=400)
        if "half" in said:
            return Reply(content='{"clarity": 4}')
        return Reply(content="Fine." if "words" in said else json.dumps(GRADES))

    texts = written(("refused", "A."), ("half", "A."), ("words", "A."), ("good", "A."), ("none", ""))
    with chat_server(reply) as server:
        refused, half, words, good, none = judge(server.url)(texts)
    reason = "no answer: the endpoint refused the request with HTTP 400"
    assert refused == Unscored(kind="failed", reason=reason)
    assert half == Measured(figures={"judge_clarity": 4.0})
    assert words == Unscored(kind="failed", reason="unread: the answer holds no grade")
    assert good.figures["judge_concision"] == 3.0
    assert none.reason == "no reference report"
    assert len(server.requests) == 4  # a text without a reference is not sent
