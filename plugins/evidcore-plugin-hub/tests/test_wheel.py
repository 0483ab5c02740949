"""What a wheel is refused for before anything of it runs, each by name."""

import contextlib
import gc
import io
import re
import tomllib
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import made_wheels as made
import pytest
from evidcore_plugin_hub.plugin.code_look import CodeLook
from evidcore_plugin_hub.plugin.wheel import open_wheel

from evidcore.errors import PluginError

PLANTED = tomllib.loads(Path(__file__).with_name("planted_wheels.toml").read_text(encoding="utf-8"))


def refusal(content, file=made.FILE):
    with pytest.raises(PluginError) as caught:
        open_wheel(file, content)
    assert "nothing in it was run" in str(caught.value)
    return str(caught.value)


def test_a_sound_wheel_is_read():
    wheel = open_wheel(made.FILE, made.wheel(made.files()))
    assert (wheel.package, wheel.version, wheel.licence) == ("evid-reward-laterality", "1.0", "Apache-2.0")
    assert wheel.components == {"reward/laterality": "evid_reward_laterality:Laterality"}
    assert (wheel.core, wheel.requires, dict(wheel.capabilities)) == ("<0.2,>=0.1", (), {})
    assert list(wheel.source) == ["evid_reward_laterality.py"]


@pytest.mark.parametrize(("path", "said"), PLANTED["paths"])
def test_files_that_a_plugin_must_not_bring(path, said):
    assert said in refusal(made.wheel({**made.files(), path: b""}))


def test_files_that_are_links_doubled_or_encrypted():
    content = {**made.files(), "linked.py": b"/etc/passwd"}
    assert "'linked.py' is a link" in refusal(made.wheel(content, links={"linked.py"}))
    assert "is there twice" in refusal(made.wheel({**made.files(), made.NAME.upper() + ".py": b""}))
    sound = made.wheel(made.files())
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        place = archive.infolist()[0].header_offset
    broken = bytearray(sound)
    broken[place + 6] |= 1
    central = bytes(broken).index(b"PK\x01\x02")
    broken[central + 8] |= 1
    assert "is encrypted" in refusal(bytes(broken))


def test_a_record_that_is_not_what_is_there():
    content = made.files()
    right = {path: made.file_digest(text) for path, text in content.items()}
    wrong = {**right, f"{made.NAME}.py": made.file_digest(b"other")}
    assert f"{made.NAME}.py is not what RECORD says" in refusal(made.wheel(content, record=wrong))
    short = {path: digest for path, digest in right.items() if not path.endswith(".py")}
    assert f"{made.NAME}.py is in no RECORD" in refusal(made.wheel(content, record=short))
    long = {**right, "gone.py": "sha256=x"}
    assert "gone.py is in RECORD and not there" in refusal(made.wheel(content, record=long))
    for odd in ("a,b", "a", f"{made.NAME}.py,sha256=x,1"):
        assert "RECORD has a row twice, or one that is not" in refusal(made.wheel(content, more=odd))


@pytest.mark.parametrize(("entries", "said"), PLANTED["entries"])
def test_what_a_plugin_must_not_offer(entries, said):
    assert said in refusal(made.wheel(made.files(entries=entries.encode())))


@pytest.mark.parametrize(("requires", "said"), PLANTED["requirements"])
def test_requirements_that_pin_nothing(requires, said):
    assert said in refusal(made.wheel(made.files(meta=made.metadata(requires=requires))))


def test_requirements_that_are_pinned():
    asked = ["evidcore>=0.1,<0.2", "numpy==2.1.0", "evidcore-plugin-lab>=0.1,<0.2", "ruff; extra == 'test'"]
    wheel = open_wheel(made.FILE, made.wheel(made.files(meta=made.metadata(requires=asked))))
    assert wheel.requires == ("numpy==2.1.0", "evidcore-plugin-lab>=0.1,<0.2")


@pytest.mark.parametrize("key", ["trusted", "is_verified", "allow", "Approved"])
def test_a_card_that_claims_trust(key):
    card = made.CARD.replace('language = ["en"]', f"{key} = true")
    said = refusal(made.wheel(made.files(meta=made.metadata(card=card))))
    assert f"its card says '{key}'; whom to trust is the user's" in said


def test_a_card_that_is_none_and_a_readme_that_moves_the_cursor():
    deep = "```toml card\na = " + "[" * 5000 + "\n```\n"
    assert "is not TOML" in refusal(made.wheel(made.files(meta=made.metadata(card=deep))))
    assert "control characters" in refusal(made.wheel(made.files(meta=made.metadata(card="\x1b[2J"))))
    assert "control characters" in refusal(made.wheel(made.files(meta=made.metadata(card="\u202e"))))
    nested = made.CARD.replace('source = "this package"', "[meta]\nofficial = true")
    assert "its card says 'official'" in refusal(made.wheel(made.files(meta=made.metadata(card=nested))))


@pytest.mark.parametrize("code", PLANTED["acts"])
def test_what_is_not_known_to_be_harmless_runs_code_when_loaded(code):
    assert [*CodeLook(code, [made.NAME]).runs_when_loaded()]


@pytest.mark.parametrize("code", PLANTED["attacks"].values(), ids=PLANTED["attacks"])
def test_attacks_that_run_when_loaded_are_shown(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [*CodeLook(code, ["made_wheels"]).runs_when_loaded()]
    with contextlib.suppress(TypeError), warnings.catch_warnings(action="ignore"):
        exec(code, {"__name__": "made_wheels"})  # some break the module behind the act
        gc.collect()
    assert (tmp_path / "ran").exists()


def test_what_runs_when_loaded_must_be_on_the_card_and_is_shown_with_its_line(tmp_path):
    module = made.canary(tmp_path / "ran")
    said = refusal(made.wheel(made.files(module=module)))
    assert re.search(r"line 3: pathlib\.Path\(.*, and its card does not say needs_loading = true", said)
    card = made.CARD.replace("needs_gpu", "needs_loading = true\nneeds_files = true\nneeds_gpu")
    wheel = open_wheel(made.FILE, made.wheel(made.files(module=module, meta=made.metadata(card=card))))
    assert wheel.capabilities["loading"].startswith("evid_reward_laterality.py line 3: pathlib.Path(")
    assert not (tmp_path / "ran").exists()


def test_a_name_that_another_module_of_the_package_binds_otherwise_is_no_class():
    other = "class Words:\n    pass\n\n\nWords = 'open(1)'\n"
    code = f"from {made.NAME}_words import Words\n\n\nclass A:\n    x: Words\n"
    content = {**made.files(module=code.encode()), f"{made.NAME}_words.py": other.encode()}
    assert f"{made.NAME}.py line 5: Words" in refusal(made.wheel(content))
    content[f"{made.NAME}_words.py"] = other.partition("\n\n\n")[0].encode()
    assert open_wheel(made.FILE, made.wheel(content)).capabilities == {}


def test_what_honest_modules_do_at_import_is_harmless():
    root = Path(__file__).parents[3]
    honest = (*root.glob("examples/*/evid_*.py"), *root.glob("plugins/evidcore-plugin-med3d-r1/src/*/*.py"))
    assert [line for path in honest for line in CodeLook(path.read_text()).runs_when_loaded()] == []
    code = (
        "from __future__ import annotations\n\nimport re\nfrom typing import Annotated, Literal\n\n"
        "from annotated_types import Ge\nfrom evidcore_plugin_hub.trl_reward import reward_of\n\n"
        "WORD = re.compile('x' + 'y', re.M)\nSIDES = 'a b'.split()\nWords = dict[str, int] | None\n\n\n"
        "def says(completions, a: Annotated[float, Ge(0)] = 0.5, b: Literal['x-y'] = 'x-y', c: Words = 1):\n"
        "    return [1.0 for _ in completions]\n\n\nSays = reward_of(says, judges={'format'})\n"
    )
    assert list(CodeLook(code).runs_when_loaded()) == []


@pytest.mark.parametrize(("code", "name"), PLANTED["reaches"])
def test_what_code_reaches_is_on_its_card_or_it_is_refused(code, name):
    module = made.REWARD.encode() + code.encode()
    assert f"its card does not say needs_{name} = true" in refusal(made.wheel(made.files(module=module)))
    card = made.CARD.replace("needs_gpu", f"needs_{name} = true\nneeds_gpu")
    card = card.replace("needs_network = false\n", "") if name == "network" else card
    wheel = open_wheel(made.FILE, made.wheel(made.files(module=module, meta=made.metadata(card=card))))
    assert list(wheel.capabilities) == [name]


def test_bytes_that_are_no_wheel():
    assert "cannot be read as a wheel" in refusal(b"PK\x05\x06 not really")
    assert "has no name of a wheel" in refusal(b"", "x.whl")
    assert "only pure ones" in refusal(b"", "evid_x-1.0-cp311-cp311-linux_x86_64.whl")
    assert "has the name of a package of evidcore" in refusal(b"", "evidcore_official-9.0-py3-none-any.whl")
    bomb = {**made.files(), "evid_bomb/__init__.py": b"#" * (20 * 2**20)}
    assert "unpacks to more than" in refusal(made.wheel(bomb))
    lying = {zipfile.ZIP_BZIP2: "'a.txt' is packed by", zipfile.ZIP_DEFLATED: "Bad CRC-32"}
    for packed, said in lying.items():
        with zipfile.ZipFile(out := io.BytesIO(), "w", packed) as archive:
            archive.writestr("a.txt", bytes(1 << 28))
            archive.filelist[0].file_size = 10
        tracemalloc.start()
        assert said in refusal(out.getvalue())
        assert tracemalloc.get_traced_memory()[1] < 1e8
        tracemalloc.stop()
    many = {**made.files(), **{f"evid_many/x{i}.txt": b"" for i in range(1100)}}
    assert "at most 1000 are read" in refusal(made.wheel(many))
    odd = {**made.files(), f"{made.NAME}_odd.py": b"def f(:\n"}
    assert f"{made.NAME}_odd.py is no Python that can be read" in refusal(made.wheel(odd))
    other = made.files(meta=made.metadata(name="evid-reward-other"))
    assert "is called evid-reward-other 1.0 inside" in refusal(made.wheel(other))
    twice = made.files(meta=made.metadata().replace(b"Version: 1.0", b"Version: 1.0\nName: evid-b"))
    assert "inside" in refusal(made.wheel(twice))
    hidden = b"\r# coding: utf-7\r# +AAo-import os"  # a line of its own for Python, in one line of an editor
    for text in (b"# coding: utf-7\n", b"# coding: none\n", b"\xff\xfe", b"#" * (2**18 + 1), hidden):
        said = refusal(made.wheel(made.files(module=made.REWARD.encode()[:0] + text)))
        assert re.search("names another encoding|is no text in UTF-8|holds control characters", said)
    hidden = {**made.files(), f"{made.NAME}_words/weights.txt": b"\x80\x04\x95"}
    assert "weights.txt is no text in UTF-8" in refusal(made.wheel(hidden))
    assert "which no tag of the Hub can name" in refusal(b"", "evid_x-1.0+local-py3-none-any.whl")


def test_a_wheel_is_read_in_linear_time_of_its_files():
    deep = made.REWARD + "\nX = " + "(" * 150 + "1" + ")" * 150 + "\n"
    open_wheel(made.FILE, made.wheel(made.files(module=deep.encode())))
    nested, digits, signs = "(" * 20000 + "1" + ")" * 20000, "f" * 9000, "-" * 99999
    for odd in (f"X = {nested}", f"f(0x{digits})", f"X: '{signs}1'", "a" + ".b" * 99):
        said = refusal(made.wheel(made.files(module=f"{made.REWARD}\n{odd}\n".encode())))
        assert "is no Python that can be read" in said
    large = {f"{made.NAME}_words/x{number}.py": b"#" * 2**18 for number in range(5)}
    assert "its modules are longer than 1048576 bytes together" in refusal(made.wheel(made.files() | large))
