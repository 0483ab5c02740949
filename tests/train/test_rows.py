import collections
import dataclasses
import re

import pytest

from evidcore.api import Crop, DataError, Question, VisualPart
from evidcore.builtin.views import Volume
from evidcore.prompts.rows import PromptSource


def test_shares_are_kept_exactly_at_every_moment(bench):
    sets = [bench.set_of(share=3.0), bench.set_of("report", share=1.0)]
    source = bench.source(*sets)
    for count in (4, 8, 40):
        drawn = collections.Counter(source[position].prompt.task for position in range(count))
        assert drawn == {"choice": count * 3 // 4, "report": count // 4}


def test_a_position_gives_the_same_row_in_any_order_of_asking_and_another_with_another_seed(bench):
    forward, backward, other = bench.source(), bench.source(), bench.source(seed=2)
    there = [forward[position].prompt for position in range(20)]
    back = [backward[position].prompt for position in reversed(range(20))][::-1]
    assert there == back != [other[position].prompt for position in range(20)]


def test_an_epoch_asks_every_case_once_and_the_next_asks_anew(bench):
    source = bench.source()
    first = [source[position].prompt for position in range(8)]
    second = [source[position].prompt for position in range(8, 16)]
    for epoch in (first, second):
        assert {prompt.case.id for prompt in epoch} == {case.id for case in bench.cases}
    assert [prompt.case.id for prompt in first] != [prompt.case.id for prompt in second]
    options = {prompt.case.id: prompt.reference["options"] for prompt in first}
    assert any(options[prompt.case.id] != prompt.reference["options"] for prompt in second)


def test_so_many_questions_of_a_case_stand_in_turn_and_shares_are_kept(bench):
    sets = [bench.set_of(share=1.0), bench.set_of("report", share=1.0)]
    apart, source = bench.source(*sets), bench.source(*sets, in_turn=3)
    turns = [[source[3 * turn + place].prompt for place in range(3)] for turn in range(16)]
    assert [[item.case.id for item in turn] for turn in turns] == [
        [apart[turn].prompt.case.id] * 3 for turn in range(16)
    ]
    assert [turn[0] for turn in turns] == [apart[turn].prompt for turn in range(16)]
    asked = [[str(item.reference["options"]) for item in turn] for turn in turns if turn[0].task == "choice"]
    assert all(len(set(options)) > 1 for options in asked)  # one question a case: it is asked anew
    assert collections.Counter(turn[0].task for turn in turns) == {"choice": 8, "report": 8}


def test_blank_volumes_change_what_is_shown_and_nothing_else(bench):
    own, blank = bench.source(), bench.source(volumes="blank")
    for position in range(16):
        assert blank[position].prompt == own[position].prompt.with_blank_volumes()
        assert all(crop.blank for crop in blank[position].prompt.crops())


def test_the_wrong_volume_is_always_that_of_another_patient_and_always_the_same(bench):
    twice = [
        dataclasses.replace(case, patient=f"patient-{number // 2}") for number, case in enumerate(bench.cases)
    ]
    source = bench.source(bench.set_of(cases=twice), volumes="other-patient")
    patient = {case.volumes[0].path: case.patient for case in twice}
    shown = collections.defaultdict(set)
    for position in range(32):
        prompt = source[position].prompt
        [crop] = prompt.crops()
        assert patient[crop.volume.path] != prompt.case.patient
        shown[prompt.case.id].add(crop)
    assert {len(crops) for crops in shown.values()} == {1}
    own = bench.source(bench.set_of(cases=twice))
    assert [own[index].prompt.case for index in range(8)] == [source[index].prompt.case for index in range(8)]


def test_an_other_patient_who_is_shown_in_more_pieces_is_refused_at_the_start(bench):
    two = dataclasses.replace(bench.cases[0], volumes=bench.cases[0].volumes * 2)

    class Every(Volume):
        def render(self, case):
            return tuple(VisualPart(crop=Crop(volume=volume)) for volume in case.volumes)

    group = dataclasses.replace(bench.set_of(cases=[two, bench.cases[1]]), view=Every())
    assert len(bench.source(group)[0].prompt.crops()) in {1, 2}  # each over its own
    said = r"task 'choice' shows 2 images of case 'case-0', but case 'case-1', .* there, has 1\."
    with pytest.raises(DataError, match=said):
        bench.source(group, volumes="other-patient")


def test_cases_without_a_question_are_left_out_and_sets_of_which_nothing_comes_are_named(bench):
    healthy = [dataclasses.replace(case, findings=(), questions=()) for case in bench.cases]
    source = bench.source(bench.set_of(cases=[bench.cases[0], healthy[1], bench.cases[2]]))
    assert {source[index].prompt.case.id for index in range(6)} == {"case-0", "case-2"}
    with pytest.raises(DataError, match="no set has a share above 0"):
        PromptSource([bench.set_of(share=0.0)], seed=1)
    with pytest.raises(DataError, match="task 'choice' has 1 patient, needs at least 2"):
        bench.source(bench.set_of(cases=bench.cases[:1]), volumes="other-patient")
    with pytest.raises(DataError, match="task 'choice' asks nothing about any of its 8 cases"):
        bench.source(bench.set_of(cases=healthy))


def test_cases_that_training_asks_nothing_although_questions_came_with_them_are_told(bench, caplog):
    asked = (Question(id="q", text="Which phase?", options=("venous", "arterial"), answer=0),)
    given = [dataclasses.replace(case, findings=case.findings[:1], questions=asked) for case in bench.cases]
    said = r"task 'choice' asks nothing about {} of its 8 cases in training\. It .* Set training_questions ="
    with pytest.raises(DataError, match=said.format("any")):
        bench.source(bench.set_of(cases=given))
    bench.source(bench.set_of(cases=[*given[:3], *bench.cases[3:]]))
    assert re.search(said.format(3), caplog.messages[-1])
