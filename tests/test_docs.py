"""The documentation does what it says: recipes load, commands and programs run, quotes are true."""

import dataclasses
import functools
import re
import runpy
import shlex
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from evidcore.cli import main
from evidcore.recipe import load
from evidcore.registry import KIND_NAMES, offers

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def program(name: str) -> types.SimpleNamespace:
    """Return what a program of docs/ defines."""
    return types.SimpleNamespace(**runpy.run_path(str(DOCS / f"{name}.py"), run_name=name))


QUOTES = program("quotes")
WRITTEN: list[Path] = QUOTES.pages()
QUOTED = ("file", "component", "object")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language, the words behind it, its text and where it stands."""

    language: str
    words: tuple[str, ...]
    text: str
    where: str

    def value(self, key: str) -> str | None:
        return next((word.partition("=")[2] for word in self.words if word.startswith(f"{key}=")), None)


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text(encoding="utf-8")
    for result in re.finditer(r"^```(\w+)([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, result.start()) + 1
        yield Block(result[1], tuple(result[2].split()), result[3], f"{named(path)}:{line}")


ALL = [block for path in WRITTEN for block in blocks(path)]


def of(language: str, *words: str) -> list[Block]:
    return [block for block in ALL if block.language == language and set(words) <= set(block.words)]


@pytest.mark.parametrize("path", WRITTEN, ids=named)
def test_quotes_are_as_their_sources_are(path):
    text = path.read_text(encoding="utf-8")
    assert QUOTES.refreshed(text) == text, f"{named(path)} quotes what has changed: make docs"


@pytest.mark.parametrize("block", [b for b in of("toml") if b.value("recipe")], ids=lambda block: block.where)
def test_a_recipe_on_a_page_is_a_recipe(block, tmp_path):
    path = tmp_path / str(block.value("recipe"))
    path.write_text(block.text)
    assert load(path).name == path.stem


def test_the_table_of_departures_says_what_the_recipe_has():
    recipe = ROOT / "recipes" / "med3d_r1.toml"
    page = (ROOT / "docs" / "explanation" / "med3d_r1.md").read_text(encoding="utf-8")
    keys = re.findall(
        r"^\| `([^`]+=[^`]+)` \|", page.partition("## Where the small recipe departs")[2], re.MULTILINE
    )
    assert len(keys) > 15
    as_it_is = load(recipe)
    assert [key for key in keys if load(recipe, [key]) != as_it_is] == []


@pytest.mark.parametrize("block", of("toml", "part"), ids=lambda block: block.where)
def test_a_part_of_a_recipe_names_components_that_exist(block):
    known = {offer.name for offer in offers()} | {"laterality"}
    used = set(re.findall(r'\b(?:use|audit|evaluation) = "([^"]+)"', block.text))
    assert tomllib.loads(block.text)
    assert set() < used <= known


@pytest.fixture(scope="module")
def desk(example_site, tmp_path_factory):
    """A folder to work in and the environment of someone who has followed the tutorial."""
    site = tmp_path_factory.mktemp("site")
    for item in example_site.glob("evid_reward_laterality*"):  # alone, since pages list what is installed
        (site / item.name).symlink_to(item)
    return tmp_path_factory.mktemp("desk"), {"PYTHONPATH": str(site)}


TRAINS = ("start", "ablations.md", "compare.md", "predict.md", "view_run.md")  # of a first hour, and others
RUN = [
    pytest.param(path, marks=pytest.mark.slow) if {path.parent.name, path.name} & {*TRAINS} else path
    for path in WRITTEN
]


@pytest.mark.nightly
@pytest.mark.parametrize("path", RUN, ids=named)
def test_programs_and_commands_of_a_page_run_in_its_order(path, desk, warm):
    folder, env = desk
    begin = functools.partial(warm, folder=folder, **env)
    for block in blocks(path):
        if name := block.value("recipe") or block.value("ablation"):
            (folder / name).write_text(block.text)
        elif block.language == "python" and not any(map(block.value, QUOTED)):
            done = begin("-c", block.text)
            _, err = done.communicate()
            assert done.returncode == 0, f"{block.where}\n{err}"
        elif block.language == "console" and "run" in block.words:
            converse(block, begin)


def converse(block: Block, begin: Callable[..., Any]) -> None:
    """Give each command of a block and compare what it says; `...` stands for anything."""
    for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
        words = shlex.split(command)
        assert words[0] == "evid", f"{block.where}: only evid is run, got {command!r}"
        done = begin("-m", "evidcore", *words[1:])
        out, err = done.communicate()
        said = err if "fails" in block.words else out
        expected_status = 2 if "fails" in block.words else 1 if "faults" in block.words else 0
        assert done.returncode == expected_status, f"{block.where}\n{out}{err}"
        pattern = ".*".join(re.escape(piece) for piece in expected.strip().split("..."))
        assert re.fullmatch(pattern, said.strip(), re.DOTALL), f"{block.where}: {command} said\n{said}"


COMMANDS = [
    pytest.param(command, id=f"{block.where}: {command}")
    for block in of("console")
    for command in re.findall(r"^\$ (?:\w+=\S+ )*(evid .*?)(?:  +#.*)?$", block.text, re.MULTILINE)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_on_a_page_is_one_that_evid_takes(command):
    """Those that need a model, a run or minutes too: words and options are read, and nothing is done."""
    words = shlex.split(re.sub(r" (?:>|\||&&|2>).*", "", command), comments=True)[1:]
    result: click.Command = main
    context = click.Context(main)
    while isinstance(result, click.Group) and words and not words[0].startswith("-"):
        context = result.make_context(context.info_name, list(words), parent=context.parent)
        name, result, words = result.resolve_command(context, [*context._protected_args, *context.args])
        assert result is not None, name
        context = click.Context(result, parent=context, info_name=name)
    values, rest, _ = result.make_parser(context).parse_args(list(words))
    missing = [item.name for item in result.params if item.required and values.get(item.name) in (None, ())]
    assert (rest, missing) == ([], [])


def test_links_between_pages_lead_somewhere():
    for path in WRITTEN:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{named(path)} links to {target}"


def test_every_page_is_listed_in_an_index():
    indices = [DOCS / "README.md", DOCS / "howto" / "README.md"]
    listed = {
        (index.parent / target).resolve()
        for index in indices
        for target in re.findall(r"\]\(([^)#:]+)", index.read_text(encoding="utf-8"))
    }
    pages = {path for path in DOCS.rglob("*.md") if not path.is_relative_to(DOCS / "results")}
    assert pages - listed == {DOCS / "README.md"}


def test_reference_is_as_the_code_is():
    written = program("generate_reference")
    for name, now in (("reference", written.reference()), ("gallery", written.gallery())):
        current = (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8")
        assert now == current, f"docs/reference/{name}.md is out of date: make docs"


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"]]
    for name, extra in project["optional-dependencies"].items():
        wanted += [] if name == "dev" else [item for item in extra if not item.startswith("evidcore")]
    names = {re.split(r"[<>=\[ ]", item)[0].lower() for item in wanted}
    page = (DOCS / "decisions.md").read_text(encoding="utf-8")
    assert names <= set(re.findall(r"^\| `([\w-]+)`", page, re.MULTILINE))


def test_decisions_are_few_and_short():
    design = (DOCS / "decisions.md").read_text(encoding="utf-8").partition("## Design")[2]
    entries = re.findall(r"^- .*(?:\n  .*)*", design, re.MULTILINE)
    assert 0 < len(entries) <= 40
    assert [entry for entry in entries if entry.count("\n") > 1] == []


def test_glossary_has_every_kind_stage_and_metric():
    glossary = (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8").lower()
    terms = re.findall(r"\*\*([^*]+)\*\*", glossary)
    assert len(terms) == len(set(terms))
    spelled = {"reweighter": "re-weighter", "dataset": "data set"}
    assert {spelled.get(kind, kind) for kind in KIND_NAMES} <= set(terms)
    assert {"`fit`", "`sft`", "`grpo`", "`evaluate`", "`audit`"} <= set(re.findall("`[^`]+`", glossary))
    for metric in (
        "strict_accuracy", "lenient_accuracy", "rescue_accuracy", "log_likelihood_accuracy",
        "verdict_log_likelihood_accuracy", "accuracy_given_valid_format", "format_rate", "grounding_margin",
        "uniform_chance", "prior_only", "perfect_perception",
    ):  # fmt: skip
        assert metric.replace("_", " ") in " ".join(glossary.split()) or f"`{metric}`" in glossary, metric


def sentences(text: str) -> Iterator[list[str]]:
    """Give the words of each sentence of running text and lists, without tables, code and headings."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(#|\||!\[).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "", re.sub(r"`[^`]*`", "code", text))
    for paragraph in re.split(r"\n\s*\n|^\s*(?:-|\d+\.) ", text, flags=re.MULTILINE):
        for sentence in re.split(r"(?<=[.:;?!])\s", paragraph.replace("\n", " ")):
            words = re.findall(r"[\w'%-]+", sentence)
            if len(words) > 2:
                yield words


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", DOCS / "README.md", *sorted((DOCS / "start").glob("*.md"))], ids=named
)
def test_the_first_pages_have_short_sentences(path):
    result = [len(words) for words in sentences(path.read_text(encoding="utf-8"))]
    assert sum(result) / len(result) <= 20
