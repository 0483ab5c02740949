"""Wheels for tests, sound or with one thing changed; a canary file tells whether any of their code ran."""

import io
import zipfile

from evidcore_plugin_hub.trust.pins import file_digest

REWARD = """
from evidcore.case import Score
from evidcore.contracts import Reward


class Laterality(Reward):
    judges = frozenset({"format"})

    def __call__(self, rollouts, earlier):
        return [Score(value=1.0) for _ in rollouts]
"""
CARD = """
```toml card
modality = ["ct"]
language = ["en"]
downloads = []
needs_network = false
needs_gpu = false
intended_use = "research"
source = "this package"
```
"""
NAME = "evid_reward_laterality"
META = f"{NAME}-1.0.dist-info"
FILE = f"{NAME}-1.0-py3-none-any.whl"
ENTRIES = f"[evidcore.reward]\nlaterality = {NAME}:Laterality\n".encode()


def metadata(name="evid-reward-laterality", requires=("evidcore>=0.1,<0.2",), card=CARD):
    lines = ["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", "Summary: Left and right."]
    lines += ["License-Expression: Apache-2.0", *(f"Requires-Dist: {item}" for item in requires)]
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", f"# {name}\n{card}"]).encode()


def acts(*_, **__):
    """Leave a file in the working folder: a hook that a module imports."""
    open("ran", "w").close()


property, __build_class__ = acts, acts  # where a module takes this one for its builtins
MAIN = "__main__"


def canary(path):
    """Code that leaves a file where anybody runs it."""
    return f"import pathlib\n\npathlib.Path({str(path)!r}).touch()\n".encode()


def files(**changed):
    """The files of a sound wheel; `changed` by their parts: module, meta, entries."""
    return {
        f"{NAME}.py": changed.get("module", REWARD.encode()),
        f"{META}/METADATA": changed.get("meta", metadata()),
        f"{META}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{META}/entry_points.txt": changed.get("entries", ENTRIES),
    }


def install(root, content, meta=META):
    """Put a package into a folder of modules as pip would have."""
    for path, text in content.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text)
    rows = [f"{path},{file_digest(text)},{len(text)}" for path, text in content.items()]
    rows += [f"{meta}/{name},," for name in ("RECORD", "INSTALLER")]
    (root / meta / "RECORD").write_text("\n".join(rows) + "\n")
    (root / meta / "INSTALLER").write_text("pip\n")


def wheel(content, *, record=None, links=(), more=""):
    """The bytes of a wheel with these files.

    Args:
        record: path -> digest in place of the right ones.
        links: paths that are symbolic links.
        more: a line of RECORD more.
    """
    meta = next(path.partition("/")[0] for path in content if ".dist-info/" in path)
    rows = {path: file_digest(text) for path, text in content.items()} if record is None else record
    lines = [f"{path},{digest},{len(content.get(path, b''))}" for path, digest in rows.items()]
    lines += [*filter(None, [more]), f"{meta}/RECORD,,\n"]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in content.items():
            item = zipfile.ZipInfo(path)
            item.compress_type = zipfile.ZIP_DEFLATED
            item.external_attr = (0o120777 if path in links else 0o100644) << 16
            archive.writestr(item, text)
        archive.writestr(zipfile.ZipInfo(f"{meta}/RECORD"), "\n".join(lines))
    return out.getvalue()
