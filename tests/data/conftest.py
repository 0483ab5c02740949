import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from evidcore_testing.data import save_nifti

from evidcore.api import DataError, VolumeRef, read
from evidcore.data.nifti import GZIP_MAGIC, HEADER_BYTES


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a (z, y, x) array in body axes."""
    return lambda array, name="scan.nii.gz", *of, **more: save_nifti(tmp_path / name, array, *of, **more)


@pytest.fixture
def refusal() -> Callable[[VolumeRef], str]:
    """Return a function that gives what is said of a volume that is not read; it names the file."""

    def read_in_vain(ref: VolumeRef) -> str:
        with pytest.raises(DataError) as caught:
            read(ref)
        assert str(caught.value).startswith(f"{ref.path}: ")
        return str(caught.value)

    return read_in_vain


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def read_meanwhile(monkeypatch):
    """Return a context in which something happens whenever more than a header was read of a file."""

    @contextlib.contextmanager
    def begun(path, act):
        as_usual = Path.open

        class Slow(io.BufferedReader):
            def read(self, size):
                content = super().read(size)
                if size not in (len(GZIP_MAGIC), HEADER_BYTES):
                    act()
                return content

        def opened(own, *given, **named):
            return Slow(io.FileIO(own)) if str(own) == str(path) else as_usual(own, *given, **named)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "open", opened)
            yield

    return begun


@pytest.fixture
def zeroed():
    """Return a function that makes another file of one, of the same time and size, as far as is known."""

    def zero(path):
        facts = os.stat(path)
        Path(path).write_bytes(bytes(facts.st_size))
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    return zero


@pytest.fixture
def damaged():
    """Return a function that changes a bit of a slice in an entry of the cache."""

    def damage(entry, values):
        content = bytearray(entry.read_bytes())
        content[content.index(values.tobytes()[:64])] ^= 1
        entry.write_bytes(content)

    return damage
