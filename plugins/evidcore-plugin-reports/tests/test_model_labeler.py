import json
import tomllib
from pathlib import Path

import pytest
from evidcore_plugin_reports.endpoint import Endpoint
from evidcore_plugin_reports.model_labeler import INSTRUCTION, ModelLabeler, read_findings
from evidcore_plugin_reports.reward import ReportFindings
from evidcore_plugin_reports.scorers import FindingsF1
from evidcore_plugin_reports.testing import Reply, chat_server

from evidcore.api import Answer, Case, Finding, Prompt, Report, Rollout, Span
from evidcore.contracts import LabelError

TEXT = "No effusion. There is a 7 mm  nodule on the left."
NAMES = ("lung nodule", "pleural effusion")
NODULE = {"name": "lung nodule", "state": "present", "side": "left", "size_mm": 7, "quote": "7 mm Nodule"}
EFFUSION = {"name": "pleural effusion", "state": "absent", "side": None, "size_mm": None, "quote": "effusion"}


def labeler(server):
    endpoint = Endpoint(url=server.url, model="tiny", sends_text_away=True, tries=1)
    return ModelLabeler(endpoint=endpoint, findings=NAMES)


def told(*entries):
    return json.dumps({"findings": entries})


FOUND = (
    Finding(name="pleural effusion", state="absent", span=Span(start=3, end=11, label="absent")),
    Finding(
        name="lung nodule", state="present", side="left", size_mm=7.0,
        span=Span(start=24, end=36, label="present"),
    ),
)  # fmt: skip


def test_a_model_is_asked_for_the_findings_and_its_answer_taken():
    with chat_server(lambda body, number: Reply(content=told(NODULE, EFFUSION))) as server:
        assert labeler(server)(TEXT) == FOUND
    (body,) = server.requests
    system, user = body["messages"]
    assert "lung nodule, pleural effusion." in system["content"]
    assert "<findings>" in INSTRUCTION
    assert "<findings>" not in system["content"]
    assert user == {"role": "user", "content": TEXT}


def test_a_fence_around_the_answer_is_taken_off_and_nothing_said_is_no_finding():
    assert read_findings(f"```json\n{told(NODULE, EFFUSION)}\n```", TEXT, NAMES) == FOUND
    assert read_findings(told(), TEXT, NAMES) == ()


WRONG = tomllib.loads(Path(__file__).with_name("wrong_answers.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        *WRONG["answer"].items(),
        *((told({**NODULE, **tomllib.loads(change)}), said) for change, said in WRONG["nodule"].items()),
    ],
)
def test_an_answer_that_cannot_be_taken_leaves_the_text_unread(answer, said):
    where = r"model 'tiny': a text of 49 characters \(sha256 "
    with (
        chat_server(lambda body, number: Reply(content=answer)) as server,
        pytest.raises(LabelError, match=f"{where}.*{said}") as caught,
    ):
        labeler(server)(TEXT)
    assert "nodule" not in str(caught.value)


def test_an_answer_that_was_cut_off_leaves_its_text_alone_unread():
    def reply(body, number):
        is_long = "long" in body["messages"][1]["content"]
        return Reply(content=told(EFFUSION), finish="length" if is_long else "stop")

    with chat_server(reply) as server:
        unread, result, blank = labeler(server).read(["A long effusion.", "An effusion.", " "])
        again = labeler(server).read(["An effusion."])
    assert isinstance(unread, LabelError)
    assert "cut off; raise body.max_tokens" in str(unread)
    assert [item.name for item in result] == ["pleural effusion"]
    assert blank == ()
    assert again == [result]
    assert len(server.requests) == 2


def test_a_text_that_could_not_be_read_is_scored_none_and_not_0():
    with chat_server(lambda body, number: Reply(content="garbage")) as server:
        reader = labeler(server)
        assert FindingsF1(labeler=reader)(["One.", ""], ["Two.", ""]) == [None, None]
        case = Case(id="a", patient="p", volumes=(), report=Report(text=TEXT), findings=FOUND)
        prompt = Prompt(id="a:report", case=case, task="report", parts=())
        rollout = Rollout(prompt=prompt, group=0, text=TEXT, answer=Answer(text=TEXT, report=TEXT))
        (verdict,) = ReportFindings(labeler=reader)([rollout], {})
    assert verdict.kind == "failed"
    assert "the answer is no JSON" in verdict.reason
