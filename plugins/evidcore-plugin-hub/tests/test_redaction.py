"""What may leave: recipes and locks without names of places and people."""

import pytest
from evidcore_plugin_hub.redaction import WITHHELD, published_lock, published_recipe

from evidcore.recipe import load

RECIPE = """\
schema = 1
name = "own"
[dataset.ward]
use = "folder"
path = "/data/st-elsewhere/doe"
table = "doe_jane.csv"
[model]
language = { folder = "/home/doe/models/qwen" }
view = { use = "volume" }
encoder = { use = "vit3d" }
bridge = { use = "projection" }
[[stage]]
kind = "sft"
train = ["bridge"]
data = [{ dataset = "ward", task = "report" }]
steps = 4
learning_rate = 2e-3
"""


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "own.toml").write_text(RECIPE)
    return load(tmp_path / "own.toml")


def test_a_published_recipe_names_no_place(recipe, tmp_path):
    text = published_recipe(recipe)
    for secret in ("elsewhere", "doe", str(tmp_path)):
        assert secret not in text
    assert f'path = "{WITHHELD}"' in text
    assert f'folder = "{WITHHELD}"' in text
    table = recipe.datasets["ward"]
    choices = (f'{key} = "{table[key]}"' for key in ("intensity", "missing"))
    for kept in ('use = "folder"', "steps = 4", *choices):
        assert kept in text


def test_no_table_of_a_stage_keeps_a_local_path(tmp_path):
    stages = """
[[stage]]
kind = "evaluate"
data = [{ dataset = "ward", task = "report" }, { dataset = "ward", task = "choice" }]
labeler = { use = "labels-file", path = "/data/doe/labels.json", sha256 = "%s" }
rescue = { use = "embedding", model = { folder = "/data/doe/encoder" } }
[[stage.metric]]
use = "meteor"
nltk_data = "/data/doe/nltk"
[[stage.metric]]
use = "scorer"
scorer = { use = "embedding-f1", model = { folder = "/data/doe/encoder" } }
""" % ("0" * 64)
    (tmp_path / "own.toml").write_text(RECIPE + stages)
    text = published_recipe(load(tmp_path / "own.toml"))
    assert "doe" not in text
    for kept in ('use = "meteor"', "embedding-f1", "labels-file", 'use = "embedding"'):
        assert kept in text


def test_a_published_lock_leaves_out_where_the_recipe_lay():
    lock = {
        "recipe": {"path": "/home/doe/own.toml", "folder": "/home/doe", "hash": "ab12"},
        "dataset": {"ward": {"fingerprint": "cd34"}},
        "run": {"fresh": True},
    }  # fmt: skip
    assert published_lock(lock) == {"recipe": {"hash": "ab12"}, "dataset": {"ward": {"fingerprint": "cd34"}}}
