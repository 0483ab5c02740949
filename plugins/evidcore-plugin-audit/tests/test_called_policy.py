"""An audit of functions on phantoms: one that looks, one that guesses, one that knows scans by heart."""

import hashlib
import re
import signal
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from evidcore_plugin_audit.called_policy import Question
from evidcore_testing.recipes import recipe_text

import evidcore
from evidcore.api import read
from evidcore.errors import RecipeError, RunError
from evidcore.recipe import load
from evidcore.runs.assembly import Assembly

CHEST = {"use": "phantom-chest", "train_cases": 150, "test_cases": 40, "questions_per_finding": 2}
FEW = {"use": "phantom-chest", "train_cases": 8, "test_cases": 4, "questions_per_finding": 1}
ELSEWHERE = {
    "language": {"id": "nobody/none", "revision": "0"},
    "encoder": {"use": "native-vision"},
    "bridge": {"use": "native-merger"},
}
RECIPE = recipe_text(
    {"kind": "audit", "data": [{"dataset": "chest", "task": "choice", "split": "test"}],
     "conditions": [{"use": "blank"}], "max_new_tokens": 9},
    name="asked",
    dataset={"chest": FEW},
    task={"choice": {"use": "choice", "think": False}},
    model=ELSEWHERE,
)  # fmt: skip


def options(text):
    return re.findall(r"^([A-D])\) (.*)$", text, re.MULTILINE)


def features(array):
    """Mean, spread and ends of each block of 4 voxels a side."""
    hu = np.clip(array.astype(np.float32), -1000, 400) / 500
    z, y, x = (size // 4 * 4 for size in hu.shape)
    blocks = hu[:z, :y, :x].reshape(z // 4, 4, y // 4, 4, x // 4, 4)
    return np.concatenate([
        of(axis=(1, 3, 5)).ravel() for of in (blocks.mean, blocks.std, blocks.max, blocks.min)
    ])


class Seen:
    """What can be learnt from the training scans: ridge regression of each finding on blocks of voxels."""

    def __init__(self, assembly):
        cases, tests = (assembly.split("chest", split) for split in ("train", "test"))
        self.names = sorted({item.name for case in cases for item in case.findings})
        present = np.array(
            [[case.state_of(name) == "present" for name in self.names] for case in cases], float
        )
        voxels = np.array([features(read(case.volumes[0]).array) for case in cases])
        self.rates, self.mean = present.mean(0), voxels.mean(0)
        self.spread = voxels.std(0) + 0.05
        x = (voxels - self.mean) / self.spread
        kernel = x @ x.T
        ridge = 0.1 * np.trace(kernel) / len(x) * np.eye(len(x))
        self.weights = x.T @ np.linalg.solve(kernel + ridge, present - self.rates)
        self.known = {hashed(read(case.volumes[0]).array): case.present() for case in tests}

    def looks(self, questions):
        """Answer from the voxels."""
        return [
            self.best(item, (features(item.volumes[0].array) - self.mean) / self.spread @ self.weights)
            for item in questions
        ]

    def guesses(self, questions):
        """Answer from the words alone: the option that is most common."""
        return [self.best(item, self.rates) for item in questions]

    def remembers(self, questions):
        """Answer by heart where the file is known bit for bit."""
        return [
            self.best(
                item,
                self.rates
                + [name in self.known.get(hashed(item.volumes[0].array), ()) for name in self.names],
            )
            for item in questions
        ]

    def recalled(self, array):
        present = self.known.get(hashed(array), ())
        return [name in present for name in self.names]

    def best(self, question, scores):
        letter, _ = max(options(question.text), key=lambda option: scores[self.names.index(option[1])])
        return f"<answer>{letter}</answer>"


def hashed(array):
    return hashlib.sha256(array.astype(np.int16).tobytes()).hexdigest()


@pytest.fixture(scope="module")
def seen():
    recipe = tomllib.loads(RECIPE)
    recipe["dataset"]["chest"] = CHEST
    return Seen(Assembly(load(recipe)))


@pytest.fixture(scope="module")
def audited(seen, tmp_path_factory):
    """An audit of each of the three."""
    root = tmp_path_factory.mktemp("audits")
    return {
        policy.__name__: evidcore.audit_policy(policy, dataset=CHEST, out=root)
        for policy in (seen.looks, seen.guesses, seen.remembers)
    }


def gain(run):
    (value,) = run.results[run.results["metric"] == "own_minus_blind"]["value"]
    return value


@pytest.mark.slow
def test_the_verdict_tells_a_function_that_looks_from_one_that_guesses_and_one_that_remembers(audited):
    said = {name: run.verdict["choice"] for name, run in audited.items()}
    assert said["looks"].startswith("What is asked is seen: ")
    assert said["guesses"].startswith("No sign that looking helps: ")
    assert said["remembers"].startswith("Not told: ")
    assert "where the answers should stay" in said["remembers"]
    assert gain(audited["guesses"]) <= 0 < 0.1 < gain(audited["looks"]) < gain(audited["remembers"])


@pytest.mark.slow
def test_an_audit_leaves_a_run_with_answers_by_condition_and_a_page(audited):
    run = audited["looks"]
    assert run.status["state"] == "finished"
    assert "audit of Python function Seen.looks" in run.status["message"]
    assert run.page.is_file()
    right = run.answers.groupby("condition")["correct"].mean()
    assert right["own"] > right["twin"]
    assert {"own", "blank", "scrambled", "other-patient", "perturbed", "twin", "sham"} <= set(right.index)
    own = run.results[(run.results["condition"] == "own") & (run.results["metric"] == "strict_accuracy")]
    assert own["value"].tolist() == pytest.approx([right["own"]])
    assert evidcore.Run(run.folder).verdict == run.verdict


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

    run = evidcore.audit_policy(
        policy, tmp_path / "asked.toml", overrides={"stage.audit.prompts_per_batch": 2}, limit=2, out=tmp_path
    )
    assert max(counts) <= 2
    assert set(run.verdict) == {"choice"}
    assert run.answers[run.answers["condition"] == "own"]["case_id"].nunique() == 2


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda asked: ["A"], r"must return a list of as many texts, got 1 in a list"),
        (lambda asked: "A" * len(asked), r"got \d+ in a str"),
        (lambda asked: None, "got a NoneType"),
        (lambda asked: (text for text in "ABCD"), "got a generator"),
        (lambda asked: [None] * len(asked), r"answer 0 of the policy must be a text, got a NoneType"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(tmp_path, returned, said):
    with pytest.raises(RunError, match=said):
        evidcore.audit_policy(returned, dataset=FEW, conditions=["blank"], out=tmp_path)
    (folder,) = (tmp_path / "audit").glob("2*")
    assert evidcore.Run(folder).status["state"] == "failed"


def test_a_function_that_fails_is_named_with_what_it_raised(tmp_path):
    def policy(questions):
        raise ZeroDivisionError("mine")

    with pytest.raises(
        RunError, match=r"failed while it answered \d+ questions: ZeroDivisionError: mine"
    ) as told:
        evidcore.audit_policy(policy, dataset=FEW, conditions=["blank"], out=tmp_path)
    assert isinstance(told.value.__cause__, ZeroDivisionError)


def test_an_audit_that_is_interrupted_says_so(tmp_path):
    def policy(questions):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        evidcore.audit_policy(policy, dataset=FEW, conditions=["blank"], out=tmp_path)
    (folder,) = (tmp_path / "audit").glob("2*")
    assert evidcore.Run(folder).status["state"] == "interrupted"


def test_wrong_arguments_are_refused(tmp_path):
    def policy(questions):
        return []

    with pytest.raises(TypeError, match="must be a function from questions to texts, got 'model'"):
        evidcore.audit_policy("model", dataset=FEW)
    with pytest.raises(TypeError, match="give a dataset, or a recipe"):
        evidcore.audit_policy(policy)
    with pytest.raises(TypeError, match="Leave out dataset, seed, or use overrides"):
        evidcore.audit_policy(policy, tmp_path / "asked.toml", dataset=FEW, seed=3)
    with pytest.raises(ValueError, match=r"limit: must be 0 or more cases, got -1\."):
        evidcore.audit_policy(policy, dataset=FEW, limit=-1)
    with pytest.raises(RecipeError, match=r"recipe given as a dict: 1 mistake\n .*'phantom-chest'\?"):
        evidcore.audit_policy(policy, dataset="phantom-chets", out=tmp_path)
    with pytest.raises(RecipeError, match=r"stage\.audit.*'blanc'"):
        evidcore.audit_policy(policy, dataset=FEW, conditions=["blanc"], out=tmp_path)


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
