import pytest
from evidcore_plugin_medsam2.segmenter import LruCache


@pytest.mark.parametrize(
    ("sizes", "left", "size_bytes"),
    [
        ([("a", 40), ("b", 40), ("a", None), ("c", 40)], "ac", 80),  # a was used after b
        ([("a", 60), ("a", 70)], "a", 70),  # a value that is put again counts once
        ([("a", 40), ("b", 101)], "a", 40),  # larger than the limit
    ],
)
def test_the_least_recently_used_leaves_first(sizes, left, size_bytes):
    cache = LruCache(100)
    for key, size in sizes:
        if size is None:
            cache.get(key)
        else:
            cache.put(key, size, size)
    assert [key for key in "abc" if cache.get(key) is not None] == list(left)
    assert cache.bytes == size_bytes
