"""What a run prints of its stages, where there is no terminal."""

import contextlib
import io
import logging
import os
import re
from pathlib import Path

import pytest

from evidcore.cli import _Printed, printer
from evidcore.cli.run import Progress
from evidcore.errors import Stopped


def said(capsys):
    """Return what was printed of finished stages, whatever they took by the clock on the wall."""
    lines = capsys.readouterr().out.splitlines()
    return [re.sub(r"done in \d+ s", "done", line) for line in lines if "done in" in line]


def test_a_finished_stage_says_where_its_time_went(tmp_path, capsys):
    rewards = {"reward_s/format": 0.1, "reward_s/judge": 3.0}
    grpo = {"generate_s": 15.0, **rewards, "update_s": 1.5, "step_s": 20.0}
    sft, fit = {"forward_backward_s": 7.0, "step_s": 7.0}, {}  # which logs no times
    steps = {"01-grpo": [grpo, grpo], "02-sft": [sft], "03-fit": [fit]}
    with Progress() as progress:
        for stage, logged in steps.items():
            progress.stage_started(stage, tmp_path, 2, 9)
            for step, metrics in enumerate(logged, start=1):
                progress.step_finished(stage, step, {"loss": 0.5, **metrics})
            progress.stage_finished(stage, tmp_path, {})
    # 20 s a step: what is named, and 0.4 s that are not
    split = "generate 30 s (75 %), reward judge 6 s (15 %), update 3 s (8 %), other 1 s (2 %)"
    told = [f"01-grpo: done  {split}", "02-sft: done  forward backward 7 s (100 %)", "03-fit: done"]
    assert said(capsys) == told  # times of a stage are not those of the one before


def test_what_the_parts_of_a_run_say_of_themselves_is_shown_while_it_runs(tmp_path, capsys):
    log = logging.getLogger("evidcore.train")
    log.info("before")
    with Progress():
        log.info("prompts are scored once for all answers")
        log.warning("an entry is damaged")
    log.info("after")
    assert capsys.readouterr().err == "prompts are scored once for all answers\nan entry is damaged\n"


def test_a_live_block_moves_the_cursor_and_the_names_in_it_do_not():
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    with contextlib.redirect_stdout(_Printed(terminal)):
        printer().print("ours\x1b[7m", style="red")
        with Progress() as progress:
            progress.stage_started("01-[sft]\x1b[2K", Path(), 1, 9)
            print("theirs\x1b[8m")  # noqa: T201
    assert "theirs\\x1b[8m" in terminal.getvalue()
    assert "\x1b[31mours\\x1b[7m\x1b[0m" in terminal.getvalue()
    assert "01-[sft]\\x1b[2K: started" in terminal.getvalue()
    assert "\x1b[?25l" in terminal.getvalue()  # hides the cursor


def test_a_run_whose_reader_has_ended_is_told_to_stop(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    unread = os.fdopen(writer, "w", buffering=1)
    with (
        contextlib.redirect_stderr(unread),
        pytest.raises(Stopped, match="told to stop by SIGPIPE"),
        Progress(to_stderr=True) as progress,
    ):
        progress.stage_started("05-grpo", tmp_path, 20, 9)
    with contextlib.suppress(BrokenPipeError):
        unread.close()


def test_a_stage_says_how_far_it_is_and_what_it_measured(tmp_path, capsys, monkeypatch):
    now = iter(range(0, 100_000, 100))
    monkeypatch.setattr("evidcore.cli.run.time.monotonic", lambda: float(next(now)))
    row = {"name": "choice", "metric": "exact_match", "value": 0.85, "low": 0.8, "high": 0.9,
           "questions": 100, "patients": 20, "headline": True}  # fmt: skip
    with Progress() as progress:
        progress.stage_started("05-grpo", tmp_path, 20, 9)
        for step in (11, 12, 13):  # it goes on where another process ended
            progress.step_finished("05-grpo", step, {"loss": 0.5})
        progress.stage_finished("05-grpo", tmp_path, {"kind": "grpo", "rows": []})
        progress.stage_started("06-evaluate", tmp_path, 0, 9)
        progress.step_finished("06-evaluate", 8, {"cases_answered": 8.0})
        progress.stage_finished("06-evaluate", tmp_path, {"kind": "evaluate", "rows": [row]})
    lines = [re.sub(r"\d+ s$", "…", line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "05-grpo: started, stage 5 of 9"
    assert [re.search(r"step.*?(?=  loss)", line)[0] for line in lines[1:4]] == [
        "step 11 of 20", "step 12 of 20, 13 min left", "step 13 of 20, 12 min left",
    ]  # fmt: skip
    assert "step 8  cases_answered 8" in lines[6]
    assert lines[-1] == "06-evaluate: choice, exact match: 85.0 % (80.0 to 90.0), 100 questions, 20 patients"
