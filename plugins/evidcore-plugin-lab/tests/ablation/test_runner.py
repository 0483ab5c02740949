"""Which cell a worker begins next."""

from evidcore_plugin_lab.ablation.runner import Task, first_apart


def task(root, *stages):
    return Task(cell=None, label="", stages=frozenset(root / stage for stage in stages))


def test_the_one_with_most_to_do_begins_first(tmp_path):
    (tmp_path / "fit-17").mkdir()
    waiting = [task(tmp_path, "fit-17", "a"), task(tmp_path, "fit-18", "b"), task(tmp_path, "fit-18", "c")]
    assert first_apart(waiting, []) == 1
    assert first_apart([], []) is None
