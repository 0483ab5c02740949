"""What may leave: recipes without names of places and people, and cards that state no licence they lack."""

import pytest
import yaml

from evidcore.publish import WITHHELD, ModelFacts, PackageFacts, model_card, published_lock, published_recipe
from evidcore.publish.card import DatasetFacts, licence_of
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
    assert 'use = "folder"' in text
    assert "steps = 4" in text


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


def test_fixed_choices_and_numbers_are_kept(recipe):
    text = published_recipe(recipe)
    table = recipe.datasets["ward"]
    assert f'intensity = "{table["intensity"]}"' in text
    assert f'missing = "{table["missing"]}"' in text


def test_a_published_lock_leaves_out_where_the_recipe_lay():
    lock = {
        "recipe": {"path": "/home/doe/own.toml", "folder": "/home/doe", "hash": "ab12"},
        "dataset": {"ward": {"fingerprint": "cd34"}},
        "run": {"fresh": True},
    }  # fmt: skip
    assert published_lock(lock) == {"recipe": {"hash": "ab12"}, "dataset": {"ward": {"fingerprint": "cd34"}}}


def facts(**changed):
    package = PackageFacts(
        name="evidcore", version="0.1.0", licence="Apache-2.0", in_model=True,
        card={"intended_use": "research"},
    )  # fmt: skip
    data = DatasetFacts(
        name="ward", component="folder", fingerprint="cd34", licence="unknown", is_phantom=False
    )
    table = {
        "name": "own",
        "base_model": "Qwen/Qwen2.5-0.5B-Instruct", "base_revision": "7ae5", "parameters": {"encoder": 5},
        "language_is_pretrained": True, "encoder_is_pretrained": False,
        "datasets": [data], "stages": ["`sft` of bridge"], "results": [], "packages": [package],
        "counts_words": False, "recipe": "schema = 1\n",
    }  # fmt: skip
    return ModelFacts(**{**table, **changed})


def test_a_licence_is_stated_only_where_every_part_has_it():
    phantom = DatasetFacts(
        name="chest", component="phantom-chest", fingerprint="ab", licence="Apache-2.0", is_phantom=True
    )
    assert licence_of(facts()) == "unknown"
    own = {"base_model": "", "language_is_pretrained": False}
    assert licence_of(facts(**own)) == "unknown"
    assert licence_of(facts(datasets=[phantom])) == "unknown"
    assert licence_of(facts(**own, datasets=[phantom])) == "apache-2.0"
    assert "- Base language model: none\n" in model_card(facts(**own, datasets=[phantom]))
    text = model_card(facts())
    assert yaml.safe_load(text.split("---\n")[1])["base_model"] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert "none is stated for the model" in text
    assert "phantoms" not in text


def test_weights_from_elsewhere_make_the_licence_unknown_and_are_named():
    phantom = DatasetFacts(
        name="chest", component="phantom-chest", fingerprint="ab", licence="Apache-2.0", is_phantom=True
    )
    folder = facts(base_model="", datasets=[phantom])
    assert licence_of(folder) == "unknown"
    text = model_card(folder)
    assert "- Base language model: weights from a folder, whose origin is not known here\n" in text
    assert "- Weights that the language model began with: unknown; they came from a folder\n" in text
    assert "base_model" not in yaml.safe_load(text.split("---\n")[1])
    encoder = facts(
        base_model="", language_is_pretrained=False, encoder_is_pretrained=True, datasets=[phantom]
    )
    assert licence_of(encoder) == "unknown"
    assert "- Weights that the encoder began with: unknown" in model_card(encoder)


def test_the_vocabulary_of_counted_words_is_warned_of():
    assert "Look through `tokenizer.json`" in model_card(facts(counts_words=True))
    assert "Look through" not in model_card(facts())


def test_downloads_of_packages_stand_with_their_licence():
    package = PackageFacts(
        name="evidcore-plugin-x", version="2", licence="MIT", in_model=False,
        card={"downloads": ["MedSAM2 weights, CC-BY-NC-4.0, sha256 12ab"]},
    )  # fmt: skip
    text = model_card(facts(packages=[package]))
    assert (
        "- Code of `evidcore-plugin-x` 2: MIT\n  - download: MedSAM2 weights, CC-BY-NC-4.0, sha256 12ab"
        in text
    )
