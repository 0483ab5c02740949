"""Start a program that writes into one folder alone: `python -I -S landlock.py FOLDER SECRETS COMMAND…`.

Linux's Landlock (5.13 and later) needs no rights, and works where a container refuses `unshare`. The program
reads all but SECRETS, paths with `:` between them, and reaches into no process that it did not start: not
into environment, memory or open files. Newer kernels keep TCP (6.7) and signals (6.12) in as well. Where root
starts it, it is without root's rights, which would let it read every environment all the same. This file
imports nothing of evidcore: it runs before anything of a package does.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Collection, Iterator

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, of one number on every processor
_SECURE_BITS, _NO_NEW_PRIVILEGES = 28, 38  # of <linux/prctl.h>; what follows is of <linux/landlock.h>
_LIST, _READ = 0b1000, 0b1101  # a folder; also execute and read files
_OF_FILES = 0b100_0000_0000_0111  # what a rule about a file may allow; the rest is about folders
_RIGHTS = {1: 0x1FFF, 2: 0x3FFF}  # by version; from 3 on with truncation


def version() -> int:
    """Return the version of Landlock that the kernel has, 0 if it has none."""
    return max(0, int(ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), 1)))


def restrict(folder: str, secrets: Collection[str]) -> None:
    """Have this thread and all that it starts write into a folder alone, and read no secret.

    Raises:
        OSError: if the kernel refuses.
    """
    library, has = ctypes.CDLL(None, use_errno=True), version()
    rights = _RIGHTS.get(has, 0x7FFF)
    ruleset = (ctypes.c_uint64 * 3)(rights, 3 if has >= 4 else 0, 3)  # files; TCP; signals, nameless sockets
    size = ctypes.c_size_t(24 if has >= 6 else 16 if has >= 4 else 8)
    rules = library.syscall(_CREATE, ruleset, size, 0)
    allowed = [(folder, rights), ("/dev/null", rights), ("/", _LIST)]
    allowed += [(path, _READ) for path in _readable("/", secrets)]
    for path, right in allowed:
        with contextlib.suppress(OSError):  # it is gone
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            among = right & rights & (-1 if os.path.isdir(path) else _OF_FILES)
            rule = among.to_bytes(8, sys.byteorder) + opened.to_bytes(4, sys.byteorder)
            library.syscall(_ADD, rules, 1, rule, 0)
            os.close(opened)
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or library.syscall(_RESTRICT, rules, 0):
        raise OSError(ctypes.get_errno(), "Landlock cannot be used")


def _readable(top: str, secrets: Collection[str]) -> Iterator[str]:
    """Yield files and folders with no secret in them, as few as there can be; links need no right."""
    inside = {path.removeprefix(top).partition("/")[0] for path in secrets if path.startswith(top)}
    with contextlib.suppress(OSError):  # a folder may be entered and not listed
        inside.update(os.listdir(top))
    for path in (top + name for name in inside):
        if any(secret.startswith(f"{path}/") for secret in secrets):
            yield from _readable(f"{path}/", secrets)
        elif path not in secrets and not os.path.islink(path):
            yield path


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_SECURE_BITS, 3, 0, 0, 0)  # no rights for root from the next program on, locked
    if version():
        restrict(sys.argv[1], {*filter(None, sys.argv[2].split(os.pathsep))})
    os.execvp(sys.argv[3], sys.argv[3:])
