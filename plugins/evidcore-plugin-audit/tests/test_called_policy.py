"""What a function is handed in an audit, and what of its answers is refused."""

import signal
import subprocess
import sys

import numpy as np
import pytest
from evidcore_plugin_audit.called_policy import Question
from evidcore_testing.recipes import phantoms, recipe_text

import evidcore
from evidcore.errors import RecipeError, RunError

FEW = phantoms(8, 20, 4, questions_per_finding=1)
RECIPE = recipe_text(
    {"kind": "audit", "data": [{"dataset": "chest", "task": "choice", "split": "test"}],
     "conditions": [{"use": "blank"}], "max_new_tokens": 9},
    dataset={"chest": FEW}, model={"language": {"id": "nobody/none", "revision": "0"}},
)  # fmt: skip


def test_a_function_is_handed_words_and_voxels_and_nothing_that_names_a_case(tmp_path):
    asked: list[Question] = []

    def policy(questions):
        asked.extend(questions)
        return ["<answer>A</answer>"] * len(questions)

    run = evidcore.audit_policy(policy, dataset=FEW, conditions=["blank"], max_new_tokens=5, out=tmp_path)
    assert len(asked) == len(run.answers[run.answers["condition"].isin(["own", "blank"])])
    for item in asked:
        assert item.max_new_tokens == 5
        assert "<image>" in item.text
        assert "<answer>" in item.text  # the form is told
        assert "test-" not in repr(item)
        assert "phantom" not in repr(item)
        (volume,) = item.volumes
        assert volume.array.dtype == np.int16
        assert "phantom" not in repr(volume)
    spreads = [item.volumes[0].array.std() for item in asked]
    assert sum(spread == 0 for spread in spreads) == len(asked) / 2  # air


def test_a_recipe_may_say_what_is_asked(tmp_path):
    (tmp_path / "asked.toml").write_text(RECIPE)
    counts = []

    def policy(questions):
        counts.append(len(questions))
        return ["<answer>B</answer>" for _ in questions]

    two = {"overrides": {"stage.audit.prompts_per_batch": 2}, "limit": 2}
    run = evidcore.audit_policy(policy, tmp_path / "asked.toml", **two, out=tmp_path)
    assert max(counts) <= 2
    assert set(run.verdict) == {"choice"}
    assert run.answers[run.answers["condition"] == "own"]["case_id"].nunique() == 2


def fails(questions):
    raise ZeroDivisionError("mine")


@pytest.mark.parametrize(
    ("policy", "message"),
    [(lambda asked: ["A"], r"must return a list of as many texts, got 1 in a list"),
     (lambda asked: "A" * len(asked), r"got \d+ in a str"),
     (lambda asked: None, "got a NoneType"),
     (lambda asked: (text for text in "ABCD"), "got a generator"),
     (lambda asked: [None] * len(asked), r"answer 0 of the policy must be a text, got a NoneType"),
     (fails, r"failed while it answered \d+ questions: ZeroDivisionError: mine"),
     (lambda asked: signal.raise_signal(signal.SIGINT), None)],
)  # fmt: skip
def test_a_function_that_gives_no_list_of_texts_is_refused_and_an_interrupt_told(tmp_path, policy, message):
    with pytest.raises(RunError if message else KeyboardInterrupt, match=message):
        evidcore.audit_policy(policy, dataset=FEW, conditions=["blank"], out=tmp_path)
    (folder,) = (tmp_path / "audit").glob("2*")
    assert evidcore.Run(folder).status["state"] == ("failed" if message else "interrupted")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (("model",), TypeError, "must be a function from questions to texts, got 'model'"),
        ((fails,), TypeError, "give a dataset, or a recipe"),
        ((fails, "asked.toml", FEW), TypeError, "Leave out dataset, seed, or use overrides"),
        ((fails, None, FEW, -1), ValueError, r"limit: must be 0 or more cases, got -1\."),
        ((fails, None, "phantom-chets"), RecipeError, r"given as a dict: 1 mistake\n .*'phantom-chest'\?"),
        ((fails, None, FEW, 0, ["blanc"]), RecipeError, r"stage\.audit.*'blanc'"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, given, error, message):
    policy, recipe, dataset, limit, conditions = (*given, *(None, None, 0, None)[len(given) - 1 :])
    with pytest.raises(error, match=message):
        evidcore.audit_policy(
            policy, recipe, dataset=dataset, limit=limit, conditions=conditions, seed=3 if recipe else None,
            out=tmp_path,
        )  # fmt: skip


@pytest.mark.slow
def test_a_function_is_audited_where_trl_is_not_installed(tmp_path):
    code = (
        "import sys\n"
        "sys.modules['trl'] = None  # importing it fails, as where it is not installed\n"
        "import evidcore\n"
        f"run = evidcore.audit_policy(lambda asked: ['<answer>A</answer>'] * len(asked), dataset={FEW!r}, "
        f"conditions=['blank'], out={str(tmp_path)!r})\n"
        "print(run.verdict['choice'])\n"
        "print([name for name in sys.modules if name.startswith('evidcore.train.trl')])\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    verdict, trainers = said.splitlines()[-2:]
    assert verdict
    assert trainers == "[]"
