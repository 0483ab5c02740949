"""Components built once, cases and prompts as stages use them, from a data set of this module."""

import contextlib
import dataclasses
import re
from typing import ClassVar

import pytest
import torch
from evidcore_testing.checks_evaluation import Says

from evidcore.api import Case, DataError, Dataset, Finding, Question, Reward, VolumeRef
from evidcore.contracts import Completion
from evidcore.errors import ContractError, RecipeError, RunError
from evidcore.model.policy import VLMPolicy
from evidcore.recipe import DataUse, load
from evidcore.runs.assembly import Assembly, check_splits
from evidcore.runs.context import Context


class Listed(Dataset):
    """Cases named `<patient>-<number>`."""

    patients: ClassVar = {"train": range(40), "validation": range(50, 54), "test": range(40, 50)}
    twice = False

    def cases(self, split):
        for patient in self.patients[split]:
            for number in range(2):
                question = Question(
                    id=f"{patient}-{number}", text="Which?", options=("a", "b", "c", "d"), answer=0
                )
                name = f"{split}-{patient}-{0 if self.twice else number}"
                yield Case(
                    id=name, patient=str(patient), volumes=(VolumeRef(path="/none"),), questions=(question,),
                    findings=(Finding(name="a"),),
                )  # fmt: skip

    def fingerprint(self):
        return "listed"


@pytest.fixture
def assembled(tmp_path, offered, recipe_text):
    """Return a function that builds what the recipe names over `Listed`, changed as asked."""
    package = offered("evid-listed", "[evidcore.dataset]\nlisted = evid_listed:It\n")

    def make(change=str, base=Listed, **attributes):
        package.It = type("It", (base,), attributes)
        table = recipe_text[recipe_text.index("[dataset.chest]") : recipe_text.index("[model]")]
        path = tmp_path / "r.toml"
        text = recipe_text.replace(table, '[dataset.chest]\nuse = "listed"\n\n')
        path.write_text(change(text), encoding="utf-8")
        return Assembly(load(path))

    return make


def excluding(value):
    return lambda text: text.replace('use = "listed"\n', f'use = "listed"\nexclude = {value}\n')


@pytest.mark.parametrize("value", ['["train-0-0", "train-3-1"]', '"leave.txt"'])
def test_cases_that_a_recipe_excludes_are_nowhere(assembled, tmp_path, value):
    (tmp_path / "leave.txt").write_bytes(b"\xef\xbb\xbftrain-0-0\r\n\r\n train-3-1 \r\n")
    whole, assembly = assembled(), assembled(excluding(value))
    ids, left = ({case.id for case in each.split("chest", "train")} for each in (whole, assembly))
    assert ids - left == {"train-0-0", "train-3-1"}
    assert left < ids
    prints = [each.datasets["chest"].fingerprint() for each in (whole, assembly)]
    assert prints[0] != prints[1]


def test_excluded_ids_of_no_case_are_told_and_an_unreadable_list_named(assembled, caplog):
    check_splits(assembled(excluding('["train-0-0", "train-0-9"]')))
    (said,) = caplog.messages
    assert said.startswith(
        "dataset.chest.exclude: 1 of 2 ids are of no case that is read, such as 'train-0-9'. Did"
    )
    with pytest.raises(DataError, match=r"2 of 2 ids are of no case .* such as 'scan1'\..* Correct them"):
        check_splits(assembled(excluding('["scan1", "scan2"]')))
    with pytest.raises(RecipeError, match=r"dataset.chest.exclude: .*gone.txt: cannot be read"):
        assembled(excluding('"gone.txt"'))


def test_a_fraction_of_the_patients_is_the_same_every_time_and_whole_patients(assembled):
    some = [case.id for case in assembled().cases(DataUse(dataset="chest", patient_fraction=0.3))]
    assert some == [case.id for case in assembled().cases(DataUse(dataset="chest", patient_fraction=0.3))]
    patients = {name.split("-")[1] for name in some}
    assert len(some) == 2 * len(patients)
    assert 4 <= len(patients) <= 20
    more = {case.id for case in assembled().cases(DataUse(dataset="chest", patient_fraction=0.6))}
    assert set(some) < more
    assert len(assembled().cases(DataUse(dataset="chest", patient_fraction=1e-9))) == 2  # of one patient
    limited = [case.id for case in assembled().cases(DataUse(dataset="chest", limit=3))]
    assert limited == ["train-0-0", "train-0-1", "train-1-0"]


def broken(self, split):
    raise KeyError("column")


def silent(self, split):
    return [Case(id=split, patient=split, volumes=(VolumeRef(path="/none"),))]


TEST = DataUse(dataset="chest", task="choice", split="test", limit=2)


@pytest.mark.parametrize(
    ("attributes", "kind", "said"),
    [({"patients": {**Listed.patients, "test": ()}}, DataError, "dataset.chest: the test split has no cases"),
     ({"twice": True}, ContractError, "from evid-listed 1.0: case 'test-40-0' comes twice in chest, test"),
     ({"cases": broken}, ContractError, "from evid-listed 1.0 failed while listing the cases of chest"),
     ({"cases": silent}, DataError, "task 'choice' asks nothing about the test cases of 'chest'")],
)  # fmt: skip
def test_a_data_set_that_gives_nothing_to_ask_about_is_named(assembled, attributes, kind, said):
    assert {prompt.task for prompt in assembled().prompts(TEST)} == {"choice"}  # the recipe's name of it
    with pytest.raises(kind, match=said):
        assembled(**attributes).prompts(TEST)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"test": range(39, 50)}, "'39' is in test (case 'test-39-0') and in train (case 'train-39-0')"),
        ({"validation": (45,)}, "'45' is in test (case 'test-45-0') and in validation (case 'validation-"),
        ({"validation": (7,)}, "'7' is in train (case 'train-7-0') and in validation (case 'validation-7-"),
    ],
)
def test_a_patient_in_two_splits_is_named_with_both_cases(assembled, changed, said):
    check_splits(assembled())
    with pytest.raises(DataError, match=re.escape(f"dataset.chest: patient {said}")):
        check_splits(assembled(patients={**Listed.patients, **changed}))  # a fit chooses on validation cases


REPLAY = """
[stage.replay]
data = [{ dataset = "old", task = "choice" }]
"""


def with_second_set(text):
    """Replay cases of a second data set, on which nothing else depends."""
    place = text.index('[[stage.reward]]\nuse = "random"')
    return text[:place] + REPLAY + text[place:] + '\n[dataset.old]\nuse = "listed"\nis_second = true\n'


class Two(Listed):
    """Two data sets of other patients."""

    second: ClassVar = {"train": range(60, 70), "validation": (), "test": ()}

    def __init__(self, *, is_second: bool = False):
        self.patients = self.second if is_second else Listed.patients


def test_a_patient_of_two_data_sets_may_be_in_one_split_only(assembled):
    check_splits(assembled(with_second_set, base=Two))
    check_splits(assembled(with_second_set, base=Two, second={**Two.second, "train": range(20)}))  # of both
    said = (
        "dataset.old: patient '40' is in test of dataset.chest (case 'test-40-0') and in train (case "
        "'train-40-0'). Move or drop one: a patient may be in one split only, over all data sets."
    )
    seen = assembled(with_second_set, base=Two, second={**Two.second, "train": range(40, 50)})
    with pytest.raises(DataError, match=re.escape(said)):
        check_splits(seen)
    check_splits(seen, leaving_out=["old"])


def test_cases_without_a_patient_are_compared_within_their_data_set(assembled):
    def nameless(self, split):
        return [dataclasses.replace(case, patient=None, id="7") for case in Listed().cases(split)][:1]

    second = assembled(with_second_set, base=Two, cases=nameless)
    with pytest.raises(DataError, match=r"dataset.chest: patient '7' is in test"):
        check_splits(second)
    check_splits(second, leaving_out=["chest"])


@pytest.mark.parametrize(
    ("dataset", "file", "refusals", "warnings"),
    [("old", "link", 1, 0), ("old", "copy", 1, 0), ("chest", "scan", 0, 1), ("old", "other", 0, 0)],
)
def test_a_scan_of_two_splits_is_told(assembled, tmp_path, caplog, dataset, file, refusals, warnings):
    for name, end in {"scan": b"a", "copy": b"a", "other": b"b"}.items():
        (tmp_path / f"{name}.npy").write_bytes(bytes(9000) + end)  # of one size, and equal in the middle
    (tmp_path / "link.npy").symlink_to("scan.npy")
    files = {"chest test": "scan", f"{dataset} train": file}

    def cases(self, split):
        name = f"{'old' if self.patients is Two.second else 'chest'} {split}"
        return [Case(id=name, patient=None, volumes=(VolumeRef(path=f"{tmp_path}/{files.get(name)}.npy"),))]

    said = (
        f"dataset.{dataset}: case '{dataset} train' in train is the same scan as case 'chest test' of "
        f"dataset.chest in test: {tmp_path}/{file}.npy and {tmp_path}/scan.npy hold the same. Drop one, as by"
    )
    with pytest.raises(DataError, match=re.escape(said)) if refusals else contextlib.nullcontext():
        check_splits(assembled(with_second_set, base=Two, cases=cases))
    assert [text.startswith(said) for text in caplog.messages] == [True] * warnings


def test_a_table_at_a_place_is_built_once(assembled):
    result = assembled()
    table = {"use": "choice-accuracy"}
    first = result.component("reward", table, "03-grpo.reward[0]")
    assert result.component("reward", dict(table), "03-grpo.reward[0]") is first
    assert result.component("reward", table, "03-grpo.reward[1]") is not first
    assert result.component("reward", {**table, "reading": "lenient"}, "03-grpo.reward[0]") is not first
    assert result.component("task", result.recipe.tasks["choice"], "task.choice") is result.tasks["choice"]


class Asking(Reward):
    """Asks the model that is being trained."""

    def __init__(self, policy):
        self.policy = policy

    def __call__(self, rollouts, earlier):
        return [None if self.policy.generate([], max_new_tokens=1) else 1.0 for _ in rollouts]


def test_the_policy_is_given_before_there_is_one_and_bound_when_a_stage_trains(assembled, offered):
    offered("evid-asking", "[evidcore.reward]\nasking = evid_asking:It\n", It=Asking)
    result = assembled()
    reward = result.component("reward", {"use": "asking"}, "here")
    with pytest.raises(RunError, match=r"`policy` was asked before a stage trains one"):
        reward([None], {})
    Context(result, "03-grpo").bind_policy(Says(lambda prompt: ""))
    assert reward([None], {}) == [1.0]


def test_the_policy_at_the_start_is_opened_when_it_is_asked_and_anew_for_each_stage(assembled, monkeypatch):
    opened = []

    def model(self):
        opened.append(self.where)
        return torch.rand(1), None  # loading draws

    monkeypatch.setattr(Context, "model", model)
    monkeypatch.setattr(VLMPolicy, "complete", lambda *given, **named: [Completion(text=str(len(opened)))])
    result = assembled()
    with pytest.raises(RunError, match=r"was asked before a stage trains one"):
        result.start_policy.generate([], max_new_tokens=1)
    for number, where in enumerate(("03-grpo", "04-grpo"), start=1):
        Context(result, where).bind_policy(Says(lambda prompt: ""))
        torch.manual_seed(1)
        for _ in range(2):
            assert result.start_policy.generate([], max_new_tokens=1) == [str(number)]
            assert result.start_policy.complete([], max_new_tokens=1) == [Completion(text=str(number))]
        after = torch.rand(1)
        torch.manual_seed(1)
        assert after == torch.rand(1)
    assert opened == ["03-grpo", "04-grpo"]


def test_the_words_of_a_vocabulary_are_those_of_training_cases_each_asked_once(assembled):
    training = Question(id="q", text="Is it asked in training?", options=("a", "b", "c", "d"), answer=0)
    case = Case(id="one", patient="1", volumes=(VolumeRef(path="/none"),), questions=(training,))
    result = assembled(cases=lambda self, split: [case])
    asked = [(use.task, use.split) for use in result.word_sources()]
    assert asked == [("choice", "train"), ("report", "train"), ("report", "train")]  # shares differ
    assert result.corpus.phrases == result.phrases
    assert any("asked in training" in text for text in result.corpus.texts())


def test_labelers_look_for_the_findings_of_the_data_sets(assembled):
    def with_labeler(text):
        return text.replace("[model]", '[service.words]\nkind = "labeler"\nuse = "negation-rules"\n\n[model]')

    made = assembled(with_labeler, findings=("gallstone", "liver cyst"))
    assert made.services["words"].label_names() == ("gallstone", "liver cyst")
    table = {"use": "report-findings"}
    assert made.component("reward", table, "test").labeler.label_names() == ("gallstone", "liver cyst")
