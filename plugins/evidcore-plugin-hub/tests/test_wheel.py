"""What a wheel is refused for before anything of it runs, each by name."""

import contextlib
import gc
import io
import re
import warnings
import zipfile
from pathlib import Path

import made_wheels as made
import pytest
from evidcore_plugin_hub.plugin.code_look import CodeLook
from evidcore_plugin_hub.plugin.wheel import open_wheel

from evidcore.errors import PluginError


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


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("../escaped.py", "leads out of the folder"), ("/etc/escaped.py", "leads out of the folder"),
        ("C:\\escaped.py", "leads out of the folder"), ("evil\x1b[2J.py", "leads out of the folder"),
        ("x.pth", "only text may be in a plugin"), ("sitecustomize.py", "is imported unasked"),
        ("usercustomize.py", "is imported unasked"), ("conftest.py", "is imported unasked"),
        ("evidcore/registry/extra.py", "is a module of Python or of evidcore"),
        ("evidcore_plugin_lab/extra.py", "is a module of Python or of evidcore"),
        ("json/__init__.py", "is a module of Python or of evidcore"),
        ("torch/__init__.py", "is no module of this package; its modules begin with"),
        ("opt_einsum/__init__.py", "is no module of this package; its modules begin with"),
        ("evid_reward_laterality_words/conftest.pyc", "only text may be in a plugin"),
        ("./loose.py", "is another name of a file"),
        (f"{made.META}/./entry_points.txt", "is another name of a file"),
        (f"{made.META}//METADATA", "is another name of a file"),
        ("evid_reward_lateralit\u00e9.py", "is another name of a file"),
        ("evid_reward_laterality_data/weights.pkl", "only text may be in a plugin"),
        ("evid_reward_laterality_data/native.so", "only text may be in a plugin"),
        ("evid_reward_laterality_data/scan.nii.gz", "only text may be in a plugin"),
        ("evid_reward_laterality_data/reports.csv", "only text may be in a plugin"),
        ("loose.txt", "must lie in a folder of the package"),
        ("evid_reward_laterality-1.0.data/scripts/evid", "only text may be in a plugin"),
        ("evid_reward_laterality-1.0.data/purelib/json.py", "would be installed outside the package"),
        (f"{made.META}/extra.py", "this file of metadata runs or installs something"),
        ("other-1.0.dist-info/METADATA", "no other of metadata"),
        ("evid_reward_laterality_open/module.py", "its folder has no __init__.py"),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (b"[console_scripts]\nevid = evid_reward_laterality:main\n", "offers components of evidcore alone"),
        (b"[pytest11]\nx = evid_reward_laterality\n", "offers components of evidcore alone"),
        (b"[gui_scripts]\npython = evid_reward_laterality:main\n", "offers components of evidcore alone"),
        (b"[evidcore_trust]\nx = evidcore_plugin_x\n", "offers components of evidcore alone"),
        (b"[evidcore.trust]\nx = evid_reward_laterality:X\n", "offers components of evidcore alone"),
        (made.entry_points(name="format"), "reward 'format': evidcore has one of that name"),
        (made.entry_points("encoder", "vit3d"), "encoder 'vit3d': evidcore has one of that name"),
        (made.entry_points("command", "run"), "command 'run': evidcore has one of that name"),
        (made.entry_points(name="format\u0430"), "neither [group] nor name = target"),
        (made.entry_points(name="Format"), "small letters, digits and dashes"),
        (made.entry_points(target="os:system"), "'os:system' is no module:attribute of this package"),
        (b"", "offers no component"), (b"[evidcore.reward]\na = x:y\na = x:z\n", "offers reward 'a' twice"),
        (b"[evidcore.reward]\na = x\n", "is no module:attribute of this package"),
        (made.entry_points() + b"; a comment\n", "its entry points hold '; a comment'"),
        (made.entry_points() + b"# see\x0c[torch.backends]\x0cx = a:b\n", "holds control characters"),
        (made.entry_points() + "# see\u2028[pytest11]\u2028x = a:b\n".encode(), "holds control characters"),
        (made.entry_points() + b"# see\r[pytest11]\rx = a:b\n", "its entry points hold"),
        (b"a = x:y\n[evidcore.reward]\n", "its entry points hold 'a = x:y'"),
        (made.entry_points(name="forrnat"), "reward 'forrnat': can be mistaken for evidcore's 'format'"),
    ],
)  # fmt: skip
def test_what_a_plugin_must_not_offer(entries, said):
    assert said in refusal(made.wheel(made.files(entries=entries)))


@pytest.mark.parametrize(
    ("requires", "said"),
    [
        (["evidcore>=0.1,<0.2", "evil @ https://example.org/x.whl"], "names an address"),
        (["evidcore>=0.1,<0.2", "evid-second-package"], "must be pinned: evid-second-package==VERSION"),
        (["evidcore>=0.1,<0.2", "numpy>=1"], "must be pinned: numpy==VERSION"),
        (["evidcore>=0.1,<0.2", "numpy==1.*"], "must be pinned"),
        (["evidcore"], "must say for which versions of evidcore"),
        ([], "must say for which versions of evidcore"), (["evidcore>=0.1,<0.2", "???"], "cannot be read"),
        (["evidcore>=0.1,<0.2", "evil; python_version > '3'"], "has a condition; it must hold everywhere"),
        (["evidcore>=0.1,<0.2", "evil; extra == 'x' or python_version > '3'"], "has a condition"),
    ],
)  # fmt: skip
def test_requirements_that_pin_nothing(requires, said):
    assert said in refusal(made.wheel(made.files(meta=made.metadata(requires=requires))))


def test_requirements_that_are_pinned():
    asked = ["evidcore>=0.1,<0.2", "numpy==2.1.0", "evidcore-plugin-lab>=0.1,<0.2", "ruff; extra == 'test'"]
    wheel = open_wheel(made.FILE, made.wheel(made.files(meta=made.metadata(requires=asked))))
    assert wheel.requires == ("numpy==2.1.0", "evidcore-plugin-lab>=0.1,<0.2")


@pytest.mark.parametrize("key", ["trusted", "is_verified", "allow", "Approved"])
def test_a_card_that_claims_trust(key):
    card = made.CARD.replace('language = ["en"]', f"{key} = true")
    assert f"its card says '{key}'; whom to trust is the user's" in refusal(
        made.wheel(made.files(meta=made.metadata(card=card)))
    )


def test_a_card_that_is_none_and_a_readme_that_moves_the_cursor():
    deep = "```toml card\na = " + "[" * 5000 + "\n```\n"
    assert "is not TOML" in refusal(made.wheel(made.files(meta=made.metadata(card=deep))))
    assert "control characters" in refusal(made.wheel(made.files(meta=made.metadata(card="\x1b[2J"))))
    assert "control characters" in refusal(made.wheel(made.files(meta=made.metadata(card="\u202e"))))
    nested = made.CARD.replace('source = "this package"', "[meta]\nofficial = true")
    assert "its card says 'official'" in refusal(made.wheel(made.files(meta=made.metadata(card=nested))))


ACTS = [  # what a module must not do unsaid, besides what is tried below
    "if __name__ == '__main__':\n    pass\nelse:\n    print('ran')\n",
    "import os\n\nif __name__ == '' or os.mkdir('x'):\n    pass\n",
    "import evidcore.case as c\n\nX = [0 for c.Score in (1,)]\n", "def f():\n    return 1\n\nX = f()\n",
    "def g(*, x=setattr(int, 'a', 1)):\n    pass\n", "def g(x: setattr(int, 'a', 1)) -> None:\n    pass\n",
    "x: setattr(int, 'a', 1)\n", "class G(metaclass=exec('1')):\n    pass\n",
    "class M:\n    def __init_subclass__(cls):\n        pass\n", "def __getattr__(name):\n    pass\n",
    "__path__ = ['/tmp']\n", "X = sorted([1], key=print)\n", "import re\n\nX = re.sub('a', print, 'a')\n",
    "run = exec\nX = run('1')\n", "import os as re\n\nX = re.compile('true')\n",
    "with open('x') as f:\n    pass\n", "class E(Enum):\n    def _generate_next_value_(*_):\n        pass\n",
    "for i in range(3):\n    pass\n", "del x\n",
    "from __future__ import annotations\n\ndef f(x: 'open(1)'):\n    pass\n",
    "from __future__ import annotations\n\nX = 'open(1)'\n\nclass A:\n    x: list[X]\n",
    "def f(x: list['\\'open(1)\\'']):\n    pass\n",
    "import typing\n\ndef f(x: typing.Annotated[int, open(1)]):\n    pass\n",
    "from evid_reward_laterality import words\n\ndef f(x: words.X):\n    pass\n", "from os import *\n",
    "import json.__main__\n", "import antigravity\n", "from . import __main__\n",
    "from .words import folders as __path__\n", "import torch\n\nX = torch.ones(3, out=torch.x)\n",
    "import typing\n\nT = typing.TypeVar('T', bound='open(1)')\n",
    "import typing\n\nT = typing.NewType('T', 'open(1)')\n",
    "import typing\n\nT = typing.TypeVar('T', 'open(1)', int)\n",
]  # fmt: skip
RUN = "open('ran', 'w').close()"
HOOK = "from made_wheels import acts as __"
OWN = "import dataclasses as d\n\n@d.dataclass\nclass B:\n"
METHOD = f"(self, *a, **b):\n        {RUN}\n        return ''\n\n"
INIT = f"    def __init__{METHOD}"
CLASS = f"def hook(*a, **b):\n    {RUN}\n\nclass B:\n"
ATTACKS = {
    "an f-string of an own __str__": f"{OWN}    x: int = 1\n\n    def __str__{METHOD}X = f'{{B()}}'\n",
    "str() of an own __repr__": f"{OWN}    x: int = 1\n\n    def __repr__{METHOD}X = str(B())\n",
    "a metaclass of ABCMeta": f"import abc\n\nclass M(abc.ABCMeta):\n{INIT}class A(metaclass=M):\n    x = 1",
    "T = type": f"T = type\n\nclass M(T):\n{INIT}class A(metaclass=M):\n    x = 1",
    "default_factory": f"{OWN}    x: int = d.field(default_factory=lambda: {RUN})\n\nX = B()\n",
    "__init_subclass__ =": f"{CLASS}    __init_subclass__ = hook\n\nclass A(B):\n    pass\n",
    "what evidcore imported": "import evidcore.registry as r\n\nX = r.sys.modules['os'].mkdir('ran')\n",
    "an own decorator": f"{CLASS}    pass\n\n@hook\nclass A:\n    pass\n",
    "a walrus": "X = [(run := open), run('ran', 'w')]\n",
    "a comprehension": "X = [run('ran', 'w') for run in (open,)]\n",
    "a builtin's name before it is bound": "open('ran', 'w')\n\nfrom re import compile as open\n",
    "a checker's name": "import typing\n\nif typing.TYPE_CHECKING:\n    from re import compile as open\n\n"
    + RUN,
    "another __name__": f"__name__ = '__main__'\n\nif __name__ == '__main__':\n    {RUN}\n",
    "an annotation": "def f(x: open('ran', 'w')):\n    pass\n",
    "match": f"match 1:\n    case _:\n        {RUN}\n",
    "del of a dictionary's key": f"class D(dict):\n    def __delitem__{METHOD}X = D()\ndel X[1]\n",
    "a descriptor": f"class D:\n    def __set_name__{METHOD}class A:\n    x = D()\n",
    "an enum": f"import enum\n\nclass E(enum.Enum):\n    A = 1\n\n    def __init__{METHOD}",
    "a NamedTuple": "import typing\n\nclass A(typing.NamedTuple):\n    x: int = open('ran', 'w')\n",
    "a classmethod property": (f"class A:\n    @classmethod\n    @property\n    def x{METHOD}X = A.x\n"),
    "an import in a class": f"class A:\n    {HOOK}init_subclass__\n\nclass B(A):\n    pass\n",
    "an import as name": f"from made_wheels import MAIN as __name__\nif __name__ == '__main__':\n    {RUN}\n",
    "import as builtins": f"import made_wheels as __builtins__\nclass A:\n    @property\n    def x{METHOD}",
    "a subscript of a class": f"class A:\n    def __class_getitem__{METHOD}X = A[1]\n",
    "__prepare__": f"class M(type):\n    def __prepare__{METHOD}class A(metaclass=M):\n    pass\n",
    "a format": f"class A:\n    def __format__{METHOD}X = f'{{A():>3}}'\n",
    "an operator": f"class A(int):\n    def __add__{METHOD}X = A(1) + 1\n",
    "an order": f"class A(str):\n    def __lt__{METHOD}X = sorted([A('a'), A('b')])\n",
    "__match_args__": f"class A:\n    @property\n    def x{METHOD}    __match_args__ = ('x',)\n\n"
    "match A():\n    case A(1):\n        pass\n",
    "a hash": f"class A(str):\n    def __hash__{METHOD}X = {{A('a'): 1}}\n",
    "click's class": f"import click\n\n{CLASS}{INIT}@click.command(cls=B)\ndef f():\n    pass\n",
}


@pytest.mark.parametrize("code", ACTS)
def test_what_is_not_known_to_be_harmless_runs_code_when_loaded(code):
    assert [*CodeLook(code, [made.NAME]).runs_when_loaded()]


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_that_run_when_loaded_are_shown(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [*CodeLook(ATTACKS[name], ["made_wheels"]).runs_when_loaded()]
    with contextlib.suppress(TypeError), warnings.catch_warnings(action="ignore"):
        exec(ATTACKS[name], {"__name__": "made_wheels"})  # some break the module behind the act
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


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import socket\n", "network"), ("def f():\n    from urllib import request\n", "network"),
        ("import subprocess\n", "processes"),
        ("import os\n\n\ndef f():\n    os.system('true')\n", "processes"), ("import ctypes\n", "native"),
        ("def f(p):\n    return open(p)\n", "files"), ("import pickle\n", "evaluation"),
        ("from os import system\n\n\ndef f():\n    system('true')\n", "processes"),
        ("from importlib import import_module\n", "evaluation"),
        ("import os\n\n\ndef f():\n    os.remove('a')\n", "files"),
        ("import os\n\n\ndef f():\n    return os.environ['HF_TOKEN']\n", "environment"),
        ("import torch\n\n\ndef f(p):\n    return torch.load(p)\n", "files"),
        ("import numpy as np\n\n\ndef f(p):\n    return np.load(p, allow_pickle=True)\n", "files"),
        ("from transformers import AutoModel as A\n\n\ndef f():\n    A.from_pretrained('x')\n", "network"),
        ("def f(t):\n    return eval(t)\n", "evaluation"),
    ],
)  # fmt: skip
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
    many = {**made.files(), **{f"evid_many/x{i}.txt": b"" for i in range(1100)}}
    assert "at most 1000 are read" in refusal(made.wheel(many))
    odd = {**made.files(), f"{made.NAME}_odd.py": b"def f(:\n"}
    assert f"{made.NAME}_odd.py is no Python that can be read" in refusal(made.wheel(odd))
    other = made.files(meta=made.metadata(name="evid-reward-other"))
    assert "is called evid-reward-other 1.0 inside" in refusal(made.wheel(other))
    twice = made.files(meta=made.metadata().replace(b"Version: 1.0", b"Version: 1.0\nName: evid-b"))
    assert "inside" in refusal(made.wheel(twice))
    for text in (b"# coding: utf-7\n", b"\xff\xfe", b"#" * (2**18 + 1)):
        said = refusal(made.wheel(made.files(module=made.REWARD.encode()[:0] + text)))
        assert "names another encoding" in said or "is no text in UTF-8" in said
    hidden = {**made.files(), f"{made.NAME}_words/weights.txt": b"\x80\x04\x95"}
    assert "weights.txt is no text in UTF-8" in refusal(made.wheel(hidden))
    assert "which no tag of the Hub can name" in refusal(b"", "evid_x-1.0+local-py3-none-any.whl")


def test_a_wheel_is_read_in_linear_time_of_its_files():
    deep = made.REWARD + "\nX = " + "(" * 150 + "1" + ")" * 150 + "\n"
    open_wheel(made.FILE, made.wheel(made.files(module=deep.encode())))
    too_deep = made.REWARD + "\nX = " + "(" * 20000 + "1" + ")" * 20000 + "\n"
    assert "is no Python that can be read" in refusal(made.wheel(made.files(module=too_deep.encode())))
