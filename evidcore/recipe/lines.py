"""Say on which line of a TOML text each key stands; `tomllib`, which reads the values, does not keep that.

The text must be valid TOML: positions are all that is read here, so everything else is stepped over.
"""

import re
import tomllib

Key = tuple[str | int, ...]
BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]\}\n#]*")


def key_lines(text: str) -> dict[Key, int]:
    """Return the line, counted from 1, of every key, table and list item of a valid TOML text."""
    return _Scan(text.replace("\r\n", "\n")).lines


def line_of(lines: dict[Key, int], path: Key) -> int:
    """Return the line of `path`, or of the nearest thing around it that was written down."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


class _Scan:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.lines: dict[Key, int] = {(): 1}
        self.counts: dict[Key, int] = {}
        table: Key = ()
        while self._skip():
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def _skip(self) -> bool:
        """Step over blanks, line ends and comments; False at the end."""
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text[self.at].isspace():
                self.at += 1
            else:
                return True
        return False

    def _header(self) -> Key:
        line = self._line()
        is_list = self.text.startswith("[[", self.at)
        self.at += 2 if is_list else 1
        keys = self._keys()
        self._skip()
        self.at += 2 if is_list else 1
        path: Key = ()
        for key in keys[:-1]:
            path = self._last((*path, key))
            self.lines.setdefault(path, line)
        path = (*path, keys[-1])
        self.lines.setdefault(path, line)
        if is_list:
            self.counts[path] = self.counts.get(path, 0) + 1
            path = self._last(path)
        self.lines[path] = line
        return path

    def _last(self, path: Key) -> Key:
        """Return the newest item of a list of tables, or the path itself."""
        return (*path, self.counts[path] - 1) if path in self.counts else path

    def _keys(self) -> list[str]:
        keys = []
        while True:
            self._skip()
            if self.text[self.at] in "\"'":
                start = self.at
                self._string()
                keys.append(tomllib.loads("key = " + self.text[start : self.at])["key"])
            else:
                result = BARE.match(self.text, self.at)
                keys.append(result.group() if result else "")
                self.at = result.end() if result else self.at + 1
            self._skip()
            if self.text[self.at] != ".":
                return keys
            self.at += 1

    def _pair(self, table: Key) -> None:
        line = self._line()
        path = table
        for key in self._keys():
            path = (*path, key)
            self.lines.setdefault(path, line)
        self.at += 1  # the equals sign
        self._value(path)

    def _value(self, path: Key) -> None:
        self._skip()
        start = self.text[self.at]
        if start in "\"'":
            self._string()
        elif start == "[":
            self._items(path, "]")
        elif start == "{":
            self._items(path, "}")
        else:
            result = _SCALAR.match(self.text, self.at)
            self.at = result.end() if result else self.at + 1

    def _items(self, path: Key, close: str) -> None:
        """Step over a list or an inline table."""
        self.at += 1
        place = 0
        while self._skip() and self.text[self.at] != close:
            if self.text[self.at] == ",":
                self.at += 1
                continue
            if close == "}":
                self._pair(path)
            else:
                self.lines[*path, place] = self._line()
                self._value((*path, place))
                place += 1
        self.at += 1

    def _string(self) -> None:
        quote = self.text[self.at]
        fence = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(fence)
        while not self.text.startswith(fence, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(fence)
        while len(fence) == 3 and self.text.startswith(
            quote, self.at
        ):  # up to two quotes may precede the fence
            self.at += 1
