"""The same run in one process and in two."""

import tomllib

import pytest

from evidcore.runs.folder import read_lines

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
