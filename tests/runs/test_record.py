import json

from evidcore.hooks import Announcer
from evidcore.runs.folder import Recorder, RunFolder, StageEvents, append, read_lines, rewrite


def test_each_step_is_a_line_with_stage_step_and_time(tmp_path):
    announce = StageEvents(Announcer([Recorder(RunFolder(tmp_path))]), "03-sft")
    announce.step_finished(1, {"loss": 2.5})
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert line.pop("time_s") >= 0
    assert line == {"stage": "03-sft", "step": 1, "loss": 2.5}
    assert RunFolder(tmp_path).status()["step"] == 1


def test_what_a_killed_process_wrote_beyond_its_checkpoint_is_replaced(tmp_path):
    (tmp_path / "rollouts").mkdir()
    first = StageEvents(Announcer([Recorder(RunFolder(tmp_path))]), "04-grpo")
    group = {"task": "choice", "case_id": "1", "rollouts": []}
    append(tmp_path / "metrics.jsonl", [{"stage": "03-sft", "step": 9}])
    for step in (1, 2, 3):
        first.rollouts_judged(step, [{**group, "prompt_id": f"p{step}"}])
        first.step_finished(step, {"loss": 1.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"stage": "04-gr')  # cut short by the kill
    second = StageEvents(Announcer([Recorder(RunFolder(tmp_path))]), "04-grpo")
    for step in (2, 3):
        second.rollouts_judged(step, [{**group, "prompt_id": f"q{step}"}])
        second.step_finished(step, {"loss": 2.0})
    steps = [(line["stage"], line["step"]) for line in read_lines(tmp_path / "metrics.jsonl")]
    assert steps == [("03-sft", 9), ("04-grpo", 1), ("04-grpo", 2), ("04-grpo", 3)]
    result = read_lines(tmp_path / "rollouts" / "04-grpo.jsonl")
    assert [line["prompt_id"] for line in result] == ["p1", "q2", "q3"]
    assert result[0] == {**group, "prompt_id": "p1", "stage": "04-grpo", "step": 1}


def test_time_goes_on_where_the_killed_process_stopped(tmp_path):
    taken_over = {"stage": "01-fit-encoder", "step": 9, "time_s": 9e6, "reused": True}
    append(tmp_path / "metrics.jsonl", [taken_over, {"stage": "03-sft", "step": 1, "time_s": 4000.5}])
    StageEvents(Announcer([Recorder(RunFolder(tmp_path))]), "03-sft").step_finished(2, {})
    assert 4000.5 <= read_lines(tmp_path / "metrics.jsonl")[-1]["time_s"] < 5000


def test_lines_are_changed_or_dropped_and_what_is_no_number_is_null_and_never_0(tmp_path):
    path = tmp_path / "x.jsonl"
    rewrite(path, lambda line: None)
    assert not path.exists()
    append(path, [{"a": 1}, {"a": float("nan"), "b": [float("inf"), 1.0], "c": {"d": None}}])
    rewrite(path, lambda line: None if line["a"] == 1 else {**line, "e": "ü"})
    assert read_lines(path) == [{"a": None, "b": [None, 1.0], "c": {"d": None}, "e": "ü"}]
