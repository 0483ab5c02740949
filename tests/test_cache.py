import ast
import errno
import logging
import multiprocessing
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import nibabel
import numpy as np
import pytest
from evidcore_plugin_audit.handout import read_key
from evidcore_plugin_encoders.weight_files import read_tensors
from evidcore_plugin_hub.trust import pins
from evidcore_plugin_tables.table_records import read_records
from safetensors import safe_open

from evidcore import cache as module
from evidcore.api import Cache, VolumeRef
from evidcore.contracts import Dataset
from evidcore.data import file_hash, read
from evidcore.errors import EvidError, RunError
from evidcore.model import assemble
from evidcore.model.language import Pretrained
from evidcore.recipe import load

ROOT = Path(module.__file__).parents[1]
VALUES = np.arange(5 * 4 * 3, dtype=np.int16).reshape(5, 4, 3) - 30
FACTS = {"range": [-30.0, 29.5], "name": "é"}


@pytest.fixture(autouse=True)
def limit(monkeypatch):
    monkeypatch.setenv("EVID_CACHE_GB", "1e-5")  # 10,000 bytes


@pytest.fixture
def one(tmp_path) -> Cache:
    return Cache("one", tmp_path)


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "CACHEDIR.TAG")


def used(path: Path, at_s: float) -> Path:
    os.utime(path, (at_s, at_s))
    return path


# ---- where it lies, and what comes back


def test_the_environment_names_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("EVID_CACHE", str(tmp_path / "here"))
    assert module.cache_folder() == Cache("a").root == tmp_path / "here"
    monkeypatch.delenv("EVID_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert module.cache_folder().name == "evidcore"


def test_a_value_is_made_once_for_each_key(one):
    made = []

    def make():
        made.append(1)
        return {"a": (1, 2.5, None)}

    for _ in range(2):
        assert one.get_or_make(["file", 3], make) == {"a": [1, 2.5, None]}
    assert len(made) == 1
    one.get_or_make(["file", 4], make)
    Cache("two", one.root).get_or_make(["file", 3], make)
    assert len(made) == 3


def test_damage_anywhere_in_small_content_is_named_and_the_entry_deleted(one, caplog):
    assert one.get("key") is None
    assert one.put("key", b"content")
    assert one.get("key") == b"content"
    path = one.path("key")
    right = path.read_bytes()
    damaged = [right[:index] + bytes([right[index] ^ 1]) + right[index + 1 :] for index in range(len(right))]
    for content in [*damaged, b"", right[:-1]]:
        path.write_bytes(content)
        caplog.clear()
        assert one.get("key") is None
        assert [record.getMessage() for record in caplog.records] == [
            f"{path}: its checksum does not fit; it is made again"
        ]
        assert not path.exists()


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_array_and_facts_come_back(one, dtype):
    array = VALUES.astype(dtype) / 4 if dtype == np.float32 else VALUES
    assert one.get_array("key") is None
    assert one.put_array("key", array, FACTS)
    held = one.get_array("key")
    assert (held.shape, held.facts, held.is_on_disk) == ((5, 4, 3), FACTS, True)
    assert held.size_bytes == array.nbytes
    result = held.slices(1, 4)
    assert (result.dtype, result.flags.writeable) == (dtype, False)
    np.testing.assert_array_equal(result, array[1:4])


def test_another_library_reads_the_file(one):
    one.put_array("key", VALUES, FACTS)
    with safe_open(one.path("key", ".safetensors"), "np") as file:
        assert set(file.keys()) == {"array", "checksums"}
        np.testing.assert_array_equal(file.get_tensor("array"), VALUES)


def test_damage_anywhere_in_an_array_is_found(one, caplog):
    caplog.set_level(logging.CRITICAL)
    one.put_array("key", VALUES, FACTS)
    path = one.path("key", ".safetensors")
    right = path.read_bytes()

    def outcome(content):
        path.write_bytes(content)
        try:
            held = one.get_array("key")
            return held and (held.slices(0, len(VALUES)).tobytes(), held.facts)
        except module.CorruptEntry:
            return None

    assert outcome(right) == (VALUES.tobytes(), FACTS)
    for index in range(len(right)):
        result = outcome(right[:index] + bytes([right[index] ^ 1]) + right[index + 1 :])
        padding = result == (VALUES.tobytes(), FACTS)
        assert result is None or padding, f"byte {index} gives {result}"
    for length in range(len(right)):
        assert outcome(right[:length]) is None, f"the first {length} bytes pass"


def test_a_file_is_written_once_and_one_that_failed_leaves_nothing(one):
    def write(path):
        assert path.suffix == ".png"
        path.write_text("whole")

    def fail(path):
        path.write_text("a part")
        raise KeyError("stopped")

    with pytest.raises(KeyError):
        one.file(["a"], ".png", fail)
    assert entries(one.root / "one") == []
    path = one.file(["a"], ".png", write)
    used(path, 1_234_567_890.123456)
    before_ns = path.stat().st_mtime_ns
    assert one.file(["a"], ".png", fail) == path
    assert path.stat().st_mtime_ns == before_ns, "hashes are remembered by it"
    assert path.stat().st_atime > 1_500_000_000, "and it is used"
    assert path.read_text() == "whole"
    assert entries(one.root / "one") == [path.name]


def test_a_folder_appears_whole(one):
    def fill(folder, *, fails=False):
        (folder / "a").write_text("a")
        assert not one.path("key").exists()
        if fails:
            raise KeyError("stopped")
        (folder / "b").write_text("b")

    with pytest.raises(KeyError):
        one.folder("key", lambda folder: fill(folder, fails=True))
    assert not one.path("key").exists()
    assert entries(one.folder("key", fill)) == ["a", "b"]
    assert one.folder("key", lambda folder: fill(folder, fails=True)) == one.path("key")


# ---- the disk


FULL = """
import sys
from pathlib import Path
import numpy as np
from evidcore.api import VolumeRef
from evidcore.cache import Cache, write_atomically
from evidcore.data import save_mask
from evidcore.errors import RunError
folder = Path(sys.argv[1])
cache = Cache("one", folder)
write_atomically(folder / "kept", b"old")
for put in (
    lambda: write_atomically(folder / "kept", bytes(1 << 20)),
    lambda: cache.put("a", bytes(1 << 20)),
    lambda: cache.put_array("a", np.zeros((2, 1 << 20), np.int16), {}),
    lambda: cache.file("a", ".nii", lambda path: path.write_bytes(bytes(1 << 20))),
    lambda: save_mask(np.ones((64, 64, 64), bool), VolumeRef(path=sys.argv[2]), folder / "a.nii"),
):
    try:
        put()
    except RunError as error:
        print(error)
print((folder / "kept").read_bytes(), sorted(path.name for path in folder.rglob("*")))
"""


def test_a_full_disk_is_named_with_the_way_out(tmp_path, monkeypatch):
    # a real full disk: 64 KiB of memory, mounted in a namespace of its own
    disk, scan = tmp_path / "disk", tmp_path / "scan.nii"
    disk.mkdir()
    nibabel.save(nibabel.Nifti1Image(np.ones((64, 64, 64), np.int16), np.eye(4)), scan)
    mount = f"mount -t tmpfs -o size=64k none {disk}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    monkeypatch.setenv("EVID_CACHE_GB", "1")
    run = f"{mount} && exec {sys.executable} -c '{FULL}' {disk} {scan}"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", run], capture_output=True, text=True, check=True)
    full = "the disk is full. Free space or rights there, or"
    first, *others, mask, left = done.stdout.splitlines()
    assert first == f"{disk}: {full} set EVID_CACHE to another folder."
    assert others == [f"{disk}/one: {full} set EVID_CACHE to another folder."] * 3
    assert mask == f"{disk}: {full} name a file in another folder."
    assert left.startswith("b'old' ["), "the old file stays"
    assert {name for name in ast.literal_eval(left[7:]) if not name.endswith(".lease")} == {
        ".leases", "CACHEDIR.TAG", "kept", "one",
    }, "no part of a new one does"  # fmt: skip


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_rights_is_named(one, tmp_path: Path):
    tmp_path.chmod(0o500)
    for write in (lambda: module.write_atomically(tmp_path / "a", b""), lambda: one.put("key", b"")):
        with pytest.raises(RunError, match=f"{tmp_path}.*: no permission to write here"):
            write()


def test_a_caller_says_what_else_would_do(tmp_path):
    way_out = r"the folder is read-only\. Free space or rights there, or save elsewhere\."
    naming = module.naming_full_disk(tmp_path, or_else="save elsewhere")
    with pytest.raises(RunError, match=way_out), naming:
        raise OSError(errno.EROFS, "Read-only file system")


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def test_others_may_read_what_the_umask_lets_them_and_nothing_private(one, tmp_path, umask):
    one.put("a", b"")
    one.put_array("b", VALUES, {})
    one.file("c", ".nii", lambda path: path.write_bytes(b""))
    module.write_atomically(tmp_path / "one" / "d", b"")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "one").iterdir()} == {0o640}
    Cache("two", tmp_path, is_private=True).put("a", b"")
    assert stat.S_IMODE((tmp_path / "two").stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_an_entry_that_may_not_be_read_is_made_again(one):
    one.put("a", b"content")
    one.put_array("b", VALUES, {})
    for path in (one.path("a"), one.path("b", ".safetensors")):
        path.chmod(0)
    assert one.get("a") is None
    assert one.get_array("b") is None


# ---- the limit


def filled(cache: Cache, key: str, size_bytes: int, used_s: float) -> Path:
    """Write an entry past this process, as another one would."""
    path = cache.path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "CACHEDIR.TAG").touch()
    path.write_bytes(bytes(size_bytes))
    return used(path, used_s)


def put(cache: Cache, size_bytes: int, **options) -> bool:
    return cache.put(f"{random.random()}", bytes(size_bytes - module.DIGEST_BYTES), **options)


def test_the_longest_unused_leave_first_of_all_namespaces(one, tmp_path):
    two = Cache("two", tmp_path)
    assert put(one, 600)  # unseen by the limit until it is more than 5 % of it
    old, middle = filled(two, "old", 4000, 10), filled(one, "middle", 3000, 20)
    new = filled(one, "new", 1000, 30)
    assert put(one, 1400), "exactly full"
    assert old.exists()
    assert put(one, 1000)
    assert [path.exists() for path in (old, middle, new)] == [False, True, True]
    assert one.evicted_bytes == two.evicted_bytes == 4000


def test_the_first_large_entry_looks_at_the_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("EVID_CACHE_GB", "0.1")
    large = Cache("large", tmp_path)
    old = filled(large, "old", 99_500_000, 10)
    assert put(large, module.LARGE_BYTES)
    assert not old.exists()


def test_using_an_entry_keeps_it(one):
    array = np.zeros((2, 1000), np.int16)
    one.put_array("a", array, {})
    one.put("b", bytes(3000))
    one.put_array("c", array[:1], {})
    for number, (key, suffix) in enumerate((("a", ".safetensors"), ("b", ""), ("c", ".safetensors"))):
        used(one.path(key, suffix), 10 + number)
    one.get_array("a")
    one.get("b")
    assert put(one, 2000)
    assert [one.path(*entry).exists() for entry in (("a", ".safetensors"), ("b",))] == [True, True]
    assert not one.path("c", ".safetensors").exists()


def test_what_is_larger_than_the_limit_drives_nothing_out(one, monkeypatch):
    old = filled(one, "old", 4000, 10)
    assert not put(one, 10_001)
    monkeypatch.setenv("EVID_CACHE_GB", "0")
    assert not put(one, 20)
    assert one.get_or_make("key", lambda: 5) == 5
    assert one.file("a", ".nii", lambda path: path.write_bytes(b"b")).exists(), "who opens a path needs it"
    assert old.exists()


def test_entries_of_other_processes_are_seen_in_time(one):
    assert put(one, 1000)
    other = filled(one, "other", 8500, 10)
    assert put(one, 400), "more than 5 % of the limit was written unseen: it looks"
    assert other.exists()
    assert put(one, 5000), "the folder is looked at before it is said to be full"
    assert not other.exists()


HANDED_OUT = """
import sys
from pathlib import Path
from evidcore.cache import Cache
cache = Cache("one", Path(sys.argv[1]))
cache.file("file", ".nii", lambda path: path.write_bytes(bytes(2000)))
cache.folder("folder", lambda path: (path / "a").write_bytes(bytes(2000)))
print("ready", flush=True)
sys.stdin.read()
"""


def test_what_a_living_process_was_given_by_path_stays(one):
    command = [sys.executable, "-c", HANDED_OUT, str(one.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        paths = [used(one.path("file", ".nii"), 10), used(one.path("folder"), 11)]
        own = used(one.file("own", ".nii", lambda path: path.write_bytes(bytes(2000))), 12)
        other = filled(one, "other", 3000, 20)
        put(one, 600)
        assert put(one, 3000)
        assert [path.exists() for path in (*paths, own, other)] == [True, True, True, False]
        process.stdin.close()
        process.wait()
    for path, used_s in zip(paths, (10, 11), strict=True):
        used(path, used_s)
    assert put(one, 5000)
    assert [path.exists() for path in (*paths, own)] == [False, False, True]
    assert len(list((one.root / ".leases").iterdir())) == 1


def test_what_a_killed_process_left_is_removed_and_what_is_being_written_is_not(one):
    now = time.time()
    long_ago = now - module.ABANDONED_S - 60
    left, fresh = filled(one, ".1.entry", 100, long_ago), filled(one, ".2.entry", 100, now)
    folder = one.root / "one" / ".3.folder"
    folder.mkdir()
    (folder / "a").touch()
    used(folder, long_ago)
    put(one, 600)
    put(one, 600)
    assert (left.exists(), fresh.exists(), folder.exists()) == (False, True, False)


def test_folders_that_are_no_namespace_are_left_alone(one):
    mine = one.root / "mine" / "notes"
    mine.parent.mkdir()
    mine.write_bytes(bytes(9000))
    fetched = module.downloads(one.root, "set", "commit") / "scan.nii.gz"
    module.write_atomically(fetched, bytes(9000))
    for _ in range(3):
        assert put(one, 5000)
    assert mine.exists()
    assert fetched.exists()


def test_the_limit_is_50_gb_or_half_of_the_free_disk(tmp_path, monkeypatch):
    monkeypatch.delenv("EVID_CACHE_GB")
    free = shutil.disk_usage(tmp_path).free
    expected = pytest.approx(min(module.MOST_BYTES, free / 2), rel=0.05)
    assert module.limit_bytes(tmp_path / "not" / "there", 0) == expected


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
def test_a_limit_that_is_no_size_is_refused(one, monkeypatch, text):
    monkeypatch.setenv("EVID_CACHE_GB", text)
    with pytest.raises(RunError, match=f"EVID_CACHE_GB: must be a size in GB, 0 or more, got '{text}'"):
        one.put("key", b"")


# ---- many processes


def use(root: Path, seed: int, wrong) -> None:
    """Write, read and clear away in turn, as a process of a run does, and tell what is read wrongly."""
    rng, cache = random.Random(seed), Cache("one", root)
    for number in range(200):
        key = rng.randrange(8)
        if number % 50 == 49:
            for path in (root / "one").glob(f"{key}*"):
                path.unlink(missing_ok=True)
        content, array = cache.get(f"{key}"), cache.get_array(f"{key}")
        if content not in (None, bytes([key]) * 700):
            wrong.put((seed, key, "content"))
        if array is not None and (array.slices(0, 3) != key).any():
            wrong.put((seed, key, "array"))
        cache.put(f"{key}", bytes([key]) * 700)
        cache.put_array(f"{key}", np.full((3, 100), key, np.int16), {})


def test_processes_share_a_folder(one):
    context = multiprocessing.get_context("fork")
    wrong = context.SimpleQueue()
    processes = [context.Process(target=use, args=(one.root, number, wrong)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert wrong.empty()
    left = [path for path in (one.root / "one").iterdir() if path.name != "CACHEDIR.TAG"]
    assert not [path for path in left if path.name.startswith(".")]
    assert sum(path.stat().st_size for path in left) <= 10_000 * (1 + 4 * 0.05) + 4 * 1500


def test_a_folder_that_another_process_clears_while_it_is_made_is_no_error(one, monkeypatch):
    def gone_between_two_looks(self, *args, **kwargs):
        raise FileExistsError(17, "File exists", str(self))  # as pathlib's `exist_ok` does then

    with monkeypatch.context() as at_once:
        at_once.setattr(Path, "mkdir", gone_between_two_looks)
        one.put("key", b"content")
    assert one.get("key") is None
    one.put("key", b"content")
    assert one.get("key") == b"content"


# ---- who writes


def sources() -> list[Path]:
    return [*(ROOT / "evidcore").rglob("*.py"), *(ROOT / "plugins").glob("*/src/**/*.py")]


def test_one_file_makes_paths_below_the_cache_folder():
    by_hand = re.compile(r"cache_folder(\(\))? ?(/|\.joinpath)")
    writing = [path for path in sources() if by_hand.search(path.read_text(encoding="utf-8"))]
    assert [str(path.relative_to(ROOT)) for path in writing] == []


def test_the_documented_namespaces_are_those_of_the_code():
    texts = [text for path in sources() if "Cache(" in (text := path.read_text(encoding="utf-8"))]
    calls = [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    used = {ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) == "Cache"}
    page = (ROOT / "docs/reference/cache.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([\w-]+)/` \|", page, flags=re.M)) == used


READERS = {  # by the name of a file that a user or a stranger gives
    "a.toml": load, "ids.txt": lambda path: Dataset.ids_of(path.name, path.parent, "x"), "key.json": read_key,
    "a.csv": lambda path: read_records(path, ()), "a.jsonl": lambda path: read_records(path, ()),
    "tokenizer.json": lambda path: Pretrained(folder=str(path.parent)).tokenizer(), "evid.lock": pins.read,
    "config.json": lambda path: assemble.load(path.parent), "a.safetensors": read_tensors, "a.pt": file_hash,
    "a.nii.gz": lambda path: read(VolumeRef(path=str(path), intensity="hu")),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_a_file_without_an_end_is_not_waited_for_and_a_sparse_one_does_not_fill_the_memory(tmp_path, name):
    os.mkfifo(path := tmp_path / name)
    with pytest.raises(EvidError, match=f"{name}: is a pipe, a socket or a device. Name a file"):
        READERS[name](path)
    path.unlink()
    path.touch()
    os.truncate(path, 60 << 30)
    if path.suffix not in {".gz", ".safetensors", ".pt"}:
        with pytest.raises(EvidError, match=f"{name}: holds 64.4 GB of text, at most 1.07 are read. Check"):
            READERS[name](path)
