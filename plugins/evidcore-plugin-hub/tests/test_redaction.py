"""What may leave: recipes and locks without names of places and people."""

import shutil
from pathlib import Path

from evidcore_plugin_hub.redaction import WITHHELD, published_lock, published_recipe

from evidcore.recipe import load


def test_a_published_recipe_names_no_place(tmp_path):
    for name in ("roe/encoder", "roe.data", "report"):
        (tmp_path / name).mkdir(parents=True)
    recipe = load(shutil.copy(Path(__file__).with_suffix(".toml"), tmp_path))
    text = published_recipe(recipe)
    for secret in ("elsewhere", "doe", "roe", str(tmp_path)):
        assert secret not in text
    assert f'path = "{WITHHELD}"' in text
    assert f'folder = "{WITHHELD}"' in text
    table = recipe.datasets["ward"]
    choices = (f'{key} = "{table[key]}"' for key in ("intensity", "missing"))
    of_stages = ("steps = 4", 'use = "meteor"', "embedding-f1", "labels-file", 'use = "embedding"')
    for kept in ('use = "folder"', *choices, *of_stages, "owner/name.v1"):
        assert kept in text


def test_a_published_lock_leaves_out_where_the_recipe_lay():
    lock = {
        "recipe": {"path": "/home/doe/own.toml", "folder": "/home/doe", "hash": "ab12"},
        "dataset": {"ward": {"fingerprint": "cd34"}},
        "run": {"fresh": True},
    }  # fmt: skip
    assert published_lock(lock) == {"recipe": {"hash": "ab12"}, "dataset": {"ward": {"fingerprint": "cd34"}}}
