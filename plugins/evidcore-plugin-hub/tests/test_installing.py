"""Dishonest repositories against a local Hub: each refused by name, none of their code run."""

import json
import os
import subprocess
import tomllib
from pathlib import Path

import made_wheels as made
import pytest
from click.testing import CliRunner
from evidcore_plugin_hub.commands import info, search, update
from evidcore_plugin_hub.commands import install as install_command
from evidcore_plugin_hub.plugin import installing, remote
from evidcore_plugin_hub.plugin.manifest import FILE, manifest_of, read_manifest
from evidcore_plugin_hub.plugin.wheel import open_wheel
from huggingface_hub import CommitOperationAdd, HfApi
from local_hub import LocalHub

from evidcore.errors import PluginError

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

REPOSITORY = "mallory/evid-reward-laterality"
WHEEL = f"dist/{made.FILE}"
OTHER_CODE = made.files(module=made.REWARD.replace("1.0)", "0.0)").encode())
PIPS = []
PIP, COMPARE = installing.pip, installing.compare
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of the Hub's client


@pytest.fixture
def hub(monkeypatch, settings, tmp_path):
    with LocalHub() as started:
        monkeypatch.setenv("HF_TOKEN", started.token)
        constants = {
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "ENDPOINT": started.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": started.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_DISABLE_XET": True,
        }
        for name, value in constants.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        yield started


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch):
    """Note what pip is asked for; what pip does is tried in test_hub_life."""
    PIPS.clear()
    monkeypatch.setattr(installing, "pip", lambda *words: PIPS.append(words))
    monkeypatch.setattr(installing, "compare", lambda wheel: None)


def repository(content=None, *, pinned=(), **changed):
    """The files of a sound repository; `changed` are fields of its manifest."""
    wheel = open_wheel(made.FILE, made.wheel(content or made.files()))
    result = manifest_of(wheel, requires=pinned, commit="c" * 40)
    table = {**json.loads(result.to_bytes()), **changed}
    source = {f"src/{path}": text for path, text in wheel.source.items()}
    readme = b"---\ntags: [evidcore-plugin, evidcore-reward]\n---\n" + wheel.readme.encode()
    return {"README.md": readme, WHEEL: wheel.content, **source, FILE: json.dumps(table).encode()}


def published(files, tag="v1.0"):
    return remote.upload(REPOSITORY, files, "a plugin", tag)


def run(command, *words, typed=""):
    return CliRunner().invoke(command, [*map(str, words)], input=typed)


def refusal(at):
    with pytest.raises(PluginError) as caught:
        installing.look(at)
    assert PIPS == []
    return str(caught.value)


def test_a_sound_plugin_is_looked_at_and_shown(hub):
    at = published(repository())
    result = installing.look(at)
    assert result.table()["wheel"] == result.wheel.sha256
    said = "\n".join(installing.lines(result))
    assert f"from        {at}" in said
    assert "components  reward/laterality" in said
    assert (remote.snapshot(at) / "src/evid_reward_laterality.py").read_text() == made.REWARD


def test_a_name_becomes_a_commit_once(hub, tmp_path, monkeypatch):
    first = published(repository())
    second = published(repository(OTHER_CODE), "v2.0")
    at = remote.resolve(f"hub:{REPOSITORY}@v1.0")
    hub.move_tag(REPOSITORY, "v1.0", second.commit)
    assert installing.look(at).at == first
    asked = [path for _, path in hub.requests if "resolve" in path]
    assert asked
    assert all(first.commit in path for path in asked)


def test_a_whole_repository_swapped_under_a_pinned_commit_is_refused(hub, tmp_path):
    at = published(repository())
    lock = tmp_path / "evid.lock"
    installing.pin(lock, {"evid-reward-laterality": installing.look(at).table()})
    for path, text in repository(OTHER_CODE).items():
        hub.replace(REPOSITORY, at.commit, path, text)
        (remote.snapshot(at) / path).unlink()  # as on another machine
    done = run(install_command, "--lock", str(lock), "--yes")
    assert f"its record, wheel, manifest is not what {lock} pins" in str(done.exception)
    assert PIPS == []


@pytest.mark.parametrize(("changed", "said"), TABLE["manifests"])
def test_a_manifest_that_does_not_say_what_the_wheel_holds(hub, changed, said):
    assert said in refusal(published(repository(**changed)))


SOURCE = f"src/{made.NAME}.py"
README = {"README.md": b"---\ntags: [evidcore-plugin]\n---\n# Harmless\n"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({SOURCE: b"# looks harmless".ljust(len(made.REWARD))}, f"{SOURCE} is not the wheel's"),
        ({SOURCE: made.REWARD.encode() + b"# more\n"}, f"{SOURCE} is longer than"),
        ({"src/extra.py": b""}, "src/extra.py is not in the wheel"),
        ({SOURCE: None}, f"{SOURCE} is in the wheel and cannot be read here"),
        ({"dist/other-1.0-py3-none-any.whl": b"x"}, "dist/other-1.0-py3-none-any.whl is not in the wheel"),
        (README, "README.md is not the wheel's"),
    ],
)
def test_source_or_a_readme_that_is_not_the_wheels_is_refused(hub, changed, said):
    files = {**repository(), **changed}
    assert said in refusal(published({path: text for path, text in files.items() if text is not None}))


@pytest.mark.parametrize("text", [b"[" * 100_000, b"\xff\xfe", b"{}", b"null"])
def test_a_manifest_that_is_none(hub, text):
    said = refusal(published({**repository(), FILE: text}))
    assert "is no manifest of schema 1" in said
    assert said.isprintable()


def test_a_manifest_of_a_gigabyte_is_not_read(hub):
    at = published(repository())
    hub.serve_huge(REPOSITORY, at.commit, FILE, 2**30)
    assert f"{FILE} is longer than {2**20} bytes, so it was not read" in refusal(at)


def test_copies_that_were_changed_in_the_cache_are_fetched_anew(hub):
    at = published(repository())
    installing.look(at)
    for path, text in repository(OTHER_CODE).items():
        (remote.snapshot(at) / path).write_bytes(text)
    assert b"1.0)" in installing.look(at).wheel.source[f"{made.NAME}.py"]
    hub.stop()
    assert "the Hub cannot be reached" in refusal(at)


def test_a_requirement_is_never_installed_and_is_told_with_its_hashes(hub):
    requires = ["evidcore>=0.1,<0.2", "evid-second==1.0", "numpy==0.1"]
    content = made.files(meta=made.metadata(requires=requires))
    line = f"evid-second==1.0 --hash=sha256:{'0' * 64}"
    result = installing.look(published(repository(content, pinned=(line, "numpy==0.1"))))
    assert "needs       evid-second==1.0 (not installed)" in "\n".join(installing.lines(result))
    missing = r"installs nothing but itself.*\n  evid-second==1\.0 --hash=sha256:0+\n  numpy==0\.1$"
    with pytest.raises(PluginError, match=missing):
        installing.install(result)
    assert PIPS == []


def test_a_plugin_for_another_core_says_which_side_to_change(hub):
    content = made.files(meta=made.metadata(requires=["evidcore>=7,<8"]))
    assert "is made for evidcore <8,>=7, and this is 0.1" in refusal(published(repository(content)))


def test_what_the_user_denies_is_not_even_fetched(hub, settings):
    at = published(repository())
    settings.write_text('deny = ["mallory"]\n')
    hub.requests.clear()
    assert "denied by your trust.toml" in refusal(at)
    assert hub.requests == []


def test_consent_is_typed_or_stands_in_the_users_own_settings(hub, settings, tmp_path, monkeypatch):
    at, lock = published(repository()), tmp_path / "a.lock"
    done = run(install_command, at, "--lock", lock, typed="y\n")
    assert "not installed; 'y' is not 'evid-reward-laterality'" in str(done.exception)
    monkeypatch.chdir(tmp_path)
    for name in ("trust.toml", "evid.lock"):  # a list elsewhere counts for nothing
        (tmp_path / name).write_text(f'allow = ["{REPOSITORY}"]\n')
    for words in (["--lock", lock], []):
        done = run(install_command, at, "--yes", *words)
        assert "--yes asks for an entry in your own trust.toml" in str(done.exception)
    assert PIPS == []
    assert not lock.exists()
    settings.write_text(f'allow = ["{REPOSITORY}@{at.commit}"]\n')
    done = run(install_command, at, "--lock", lock, "--yes", "--json")
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["installed"][0]["source"] == str(at)
    ((verb, *words, file),) = PIPS
    assert (verb, words) == ("install", ["--no-deps", "--no-index", "--no-compile", "--force-reinstall"])
    assert os.path.basename(file) == made.FILE
    done = run(install_command, at, "--lock", tmp_path / "b.lock", typed="evid-reward-laterality\n")
    assert done.exit_code == 0, done.exception


def test_what_changed_between_two_commits_is_told(hub):
    before = installing.look(published(repository()))
    card = made.CARD.replace("needs_network = false", "needs_network = true")
    content = made.files(module=made.REWARD.encode() + b"import socket\n", meta=made.metadata(card=card))
    now = installing.look(published(repository(content), "v2"))
    told = [f"  changed: {made.NAME}.py", "  may reach now: network"]
    assert installing.changes(before, now)[1:] == told


def test_a_lock_is_changed_as_a_whole_and_keeps_what_else_it_pins(hub, tmp_path):
    table = installing.look(published(repository())).table()
    lock = tmp_path / "evid.lock"
    lock.with_name("evid.lock.new").symlink_to(own := tmp_path / "own.txt")  # a stranger's, to nothing yet
    installing.pin(lock, {"evid-b": table, "evid-a": table})
    assert not own.exists()
    installing.pin(lock, {"Evid_B": None})
    assert list(installing.tables(lock)) == ["evid-a"]
    assert installing.tables(lock)["evid-a"] == table
    assert read_manifest(installing.look(remote.resolve(f"hub:{REPOSITORY}")).manifest.to_bytes(), "x")


@pytest.mark.parametrize("text", ["hub:a", "a/b", "hub:a/b/c", "hub:../b", "hub:a/b@../../c", "hub:a/b@x y"])
def test_references_that_are_none(text):
    with pytest.raises(PluginError, match="must read hub:OWNER/NAME"):
        remote.parse(text)


def test_what_the_hub_does_not_know_is_told_in_a_sentence(hub):
    at = published(repository())
    for ask, says in (
        (lambda: remote.resolve("hub:nobody/nothing"), "no such repository, or you may not see it"),
        (lambda: remote.resolve(f"hub:{REPOSITORY}@v9"), "there is no such revision"),
        (lambda: remote.fetch(at, "gone.txt", 10), "there is no such file at this commit"),
        (lambda: remote.fetch(at, "../../x", 10), "leads out of the repository"),
        (lambda: published(repository()), "is published already"),
    ):
        with pytest.raises(PluginError, match=says):
            ask()


@pytest.mark.parametrize(("doing", "says"), [("stop", "cannot be reached"), ("deny", "hf auth login")])
def test_a_sentence_that_tells_it_all_has_no_traceback(hub, monkeypatch, doing, says):
    if doing == "stop":
        hub.stop()
    else:
        hub.token = "another"
    with pytest.raises(PluginError, match=says) as told:
        remote.search("laterality", "", 3)
    assert told.value.__cause__ is None


def installed(folder, monkeypatch, **more):
    """Put the plugin's package into this environment as pip would have."""
    made.install(folder, {**made.files(), **more})
    monkeypatch.syspath_prepend(folder)


def test_what_lies_there_afterwards_is_the_wheel_or_is_taken_away(hub, tmp_path, monkeypatch):
    wheel = installing.look(published(repository())).wheel
    installed(tmp_path / "right", monkeypatch)
    COMPARE(wheel)
    assert PIPS == []
    installed(tmp_path / "wrong", monkeypatch, **{f"{made.META}/more.txt": b"x"})
    with pytest.raises(PluginError, match="was not installed as it was looked at: its RECORD is not"):
        COMPARE(wheel)
    assert PIPS == [("uninstall", "--yes", "evid-reward-laterality")]


def test_a_package_that_came_from_elsewhere_is_not_replaced(hub, tmp_path, monkeypatch):
    result = installing.look(published(repository()))
    lock = tmp_path / "evid.lock"
    installing.refuse_taken(result, lock)
    installed(tmp_path / "site", monkeypatch)
    with pytest.raises(PluginError, match=r"another evid-reward-laterality 1\.0 is installed"):
        installing.refuse_taken(result, lock)
    installing.pin(lock, {"evid-reward-laterality": result.table()})
    installing.refuse_taken(result, lock)
    other = {**result.table(), "source": f"hub:eve/evid-reward-laterality@{'e' * 40}"}
    installing.pin(lock, {"evid-reward-laterality": other})
    with pytest.raises(PluginError, match=r"which .* does not pin from there"):
        installing.refuse_taken(result, lock)


def test_a_name_that_another_package_has_is_told_before_consent(hub, offered):
    offered("evid-other", made.ENTRIES.decode())
    said = "\n".join(installing.lines(installing.look(published(repository()))))
    assert "beware      reward 'laterality' from evid-other 1.0 has that name too" in said


def test_pip_is_told_nothing_by_the_environment_or_the_folder(monkeypatch, tmp_path):
    asked = {}

    def run(command, **options):
        asked.update(command=command, **options)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setenv("PIP_INDEX_URL", "http://evil")
    monkeypatch.setenv("HF_TOKEN", "secret")
    PIP("install", "x.whl")
    assert asked["command"][1:4] == ["-P", "-m", "pip"]
    assert not any(name.startswith(("PIP_I", "HF_")) for name in asked["env"])
    assert asked["env"]["PIP_CONFIG_FILE"] == os.devnull


@pytest.mark.parametrize("package", ["evidcore", "evidcore-plugin-lab", "evid-nothing"])
def test_what_is_not_a_plugin_of_the_hub_is_not_taken_away(package):
    with pytest.raises(PluginError, match="not installed, or a package of evidcore itself"):
        installing.uninstall(package)
    assert PIPS == []


def test_a_repository_that_holds_something_else_is_not_emptied(hub):
    api = HfApi(endpoint=hub.url, token=hub.token)
    api.create_repo(REPOSITORY)
    model = [CommitOperationAdd("model.safetensors", b"\0weights")]
    api.create_commit(REPOSITORY, model, commit_message="A model")
    with pytest.raises(PluginError, match="holds files and no plugin"):
        published(repository())
    assert "model.safetensors" in hub.files(REPOSITORY, "main")


def test_text_of_a_plugin_cannot_forge_lines_of_the_screen(hub):
    meta = made.metadata().replace(b"Summary: Left", b"Summary: x\n  from        hub:evidcore/official")
    result = installing.look(published(repository(made.files(meta=meta))))
    assert sum(line.startswith("  from ") for line in installing.lines(result)) == 1
    assert all("\n" not in line for line in installing.lines(result))


def test_an_update_shows_what_changed_and_asks_again(hub, tmp_path):
    lock, package = tmp_path / "evid.lock", "evid-reward-laterality"

    def pinned():
        return installing.tables(lock)[package]["source"]

    first = published(repository())
    installing.pin(lock, {package: installing.look(first).table()})
    words = [update, package, "--lock", lock]
    assert f"{package}: is at {first}" in run(*words).output
    second = published(repository(OTHER_CODE), "v2.0")
    assert f"changed: {made.NAME}.py" in run(*words, typed="no\n").output
    assert pinned() == str(first)
    done = run(*words, "--json", typed=f"{package}\n")
    assert done.exit_code == 0, done.exception
    changes = [f"{package} 1.0 -> 1.0, {second}", f"  changed: {made.NAME}.py"]
    assert json.loads(done.stdout)["changes"] == changes
    assert pinned() == str(second)
    done = run(update, "evid-reward-lateralty", "--lock", lock)
    assert "Did you mean 'evid-reward-laterality'?" in str(done.exception)
    installing.pin(lock, {"evid-reward-side": installing.look(first).table()})
    done = run(update, "evid-reward-side", "--lock", lock)
    assert "holds evid-reward-laterality now, not evid-reward-side" in str(done.exception)


def test_what_was_published_is_found_by_words_and_kind(hub):
    published(repository())
    result = json.loads(run(search, "laterality", "--json").stdout)["plugins"]
    assert [(row["repository"], row["kinds"]) for row in result] == [(REPOSITORY, ["reward"])]
    assert "nothing found" in run(search, "laterality", "--kind", "encoder").output
    assert f"hub:{REPOSITORY}" in run(search, "--kind", "reward").output


def test_a_long_card_is_cut_and_escaped(hub):
    readme = "# x\n\x1b[2J" + "a" * 100_000
    at = published({**repository(), "README.md": readme.encode()})
    said = run(info, str(at)).output
    assert "\x1b" not in said
    assert "cut after 65536 of 100008 characters" in said
    assert json.loads(run(info, str(at), "--json").stdout)["source"] == str(at)
