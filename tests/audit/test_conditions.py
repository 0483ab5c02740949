import dataclasses

import pytest
from evidcore_testing import check_condition, volume_case

from evidcore.api import Case, Crop, DataError, EncoderInput, Finding, VisualPart, VolumeRef, prepare
from evidcore.audit.conditions import Matched, OtherPatient, Perturbed, SameAnswer, Sham, Twin
from evidcore.builtin.views import Volume
from evidcore.registry import factory, offers

TASK = factory.build("task", {"use": "choice", "questions_per_case": 2}, given={}, where="test")
NAMES = "abcdefgh"


def case(number, present, patient=None, volumes=None):
    return Case(
        id=f"c{number}", patient=patient or f"p{number}",
        volumes=tuple(VolumeRef(path=path) for path in volumes or (f"{number}.nii",)),
        findings=tuple(Finding(name=one, state="present" if one in present else "absent") for one in NAMES),
    )  # fmt: skip


CASES = [case(number, {NAMES[number % 8], NAMES[(number // 8) % 8]}) for number in range(64)]
BY_PATH = {one.volumes[0].path: one for one in CASES}


def asked(cases):
    return [prompt for one in cases for prompt in TASK.prompts(one, Volume(), 1)]


def shown(condition, cases, seed=0, dataset=None):
    prompts = asked(cases)
    return list(zip(prompts, condition.show(prompts, seed=seed, dataset=dataset), strict=True))


class Data:
    """Shows a case without a finding as its volumes under another name."""

    def __init__(self):
        self.removed = []

    def without(self, one, finding):
        self.removed.append((one.id, finding))
        return tuple(dataclasses.replace(ref, path=f"{ref.path}-{finding}") for ref in one.volumes)


@pytest.mark.parametrize("name", [offer.name for offer in offers("condition")])
def test_every_installed_condition_keeps_its_contract(name, tmp_path):
    """Over cases that share one finding and have one of their own."""
    cases = []
    for seed, own in enumerate("abcd"):
        found = volume_case(tmp_path, seed, size_zyx=(12, 48, 48))
        masks = {own: next(iter(found.masks.values()))}
        findings = case(seed, {"g", own}).findings
        cases.append(dataclasses.replace(found, findings=findings, masks=masks, questions=()))
    prompts = [prompt for one in cases for prompt in TASK.prompts(one, Volume(), 1)]
    for one in prompts[:4]:  # whose answers are places
        prompts.append(dataclasses.replace(one, id=f"{one.id}:place", reference={"masks": [*one.case.masks]}))
    check_condition(factory.build("condition", {"use": name}, given={}, where="test"), prompts, Data())


@pytest.mark.parametrize("seed", range(5))
def test_nobody_keeps_their_own_volume_and_everyone_gives_theirs_once(seed):
    donors = {}
    for before, after in shown(OtherPatient(), CASES, seed):
        assert after.crops() != before.crops()
        assert (after.id, after.case, after.reference) == (before.id, before.case, before.reference)
        donors.setdefault(before.case.patient, set()).add(after.crops())
    assert all(len(given) == 1 for given in donors.values())
    assert len({given for some in donors.values() for given in some}) == len(donors)


def of(patient, *scans):
    """Give cases of a patient: of each scan its name, once for each of its volumes."""
    names = {scan[0]: [f"{patient} {scan[0]} {place}" for place in range(len(scan))] for scan in scans}
    return [case(f"{patient}-{scan}", {"a"}, f"p{patient}", volumes) for scan, volumes in names.items()]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "cases",
    [
        [*of("a", "11"), *of("b", "11"), *of("c", "11")],
        [*of("a", "1", "2"), *of("b", "1", "2"), *of("c", "1", "2")],  # a second scan is given for a second
        # c has no scan of two volumes, so the next patient gives it
        [*of("a", "1", "22"), *of("b", "22", "1"), *of("c", "1")],
    ],
)
def test_all_volumes_come_from_one_like_scan_of_another_patient_in_their_order(cases, seed):
    for before, after in shown(OtherPatient(), cases, seed):
        own, other = ([crop.volume.path.split() for crop in prompt.crops()] for prompt in (before, after))
        assert [path[1:] for path in own] == [path[1:] for path in other]
        assert own[0][0] not in {path[0] for path in other}
        assert len({path[0] for path in other}) == 1


def test_scans_of_other_depths_give_their_slices_evenly():
    depths = {"a": 3, "b": 7, "c": 5}

    class Every(Volume):
        def render(self, case):
            (ref,) = case.volumes
            boxes = [(z, z + 1, 0, 8, 0, 8) for z in range(depths[ref.path[0]])]
            return tuple(VisualPart(crop=Crop(volume=ref, box_zyx=box)) for box in boxes)

    prompts = [one for name in depths for one in TASK.prompts(of(name, "1")[0], Every(), 1)]
    for condition in (OtherPatient(), SameAnswer()):
        for before, after in zip(prompts, condition.show(prompts, seed=0, dataset=None), strict=True):
            (name,) = {crop.volume.path[0] for crop in after.crops()} - {before.crops()[0].volume.path[0]}
            count = len(before.crops())
            assert [crop.box_zyx[0] for crop in after.crops()] == [
                (2 * turn + 1) * depths[name] // (2 * count) for turn in range(count)
            ]


def test_a_scan_whose_like_nobody_has_is_named():
    (pair,) = of("z", "11")
    with pytest.raises(DataError, match=r"of 'pz' shows 2 volumes and no other of the 7 patients"):
        shown(OtherPatient(), [pair, *CASES[2:8]])
    with pytest.raises(DataError, match="no other of the 1 patients"):
        shown(OtherPatient(), CASES[:1])


def test_blank_shows_air_in_the_place_of_every_volume():
    (prompt,) = asked(of("a", "111"))
    blank = prompt.with_blank_volumes()
    assert [(crop.volume, crop.blank) for crop in blank.crops()] == [
        (crop.volume, True) for crop in prompt.crops()
    ]
    assert blank.words() == prompt.words()


def test_a_matched_patient_lacks_the_asked_finding_and_differs_least():
    for before, after in shown(Matched(), CASES):
        finding = before.reference["finding"]
        donor = BY_PATH[after.crops()[0].volume.path]
        assert donor.state_of(finding) == "absent"
        others = set(before.case.present()) - {finding}
        assert len(others ^ set(donor.present())) <= 1 + len(others)


def test_the_same_answer_is_right_over_its_donor():
    pairs = [(before, after) for before, after in shown(SameAnswer(), CASES) if after is not None]
    assert pairs
    for before, after in pairs:
        donor = BY_PATH[after.crops()[0].volume.path]
        assert donor.patient != before.case.patient
        assert [one for one in before.reference["options"] if donor.state_of(one) == "present"] == [
            before.reference["finding"]
        ]


def test_a_sham_removes_what_no_option_names():
    data = Data()
    pairs = shown(Sham(), CASES, dataset=data)
    done = dict(data.removed)
    for before, after in pairs:
        free = set(before.case.present()) - set(before.reference["options"])
        assert (after is not None) == bool(free)
        if after is not None:
            assert done[before.case.id] in free or len(asked([before.case])) > 1
            assert "-" in after.crops()[0].volume.path
    assert all(after is None for _, after in shown(Sham(), CASES))  # no data set


def test_of_a_question_about_all_findings_a_twin_lacks_one_and_nothing_else_is_free():
    prompts = [
        dataclasses.replace(prompt, reference={"present": list(prompt.case.present())})
        for prompt in asked(CASES)[:20]
    ]
    twins = Twin().show(prompts, seed=0, dataset=Data())
    removed = [after.crops()[0].volume.path.partition("-")[2] for after in twins]
    assert all(one in before.case.present() for one, before in zip(removed, prompts, strict=True))
    assert len(set(removed)) > 1
    for twin, other in zip(removed, Matched().show(prompts, seed=0, dataset=None), strict=True):
        if other is not None:
            assert BY_PATH[other.crops()[0].volume.path].state_of(twin) == "absent"
    assert not any(Sham().show(prompts, seed=0, dataset=Data()))
    assert not any(SameAnswer().show(prompts, seed=0, dataset=None))
    healthy = [dataclasses.replace(prompts[0], reference={"present": []})]
    assert Twin().show(healthy, seed=0, dataset=Data()) == [None]


def test_no_more_questions_are_altered_than_may_be():
    for seed in (0, 1):
        found = [after for _, after in shown(Twin(max_questions=5), CASES, seed, Data())]
        assert sum(one is not None for one in found) == 5
    assert len([one for _, one in shown(Twin(), CASES, 0, Data()) if one is not None]) == len(asked(CASES))


@pytest.fixture
def crop(tmp_path):
    return Crop(volume=volume_case(tmp_path, 0).volumes[0])


SPEC = EncoderInput(size_zyx=(8, 16, 16), spacing_mm_zyx=None, windows=((-1000.0, 400.0),))


def test_where_a_place_is_asked_noise_is_added_and_nothing_moved(crop):
    (before, _), *_ = shown(Perturbed(), CASES[:1])
    asked = dataclasses.replace(before, reference={**before.reference, "masks": ["liver"]})
    (after,) = Perturbed().show([asked], seed=0, dataset=None)
    assert {one.change for one in after.crops()} == {"noisy"}
    apart = prepare(dataclasses.replace(crop, change="noisy"), SPEC) - prepare(crop, SPEC)
    assert 0.0 < apart.abs().max() < 0.1


def test_a_single_slice_is_perturbed_in_its_plane(crop):
    spec = dataclasses.replace(SPEC, size_zyx=(1, 16, 16))
    slice_ = dataclasses.replace(crop, box_zyx=(2, 3, 0, 16, 0, 16))
    moved = prepare(dataclasses.replace(slice_, change="perturbed"), spec)
    whole = prepare(slice_, spec)
    assert moved.shape == whole.shape
    assert (moved[:, :, 1:, 1:] - whole[:, :, :-1, :-1]).abs().mean() < 0.05
