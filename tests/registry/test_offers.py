"""Discovery against real dist-info folders on disk: nothing is mocked."""

import runpy
import shutil
import signal
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from evidcore.api import DataError, find
from evidcore.errors import ContractError, PluginError, Stopped
from evidcore.recipe import load
from evidcore.registry import (
    KIND_NAMES,
    Offer,
    _watches,
    blame,
    broken,
    card,
    downloads,
    offers,
    package_error,
    watch,
)
from evidcore.registry.factory import check


def test_the_kind_names_are_the_contracts_and_observers():
    from evidcore.contracts import KINDS

    assert set(KIND_NAMES) == {*KINDS, "observer", "command", "page"}


def test_a_missing_component_of_our_own_is_answered_with_the_pip_command(monkeypatch):
    monkeypatch.setattr("evidcore.registry.offers", lambda kind=None: [])
    with pytest.raises(PluginError, match=r"It comes with `pip install evidcore-plugin-reports`"):
        find("labeler", "evidcore-plugin-reports/endpoint")


def test_the_table_of_our_own_packages_is_what_they_declare():
    file = resources.files("evidcore_plugin_hub.trust") / "known_packages.toml"
    script = Path(__file__).parents[2] / "plugins/known_packages.py"
    written = file.read_text(encoding="utf-8")
    assert written == runpy.run_path(str(script))["table"](), "run: python plugins/known_packages.py"
    assert tomllib.loads(written)["evidcore-plugin-med3d-r1"]["bridge"] == ["residual-alignment"]


def test_a_missing_module_shows_without_running_anything(install):
    install("evid-hollow", "hollow", None)
    assert "there is no module 'evid_hollow'" in str(find("reward", "hollow").fault())
    install("evid-odd", "odd", target="evid_odd")
    assert "must read 'module:attribute', got 'evid_odd'" in str(find("reward", "odd").fault())
    install("evid-kind", "kind", kind="rewrad")
    row = next(row for row in offers() if row.package == "evid-kind")
    assert "no component kind is called 'rewrad'. Did you mean 'reward'?" in str(row.fault())


def test_a_card_is_read_from_the_readme_in_the_metadata(install):
    install("evid-carded", "c", readme='# Title\n\n```toml card\nmodality = ["CT"]\ngpu = false\n```\nmore\n')
    assert card("evid-carded") == {"modality": ["CT"], "gpu": False}
    install("evid-plain", "p", readme="# Title\n")
    assert card("evid-plain") == {}
    install("evid-smudged", "s", readme="```toml card\nmodality = CT\n```\n")
    with pytest.raises(PluginError, match=r"^evid-smudged 1.0: the card in its README is not TOML"):
        card("evid-smudged")
    assert "is not TOML" in broken()["evid-smudged"]


def test_plain_errors_of_plugin_code_name_the_package_and_keep_their_cause():
    offer = Offer(kind="reward", name="r", package="evid-r", version="2.1", target="r:R")
    with (
        pytest.raises(
            ContractError, match=r"^reward 'r' from evid-r 2.1 failed while scoring: KeyError: 'x'"
        ) as got,
        blame(offer, "scoring"),
    ):
        {}["x"]
    assert isinstance(got.value.__cause__, KeyError)
    with pytest.raises(DataError, match="as it is"), blame(offer, "scoring"):
        raise DataError("as it is")
    with pytest.raises(OSError, match="No space left"), blame(offer, "scoring"):
        raise OSError(28, "No space left on device")


def test_what_is_installed_or_removed_later_is_seen(install, tmp_path):
    def names():
        return [row.name for row in offers("reward")]

    assert "later" not in names()
    install("evid-later", "later")
    assert "later" in names()
    shutil.rmtree(tmp_path / "evid_later-1.0.dist-info")
    assert "later" not in names()


def test_downloads_of_a_card_are_told_for_the_components_in_use():
    table = {
        "downloads": ["weights, 2 GB", {"of": ["a", "b"], "text": "a set"}, {"of": ["c"], "text": "another"}]
    }
    assert downloads(table) == ["weights, 2 GB", "a set", "another"]
    assert downloads(table, {"b"}) == ["weights, 2 GB", "a set"]
    assert downloads({}) == []


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_of_a_component_is_its_fault(kind):
    offer = Offer(kind="task", name="mine", package="evid-mine", version="1.0", target="evid_mine:It")
    before = signal.signal(signal.SIGINT, lambda *_: None)  # as in a run, where Ctrl-C raises `Stopped`
    try:
        with pytest.raises(ContractError) as caught, blame(offer, "asking about case 'c1'"):
            raise kind("Jane")
        with pytest.raises(Stopped), blame(offer, "asking"):
            raise Stopped(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    said = f"task 'mine' from evid-mine 1.0 failed while asking about case 'c1': {kind.__name__}"
    assert caught.value.safe == said
    assert str(caught.value).startswith(f"{said}: Jane. Report this to the authors of evid-mine;")


def test_ctrl_c_is_nobodys_fault_where_it_raises_as_python_has_it():
    offer = Offer(kind="task", name="mine", package="evid-mine", version="1.0", target="evid_mine:It")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt), blame(offer, "asking"):
        raise KeyboardInterrupt


def test_what_nothing_blamed_is_the_fault_of_the_innermost_package(install):
    install("evid-mine", "mine", "def It():\n    raise SystemExit(0)\n", kind="task")
    with pytest.raises(SystemExit) as caught:
        find("task", "mine").load()()
    result = package_error(caught.value)
    assert result is not None
    assert result.safe == "evid-mine 1.0 failed in evid_mine, line 2: SystemExit"
    assert package_error(ValueError("of the core")) is None


def test_a_package_that_offers_to_watch_over_others_is_asked_only_under_our_name(install, tmp_path):
    install("evid-watch", "x")
    (info,) = tmp_path.rglob("evid_watch-1.0.dist-info")
    with (info / "entry_points.txt").open("a") as file:
        file.write("\n[evidcore_trust]\nwatch = evid_watch\nother = evidcore_plugin_hub.trust.names\n")
    _watches.cache_clear()
    assert watch("watch") is None
    assert watch("other").__name__ == "evidcore_plugin_hub.trust.names"
    assert "evid_watch" not in sys.modules


def test_what_only_another_package_checks_is_refused_without_it(unwatched, monkeypatch, tmp_path, evid):
    missing = r"needs a package that is not installed\. `pip install evidcore-plugin-hub`\."
    (tmp_path / "recipe.toml").write_text("schema = 1\n")
    (tmp_path / "evid.lock").write_text("")
    with pytest.raises(PluginError, match=rf"{tmp_path}/evid\.lock: comparing what it pins {missing}"):
        load(tmp_path / "recipe.toml")
    monkeypatch.chdir(tmp_path)
    said = evid("plugins", exit_code=2).stderr
    assert "evid.lock: comparing what it pins needs a package that is not installed" in said
    (tmp_path / "evid.lock").unlink()
    said = evid("plugins", "--verify", exit_code=2).stderr
    assert "--verify needs a package that is not installed. `pip install evidcore-plugin-hub`." in said
    (wrong,) = check("reward", {"use": "format", "isolated": True}, "stage.reward[0]")
    assert str(wrong) == (
        "stage.reward[0].isolated: a process of its own needs `pip install evidcore-plugin-hub`. "
        "Or leave `isolated` out."
    )
    with pytest.raises(PluginError, match="of the Hub needs `pip install evidcore-plugin-hub`"):
        find("reward", f"hub:a/b@{'a' * 40}#x")
    assert find("reward", "format").load()


@pytest.mark.parametrize("name", ["f\u043ermat", "Format", "a b", "x\u200b", "-x", "x\x1b[2J"])
def test_a_name_of_other_letters_is_a_fault(name):
    offer = Offer(kind="reward", name=name, package="evid-x", version="1.0", target="json:loads")
    assert offer.fault() == "a component's name has small letters, digits and dashes"


def test_twenty_thousand_entry_points_are_one_packages_fault(install, tmp_path):
    install("evid-sound", "sound")
    install("evid-flood", "x")
    (info,) = tmp_path.rglob("evid_flood-1.0.dist-info")
    rows = "".join(f"n{number} = evid_flood:It\n" for number in range(20_000))
    (info / "entry_points.txt").write_text(f"[evidcore.reward]\n{rows}")
    assert {row.package for row in offers("reward") if row.package.startswith("evid-")} == {"evid-sound"}
    assert broken()["evid-flood"] == "it offers 20000 components; at most 1000 of a package are listed"


def test_a_name_of_two_packages_is_listed_twice_and_found_by_either_spelling_of_a_package(install):
    install("evid-a", "same")
    install("evid-b", "same")
    assert [row.package for row in offers("reward") if row.name == "same"] == ["evid-a", "evid-b"]
    assert find("reward", "Evid_B/same").load().__module__ == "evid_b"


def test_a_module_within_a_package_is_looked_for_without_an_import(install, tmp_path):
    install("evid-loud", "loud", None, target="evid_loud.inner:It")
    (tmp_path / "evid_loud").mkdir()
    (tmp_path / "evid_loud" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "evid_loud" / "inner.py").write_text("It = dict")
    assert find("reward", "loud").fault() is None
    assert "evid_loud" not in sys.modules


@pytest.mark.parametrize(
    ("table", "said"),
    [(b"[evidcore.task]\nno equals sign\n", "entry_points.txt cannot be read"),
     (b"[evidcore.task]\nm\xffne = evid_mine:fit\n", "entry_points.txt cannot be read (UnicodeDecodeError")],
)  # fmt: skip
def test_an_unreadable_table_is_listed_with_its_reason_and_stops_nobody(install, tmp_path, table, said):
    install("evid-mine", "mine")
    (info,) = tmp_path.rglob("evid_mine-1.0.dist-info")
    (info / "entry_points.txt").write_bytes(table)
    install("evid-claims", "format")
    assert find("reward", "format").package == "evidcore"  # a name of ours stays ours
    assert find("reward", "evid-claims/format").package == "evid-claims"
    assert said in broken()["evid-mine"]
