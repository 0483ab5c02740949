"""Say on which line of a TOML text each key stands; `tomllib`, which reads the values, does not keep that.

The text must be valid TOML. What an inline table holds stands on the line of the table.
"""

import re
import tomllib
from typing import Any

Key = tuple[str | int, ...]
BARE = re.compile(r"[A-Za-z0-9_-]+")
_FENCED = re.compile(r'"""(?:\\.|.)*?"{3,5}|' + r"'''.*?'{3,5}", re.DOTALL)
_STRING = re.compile(r'"(?:\\.|[^"\\])*"|' + r"'[^']*'|#.*")
_NAME = r'(?:[\w-]+|"(?:\\.|[^"\\])*"|' + r"'[^']*')"
_KEYS = re.compile(rf"\s*(\[?\[?)\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*(?:=|\]\]?)")


def key_lines(text: str) -> dict[Key, int]:
    """Return the line, counted from 1, of every key, table and list item of a valid TOML text."""
    lines: dict[Key, int] = {(): 1}
    counts: dict[Key, int] = {}  # items of lists of tables
    table: Key = ()
    last, depth, item = table, 0, 0  # key of the value that goes on, its open brackets, the item that goes on
    whole = _FENCED.sub(lambda match: '""' + "\n" * match[0].count("\n"), text)
    for number, line in enumerate(whole.split("\n"), 1):
        bare = _STRING.sub(lambda match: "" if match[0][0] == "#" else '""', line)
        if not depth and (match := _KEYS.match(line)):
            path = () if match[1] else table
            names = tomllib.loads(f"{match[2]} = 0")
            while isinstance(names, dict):
                ((name, names),) = names.items()
                path = (*path, counts[path] - 1) if match[1] and path in counts else path
                path = (*path, name)
                lines.setdefault(path, number)
            if match[1] == "[[":
                counts[path] = counts.get(path, 0) + 1
            if match[1]:
                table = (*path, counts[path] - 1) if path in counts else path
                lines[table] = number
                continue
            last, item, bare = path, 0, bare.partition("=")[2]
        for sign in bare:
            if depth == 1 and not sign.isspace() and sign not in ",]}":
                lines.setdefault((*last, item), number)
            depth += (sign in "[{") - (sign in "]}")
            item += depth == 1 and sign == ","
    waiting: list[tuple[Key, Any]] = [((), tomllib.loads(text))]
    while waiting:
        path, value = waiting.pop()
        lines.setdefault(path, line_of(lines, path))
        listed = enumerate(value) if isinstance(value, list) else ()
        entries = value.items() if isinstance(value, dict) else listed
        waiting += [((*path, key), item) for key, item in entries]
    return lines


def line_of(lines: dict[Key, int], path: Key) -> int:
    """Return the line of `path`, or of the nearest thing around it that was written down."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)
