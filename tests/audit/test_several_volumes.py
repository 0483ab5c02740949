"""What an audit shows where a case has several volumes and a patient several scans."""

import pytest

from evidcore.api import Case, Crop, Prompt, TextPart, VisualPart, VolumeRef
from evidcore.audit.conditions import OtherPatient

SEEDS = range(6)


def asked(patient, scan, volumes=1):
    """A question about one scan of a patient, which shows some volumes, such as two phases."""
    refs = tuple(VolumeRef(path=f"{patient}-{scan}-{number}.nii") for number in range(volumes))
    case = Case(id=f"{patient}-{scan}", patient=patient, volumes=refs)
    shown = [VisualPart(crop=Crop(volume=ref)) for ref in refs]
    return Prompt(id=case.id, case=case, task="any", parts=(*shown, TextPart(text="What is there?")))


def exchanged(prompts, *, seed):
    return OtherPatient().show(prompts, seed=seed, dataset=None)


def scan_of(prompt):
    """Whose scan is shown: all volumes are of one."""
    [shown] = {crop.volume.path.rpartition("-")[0] for crop in prompt.crops()}
    return shown.split("-")


def test_blank_shows_air_in_the_place_of_every_volume():
    prompt = asked("a", "first", volumes=3)
    shown = prompt.with_blank_volumes()
    assert [crop.blank for crop in shown.crops()] == [True, True, True]
    assert [crop.volume for crop in shown.crops()] == [crop.volume for crop in prompt.crops()]
    assert shown.words() == prompt.words()


@pytest.mark.parametrize("seed", SEEDS)
def test_all_volumes_of_a_question_come_from_one_scan_of_another_patient_in_their_order(seed):
    prompts = [asked(patient, "first", volumes=2) for patient in "abcd"]
    for prompt, shown in zip(prompts, exchanged(prompts, seed=seed), strict=True):
        assert scan_of(shown)[0] != prompt.case.patient
        assert [crop.volume.path[-5] for crop in shown.crops()] == ["0", "1"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_patients_second_scan_is_shown_as_the_second_scan_of_another(seed):
    prompts = [asked(patient, scan) for patient in "abc" for scan in ("first", "second")]
    shown = exchanged(prompts, seed=seed)
    assert [scan_of(item)[1] for item in shown] == ["first", "second"] * 3
    assert sorted(scan_of(item) for item in shown) == sorted(scan_of(item) for item in prompts)  # each once


@pytest.mark.parametrize("seed", SEEDS)
def test_a_scan_gets_one_of_as_many_volumes_where_it_has_to_look_further_too(seed):
    prompts = [
        asked("a", "one"), asked("a", "two", volumes=2),
        asked("b", "two", volumes=2), asked("b", "one"),
        asked("c", "one"),  # has no scan of two volumes, so the next patient gives it
    ]  # fmt: skip
    shown = dict(zip((item.id for item in prompts), exchanged(prompts, seed=seed), strict=True))
    assert {scan_of(item)[1] for name, item in shown.items() if name.endswith("two")} == {"two"}
    assert {scan_of(item)[1] for name, item in shown.items() if name.endswith("one")} == {"one"}
    assert all(scan_of(item)[0] != name[0] for name, item in shown.items())
