import socket
import subprocess
import sys

import pytest
from evidcore_testing import TinyEncoder, check_construction
from mutants import caught


def reads():
    return open(__file__).close()


def connects():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.connect(("127.0.0.1", 9))


def starts():
    subprocess.run([sys.executable, "-c", ""], check=True)


@pytest.mark.parametrize(
    ("build", "event"), [(reads, r"open \('.*test_clauses"), (connects, "socket"), (starts, "Popen")]
)
def test_a_component_that_reaches_out_is_caught(build, event):
    with caught(f"reads no file and opens no socket. It did: .*{event}"):
        check_construction(build)


def test_a_component_that_only_computes_passes_whatever_is_read_between():
    check_construction(TinyEncoder)
    reads()
    check_construction(TinyEncoder)
