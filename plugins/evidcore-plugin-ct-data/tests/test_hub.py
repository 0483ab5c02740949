"""The client against a local server that speaks the Hub's protocol: refusals, resuming, checksums, sizes."""

import huggingface_hub.constants
import pytest
from evidcore_plugin_ct_data.hub import NotThere, Repository

from evidcore.api import DataError

COMMIT, TOKEN = "a" * 40, "hf_good"
SMALL, LARGE = b"name,value\n", bytes(range(256)) * 40
PAGE = "https://huggingface.co/datasets/owner/set"


@pytest.fixture
def repository(hub, monkeypatch):
    # 10 MB: nothing here has as much
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1024)
    hub.files["owner/set"] = {"tables/small.csv": SMALL, "data/large.bin": LARGE}
    return Repository(id="owner/set", revision=COMMIT)


def test_a_small_and_a_large_file_arrive_whole(repository, hub, tmp_path):
    for name, content in (("tables/small.csv", SMALL), ("data/large.bin", LARGE)):
        repository.fetch(name, tmp_path / "here" / name)
        assert (tmp_path / "here" / name).read_bytes() == content
    assert [path.name for path in (tmp_path / "here" / "data").iterdir()] == ["large.bin"]


def test_an_interrupted_download_goes_on_where_it_stopped(repository, hub, tmp_path):
    hub.cut_at["data/large.bin"] = 4096
    repository.fetch("data/large.bin", tmp_path / "large.bin")
    assert (tmp_path / "large.bin").read_bytes() == LARGE
    assert hub.ranges("data/large.bin") == [None, "bytes=4096-"]


def test_a_killed_process_leaves_a_part_that_the_next_one_continues(repository, hub, tmp_path, monkeypatch):
    from huggingface_hub import file_download

    def killed(*_args, **_options):
        raise KeyboardInterrupt

    hub.cut_at["data/large.bin"] = 3000
    with monkeypatch.context() as patch:
        patch.setattr(file_download.time, "sleep", killed)  # where the client waits before it tries again
        with pytest.raises(KeyboardInterrupt):
            repository.fetch("data/large.bin", tmp_path / "large.bin")
    assert not (tmp_path / "large.bin").exists()
    repository.fetch("data/large.bin", tmp_path / "large.bin")
    assert (tmp_path / "large.bin").read_bytes() == LARGE
    assert hub.ranges("data/large.bin") == [None, "bytes=2048-"]  # whole chunks are kept


def test_content_that_is_not_what_was_promised_is_refused_and_not_kept(repository, hub, tmp_path):
    for name in ("tables/small.csv", "data/large.bin"):
        hub.damaged.add(name)
        told = rf"{PAGE}: {name} arrived damaged: its checksum is [0-9a-f]+, expected"
        with pytest.raises(DataError, match=told):
            repository.fetch(name, tmp_path / "file")
        hub.damaged.clear()
        repository.fetch(name, tmp_path / "file")  # nothing of the damaged one is left to continue from
        assert (tmp_path / "file").read_bytes() == hub.files["owner/set"][name]
        (tmp_path / "file").unlink()


def test_the_token_goes_to_the_hub_alone_and_a_signed_address_into_no_log(
    repository, hub, tmp_path, monkeypatch, caplog
):
    hub.gated, hub.cut_at["data/large.bin"] = True, 4096
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    repository.fetch("data/large.bin", tmp_path / "large.bin")
    sent = {path.startswith("/store/"): token for _, path, _, token in hub.asked}
    assert sent == {False: f"Bearer {TOKEN}", True: None}
    assert "Error while downloading from" in caplog.text
    assert "/store/" not in caplog.text


def test_a_gated_set_names_the_page_and_the_command(repository, hub, tmp_path, monkeypatch):
    hub.gated = True
    told = rf"small.csv: access to this set is gated, and no.*its terms on {PAGE}, then type `hf auth login`"
    with pytest.raises(DataError, match=told):
        repository.fetch("tables/small.csv", tmp_path / "small.csv")
    with pytest.raises(DataError, match=r"owner/set: access to this set is gated"):
        repository.sizes_bytes(["tables/small.csv"])
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    told = r"the token's account has none \(403\)\. Ask for it on .*`hf auth whoami`"
    with pytest.raises(DataError, match=told):
        repository.fetch("tables/small.csv", tmp_path / "small.csv")
    assert not (tmp_path / "small.csv").exists()


def test_an_unknown_commit_file_and_set_are_told_apart(repository, tmp_path):
    other = Repository(id="owner/set", revision="b" * 40)
    with pytest.raises(DataError, match=rf"there is no commit 'b{{40}}'\. Take one from {PAGE}/commits/main"):
        other.fetch("tables/small.csv", tmp_path / "x")
    with pytest.raises(NotThere, match=rf"{PAGE}: tables/smal.csv: is not in commit aaaaaaaaaaaa of the set"):
        repository.fetch("tables/smal.csv", tmp_path / "x")
    with pytest.raises(DataError, match=r"datasets/owner/gone: the Hub shows no such set"):
        Repository(id="owner/gone", revision=COMMIT).sizes_bytes(["x"])


def test_without_network_the_set_and_the_file_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    repository = Repository(id="owner/set", revision=COMMIT)
    told = "the Hub could not be reached, .*ConnectError.*start again"
    with pytest.raises(DataError, match=f"{PAGE}: a.csv: {told}"):
        repository.fetch("a.csv", tmp_path / "a.csv")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    told = r"cannot be fetched, HF_HUB_OFFLINE is set\. Unset it"
    with pytest.raises(DataError, match=f"{PAGE}: a.csv: {told}"):
        repository.fetch("a.csv", tmp_path / "a.csv")


def test_sizes_are_those_of_the_files_that_are_there(repository):
    sizes = {"data/large.bin": len(LARGE), "tables/small.csv": len(SMALL)}
    assert repository.sizes_bytes(["data/large.bin", "none", "tables/small.csv"]) == sizes
    assert repository.names() == ["data/large.bin", "tables/small.csv"]
