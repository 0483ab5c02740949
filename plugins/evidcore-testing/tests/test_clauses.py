import socket
import subprocess
import sys

import pytest
from evidcore_testing import TinyEncoder, check_construction


def test_a_component_that_only_computes_passes():
    check_construction(TinyEncoder)


def reads():
    return open(__file__).close()


def connects():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.connect(("127.0.0.1", 9))


def starts():
    subprocess.run([sys.executable, "-c", ""], check=True)


@pytest.mark.parametrize(
    ("build", "event"),
    [(reads, r"open \('.*test_clauses"), (connects, "socket"), (starts, "Popen")],
)
def test_a_component_that_reaches_out_is_caught(build, event):
    with pytest.raises(AssertionError, match=f"reads no file and opens no socket. It did: .*{event}"):
        check_construction(build)


def test_reading_afterwards_is_nobody_s_business():
    check_construction(TinyEncoder)
    reads()
    check_construction(TinyEncoder)
