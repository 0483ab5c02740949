"""The same run in one process and in two."""

import tomllib

import pytest

from evidcore.runs.folder import RunFolder, read_lines

pytestmark = pytest.mark.slow


# accelerate's own launcher starts a single process on a CPU machine without MPI
TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "evidcore")


def test_two_processes_share_one_run_and_agree_with_one(evid, done):
    printed = evid("run", evid.recipe, "--out", "two", "--fresh", program=TWO).stdout
    folders = list((evid.folder / "two" / "tiny").glob("2*"))
    assert len(folders) == 1
    assert tomllib.loads((folders[0] / "lock.toml").read_text())["hardware"]["processes"] == 2
    assert printed.count("03-sft: started") == 1
    item, two = (read_lines(folder / "metrics.jsonl") for folder in (done, folders[0]))
    assert [(line["stage"], line["step"]) for line in item] == [(line["stage"], line["step"]) for line in two]
    for mine, theirs in zip(item, two, strict=True):
        if mine["stage"] == "03-sft":
            assert theirs["loss"] == pytest.approx(mine["loss"], abs=1e-4)
    lines = [read_lines(folder / "answers" / "05-evaluate.jsonl") for folder in (done, folders[0])]
    assert [line["prompt_id"] for line in lines[0]] == [line["prompt_id"] for line in lines[1]]
    same = [mine["text"] == theirs["text"] for mine, theirs in zip(*lines, strict=True)]
    assert sum(same) > 0.9 * len(same)  # the weights are those of one process but for rounding


def test_two_processes_measure_what_was_trained_in_bfloat16(evid, done):
    changes = ("--set", "stage.sft.trl={ bf16 = true }", "--set", "stage.grpo.trl={ bf16 = true }")
    evid("run", evid.recipe, "--out", "rounded", *changes, program=TWO)
    assert (evid.newest("rounded") / "results" / "05-evaluate.json").is_file()


def test_the_last_measurement_while_training_is_what_an_evaluate_stage_says(evid, done):
    asked = '[{ dataset = "chest", task = "choice", split = "validation" }]'
    keys = f"stage.grpo.evaluate={{ data = {asked}, every_steps = 4, max_new_tokens = 24 }}"
    for out, program in (("one", ("-m", "evidcore")), ("both", TWO)):
        evid(
            "run",
            evid.recipe,
            "--out",
            out,
            "--set",
            keys,
            "--set",
            f"stage.evaluate.data={asked}",
            program=program,
        )
        folder = evid.newest(out)
        lines = [line for line in read_lines(folder / "metrics.jsonl") if "evaluate_s" in line]
        assert [(line["stage"], line["step"]) for line in lines] == [("04-grpo", 4), ("04-grpo", 6)]
        rows = RunFolder(folder).result("05-evaluate")["rows"]
        figures = {f"eval/{row['name']}/{row['metric']}": row["value"] for row in rows}
        measured = {name: value for name, value in lines[-1].items() if name.startswith("eval/")}
        assert "eval/choice/strict_accuracy" in measured
        assert measured == {name: figures[name] for name in measured}
