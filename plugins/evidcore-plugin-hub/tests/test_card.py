"""Cards state no licence that a part lacks, and name what the model began with."""

import dataclasses

import yaml
from evidcore_plugin_hub.card import DatasetFacts, ModelFacts, PackageFacts, licence_of, model_card

PHANTOM = DatasetFacts(
    name="chest", component="phantom-chest", fingerprint="ab", licence="Apache-2.0", is_phantom=True
)
NO_BASE = {"base_model": "", "language_is_pretrained": False}


def facts(**changed):
    package = PackageFacts(
        name="evidcore", version="0.1.0", licence="Apache-2.0", in_model=True,
        card={"intended_use": "research"},
    )  # fmt: skip
    data = dataclasses.replace(PHANTOM, licence="unknown", is_phantom=False)
    table = {
        "name": "own",
        "base_model": "Qwen/Qwen2.5-0.5B-Instruct", "base_revision": "7ae5", "parameters": {"encoder": 5},
        "language_is_pretrained": True, "encoder_is_pretrained": False,
        "datasets": [data], "stages": ["`sft` of bridge"], "results": [], "packages": [package],
        "counts_words": False, "recipe": "schema = 1\n",
    }  # fmt: skip
    return ModelFacts(**{**table, **changed})


def test_a_licence_is_stated_only_where_every_part_has_it():
    assert licence_of(facts()) == "unknown"
    assert licence_of(facts(**NO_BASE)) == "unknown"
    assert licence_of(facts(datasets=[PHANTOM])) == "unknown"
    assert licence_of(facts(**NO_BASE, datasets=[PHANTOM])) == "apache-2.0"
    assert "- Base language model: none\n" in model_card(facts(**NO_BASE, datasets=[PHANTOM]))
    text = model_card(facts())
    assert yaml.safe_load(text.split("---\n")[1])["base_model"] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert "none is stated for the model" in text
    assert "phantoms" not in text


def test_weights_from_elsewhere_make_the_licence_unknown_and_are_named():
    folder = facts(base_model="", datasets=[PHANTOM])
    assert licence_of(folder) == "unknown"
    text = model_card(folder)
    assert "- Base language model: weights from a folder, whose origin is not known here\n" in text
    assert "- Weights that the language model began with: unknown; they came from a folder\n" in text
    assert "base_model" not in yaml.safe_load(text.split("---\n")[1])
    encoder = facts(**NO_BASE, encoder_is_pretrained=True, datasets=[PHANTOM])
    assert licence_of(encoder) == "unknown"
    assert "- Weights that the encoder began with: unknown" in model_card(encoder)


def test_counted_words_are_warned_of_and_downloads_stand_with_their_licence():
    assert "Look through" not in model_card(facts())
    package = PackageFacts(
        name="evidcore-plugin-x", version="2", licence="MIT", in_model=False,
        card={"downloads": ["MedSAM2 weights, CC-BY-NC-4.0, sha256 12ab"]},
    )  # fmt: skip
    text = model_card(facts(packages=[package], counts_words=True))
    assert "Look through `tokenizer.json`" in text
    download = "MedSAM2 weights, CC-BY-NC-4.0, sha256 12ab"
    assert f"- Code of `evidcore-plugin-x` 2: MIT\n  - download: {download}" in text
