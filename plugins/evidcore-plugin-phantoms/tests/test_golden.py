"""Phantoms as they were when what ships with recipes was fitted on them.

Where one of these hashes changes on purpose, raise the set's `version`, so that no volume of the cache and no
shipped stage is taken for what is drawn now, and delete golden.json: the next run of these tests writes it.
"""

import dataclasses
import hashlib
import json
import random
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_phantoms.language.documents import DocumentDrawer, vocabulary_texts
from evidcore_plugin_phantoms.language.word_tokenizer import build_tokenizer
from evidcore_plugin_phantoms.shapes import smooth_field

from evidcore.api import read, read_mask
from evidcore.registry.factory import build

SLOW = pytest.mark.slow
GOLDEN = Path(__file__).with_name("golden.json")
TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SETS = {name: TABLE["base"][re.match(r"\w+", name)[0]] | more for name, more in TABLE["sets"].items()}
DOCUMENTS = TABLE["documents"]


def digest(*parts):
    result = hashlib.sha256()
    for part in parts:
        result.update(part.tobytes() if isinstance(part, np.ndarray) else json.dumps(part).encode())
    return result.hexdigest()[:16]


def processor():
    """Tell machines apart on which the last bit of a sum differs."""
    fields = [smooth_field(np.random.default_rng(seed), (6, 7, 9), (24, 48, 64)) for seed in range(3)]
    return digest(*fields, np.exp(np.linspace(-3, 3, 999)), np.sqrt(fields[0] ** 2))


@pytest.fixture
def is_golden():
    """Return a function that compares what is found under a name, and writes it where nothing is known."""
    known = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {"processor": processor()}

    def compare(name, exact, figures):
        result = {"exact": exact, "figures": figures}
        if name not in known:
            GOLDEN.write_text(json.dumps({**known, name: result}, indent=1) + "\n", encoding="utf-8")
            pytest.fail(f"{GOLDEN.name} knew nothing of {name}; it does now.")
        if known["processor"] == processor():
            assert result == known[name]
        assert figures == pytest.approx(known[name]["figures"], rel=1e-3)

    return compare


def made(name, cache):
    return build("dataset", SETS[name], given={"cache_folder": cache}, where="dataset")


def plain(case):
    """Return what a case says, without its paths."""
    told = dataclasses.asdict(dataclasses.replace(case, volumes=(), masks={}))
    del told["predicted"]  # phantoms know the truth
    masks = {name: (mask.key, mask.label) for name, mask in case.masks.items()}
    return {**told, "masks": masks, "intensity": case.volumes[0].intensity}


@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW) if "implant" in n else n for n in SETS])
def test_phantoms_are_drawn_as_ever(name, is_golden, cache):
    dataset = made(name, cache)
    voxels, words, figures = [], [], []
    for split in ("train", "test"):
        for number, case in enumerate(dataset.cases(split)):
            volume = read(case.volumes[0])
            voxels += [volume.array, volume.affine]
            masks = [read_mask(mask, like=volume) for mask in case.masks.values()]
            voxels += masks
            words.append(plain(case))
            figures += [float(volume.array.mean()), float(sum(mask.sum() for mask in masks))]
            for finding in case.present() if split == "test" and number < 3 else ():
                if (refs := dataset.without(case, finding)) is not None:
                    voxels += [read(refs[0]).array, read(refs[0]).affine]
    is_golden(name, {"voxels": digest(*voxels), "words": digest(words)}, figures)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_drawn_as_ever(name, is_golden, cache):
    dataset, view, tokens, omitted = DOCUMENTS[name]
    cases = [case for case in made(dataset, cache).cases("test") if case.present()]
    shown = build("view", view, given={}, where="view")
    tasks = {use: build("task", {"use": use}, given={}, where="task") for use in ("choice", "report")}
    phrases = cases[0].findings and [finding.name for finding in cases[0].findings]
    tokenizer = build_tokenizer(vocabulary_texts(cases, tasks, shown), phrases)
    drawer = DocumentDrawer(tokenizer, tasks, shown, tokens, cases, {"report": 2.0}, omitted)
    rng = random.Random(5)
    drawn = [drawer.draw(rng, ease) for ease in (0.0, 0.5, 1.0) for _ in range(20)]
    told = [[entry.ids, [*map(int, entry.shows)], [*map(int, entry.is_abnormal)]] for entry in drawn]
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    texts = {"documents": digest(told), "vocabulary": digest(vocabulary)}
    is_golden(name, texts, [len(vocabulary), sum(len(entry.ids) for entry in drawn)])
