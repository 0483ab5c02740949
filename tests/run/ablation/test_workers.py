"""Which cell a worker begins next."""

from __future__ import annotations

from evidcore.run.ablation.workers import Task, first_apart


def task(root, *stages):
    return Task(cell=None, label="", stages=frozenset(root / stage for stage in stages))


def test_cells_that_share_a_missing_stage_do_not_run_together(tmp_path):
    shared = [task(tmp_path, "fit", "sft-a"), task(tmp_path, "fit", "sft-b")]
    assert first_apart(shared, []) == 0
    assert first_apart(shared[1:], [shared[0].missing]) is None
    (tmp_path / "fit").mkdir()
    assert first_apart(shared[1:], [shared[0].missing]) is None  # what it set out to compute, it computes
    assert first_apart(shared[1:], [frozenset([tmp_path / "sft-a"])]) == 0


def test_the_one_with_most_to_do_begins_first(tmp_path):
    (tmp_path / "fit-17").mkdir()
    waiting = [task(tmp_path, "fit-17", "a"), task(tmp_path, "fit-18", "b"), task(tmp_path, "fit-18", "c")]
    assert first_apart(waiting, []) == 1
    assert first_apart([], []) is None
