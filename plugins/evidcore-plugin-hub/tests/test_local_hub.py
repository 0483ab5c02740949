"""The real huggingface_hub client publishes to a LocalHub and installs from it; attacks reach the client."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from huggingface_hub import HfApi, ModelCard, close_session, constants, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    RevisionResolutionError,
)
from huggingface_hub.utils import get_session
from local_hub import LocalHub

# huggingface_hub 2.4.0 uploads to LFS storage by an argument that httpx2 deprecates
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO, OTHER = "me/evid-reward-laterality", "lab/evid-encoder-slices"
README = "---\ntags: [evidcore-plugin, evidcore-reward]\nlibrary_name: evidcore\n---\n# Laterality\n"
CODE = "def score(answer): return 1.0\n"
WEIGHTS = bytes(range(256)) * 8
FILES = {"README.md": README.encode(), "src/laterality.py": CODE.encode(), "weights.bin": WEIGHTS}


@pytest.fixture(scope="module", autouse=True)
def client():
    """Set what HfApi and hf_hub_download cannot be told; one session for all tests: it takes long to make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setenv("NO_PROXY", "127.0.0.1,localhost")
        close_session()
        yield
        close_session()


@pytest.fixture
def hub():
    with LocalHub() as hub:
        yield hub


@pytest.fixture
def api(hub):
    return HfApi(endpoint=hub.url, token=hub.token)


def publish(api, folder, files=FILES, repo=REPO, **options):
    """Commit files as a folder, to a repository that may exist already; gives the commit's SHA."""
    api.create_repo(repo, exist_ok=True)
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Publish", **options).oid


@pytest.fixture
def commit(api, tmp_path):
    commit = publish(api, tmp_path / "published")
    api.create_tag(REPO, tag="v1.0", revision=commit)
    return commit


def download(hub, cache, path, revision="v1.0", repo=REPO):
    return Path(hf_hub_download(repo, path, revision=revision, endpoint=hub.url, cache_dir=cache))


def test_a_repository_is_made_once(api):
    assert api.create_repo(REPO).repo_id == REPO
    assert api.create_repo(REPO, exist_ok=True).repo_id == REPO
    with pytest.raises(
        HfHubHTTPError, match="You already created this model repo: me/evid-reward-laterality"
    ):
        api.create_repo(REPO)


def test_a_folder_becomes_one_commit_with_binary_files_in_lfs_storage(hub, commit):
    first, second = hub.commits(REPO)
    assert second == commit
    assert hub.files(REPO, first).keys() == {".gitattributes"}
    assert hub.files(REPO, commit) == hub.files(REPO, first) | FILES
    uploads = [path for method, path in hub.requests if method == "PUT"]
    assert uploads == [f"/lfs/{hashlib.sha256(WEIGHTS).hexdigest()}"]


def test_many_binary_files_arrive_from_several_threads(hub, api, tmp_path):
    files = {f"part{index}.bin": bytes([0, index]) * 5000 for index in range(16)}
    commit = publish(api, tmp_path, files)
    assert hub.files(REPO, commit).items() >= files.items()


def test_files_that_did_not_change_make_no_commit(hub, api, commit, tmp_path):
    assert publish(api, tmp_path / "again") == commit
    assert len(hub.commits(REPO)) == 2


def test_a_later_commit_leaves_the_earlier_one_as_it_was(hub, api, commit, tmp_path):
    later = publish(api, tmp_path / "later", {"README.md": b"# Later\n"}, delete_patterns="*")
    assert hub.files(REPO, later).keys() == {".gitattributes", "README.md"}
    assert hub.files(REPO, commit).items() >= FILES.items()
    assert api.model_info(REPO).sha == later
    then = api.model_info(REPO, revision=commit)
    assert (then.sha, then.card_data.tags) == (commit, ["evidcore-plugin", "evidcore-reward"])
    assert {file.rfilename for file in then.siblings} == {".gitattributes", *FILES}


def test_a_commit_on_a_parent_that_is_no_longer_the_last_is_refused(hub, api, commit, tmp_path):
    with pytest.raises(HfHubHTTPError, match="A commit has happened since"):
        publish(api, tmp_path / "late", {"README.md": b"# Late\n"}, parent_commit=hub.commits(REPO)[0])


def test_front_matter_that_is_no_yaml_is_refused_before_the_upload(hub, api, tmp_path):
    with pytest.raises(ValueError, match=r"Invalid metadata in README\.md"):
        publish(api, tmp_path, {"README.md": b"---\ntags: [unclosed\n---\n"})
    assert len(hub.commits(REPO)) == 1


def test_a_tag_resolves_to_its_commit_and_is_given_once(hub, api, commit, tmp_path):
    assert api.resolve_revision(REPO, revision="v1.0", cache_dir=tmp_path).resolved == commit
    refs = api.list_repo_refs(REPO)
    assert [(tag.name, tag.target_commit) for tag in refs.tags] == [("v1.0", commit)]
    assert [(branch.name, branch.target_commit) for branch in refs.branches] == [("main", commit)]
    with pytest.raises(HfHubHTTPError, match=r"Tag reference exists already: v1\.0"):
        api.create_tag(REPO, tag="v1.0", revision=hub.commits(REPO)[0])


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, [REPO, OTHER]),
        ({"filter": "evidcore-plugin"}, [REPO, OTHER]),
        ({"filter": ["evidcore-plugin", "evidcore-reward"]}, [REPO]),
        ({"filter": "evidcore"}, [REPO]),  # the Hub makes a tag of library_name
        ({"filter": "evidcore-bridge"}, []),
        ({"search": "Encoder"}, [OTHER]),
        ({"search": "evid", "filter": "evidcore-reward"}, [REPO]),
        ({"author": "lab"}, [OTHER]),
    ],
)
def test_models_are_found_by_all_tags_by_text_and_by_author(api, commit, tmp_path, query, found):
    publish(api, tmp_path / "other", {"README.md": b"---\ntags: [evidcore-plugin]\n---\n"}, OTHER)
    assert [model.id for model in api.list_models(**query)] == found


def test_a_list_of_models_has_a_commit_only_where_it_is_asked_for(api, commit):
    assert [model.sha for model in api.list_models()] == [None]
    assert [model.sha for model in api.list_models(expand=["sha"])] == [commit]
    assert [model.sha for model in api.list_models(full=True)] == [commit]
    assert [model.card_data.library_name for model in api.list_models(cardData=True)] == ["evidcore"]


def test_the_tree_lists_files_as_the_client_itself_hashes_them(api, commit, tmp_path):
    tree = {entry.path: entry for entry in api.list_repo_tree(REPO, revision=commit, recursive=True)}
    assert {path: entry.size for path, entry in tree.items() if path in FILES} == {
        path: len(content) for path, content in FILES.items()
    }
    assert tree["weights.bin"].lfs.pointer_size == 43 + 76 + 10  # three lines: version, oid, size
    assert tree["weights.bin"].lfs.sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    verified = api.verify_repo_checksums(REPO, revision=commit, local_dir=tmp_path / "published")
    assert (verified.checked_count, verified.mismatches) == (3, [])
    top = {entry.path for entry in api.list_repo_tree(REPO, revision=commit)}
    assert top == {".gitattributes", "README.md", "src", "weights.bin"}


def test_text_and_binary_files_are_downloaded_at_a_commit(hub, commit, tmp_path):
    for path, content in FILES.items():
        file = download(hub, tmp_path, path, commit)
        assert (file.read_bytes(), file.relative_to(tmp_path).parts[2]) == (content, commit)
    assert ("HEAD", f"/{REPO}/resolve/{commit}/weights.bin") in hub.requests
    assert ("GET", f"/lfs/{hashlib.sha256(WEIGHTS).hexdigest()}") in hub.requests


def test_a_model_card_is_read_at_a_tag(hub, commit, tmp_path):
    card = ModelCard.load(download(hub, tmp_path, "README.md"))
    assert (card.data.tags, card.text.strip()) == (["evidcore-plugin", "evidcore-reward"], "# Laterality")


@pytest.mark.parametrize(
    "write",
    [
        lambda api: api.create_repo("me/new"),
        lambda api: api.upload_file(repo_id=REPO, path_or_fileobj=b"x", path_in_repo="x.txt"),
        lambda api: api.create_tag(REPO, tag="v2.0"),
    ],
    ids=["repository", "commit", "tag"],
)
@pytest.mark.parametrize("token", [False, "hf_wrong"])
def test_without_the_token_nothing_is_written(hub, commit, write, token):
    before = hub.commits(REPO)
    with pytest.raises(HfHubHTTPError, match="401"):
        write(HfApi(endpoint=hub.url, token=token))
    assert (list(hub.repositories), hub.commits(REPO)) == ([REPO], before)
    assert hub.repository(REPO).tags == {"v1.0": commit}


def test_the_token_belongs_to_a_user_and_reading_needs_none(hub, api, commit):
    assert api.whoami()["name"] == "me"
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        api.whoami(token="hf_wrong")
    assert HfApi(endpoint=hub.url, token=False).model_info(REPO).sha == commit


def test_what_is_not_there_raises_the_clients_own_errors(hub, api, commit, tmp_path):
    with pytest.raises(RepositoryNotFoundError, match="me/nothing"):
        api.model_info("me/nothing")
    with pytest.raises(RepositoryNotFoundError, match="me/nothing"):
        download(hub, tmp_path, "README.md", repo="me/nothing")
    with pytest.raises(RevisionNotFoundError, match="v9"):
        api.model_info(REPO, revision="v9")
    with pytest.raises(RevisionNotFoundError, match="v9"):
        download(hub, tmp_path, "README.md", "v9")
    with pytest.raises(RemoteEntryNotFoundError, match=r"nothing\.py"):
        download(hub, tmp_path, "nothing.py")


def test_a_request_without_a_route_says_so(api, commit):
    no_route = rf"LocalHub has no route for DELETE /api/models/{REPO}/tag/v1\.0"
    with pytest.raises(HfHubHTTPError, match=no_route):
        api.delete_tag(REPO, tag="v1.0")


def test_a_moved_tag_names_another_commit(hub, api, commit, tmp_path):
    evil = publish(api, tmp_path / "evil", {"src/laterality.py": b"import os\n"})
    assert download(hub, tmp_path / "before", "src/laterality.py").read_text() == CODE
    hub.move_tag(REPO, "v1.0", evil)
    assert api.model_info(REPO, revision="v1.0").sha == evil
    assert download(hub, tmp_path / "after", "src/laterality.py").read_bytes() == b"import os\n"


@pytest.mark.parametrize(
    ("path", "content"),
    [("src/laterality.py", b"import os\n"), ("weights.bin", b"\0\1"), ("new.pth", b"import os\n")],
)
def test_a_dishonest_server_gives_other_bytes(hub, api, commit, tmp_path, path, content):
    hub.replace(REPO, commit, path, content)
    assert api.model_info(REPO, revision="v1.0").sha == commit
    assert download(hub, tmp_path, path, commit).read_bytes() == content
    tree = {entry.path: entry for entry in api.list_repo_tree(REPO, revision=commit, recursive=True)}
    assert tree[path].size == len(content)


def test_a_file_larger_than_memory_is_served_in_parts(hub, api, commit, tmp_path):
    hub.serve_huge(REPO, commit, "huge.txt", 10**13)
    url = hf_hub_url(REPO, "huge.txt", revision=commit, endpoint=hub.url)
    assert api.get_hf_file_metadata(url=url).size == 10**13
    with get_session().stream("GET", url) as response:
        blocks = response.iter_bytes(chunk_size=1 << 20)
        assert next(blocks) + next(blocks) == b" " * (2 << 20)
    hub.serve_huge(REPO, commit, "huge.txt", 100_000)
    assert download(hub, tmp_path, "huge.txt", commit).read_bytes() == b" " * 100_000


def test_a_server_that_is_gone_cannot_be_reached(hub, api, commit, tmp_path):
    cached = download(hub, tmp_path, "weights.bin")
    hub.stop()
    hub.stop()  # once more does nothing
    with pytest.raises(RevisionResolutionError, match="could not be reached"):
        api.resolve_revision(REPO, revision="v1.0", cache_dir=tmp_path / "empty")
    assert api.resolve_revision(REPO, revision="v1.0", cache_dir=tmp_path).resolved == commit
    assert download(hub, tmp_path, "weights.bin") == cached


def test_no_thread_is_left():
    before = set(threading.enumerate())
    with LocalHub() as hub, urllib.request.urlopen(f"{hub.url}/api/models") as response:
        assert json.load(response) == []
    assert set(threading.enumerate()) == before


def test_two_hubs_know_nothing_of_each_other(hub, api, commit):
    with LocalHub() as other:
        assert other.url != hub.url
        assert list(HfApi(endpoint=other.url, token=other.token).list_models()) == []
        assert (other.requests, other.repositories) == ([("GET", "/api/models")], {})


def test_another_process_needs_only_the_environment(hub, commit, tmp_path):
    program = f"""
import json
from huggingface_hub import HfApi, ModelCard, hf_hub_download

api = HfApi()
api.create_repo({OTHER!r})
api.upload_file(repo_id={OTHER!r}, path_or_fileobj=bytes(99), path_in_repo="a.bin")
card = ModelCard.load({REPO!r})
print(json.dumps([api.whoami()["name"], card.data.tags, hf_hub_download({REPO!r}, "weights.bin")]))
"""
    environment = os.environ | hub.environment(tmp_path)
    output = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    name, tags, file = json.loads(output)
    assert (name, tags) == ("me", ["evidcore-plugin", "evidcore-reward"])
    assert Path(file).is_relative_to(tmp_path)
    assert Path(file).read_bytes() == WEIGHTS
    assert hub.files(OTHER, "main")["a.bin"] == bytes(99)
