"""Which evaluation measures a data entry, and what it refuses."""

import pytest
from evidcore_plugin_reports.evaluation import ReportEvaluation
from evidcore_plugin_reports.task import ReportTask
from evidcore_testing.recipes import phantoms, recipe_text, stage_text

from evidcore.api import Answer, DataError
from evidcore.errors import RecipeError
from evidcore.evaluate.choice import ChoiceEvaluation
from evidcore.evaluate.eval_stage import training
from evidcore.evaluate.reference_lines import reference_lines
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly
from evidcore.runs.context import Context

RECIPE = recipe_text(
    {"kind": "evaluate", "data": [{"dataset": "chest", "task": "TASK", "split": "test"}]},
    name="asked",
    dataset={"chest": phantoms(2, 1, 2)},
    model={"language": {"folder": "nowhere"}},
)

OUTSIDE = (
    "dataset = {",
    'dataset = { outside = { use = "phantom-chest", train_cases = 0, validation_cases = 0, test_cases = 2, '
    "seed = 5 },",
)
TRAINED = {"kind": "sft", "train": ["bridge"], "steps": 1, "learning_rate": 1e-3}


class Side(ReportTask):
    """Asks for a word, which is neither a choice nor a report."""

    evaluation = "report"

    def gold(self, prompt):
        return "left", ()

    def parse(self, prompt, completion):
        return Answer(text=completion)


class Silent(Side):
    """Names no evaluation."""

    evaluation = ""


@pytest.fixture
def asking(tmp_path, offered):
    """Return a function that gives the evaluate stage of a recipe about one task, and its context."""
    names = {"side": Side, "silent": Silent}
    lines = "".join(f"{name} = evid_side:{item.__name__}\n" for name, item in names.items())
    offered("evid-side", f"[evidcore.task]\n{lines}", Side=Side, Silent=Silent)

    def make(task, *pairs):
        text = RECIPE.replace("TASK", task)
        for old, new in pairs:
            text = text.replace(old, new)
        (tmp_path / "asked.toml").write_text(text)
        assembly = Assembly(load(tmp_path / "asked.toml"))
        return assembly.recipe.stages[0], Context(assembly, "01-evaluate")

    return make


@pytest.mark.parametrize(("task", "made"), [("choice", ChoiceEvaluation), ("report", ReportEvaluation)])
def test_a_task_names_what_measures_it(asking, task, made):
    stage, context = asking(task)
    assert isinstance(stage.evaluation(stage.data[0], context), made)
    assert stage.refusal(stage.data[0], context.prompts(stage.data[0]), context) == ""


def test_a_data_entry_names_another(asking):
    stage, context = asking("choice", ('task = "choice",', 'task = "choice", evaluation = "report",'))
    use = stage.data[0]
    assert isinstance(stage.evaluation(use, context), ReportEvaluation)
    assert "is read as no report" in stage.refusal(use, context.prompts(use), context)
    with pytest.raises(RecipeError, match=r"01-evaluate: task 'choice' .* Name another evaluation in the"):
        stage.prompts(use, context)


def test_answers_that_an_evaluation_cannot_read_are_refused_by_the_tasks_name(asking):
    stage, context = asking("side")
    prompts = context.prompts(stage.data[0])
    said = stage.refusal(stage.data[0], prompts, context)
    assert said.startswith("task 'side' (task 'side' from evid-side 1.0): the gold answer of prompt ")
    assert said.endswith(f"{prompts[0].id!r} is read as no report")


def test_a_set_for_tests_alone_is_held_against_rules_that_learnt_on_what_is_trained(asking):
    measured = 'dataset = "{}", task = "choice", split = "test"'.format
    changes = [OUTSIDE, (measured("chest"), measured("outside"))]
    trained_on = {"dataset": "chest", "task": "choice"}
    arms = ({"data": [{**trained_on, "limit": 1}]}, {"data": [trained_on], "arm": "other"})
    stages = "".join(stage_text(**TRAINED, **arm) for arm in arms) + '[[stage]]\nkind = "evaluate"'
    trained = [*changes, ('[[stage]]\nkind = "evaluate"', stages)]
    _, context = asking("choice", *trained)
    context.where = "03-evaluate"
    use = context.recipe.stages[2].data[0]
    learnt = training(use, context)()  # not what another arm trains on, which is none of its inputs
    cases = context.cases(context.recipe.stages[0].data[0])
    assert {prompt.case.id for prompt in learnt} == {case.id for case in cases}
    assert len(cases) < len(context.split("chest", "train"))
    prompts = context.prompts(use)
    assert reference_lines(prompts, learnt).prior_only

    def torn(split):
        raise DataError(f"outside.csv: line 3 of {split} is torn")

    _, context = asking("choice", *trained)
    context.where = "03-evaluate"
    context.dataset("outside").cases = torn  # a fault is told, and no other set stands in
    with pytest.raises(DataError, match="line 3 of train is torn"):
        training(use, context)()
    _, context = asking("choice", *changes)
    with pytest.raises(DataError, match=r"dataset.outside: the train split has no cases"):
        training(context.recipe.stages[0].data[0], context)()


def test_a_task_without_an_evaluation_is_refused_with_what_is_installed(asking):
    said = (
        r"line \d+, stage.evaluate.data\[0\]: task 'silent' names no evaluation, .* Installed: choice, "
        r".*\breport\b"
    )
    with pytest.raises(RecipeError, match=said):
        asking("silent")
    asking("silent", ('task = "silent",', 'task = "silent", evaluation = "report",'))
