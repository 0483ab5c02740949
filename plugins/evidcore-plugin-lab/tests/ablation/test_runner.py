"""Which cell a worker begins next."""

from evidcore_plugin_lab.ablation.runner import Task, first_apart


def task(root, *stages):
    return Task(cell=None, label="", stages=frozenset(root / stage for stage in stages))


def test_a_cell_waits_for_a_shared_stage_until_it_is_there(tmp_path):
    first, second = task(tmp_path, "fit", "sft-a"), task(tmp_path, "fit", "sft-b")
    assert first_apart([first, second], []) == 0
    assert first_apart([second], [first]) is None
    (tmp_path / "fit").mkdir()
    assert first_apart([second], [first]) == 0


def test_the_one_with_most_to_do_begins_first(tmp_path):
    (tmp_path / "fit-17").mkdir()
    waiting = [task(tmp_path, "fit-17", "a"), task(tmp_path, "fit-18", "b"), task(tmp_path, "fit-18", "c")]
    assert first_apart(waiting, []) == 1
    assert first_apart([], []) is None
