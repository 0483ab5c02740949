"""Become another program: the body of a process that `warm` in conftest.py forked.

`runpy` runs it with `GIVEN`: `words` are those behind `python` on a command line, `out` and `err` the files
that take what is printed, besides `folder` and `environment`.
"""

import os
import runpy
import signal
import sys
from typing import Any


def become(words: list[str], folder: str, environment: dict[str, str], out: str, err: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # a shell's background job ignores Ctrl-C, and its children with it; the programs here shall not
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    first, *rest = words
    if first == "-c":
        sys.argv, sys.path[:0] = ["-c", *rest[1:]], [""]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv, sys.path[:0] = rest, [""]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = words, [os.path.dirname(first)]
        runpy.run_path(first, run_name="__main__")


given: dict[str, Any] = globals()["GIVEN"]
become(**given)
