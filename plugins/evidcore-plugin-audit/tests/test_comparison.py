"""Two evaluations, compared question by question: hand-made answers whose differences are known."""

import json

import pytest
from evidcore_plugin_audit.comparison import compared

from evidcore.errors import RunError

FINDINGS = ("lung nodule", "emphysema")


def line(number, value, **more):
    """An answer to question `number`, of one of 40 patients."""
    return {
        "prompt_id": f"q{number}", "case_id": f"c{number}", "patient": f"p{number % 40}", "task": "choice",
        "condition": "own", "prompt": f"Question {number}?", "text": "secret words", "malformed": None,
        "value": value, "figures": {"tokens": 3.0}, "finding": FINDINGS[number % 2], **more,
    }  # fmt: skip


def run_of(root, name, stages, seed=17, state="finished"):
    """Write a run folder whose evaluations gave these lines."""
    folder = root / "made" / name
    for inner in ("answers", "results"):
        (folder / inner).mkdir(parents=True)
    (folder / "lock.toml").write_text("")
    (folder / "resolved.toml").write_text(f'schema = 1\nname = "made"\nseed = {seed}\n')
    time = f"2026-01-0{len(list((root / 'made').iterdir()))}T00:00:00+00:00"
    status = {"state": state, "stage": "04-grpo", "step": 3, "message": "told", "time": time}
    (folder / "STATUS").write_text(json.dumps(status))
    for stage, lines in stages.items():
        (folder / "answers" / f"{stage}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in lines))
        kind = stage.partition("-")[2]
        rate = sum(item["value"] for item in lines) / len(lines)
        row = {"name": "choice", "metric": "accuracy", "value": rate, "unit": "rate", "headline": True}
        told = {"stage": stage, "kind": kind, "rows": [row, {**row, "metric": "other", "headline": False}]}
        (folder / "results" / f"{stage}.json").write_text(json.dumps(told))
    return folder


@pytest.fixture
def trained(tmp_path):
    """A run that learnt emphysema and forgot nodules: 10 of 60 broken, 20 mended, the rest as it was."""
    before = [line(n, float(n % 2 == 0)) for n in range(60)]
    after = [line(n, float(n >= 20) if n % 2 == 0 else float(n < 40)) for n in range(60)]
    return run_of(tmp_path, "one", {"03-evaluate": before, "05-evaluate": after, "06-audit": before})


def test_a_stage_is_compared_with_the_first_that_asked_the_same(trained):
    result = compared(trained, None)
    assert (result.before, result.after) == ("one:03-evaluate", "one:05-evaluate")
    (task,) = result.by_task().itertuples()
    assert (task.before, task.after) == (0.5, pytest.approx(40 / 60))
    assert (task.better, task.worse, task.questions, task.patients) == (20, 10, 60, 40)
    assert task.low < 10 / 60 < task.high
    findings = result.by_finding()
    assert findings["name"].tolist() == ["lung nodule", "emphysema"]
    assert findings["change"].tolist() == pytest.approx([-1 / 3, 2 / 3])
    fallen = result.questions.query("change < 0")
    assert set(fallen["prompt"]) == {f"q{n}" for n in range(0, 20, 2)}


def test_the_questions_that_training_broke_are_one_command_away(trained, evid):
    said = evid("compare", trained, "--finding", "lung nodule", "--list", "worse").stdout
    assert "choice  30         100.0 %  66.7 %  -33.3 %" in said
    assert "10 worse\n" in said
    assert "1 -> 0  choice  q0  lung nodule" in said
    assert "emphysema" not in said
    assert f"evid view {trained}" in said
    assert "secret" not in said


def test_two_runs_are_compared_at_the_same_stage(trained, tmp_path, evid):
    asked = [line(n, 1.0, prompt="Otherwise?", answer="other") for n in range(10, 70)]
    other = run_of(tmp_path, "two", {"05-evaluate": asked})
    result = json.loads(evid("compare", trained, other, "--json").stdout)
    assert (result["before"], result["after"]) == ("one:05-evaluate", "two:05-evaluate")
    assert len(result["questions"]) == 50
    assert result["notes"] == [
        "10 questions were asked by one:05-evaluate alone",
        "10 questions were asked by two:05-evaluate alone",
        "50 questions are worded otherwise, or have their options in another order",
        "50 questions have another right answer",
    ]


def test_two_runs_whose_folders_have_one_name_are_two_runs(trained, tmp_path):
    other = run_of(tmp_path / "elsewhere", "one", {"05-evaluate": [line(0, 1.0)]})
    (question,) = compared(trained, other).questions.itertuples()
    assert (question.before, question.after) == (0.0, 1.0)


def test_an_answer_is_worth_any_of_its_figures(trained):
    assert compared(trained, None, metric="tokens").by_task()["before"].tolist() == [3.0]
    with pytest.raises(RunError, match=r"no number 'token'.* Did you mean 'tokens'"):
        compared(trained, None, metric="token")


def test_a_question_asked_several_times_is_worth_the_mean_and_other_conditions_are_left_out(tmp_path):
    lines = [line(0, 1.0), line(0, 0.0), line(1, 1.0), line(1, 0.0, condition="blank")]
    run = run_of(tmp_path, "many", {"01-evaluate": [line(0, 0.0), line(1, 1.0)], "02-audit": lines})
    assert compared(run, None, stage="02-audit").questions["change"].tolist() == [0.0, 0.5]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stage": "04-grpo"}, r"stage '04-grpo' has no answers\..*Stages with answers: 03-evaluate"),
        ({"stage": "03-evaluate"}, "no evaluation before 03-evaluate asked any of its questions"),
        ({"before": "05-evaluate"}, "05-evaluate would be compared with itself"),
    ],
)
def test_what_cannot_be_compared_is_named(trained, options, says):
    with pytest.raises(RunError, match=says):
        compared(trained, None, **options)


def test_runs_without_a_question_in_common_are_named(trained, tmp_path):
    other = run_of(tmp_path, "two", {"05-evaluate": [line(n, 1.0) for n in range(100, 110)]})
    with pytest.raises(RunError, match=r"no question in common: 60 and 10 were asked"):
        compared(trained, other)


def test_a_finding_that_nothing_is_about_is_named(trained):
    with pytest.raises(RunError, match=r"about 'lung nodul'\. Did you mean 'lung nodule'"):
        compared(trained, None).about("lung nodul")


def test_a_run_without_an_evaluation_is_named(tmp_path):
    run = run_of(tmp_path, "none", {"02-audit": [line(0, 1.0)]})
    with pytest.raises(RunError, match=r"has no finished evaluation\. Stages with answers: \['02-audit'\]"):
        compared(run, None)


def test_runs_are_listed_newest_first(trained, tmp_path, evid):
    run_of(tmp_path, "two", {"01-evaluate": [line(0, 0.25)]}, seed=3, state="[/]\x1b[2J")
    (tmp_path / "made/three").mkdir()
    (tmp_path / "made/three/lock.toml").write_text("")
    said = [" ".join(row.split()) for row in evid("runs", tmp_path).stdout.splitlines()]
    assert r"two 3 [/]\x1b[2J in 04-grpo at step 3" in said[1]  # neither markup nor a code of the terminal
    assert "choice accuracy 25.0 %" in said[1]
    assert "one 17 finished" in said[2]
    assert "unreadable" in said[3]
    (newest,) = json.loads(evid("runs", tmp_path / "made", "--limit", 1, "--json").stdout)["runs"]
    assert newest["recipe"] == "made"
    assert newest["headlines"][0]["value"] == 0.25
    assert "2 older ones" in evid("runs", tmp_path, "--limit", 1).stderr
    listed = json.loads(evid("runs", tmp_path, "--json").stdout)["runs"]
    assert [item["state"] for item in listed] == ["[/]\x1b[2J", "finished", "unreadable"]


@pytest.mark.parametrize(
    ("words", "says"),
    [(("empty",), "holds no run"), ((".", "--recipe", "mad"), "no run of 'mad'. Did you mean 'made'?")],
)
def test_runs_that_are_not_there_are_named(trained, tmp_path, evid, words, says):
    assert says in evid("runs", tmp_path / words[0], *words[1:], exit_code=2).stderr
