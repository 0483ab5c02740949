"""What was computed once and may be needed again, below a limit of bytes; the longest unused leaves first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any


class Kept:
    """Values by key, each with its size."""

    def __init__(self, most_bytes: int) -> None:
        """Hold nothing yet.

        Args:
            most_bytes: of all values together; a larger one is not held at all.
        """
        self.most_bytes, self.bytes = most_bytes, 0
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def __len__(self) -> int:
        """How many values are held."""
        return len(self._held)

    def get(self, key: Hashable) -> Any:
        """Return a value, None where it is not held."""
        if key not in self._held:
            return None
        self._held.move_to_end(key)
        return self._held[key][0]

    def put(self, key: Hashable, value: Any, size_bytes: int) -> None:
        """Hold a value; others leave for it."""
        if size_bytes > self.most_bytes:
            return
        self.bytes -= self._held.pop(key, (None, 0))[1]
        while self.bytes + size_bytes > self.most_bytes:
            self.bytes -= self._held.popitem(last=False)[1][1]
        self._held[key] = (value, size_bytes)
        self.bytes += size_bytes
