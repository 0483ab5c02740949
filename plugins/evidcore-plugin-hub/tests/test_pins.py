"""A pinned package runs only as it was looked at; a canary file tells whether any of its code ran."""

import compileall
import os
import sys
from importlib import metadata

import made_wheels as made
import pytest
from evidcore_plugin_hub.trust import pins

from evidcore.api import find
from evidcore.errors import PluginError, RecipeError
from evidcore.recipe import load

COMMIT = "a" * 40
META = "evid_pinned-1.0.dist-info"
SOURCE = f"hub:somebody/evid-pinned@{COMMIT}"
PINNED = f"[plugin.{{name}}]\nversion = '1'\nsource = '{SOURCE}'\nrecord = '{'0' * 64}'\nmodules = ['x']\n"


@pytest.fixture(autouse=True)
def nothing_pinned(settings):
    yield
    pins.FINDER.__init__()
    for name in [name for name in sys.modules if name.startswith("evid_pinned")]:
        del sys.modules[name]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package of two top-level modules as pip would have installed it, and its lock."""
    root, lock = tmp_path / "site", tmp_path / "evid.lock"
    files = {
        "evid_pinned/__init__.py": made.canary(tmp_path / "ran"),
        "evid_pinned/reward.py": b"from evid_pinned_words import WORDS\n\nclass Pinned:\n    words = WORDS\n",
        "evid_pinned/card.txt": b"a card\n",
        "evid_pinned_words.py": b"WORDS = ('left', 'right')\n",
        f"{META}/METADATA": b"Metadata-Version: 2.4\nName: evid-pinned\nVersion: 1.0\n",
        f"{META}/entry_points.txt": b"[evidcore.reward]\npinned = evid_pinned.reward:Pinned\n",
    }
    made.install(root, files, META)
    monkeypatch.syspath_prepend(root)
    hashes = {path: pins.file_digest(content) for path, content in files.items()}
    lock.write_text(
        f'schema = 1\n[plugin.evid-pinned]\nversion = "1.0"\nsource = "{SOURCE}"\n'
        f'record = "{pins.record_digest(hashes)}"\nmodules = ["evid_pinned", "evid_pinned_words"]\n'
    )
    return root, lock


def refused(tmp_path):
    """The refusal of the component, of which nothing ran."""
    offer = find("reward", "evid-pinned/pinned")
    with pytest.raises(PluginError, match="None of its code was run") as caught:
        offer.load()
    assert not (tmp_path / "ran").exists()
    return str(caught.value)


def change(root, text="WORDS = ()\n"):
    (root / "evid_pinned_words.py").write_text(text)


def test_what_is_as_it_was_pinned_runs(installed, tmp_path):
    pins.keep(installed[1])
    assert find("reward", "pinned").load().words == ("left", "right")
    assert (tmp_path / "ran").exists()
    assert list(pins.kept()) == ["evid-pinned"]


@pytest.mark.parametrize(
    "path",
    [
        "evid_pinned/reward.py", "evid_pinned_words.py", "evid_pinned/card.txt", f"{META}/METADATA",
        f"{META}/entry_points.txt", "evid_pinned/more.py", "evid_pinned/native.so",
    ],
)  # fmt: skip
def test_a_file_that_was_changed_or_added_is_refused_before_anything_runs(installed, tmp_path, path):
    says = "is not what RECORD says" if (installed[0] / path).exists() else "is in no RECORD"
    with (installed[0] / path).open("a") as file:
        file.write("# another\n")
    pins.keep(installed[1])
    assert f"{path} {says}" in refused(tmp_path)


def test_a_record_that_was_changed_with_the_file_is_refused(installed, tmp_path):
    change(installed[0])
    record = installed[0] / META / "RECORD"
    was, now = (pins.file_digest(text) for text in (b"WORDS = ('left', 'right')\n", b"WORDS = ()\n"))
    record.write_text(record.read_text().replace(was, now))
    pins.keep(installed[1])
    assert "its RECORD is not that of the wheel which was pinned" in refused(tmp_path)


def test_a_file_that_is_gone_and_another_version_are_refused(installed, tmp_path):
    (installed[0] / "evid_pinned_words.py").unlink()
    installed[1].write_text(installed[1].read_text().replace('version = "1.0"', 'version = "2.0"'))
    pins.keep(installed[1])
    said = refused(tmp_path)
    assert "evid_pinned_words.py cannot be read (FileNotFoundError)" in said
    assert "version 1.0 is installed" in said


def test_bytecode_that_was_planted_is_not_run(installed):
    root, lock = installed
    words = root / "evid_pinned_words.py"
    right, time_ns = words.read_text(), words.stat().st_mtime_ns
    change(root, "WORDS = ('wrong',".ljust(len(right) - 2) + ")\n")
    os.utime(words, ns=(time_ns, time_ns))
    compileall.compile_file(words, quiet=2)
    change(root, right)
    os.utime(words, ns=(time_ns, time_ns))
    pins.keep(lock)
    assert find("reward", "pinned").load().words == ("left", "right")


def test_a_module_of_the_same_name_earlier_on_the_path_is_not_run(installed, tmp_path, monkeypatch):
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    change(shadow, "WORDS = ('shadow',)\n")
    monkeypatch.syspath_prepend(shadow)
    pins.keep(installed[1])
    assert find("reward", "pinned").load().words == ("left", "right")
    with pytest.raises(ModuleNotFoundError, match=r"has no module 'evid_pinned\.other'"):
        __import__("evid_pinned.other")


def test_a_file_that_changes_while_the_run_goes_on_is_refused(installed):
    pins.keep(installed[1])
    __import__("evid_pinned")
    change(installed[0])
    with pytest.raises(PluginError, match="changed while it was imported"):
        find("reward", "pinned").load()


def test_code_that_was_imported_before_is_compared_at_once(installed):
    __import__("evid_pinned_words")
    change(installed[0])
    with pytest.raises(PluginError, match=r"evid_pinned_words\.py is not what RECORD says"):
        pins.keep(installed[1])


def test_two_locks_that_pin_other_states_are_refused(installed, tmp_path):
    (tmp_path / "other.lock").write_text(installed[1].read_text().replace(COMMIT, "b" * 40))
    pins.keep(installed[1])
    pins.keep(installed[1])
    with pytest.raises(PluginError, match="pins another state of it"):
        pins.keep(tmp_path / "other.lock")


@pytest.mark.parametrize(
    "item", ["somebody", "somebody/evid-pinned", COMMIT, f"somebody/evid-pinned@{COMMIT}"]
)
def test_what_the_user_denies_is_refused(installed, settings, item):
    settings.write_text(f'deny = ["{item}"]\n')
    with pytest.raises(PluginError, match=r"denied by your trust\.toml"):
        pins.keep(installed[1])


@pytest.mark.parametrize(
    "text", ["deny = 3", 'deny = "m"', 'Deny = ["a"]', "denied = []", 'deny = ["a/b@main"]', "deny = [3]"]
)
def test_a_settings_file_that_is_none_is_named(installed, settings, text):
    settings.write_text(text + "\n")
    says = r"trust\.toml: '\w+' must be `allow` or `deny`, a list of OWNER"
    with pytest.raises(PluginError, match=says):
        pins.keep(installed[1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[plugin.x]\nversion = '1'\n", "lacks 'source'"),
        (PINNED.format(name="x").replace(COMMIT, "main"), "has no source that"),
        (PINNED.format(name="x").replace("0" * 64, ""), "has no record that"),
        (PINNED.format(name="x").replace("['x']", "[]"), "has no modules that"),
        (PINNED.format(name="x").replace("['x']", "['x y']"), "has no modules that"),
        (PINNED.format(name="x-y") + PINNED.format(name="X_y"), "has no name that"),
        ("plugin = [", "cannot be read"),
        ("[plugin]\nx = 3\n", "lacks"),
    ],
)
def test_a_lock_that_is_none_is_refused(tmp_path, text, said):
    (tmp_path / "evid.lock").write_text(text)
    with pytest.raises(PluginError, match=said):
        pins.read(tmp_path / "evid.lock")


def test_a_use_of_the_hub_becomes_the_packages_name(installed):
    pinned = pins.keep(installed[1])
    assert pins.component(f"{SOURCE}#pinned", pinned, "r.toml") == "evid-pinned/pinned"
    assert pins.component("format", pinned, "r.toml") == "format"
    with pytest.raises(PluginError, match=r"is in no evid\.lock beside the recipe.*evid install hub:a/b@"):
        pins.component(f"hub:a/b@{COMMIT}#x", pinned, "r.toml")
    for use in (SOURCE, "hub:a/b@main#x", "hub:a/b#x"):
        with pytest.raises(PluginError, match="must read hub:OWNER/NAME@COMMIT#component"):
            pins.component(use, pinned, "r.toml")


def test_a_package_that_is_pinned_and_not_installed_is_named_with_its_source(tmp_path):
    (tmp_path / "evid.lock").write_text(PINNED.format(name="evid-gone"))
    pins.keep(tmp_path / "evid.lock")
    with pytest.raises(PluginError, match=f"`evid install {SOURCE}`"):
        find("reward", "evid-gone/gone")


@pytest.mark.parametrize("name", ["recipe.toml", "links/recipe.toml"])
def test_the_lock_beside_a_recipe_holds_also_behind_a_link(installed, tmp_path, name):
    grpo = f'[[stage]]\nkind = "grpo"\nreward = [{{ use = "{SOURCE}#gone" }}]\n'
    (tmp_path / "recipe.toml").write_text(f'schema = 1\nname = "r"\n{grpo}')
    (tmp_path / "links").mkdir()
    (tmp_path / "links/recipe.toml").symlink_to(tmp_path / "recipe.toml")
    with pytest.raises(RecipeError, match=r"'evid-pinned/gone'\. evid-pinned is installed and has none"):
        load(tmp_path / name)
    assert list(pins.kept()) == ["evid-pinned"]


def test_a_package_that_is_edited_in_place_has_nothing_to_compare(installed):
    dist = metadata.distribution("evid-pinned")
    assert list(pins.faults(dist)) == []
    assert not pins.is_edited(dist)
    assert pins.is_edited(metadata.distribution("evidcore"))


@pytest.mark.parametrize("record", [b"x", b"\xff\xfe", b"", None])
def test_a_record_that_is_gone_or_damaged_pins_all_the_same(installed, tmp_path, record):
    file = installed[0] / META / "RECORD"
    file.unlink() if record is None else file.write_bytes(record)
    pins.keep(installed[1])
    assert "it is edited in place, so there is nothing to compare it with" in refused(tmp_path)
    with pytest.raises(PluginError, match="None of its code was run"):
        __import__("evid_pinned_words")


@pytest.mark.parametrize("url", ["[]", "null", "{", '{"dir_info": null}', '{"dir_info": {"editable": true}}'])
def test_what_an_installer_noted_does_not_excuse_a_pinned_package(installed, tmp_path, url):
    (installed[0] / META / "direct_url.json").write_text(url)
    change(installed[0])
    pins.keep(installed[1])
    assert "edited in place" in refused(tmp_path) or "is not what RECORD says" in refused(tmp_path)


def test_scripts_of_a_package_do_not_make_its_neighbours_strays(installed):
    (installed[0].parent / "bin").mkdir()
    (installed[0].parent / "bin/pinned").write_text("x")
    record = installed[0] / META / "RECORD"
    record.write_text(record.read_text() + f"../bin/pinned,{pins.file_digest(b'x')},1\n")
    assert list(pins.faults(metadata.distribution("evid-pinned"))) == []


def test_where_only_some_may_run_a_strangers_code_does_not(installed, tmp_path):
    pins.only(["another"])
    assert "evid-pinned is not locked. None of its code was run" in refused(tmp_path)
    assert find("reward", "format").load()


def test_a_lock_in_the_folder_holds_for_every_command(installed, tmp_path, evid, monkeypatch):
    monkeypatch.chdir(tmp_path)
    change(installed[0])
    assert "None of its code was run" in evid("plugins", "reward", "--check").output
    assert not (tmp_path / "ran").exists()
