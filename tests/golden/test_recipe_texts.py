"""What recipes resolve to, and what is printed of every mistake: compared with what is committed here.

In mistakes.toml a mistake is a `file`, a `change` of TEXT, or what `--set` is given; it `says` the message.

python tests/golden/test_recipe_texts.py --write        writes resolved/, ablations.txt and every `says` anew
"""

import difflib
import functools
import hashlib
import os
import re
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from evidcore_plugin_lab.ablation.definition import load_ablation
from evidcore_testing.recipes import replaced

from evidcore.cli.show import recipe_schema
from evidcore.errors import EvidError
from evidcore.recipe import load, to_toml
from evidcore.recipe.resolve import toml_value

HERE = Path(__file__).parent
RECIPES = HERE.parents[1] / "recipes"
WHOLE = [path for folder in (RECIPES, RECIPES / "paper") for path in sorted(folder.glob("*.toml"))]
MISTAKES = tomllib.loads((HERE / "mistakes.toml").read_text(encoding="utf-8"))
ABLATIONS = sorted((RECIPES / "ablations").glob("*.toml"))
OFFERED = tomllib.loads((HERE / "stub_offers.toml").read_text(encoding="utf-8"))
TEXT = (Path(__file__).parent / "mistaken.toml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the stub package, first on the path, and a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = installed(tmp_path_factory.mktemp("site"))
        patch.syspath_prepend(folder)
        patch.setenv("EVID_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield folder
        for name in ("evid_stub", "evid_stub_cracked"):
            sys.modules.pop(name, None)


def installed(folder):
    """Install the stub package, and another that offers one of its names."""
    (folder / "evid_stub.py").write_text((HERE / "stub_components.py").read_text("utf-8"))
    (folder / "evid_stub_cracked.py").write_text("import no_such_module\n")
    other = "[evidcore.reward]\nstub-shared = evid_stub:Level\n"
    tables = [
        f"[evidcore.{kind}]\n" + re.sub(r"(\S+?):(_cracked)?:?(\w+) ?", r"\1 = evid_stub\2:\3\n", names)
        for kind, names in OFFERED.items()
    ]
    for name, points in {"evid-stub": "".join(tables), "evid-stub-other": other}.items():
        info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points)
    return folder


def without_place(text, folder):
    """Return a text without what hangs on the machine, and on which other packages are installed."""
    text = text.replace(str(folder), "<folder>").replace(str(RECIPES.parent), "<repository>")
    text = re.sub(r"(Installed|Known|Views that do): [^.;]*", r"\1: …", text)
    text = re.sub(r"(stage\S*\.kind: must be one of ).*?(?=, got)", r"\1…", text)
    return re.sub(r" at 0x[0-9a-f]+", " at …", text)


def told(mistake, folder):
    """Return what is printed of a mistake; of none, the resolved recipe's lines that the base has not."""
    path = folder / "golden.toml"
    path.write_text(replaced(mistake.get("file", TEXT), *mistake.get("change", ()), count=1), "utf-8")
    try:
        recipe = load(path, mistake.get("set", ()))
    except Exception as cause:  # what is no EvidError would be a mistake of ours
        kind = type(cause).__name__ if isinstance(cause, EvidError) else f"a crash, {type(cause).__name__}"
        return f"{kind}: {without_place(str(cause), folder)}"
    lines = changed(_base(folder), resolved(recipe, folder))
    return "\n".join(["nothing wrong", *lines])


@functools.cache
def _base(folder):
    path = folder / "base.toml"
    path.write_text(TEXT, encoding="utf-8")
    return resolved(load(path), folder)


def changed(old, new):
    """Return the lines that differ, marked - and +."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def resolved(recipe, folder):
    """Return the resolved copy, without the numbers of the lines that values came from."""
    return without_place(re.sub(r"  # line \d+$", "  # given", to_toml(recipe), flags=re.MULTILINE), folder)


def of_ablation(path):
    """Return a hash of the resolved recipe of each arm of an ablation."""
    ablation = load_ablation(path)
    recipes = {arm.name: ablation.cell_recipe(arm.name, ablation.seeds[0]) for arm in ablation.arms}
    texts = {name: resolved(recipe, RECIPES) for name, recipe in recipes.items()}
    hashes = [f"{name} {hashlib.sha256(text.encode()).hexdigest()}" for name, text in texts.items()]
    return "\n".join([f"== {path.name}", *hashes])


def sections(text):
    """Return the parts of a golden file by their headings."""
    return {
        part.partition("\n")[0]: part.partition("\n")[2].strip("\n")
        for part in ("\n" + text).split("\n== ")[1:]
    }


def committed(name):
    return sections((HERE / name).read_text(encoding="utf-8"))


def place_of(path):
    return HERE / "resolved" / path.relative_to(RECIPES)


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: str(path.relative_to(RECIPES)))
def test_a_recipe_resolves_to_what_is_committed(path, site):
    assert resolved(load(path), RECIPES) == place_of(path).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("path", ABLATIONS, ids=lambda path: path.stem)
def test_the_arms_of_an_ablation_resolve_to_what_is_committed(path, site):
    assert of_ablation(path).partition("\n")[2] == committed("ablations.txt")[path.name]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_the_committed_words(name, site):
    assert told(MISTAKES[name], site) == MISTAKES[name]["says"]


def test_a_stage_of_another_package_stands_in_the_schema_and_in_a_resolved_copy(site):
    stages = {one["properties"]["kind"]["const"]: one for one in recipe_schema()["$defs"]["stage"]["anyOf"]}
    assert stages["stub-tally"]["properties"]["at_least"]["minimum"] == 1
    assert "stub-no-stage" not in stages
    ((old, new),) = MISTAKES["another package's stage"]["change"]
    (site / "tally.toml").write_text(TEXT.replace(old, new, 1), encoding="utf-8")
    recipe = load(site / "tally.toml")
    (site / "again.toml").write_text(to_toml(recipe), encoding="utf-8")
    assert load(site / "again.toml") == recipe


def test_every_committed_file_is_compared():
    files = {path for path in (HERE / "resolved").rglob("*.toml")}
    assert files == {place_of(path) for path in WHOLE}
    assert committed("ablations.txt").keys() == {path.name for path in ABLATIONS}


def as_toml(name, mistake):
    """Return a mistake as a table of TOML, with the message on lines of its own where that can be."""
    is_plain = "'''" not in mistake["says"] and not mistake["says"].endswith("'")
    says = f"'''\n{mistake['says']}'''" if is_plain else toml_value(mistake["says"])
    keys = [f"{key} = {says if key == 'says' else toml_value(value)}" for key, value in mistake.items()]
    return "\n".join([f"[{toml_value(name)}]", *keys])


def write():
    """Write every file anew."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EVID_CACHE"] = str(Path(folder) / "cache")
        site = Path(folder) / "site"
        site.mkdir()
        sys.path.insert(0, str(installed(site)))
        for path in WHOLE:
            place_of(path).parent.mkdir(parents=True, exist_ok=True)
            place_of(path).write_text(resolved(load(path), RECIPES), encoding="utf-8")
        (HERE / "ablations.txt").write_text("\n\n".join(map(of_ablation, ABLATIONS)) + "\n", encoding="utf-8")
        texts = [
            as_toml(name, {**mistake, "says": told(mistake, site)}) for name, mistake in MISTAKES.items()
        ]
        (HERE / "mistakes.toml").write_text("\n\n".join(texts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write()
