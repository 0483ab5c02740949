"""A cache in memory, below a limit of bytes; the least recently used values leave first."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any


class LruCache:
    """Values by key, each with its size; one that is larger than `most_bytes` is not cached at all."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable) -> Any:
        """Return a value, None where there is none."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: Hashable, value: Any, size_bytes: int) -> None:
        """Cache a value; others leave for it."""
        if size_bytes > self.most_bytes:
            return
        self.bytes -= self._values.pop(key, (None, 0))[1]
        while self.bytes + size_bytes > self.most_bytes:
            self.bytes -= self._values.popitem(last=False)[1][1]
        self._values[key] = (value, size_bytes)
        self.bytes += size_bytes
