from evidcore_plugin_medsam2.kept import Kept


def test_the_longest_unused_leaves_first():
    kept = Kept(100)
    kept.put("a", 1, 40)
    kept.put("b", 2, 40)
    assert kept.get("a") == 1
    kept.put("c", 3, 40)
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == (1, None, 3)
    assert (kept.bytes, len(kept)) == (80, 2)


def test_a_value_that_is_put_again_counts_once():
    kept = Kept(100)
    kept.put("a", 1, 60)
    kept.put("a", 2, 70)
    assert (kept.get("a"), kept.bytes) == (2, 70)


def test_what_is_larger_than_the_limit_is_not_held():
    kept = Kept(100)
    kept.put("a", 1, 40)
    kept.put("b", 2, 101)
    assert (kept.get("a"), kept.get("b"), kept.bytes) == (1, None, 40)


def test_nothing_is_held_at_a_limit_of_nothing():
    kept = Kept(0)
    kept.put("a", 1, 1)
    assert len(kept) == 0
