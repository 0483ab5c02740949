from evidcore.builtin.kept import Kept


def test_what_was_worked_out_is_kept_up_to_a_bound():
    asked = []

    def work(texts):
        asked.append(texts)
        return [len(text) for text in texts]

    kept = Kept(most=3)
    assert kept.of(["a", "bb", "a"], work) == [1, 2, 1]
    assert kept.of(["bb", "ccc", "dddd"], work) == [2, 3, 4]
    assert kept.of(["bb"], work) == [2]
    assert kept.of(["a"], work) == [1]
    assert asked == [["a", "bb"], ["ccc", "dddd"], ["a"]]


def test_some_values_are_worked_out_anew():
    asked = []

    def work(texts):
        asked.append(texts)
        return [None if text == "b" else text for text in texts]

    kept = Kept(unless=type(None))
    assert kept.of(["a", "b"], work) == ["a", None]
    assert kept.of(["a", "b"], work) == ["a", None]
    assert asked == [["a", "b"], ["b"]]
