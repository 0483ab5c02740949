"""Recipe lines of docs/reference/layouts.md: every option exists, and with a miniature they give cases."""

import re
import tomllib
from pathlib import Path

import pytest
from evidcore_plugin_ct_data.miniatures import WRITERS, write

from evidcore.registry.factory import build, check

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "layouts.md"
BLOCKS = re.findall(r"^```toml part\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
TABLES = {name: table for block in BLOCKS for name, table in tomllib.loads(block)["dataset"].items()}


def test_every_set_has_its_lines():
    assert {table["use"] for table in TABLES.values()} == set(WRITERS)


@pytest.mark.parametrize("name", TABLES)
def test_the_lines_of_a_set_are_right_and_read_its_miniature(name, tmp_path):
    table = TABLES[name]
    assert check("dataset", table, f"dataset.{name}") == []
    write(table["use"], tmp_path / "set")
    offline = {key: value for key, value in table.items() if key != "revision"} | {"path": "set"}
    given = {"recipe_folder": tmp_path, "cache_folder": tmp_path / "cache"}
    dataset = build("dataset", offline, given=given, where=name)
    assert sum(1 for split in ("train", "validation", "test") for _ in dataset.cases(split)) >= 3
