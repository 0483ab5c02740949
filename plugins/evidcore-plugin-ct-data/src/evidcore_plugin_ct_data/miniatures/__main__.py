"""Write a miniature: `python -m evidcore_plugin_ct_data.miniatures NAME FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from evidcore_plugin_ct_data.miniatures import WRITERS, write


def main(words: list[str]) -> int:
    """Write what the words ask for; say what is wrong with them otherwise."""
    if len(words) != 2:
        sys.stderr.write(f"usage: NAME FOLDER; the names are {', '.join(WRITERS)}\n")
        return 2
    try:
        write(words[0], Path(words[1]))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
