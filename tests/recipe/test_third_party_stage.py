"""A kind of stage that another package brings, found by its entry point."""

import pytest

from evidcore.cli.show import recipe_schema
from evidcore.recipe import load, to_toml

COUNT = '''\
import dataclasses
from typing import Annotated

from annotated_types import Ge

from evidcore.contracts import Row, Stage, StageResult, StageTraits, Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class Count(Stage):
    """Count the cases of the data entries."""

    at_least: Annotated[int, Ge(1)] = 1
    traits = StageTraits(needs_tasks=False)

    def workload(self):
        return Workload(text="counting")

    def run(self, context):
        raise NotImplementedError


def odd(*, steps: int = 3):
    return steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Open(Count):
    """Take the options of a function as keys of its own."""

    options: dict = dataclasses.field(default_factory=dict, metadata={"open": True})

    @classmethod
    def open_keys(cls, table, around):
        from evidcore.registry.factory import options

        return options(odd)
'''


@pytest.fixture
def counting(tmp_path, monkeypatch):
    """A package with the kinds of stage `count` and `open`, and `loose`, which is no dataclass."""
    folder = tmp_path / "site"
    info = folder / "evid_count-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evid-count\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[evidcore.stage]\ncount = evid_count:Count\nopen = evid_count:Open\nloose = evid_count:odd\n"
    )
    (folder / "evid_count.py").write_text(COUNT)
    monkeypatch.syspath_prepend(folder)


def added(write, text):
    return write(('[[stage]]\nkind = "evaluate"', f'[[stage]]\n{text}\n\n[[stage]]\nkind = "evaluate"'))


@pytest.mark.usefixtures("counting")
def test_a_stage_of_another_package_is_read_resolved_and_in_the_schema(write, tmp_path):
    recipe = load(added(write, 'kind = "count"\ndata = [{ dataset = "chest" }]\nat_least = 2'))
    assert type(recipe.stages[2]).__name__ == "Count"
    assert (recipe.stages[2].at_least, recipe.stage_name(2)) == (2, "03-count")
    (tmp_path / "again.toml").write_text(to_toml(recipe))
    assert load(tmp_path / "again.toml") == recipe
    stages = {one["properties"]["kind"]["const"]: one for one in recipe_schema()["$defs"]["stage"]["anyOf"]}
    assert stages["count"]["properties"]["at_least"]["minimum"] == 1
    assert "loose" not in stages  # it is none


@pytest.mark.usefixtures("counting")
def test_its_open_keys_are_its_options_with_defaults(write, tmp_path):
    for given, steps in (("", 3), ("\nsteps = 5", 5)):
        recipe = load(added(write, f'kind = "open"\ndata = [{{ dataset = "chest" }}]{given}'))
        assert recipe.stages[2].options == {"steps": steps}
        (tmp_path / "again.toml").write_text(to_toml(recipe))
        assert load(tmp_path / "again.toml") == recipe
