# a mistake a row
import re
import tomllib
from pathlib import Path

import pytest
from evidcore_plugin_segmenters.region_growing import RegionGrowing

from evidcore.api import Stage
from evidcore.cli.show import recipe_schema
from evidcore.errors import RecipeError
from evidcore.evaluate.stage import Evaluate
from evidcore.recipe import load, to_toml
from evidcore.registry import offers
from evidcore.train.grpo import Grpo
from evidcore.train.sft import Sft


def mistakes(path, *overrides):
    with pytest.raises(RecipeError) as caught:
        load(path, overrides)
    return str(caught.value).splitlines()


def test_a_recipe_is_read_with_every_default(write):
    recipe = load(write())
    sft, grpo, evaluate = recipe.stages
    assert isinstance(sft, Sft)
    assert isinstance(grpo, Grpo)
    assert isinstance(evaluate, Evaluate)
    assert (recipe.name, recipe.seed, recipe.stage_name(1)) == ("tiny", 17, "02-grpo")
    assert sft.data[1].sampling_weight == 0.5
    assert sft.reweighter == {"use": "uniform"}
    assert grpo.reward[1] == {
        "use": "choice-accuracy", "weight": 1.0, "gate": "format", "name": "", "reading": "strict",
    }  # fmt: skip
    assert grpo.trl == {
        "loss_type": "grpo", "beta": 0.0, "epsilon": 0.2, "scale_rewards": "group",
        "use_bias_correction_kl": False,
    }  # fmt: skip
    assert recipe.services == {"judge": {"kind": "scorer", "use": "findings-f1", **recipe.services["judge"]}}
    assert recipe.tasks["direct"]["think"] is False
    assert recipe.tasks["choice"]["think"] is True


def _defaults(text):
    return [line for line in text.splitlines() if line.endswith("  # default")]


def test_the_resolved_copy_loads_to_the_same_recipe_from_anywhere(write, tmp_path):
    recipe = load(
        write(),
        ["stage.grpo.reward[0].weight=0.25", "stage.sft.lora={rank=4}", "stage.grpo.lora={rank=4}",
         "features={precision='float16', memory_gb=4}", "model.bfloat16=['encoder', 'language']",
         "stage.grpo.replay={data=[{dataset='chest',task='report',limit=9}],weight=2}"],
    )  # fmt: skip
    assert recipe.stages[1].replay.data[0].limit == 9
    assert (recipe.features.precision, recipe.features.memory_gb) == ("float16", 4.0)
    assert recipe.model.bfloat16 == ("encoder", "language")
    assert recipe.stages[1].trl["bf16"] is True
    copy = tmp_path / "elsewhere" / "resolved.toml"
    copy.parent.mkdir()
    copy.write_text(to_toml(recipe), encoding="utf-8")
    again = load(copy)
    assert again == recipe
    assert again.folder == tmp_path.resolve()
    assert sorted(_defaults(to_toml(again))) == sorted(_defaults(to_toml(recipe)))
    assert "observers = []  # default" in _defaults(to_toml(recipe))


def test_the_resolved_copy_says_where_each_value_came_from(write):
    text = to_toml(load(write(), ["stage.grpo.steps=9"]))
    assert "steps = 9  # command line" in text
    assert re.search(r"^steps = 4  # line \d+$", text, re.MULTILINE)
    assert "max_new_tokens = 256  # default" in text
    assert "beta = 0.0  # default" in text


def test_the_tables_of_a_file_give_its_recipe_and_their_mistakes_have_no_line(write, monkeypatch):
    path = write()
    monkeypatch.chdir(path.parent)
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    assert load(tables, ["seed=3"]) == load(path, ["seed=3"])
    tables["stage"][1]["steps"] = -2
    first, second = mistakes(tables)
    assert first == "recipe given as a dict: 1 mistake"
    assert second.startswith("  stage.grpo.steps: ")
    assert mistakes(tables, "stage.grpo.steps=-3")[1].startswith("  command line, stage.grpo.steps: ")


def test_every_stage_that_leaves_weights_is_one_that_trains():
    for offer in offers("stage"):
        kind = offer.load()
        leaves_weights = kind.output is not Stage.output
        assert kind.traits.trains == leaves_weights, offer.name
        assert kind.traits.trains != kind.traits.measures, offer.name


def test_a_byte_order_mark_is_passed_over(write):
    path = write()
    marked = path.with_name("marked.toml")
    marked.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load(marked).stages == load(path).stages


def test_a_missing_file_is_answered_with_its_nearest_neighbour(write):
    path = write()
    with pytest.raises(RecipeError, match=r"tinny.toml: no such file. Did you mean 'tiny.toml'\?"):
        load(path.with_name("tinny.toml"))
    with pytest.raises(RecipeError, match="cannot be read as UTF-8 text"):
        load(Path("/"))


def test_overrides_reach_every_place(write):
    recipe = load(
        write(),
        ["stage.grpo.steps=7", "stage[0].steps = 8", "stage.grpo.trl={beta=0.0}", "dataset.chest.seed=3",
         "seed=4"],
    )  # fmt: skip
    assert (recipe.stages[1].steps, recipe.stages[0].steps, recipe.seed) == (7, 8, 4)
    assert recipe.stages[1].trl["beta"] == 0.0
    assert recipe.datasets["chest"]["seed"] == 3
    assert recipe.overrides[0] == "stage.grpo.steps=7"


LAST = 'task = "choice", split = "test" }]'
ASKED_REPORTS = 'task = "report", split = "test" }]'


def test_a_stage_has_the_keys_of_its_own_evaluations_alone(write):
    path = write((LAST, ASKED_MASKS + '\nmetric = [{ use = "bleu" }]'), SLICES)
    assert mistakes(path)[1].startswith("  line 26, stage.evaluate.metric: unknown key. ")
    both = 'task = "choice", split = "test" }, { dataset = "chest", task = "report", split = "test" }]'
    assert load(write((LAST, both))).stages[-1].options.keys() == {"labeler", "metric", "rescue"}


GROWER = ("{ judge =", '{ grower = { use = "region-growing" }, judge =')
ASKED_MASKS = 'task = "reasoning-segmentation", split = "test" }]'
SLICES = ('"volume"', '"slices"')


def test_a_segmenter_is_swapped_from_the_command_line(write, offered):
    offered("evid-other", "[evidcore.segmenter]\nother = evid_other:It\n", It=RegionGrowing)
    usual = load(write((LAST, ASKED_MASKS), SLICES)).stages[-1]
    assert usual.options["segmenter"]["use"] == "region-growing"
    for given in ("", 'segmenter = { use = "region-growing" }', 'segmenter = "grower"'):
        path = write(GROWER, (LAST, f"{ASKED_MASKS}\n{given}"), SLICES)
        recipe = load(path, ['stage.evaluate.segmenter={use="other"}'])
        assert recipe.stages[-1].options["segmenter"]["use"] == "other"
        assert recipe.stages[:-1] == load(path).stages[:-1]


def test_the_schema_has_every_stage_and_what_evaluations_add_a_segmenter_as_table_or_service():
    definitions = recipe_schema()["$defs"]
    evaluations = definitions["evaluation"]["anyOf"]
    options = {one["properties"]["use"]["enum"][0]: one["properties"] for one in evaluations}
    given = {"anyOf": [{"$ref": "#/$defs/segmenter"}, {"type": "string"}]}
    assert options["segmentation"]["segmenter"] == given
    assert options["report"]["metric"]["type"] == "array"
    stages = {one["properties"]["kind"]["const"]: one for one in definitions["stage"]["anyOf"]}
    assert stages.keys() >= {"audit", "evaluate", "fit", "grpo", "sft"}
    assert stages["sft"]["additionalProperties"] is False
    assert "additionalProperties" not in stages["evaluate"]


SCORED = '[[stage.metric]]\nuse = "scorer"\n'


@pytest.mark.parametrize(
    ("given", "options"),
    [(ASKED_REPORTS, {"metric": []}),
     (f"{ASKED_REPORTS}\nmetric = []", {"metric": []}),
     (f'{ASKED_REPORTS}\n{SCORED}name = "words"\nscorer = "judge"',
      {"metric": [{"use": "scorer", "name": "words", "scorer": "judge"}]}),
     (f'{ASKED_REPORTS}\n{SCORED}scorer = {{ use = "token-f1" }}', {}),
     (ASKED_MASKS, {}),
     (f'{ASKED_MASKS}\nsegmenter = "grower"', {"segmenter": "grower"}),
     (f'{ASKED_MASKS}\nsegmenter = {{ use = "region-growing" }}', {})],
)  # fmt: skip
def test_a_stage_has_the_components_that_it_names_and_a_resolved_copy_keeps_them(
    write, tmp_path, given, options
):
    views = [SLICES] if ASKED_MASKS in given else []
    recipe = load(write(GROWER, (LAST, given), *views))
    assert recipe.stages[-1].options.items() >= options.items()
    (tmp_path / "again.toml").write_text(to_toml(recipe))
    assert load(tmp_path / "again.toml").stages == recipe.stages
