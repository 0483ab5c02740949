import tomllib
from pathlib import Path

import pytest
from evidcore_plugin_lab.ablation.definition import load_ablation
from evidcore_testing.recipes import recipe_text, replaced

from evidcore.errors import RecipeError

CHEST = {"dataset": "chest", "task": "choice"}
RECIPE = recipe_text(
    {"kind": "sft", "train": ["bridge", "language"], "data": [CHEST], "steps": 4, "learning_rate": 2e-3},
    {"kind": "grpo", "train": ["bridge", "language"], "data": [CHEST], "steps": 2, "learning_rate": 1e-4,
     "reward": [{"use": "choice-accuracy"}]},
    {"kind": "evaluate", "data": [{**CHEST, "split": "test"}]},
)  # fmt: skip
HERE = Path(__file__).parent
ABLATION = (HERE / "reading.toml").read_text(encoding="utf-8")
TABLE = tomllib.loads((HERE / "mistakes.toml").read_text(encoding="utf-8"))


@pytest.fixture
def put(tmp_path):
    """Return a function that writes the ablation with pieces replaced, beside its recipe."""

    def to_file(*pairs, text=ABLATION):
        (tmp_path / "tiny.toml").write_text(RECIPE, encoding="utf-8")
        path = tmp_path / "reading.toml"
        path.write_text(replaced(text, *pairs), encoding="utf-8")
        return path

    return to_file


def mistakes(path):
    with pytest.raises(RecipeError) as caught:
        load_ablation(path)
    return str(caught.value).splitlines()


def test_an_ablation_is_read(put, tmp_path):
    result = load_ablation(put())
    assert (result.name, result.recipe_name) == ("reading", "tiny")
    assert result.recipe_path == tmp_path / "tiny.toml"
    assert [arm.name for arm in result.arms] == ["short", "long"]
    overrides = ("stage.grpo.steps=3", "stage.sft.steps=9", "seed=18", "dataset.chest.seed=18")
    assert result.cell_overrides("long", 18) == overrides
    recipe = result.cell_recipe("long", 18)
    assert (recipe.stages[0].steps, recipe.stages[1].steps) == (9, 3)
    assert (recipe.seed, recipe.datasets["chest"]["seed"]) == (18, 18)
    assert result.metrics[0].label == "right"


def test_claims_are_read(put):
    (claim,) = load_ablation(put(("[arm]\n", TABLE["claim"] + "[arm]\n"))).claim
    assert (claim.arm, claim.beats, claim.metric, claim.by) == ("long", "short", "right", 0.1)


def test_factors_make_every_combination_of_their_levels(put):
    text = ABLATION[: ABLATION.index("[arm]")] + TABLE["factors"]
    result = load_ablation(put(('"short"', '"short+plain"'), text=text))
    assert [arm.name for arm in result.arms] == ["short+plain", "short+weighed", "long+plain", "long+weighed"]
    assert result.arms[3].overrides == ("stage.sft.steps=9", 'stage.sft.reweighter={use="abnormality"}')
    assert result.arms[1].levels == {"length": "short", "words": "weighed"}
    levels = {name: tuple(factor) for name, factor in result.factor.items()}
    assert levels == {"length": ("short", "long"), "words": ("plain", "weighed")}


def test_every_mistake_is_reported_at_once_with_its_line(put):
    wrong = ("seeds = [17, 18]", "seeds = [17, -1]"), ("about", "abuot"), ('name = "choice"', "nam = 3")
    lines = mistakes(put(*wrong))
    assert lines[0].endswith("reading.toml: 4 mistakes")
    assert lines[1] == "  line 4, abuot: unknown key. Did you mean 'about'?"
    assert lines[2] == "  line 5, seeds[1]: must be greater than or equal to 0, got -1."
    assert lines[3] == "  line 10, metrics[0].nam: unknown key. Did you mean 'name'?"
    assert lines[4] == "  line 10, metrics[0]: name is missing, and it has no default."


def test_one_arm_alone_is_repeated_over_the_seeds(put):
    (arm,) = load_ablation(put(('long = ["stage.sft.steps=9"]\n', ""))).arms
    assert arm.name == "short"


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new", "complaint"), TABLE["mistakes"])
def test_a_mistake_is_named_with_line_value_and_remedy(put, old, new, complaint):
    result = mistakes(put((old, new)))
    assert any(complaint in line for line in result), "\n".join(result)


def test_what_the_recipe_says_against_overrides_is_shown_whole_at_the_line_of_the_arm(put):
    result = mistakes(put(('"stage.sft.steps=9"', '"stage.sft.steps=0", "stage.sft.stepz=1"')))
    assert result[1].startswith("  line 15, arm.long: the recipe refuses it: ")
    assert result[1].endswith("tiny.toml: 2 mistakes")
    assert "command line, stage.sft.steps: must be greater than or equal to 1, got 0." in result[2]
    assert "command line, stage.sft.stepz: unknown key. Did you mean 'steps'?" in result[3]


def test_levels_of_two_factors_may_have_one_name(put):
    factors = TABLE["factors"].replace("plain", "short").replace("weighed", "long")
    text = ABLATION[: ABLATION.index("[arm]")] + factors
    result = load_ablation(put(('reference = "short"', 'reference = "short+long"'), text=text))
    assert [arm.name for arm in result.arms] == ["short+short", "short+long", "long+short", "long+long"]
