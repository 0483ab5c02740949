from evidcore_plugin_reports.text_cache import TextCache


def test_what_was_computed_is_held_up_to_a_bound():
    asked = []

    def compute(texts):
        asked.append(texts)
        return [len(text) for text in texts]

    cache = TextCache(most=3)
    assert cache.get(["a", "bb", "a"], compute) == [1, 2, 1]
    assert cache.get(["bb", "ccc", "dddd"], compute) == [2, 3, 4]
    assert cache.get(["bb"], compute) == [2]
    assert cache.get(["a"], compute) == [1]
    assert asked == [["a", "bb"], ["ccc", "dddd"], ["a"]]
