"""Tables and lists that nobody can write into, so that what many are shown stays the same for all."""

from collections.abc import Mapping
from types import NoneType
from typing import Any, NoReturn


def _refuse(self: Any, *given: Any, **named: Any) -> NoReturn:
    kind = type(self).__mro__[1].__name__
    raise TypeError(
        f"this {kind} is shown to others too and cannot be written: take copy.deepcopy(...) of it"
    )


class ReadOnlyDict(dict[Any, Any]):
    """A dict whose items stay. It compares and prints as any other; its deep copy is a plain one."""

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class ReadOnlyList(list[Any]):
    """A list whose items stay; its deep copy is a plain one."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


_READ_ONLY = (str, int, float, NoneType, ReadOnlyDict, ReadOnlyList)


def read_only(value: Any) -> Any:
    """Return a value of which no table, list or set can be written; itself where it holds none."""
    if isinstance(value, _READ_ONLY):
        return value
    if isinstance(value, Mapping):
        return ReadOnlyDict({key: read_only(item) for key, item in value.items()})
    if isinstance(value, list):
        return ReadOnlyList(map(read_only, value))
    if type(value) is tuple:
        frozen = tuple(map(read_only, value))
        return frozen if any(old is not new for old, new in zip(value, frozen, strict=True)) else value
    if isinstance(value, set):
        return frozenset(value)
    return value


class ReadOnly:
    """A frozen dataclass whose fields hold nothing that can be written."""

    def __post_init__(self) -> None:
        """Take read-only copies of what was given."""
        for name, value in vars(self).items():
            if (frozen := read_only(value)) is not value:
                object.__setattr__(self, name, frozen)
