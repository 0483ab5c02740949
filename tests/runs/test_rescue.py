"""The rescue reading goes by any scorer that a recipe names, and is never the headline."""

import dataclasses

import pytest
from evidcore_plugin_reports.embedding import Embedding
from evidcore_plugin_reports.testing import tiny_text_encoder
from evidcore_plugin_reports.text_models import Pretrained
from transformers.utils import logging

from evidcore.contracts.stage import NullSink
from evidcore.evaluate.choice import ALWAYS, rescued
from evidcore.evaluate.stage import Evaluate
from evidcore.recipe import load
from evidcore.recipe.resolve import to_toml
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context, StageOutputs
from evidcore.runs.dry_run import dry_run
from evidcore.runs.inputs import used

logging.disable_progress_bar()


@pytest.fixture
def recipe(small_run, tmp_path):
    """The small recipe, whose last stage rescues by the likeness of embeddings."""
    tiny_text_encoder(tmp_path / "encoder", places=512)
    text = (small_run / "recipe.toml").read_text(encoding="utf-8")
    head, kind, tail = text.rpartition('kind = "evaluate"')
    rescue = 'rescue = { use = "embedding", model = { folder = "encoder" } }'
    path = tmp_path / "small.toml"
    asked = f"{head}{kind}\n{rescue}{tail}".replace("max_new_tokens = 8", "max_new_tokens = 24")
    path.write_text(asked, encoding="utf-8")
    return path


def test_answers_without_a_letter_are_rescued_by_the_named_scorer(recipe, small_run, tmp_path):
    assembly = Assembly(load(recipe))
    stage = dataclasses.replace(assembly.recipe.stages[-1], max_new_tokens=4)  # nobody finishes
    before = StageOutputs(model=small_run / "checkpoints" / "03-sft")
    result = stage.run(Context(assembly, "04-evaluate", before=before, folder=tmp_path, announce=NullSink()))
    lines = result.answers
    prompts = {prompt.id: prompt for prompt in assembly.prompts(stage.data[0])}
    by_hand = Embedding(tmp_path, model=Pretrained(folder="encoder"))
    assert lines
    assert all(line["lenient_choice"] is None for line in lines)
    for line in lines:
        assert line["rescue_choice"] == rescued(line["text"], prompts[line["prompt_id"]], by_hand)
    metrics = [row.metric for row in result.rows]
    assert metrics[0] == "strict_accuracy"
    assert set(ALWAYS) <= set(metrics)


@pytest.mark.slow
def test_the_named_scorer_counts_as_a_part_of_the_recipe(recipe):
    loaded = load(recipe)
    (offer,) = [offer for offer in used(loaded) if offer.name == "embedding"]
    assert offer.kind == "scorer"
    assert isinstance(loaded.stages[-1], Evaluate)
    assert loaded.stages[-1].options["rescue"]["pooling"] == "mean"
    assert 'model = { folder = "encoder" }' in to_toml(loaded)
    dry_run(loaded)
