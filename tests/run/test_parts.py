"""Cases and prompts as stages use them, from a data set of this module."""

from typing import ClassVar

import pytest
from evidcore.run.parts import build, check_splits

from evidcore.case import Case, Finding, Question, VolumeRef
from evidcore.contracts import Dataset
from evidcore.errors import ContractError, DataError
from evidcore.recipe import DataUse, load


class Listed(Dataset):
    """Cases named `<patient>-<number>`."""

    patients: ClassVar = {"train": range(40), "validation": (), "test": range(40, 50)}
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
def parts(tmp_path, offered, recipe_text):
    """Return a function that builds the parts of the recipe over `Listed`, changed as asked."""
    package = offered("evid-listed", "[evidcore.dataset]\nlisted = evid_listed:It\n")

    def make(**attributes):
        package.It = type("It", (Listed,), attributes)
        table = recipe_text[recipe_text.index("[dataset.chest]") : recipe_text.index("[model]")]
        path = tmp_path / "r.toml"
        path.write_text(recipe_text.replace(table, '[dataset.chest]\nuse = "listed"\n\n'), encoding="utf-8")
        return build(load(path))

    return make


def test_a_fraction_of_the_patients_is_the_same_every_time_and_whole_patients(parts):
    some = [case.id for case in parts().cases(DataUse(dataset="chest", patients=0.3))]
    assert some == [case.id for case in parts().cases(DataUse(dataset="chest", patients=0.3))]
    patients = {name.split("-")[1] for name in some}
    assert len(some) == 2 * len(patients)
    assert 4 <= len(patients) <= 20
    more = {case.id for case in parts().cases(DataUse(dataset="chest", patients=0.6))}
    assert set(some) < more


def test_a_fraction_below_one_patient_is_one_patient(parts):
    assert len(parts().cases(DataUse(dataset="chest", patients=1e-9))) == 2


def test_a_limit_counts_cases(parts):
    assert [case.id for case in parts().cases(DataUse(dataset="chest", limit=3))] == [
        "train-0-0",
        "train-0-1",
        "train-1-0",
    ]


def test_an_empty_split_is_named(parts):
    with pytest.raises(DataError, match=r"dataset.chest: the validation split has no cases"):
        parts().cases(DataUse(dataset="chest", split="validation"))


def test_a_case_that_comes_twice_blames_the_data_set(parts):
    with pytest.raises(
        ContractError, match=r"'listed' from evid-listed 1.0: case 'train-0-0' comes twice in chest, train"
    ):
        parts(twice=True).cases(DataUse(dataset="chest"))


def test_a_patient_in_two_splits_is_named_with_both_cases(parts):
    check_splits(parts())
    with pytest.raises(
        DataError, match=r"patient '39' is in test \(case 'test-39-0'\) and in train \(case 'train-39-0'\)"
    ):
        check_splits(parts(patients={"train": range(40), "validation": (), "test": range(39, 50)}))


def test_a_data_set_that_raises_is_blamed(parts):
    def broken(self, split):
        raise KeyError("column")

    with pytest.raises(
        ContractError, match=r"'listed' from evid-listed 1.0 failed while listing the cases of chest"
    ):
        parts(cases=broken).cases(DataUse(dataset="chest"))


def test_prompts_carry_the_recipes_name_of_the_task(parts):
    prompts = parts().prompts(DataUse(dataset="chest", task="choice", split="test", limit=2))
    assert {prompt.task for prompt in prompts} == {"choice"}


def test_a_task_that_asks_nothing_is_named(parts):
    silent = parts(
        cases=lambda self, split: [Case(id=split, patient=split, volumes=(VolumeRef(path="/none"),))]
    )
    with pytest.raises(DataError, match=r"task 'choice' asks nothing about the test cases of 'chest'"):
        silent.prompts(DataUse(dataset="chest", task="choice", split="test"))
