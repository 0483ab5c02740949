"""Reward `cross-view`, worked by hand with readers that are told what to see."""

import dataclasses
import tomllib
from pathlib import Path

import pytest
from disc_cases import CYST, STONE, Unreading, disc_case
from evidcore_plugin_emrl.cross_view import CrossView
from evidcore_plugin_emrl.matched_slices import MatchedSlices
from evidcore_plugin_emrl.report_evidence import ReportEvidence
from evidcore_plugin_reports.labelers import NegationRules
from evidcore_testing import answer_group, check_reward

from evidcore.api import DataError, Finding, Reader, Rollout, Score, Unscored, read, read_mask
from evidcore.builtin.views import Slices
from evidcore.errors import RecipeError

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def square(side, at=4):
    return slice(at, at + side), slice(at, at + side)


AGREEMENTS = ("whole", "local")
PAIR = ("cyst", "stone")


class TrueEyes(Reader):
    """Names what masks show on a slice, but for what it is told to say of air, of no picture, of slices."""

    deterministic = True

    def __init__(self, cases, *, blank=(), text=None, instead=None, always=None):
        self.cases = {case.volumes[0].path: case for case in cases}
        self.blank, self.text, self.instead, self.always = blank, text, instead or {}, always
        self.asked = []

    def __call__(self, questions):
        self.asked += questions
        return [self.answer(question) for question in questions]

    def answer(self, question):
        if self.always is not None:
            return self.always
        if not question.crops:
            return self.text
        (crop,) = question.crops
        case, z = self.cases[crop.volume.path], crop.box_zyx[0]
        if crop.blank:
            return report(*self.blank)
        if (case.id, z) in self.instead:
            return self.instead[case.id, z]
        volume = read(crop.volume)
        return report(*(name for name, mask in case.masks.items() if read_mask(mask, like=volume)[z].any()))


def report(*names):
    return " ".join(f"There is a {name}." for name in names) or "No cyst is seen."


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Return a case of both findings, one without, and three with one, on 6 slices of pixels of 4 mm²."""
    folder = tmp_path_factory.mktemp("cross-view")
    return {
        "both": disc_case(folder, 1, ["cyst", "stone"], where={"cyst": CYST, "stone": STONE}),
        "healthy": disc_case(folder, 2, []),
        "cyst": disc_case(folder, 3, ["cyst"], where={"cyst": CYST}),
        "stone": disc_case(folder, 4, ["stone"], where={"stone": {2: square(6), 4: square(3)}}),
        "another cyst": disc_case(folder, 5, ["cyst"], where={"cyst": {3: square(5)}}),
    }


@pytest.fixture
def reward_of(cases, tmp_path):
    """Return the reward over all cases, or over those that are named."""

    def build(*names, reader=None, eyes=None, **options):
        some = [cases[name] for name in names or cases]
        return CrossView(lambda: some, tmp_path, reader=reader or TrueEyes(some, **(eyes or {})), **options)

    return build


@pytest.fixture
def asked(cases, tmp_path):
    """Return a task and its prompt about a case."""

    def ask(name, **options):
        task = ReportEvidence(tmp_path, **options)
        (prompt,) = task.prompts(cases[name], Slices(slices=6), 0)
        return task, prompt

    return ask


@pytest.fixture
def judge(reward_of, asked):
    """Return the verdict on a report about a case with a slice, or with what stands between the tags."""

    def verdict(name, affirmed, z, *, cite="report", edit=None, **options):
        reward = reward_of(**{"control": "none", **options})
        task, prompt = asked(name, cite=cite)
        evidence = f'{{"slice": {z}}}' if isinstance(z, int) else z
        text = f"<report>{report(*affirmed)}</report><evidence>{evidence}</evidence>"
        answer = task.parse(prompt, text)
        if edit is not None:
            prompt = dataclasses.replace(prompt, case=edit(prompt.case))
        (found,) = reward([Rollout(prompt=prompt, group=0, text=text, answer=answer)], {})
        if isinstance(found, Score):
            assert reward.bounds[0] <= found.value <= reward.bounds[1]
        return found

    return verdict


@pytest.mark.parametrize(
    ("z", "whole", "local"), [(2, 1, 1), (1, 2 / 3, 1), (3, 2 / 3, 1), (5, 0, 0)], ids=str
)
def test_a_slice_is_paid_by_what_is_seen_on_it(judge, z, whole, local):
    assert judge("both", PAIR, z).value == pytest.approx(whole)  # 2·2/(2 + 2), 2·1/(2 + 1), 0
    assert judge("both", PAIR, z, agreement="local").value == pytest.approx(local)


@pytest.mark.parametrize(("agreement", "value"), [("whole", 2 / 3), ("local", 1 / 2)])
def test_what_is_seen_beside_the_truth_costs(judge, agreement, value):
    eyes = {"instead": {("case-3", 2): report(*PAIR)}}
    found = judge("cyst", ["cyst"], 2, eyes=eyes, agreement=agreement)  # 2·1/(1 + 2); 1/2
    assert found.value == pytest.approx(value)
    assert found.parts == {"seen": pytest.approx(value), "control": 0.0}
    assert found.reason == "on slice 2 is seen: cyst, stone"


# What others see who are like slice 2 of "cyst", 36 pixels: both on slice 2 of "both", 45 pixels; a stone on
# slice 2 of "stone", 36 pixels; a cyst on slice 3 of "another cyst", 25 pixels.
OTHERS = {"whole": (2 / 3 + 0 + 1) / 3, "local": (1 / 2 + 0 + 1) / 3}
CONTRADICTING = {"instead": {("case-3", 2): report("stone")}}


@pytest.mark.parametrize("agreement", AGREEMENTS)
def test_a_contradicting_slice_of_like_height_and_area_is_paid_less_than_nothing(judge, agreement):
    for control, value in {"none": 0.0, "blank": 0.0, "text": 0.0, "others": -OTHERS[agreement]}.items():
        found = judge("cyst", ["cyst"], 2, eyes=CONTRADICTING, control=control, agreement=agreement)
        assert found.value == pytest.approx(value)


@pytest.mark.parametrize("agreement", AGREEMENTS)
def test_others_take_off_what_slices_of_other_patients_are_paid(judge, agreement):
    found = judge("cyst", ["cyst"], 2, control="others", agreement=agreement)
    assert found.value == pytest.approx(1 - OTHERS[agreement])
    assert found.parts == {"seen": 1.0, "control": pytest.approx(OTHERS[agreement])}


@pytest.mark.parametrize(("count", "whole"), [(1, 0), (2, 1 / 3), (3, 5 / 9), (8, 5 / 9)])
def test_the_nearest_patients_are_asked_first(judge, count, whole):
    found = judge("cyst", ["cyst"], 2, control="others", control_slices=count)  # stone, then both
    assert found.parts["control"] == pytest.approx(whole)


def test_slices_are_matched_each_by_its_own_area_and_an_empty_one_by_empty_slices(judge):
    found = judge("both", PAIR, '{"cyst": 1, "stone": 3}', cite="finding", control="others", control_slices=1)
    # like slice 1, 16 pixels: slice 1 of "cyst"; like slice 3, 36 pixels: slice 3 of "another cyst"
    assert found.parts == {"seen": 1.0, "control": pytest.approx(2 / 3)}
    assert judge("cyst", ["cyst"], 5, control="others").value == 0.0
    eyes = {"instead": {("case-3", 5): report("cyst")}}  # a false positive is paid nothing in others
    assert judge("cyst", ["cyst"], 5, eyes=eyes, control="others").value == 1.0
    assert judge("cyst", ["cyst"], 5, eyes=eyes, control="others", mask_gate=True).value == 0.0


def test_matched_slices_are_one_a_patient_and_never_of_the_own(cases, tmp_path):
    some = list(cases.values())
    second = dataclasses.replace(some[4], id="second", patient=some[2].patient)
    matched = MatchedSlices(lambda: [*some, second], tmp_path)
    crop = _crop(cases["cyst"], 2)
    found = [(one.volume.path, one.box_zyx[0]) for one in matched(cases["cyst"], crop, 2, 9)]
    wanted = [("stone", 2), ("both", 2)]  # 36 and 45 pixels; "another cyst" is also of the own patient's
    assert found[:2] == [(cases[name].volumes[0].path, z) for name, z in wanted]
    empty = matched(cases["cyst"], _crop(cases["cyst"], 5), 5, 9)
    assert {one.box_zyx[0] for one in empty} == {5}
    assert len({one.volume.path for one in empty}) == len(empty) == 4


def _crop(case, z):
    (prompt,) = ReportEvidence("unused").ask(case, Slices(slices=6))
    return next(crop for crop in prompt.crops() if crop.box_zyx[0] == z)


@pytest.mark.parametrize("bind", ["slice", "finding"])
@pytest.mark.parametrize("agreement", AGREEMENTS)
def test_a_prior_is_taken_off(judge, agreement, bind):
    def paid(control, **eyes):
        options = {"control": control, "agreement": agreement, "bind": bind}
        return judge("cyst", ["cyst"], 2, eyes=eyes, **options).value

    assert paid("blank") == paid("text") == paid("none") == 1.0
    assert paid("blank", blank=["cyst"]) == 0.0
    assert paid("blank", blank=["cyst"], instead=CONTRADICTING["instead"]) == 0.0  # not below
    assert paid("text", text="There is a cyst.") == 0.0
    assert paid("text", text=None) == 1.0  # it says nothing without a picture
    everything = {"always": report(*PAIR)}
    for control in ("blank", "text", "others"):
        assert paid(control, **everything) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("affirmed", "whole", "local"),
    [(["cyst"], 1.0, 1.0), (["stone"], 0.0, 0.0), (PAIR, 2 / 3, 1 / 2), ([], 0.0, 0.0)],  # 2·1/(2 + 1)
    ids=["right", "swapped", "invented", "omitted"],
)
def test_a_false_finding_is_paid_nothing_where_findings_are_bound(judge, affirmed, whole, local):
    for agreement, value in {"whole": whole, "local": local}.items():
        assert judge("cyst", affirmed, 2, agreement=agreement).value == 1.0  # whatever the report says
        found = judge("cyst", affirmed, 2, agreement=agreement, bind="finding")
        assert found.value == pytest.approx(value)


def test_a_finding_that_is_not_seen_on_its_slice_is_paid_nothing(judge):
    half = judge("both", PAIR, 1, bind="finding")
    assert half.value == pytest.approx(1 / 2)  # 2·1/(2 + 2)
    assert half.reason == "cyst on slice 1: seen; stone on slice 1: not seen"
    false = judge("cyst", PAIR, 2, bind="finding").reason
    assert false == "cyst on slice 2: seen; false: stone"
    nothing = judge("cyst", ["stone"], 2, bind="finding").reason
    assert nothing == "the report affirms nothing that is there"


@pytest.mark.parametrize("agreement", AGREEMENTS)
def test_bound_findings_are_paid_over_others_too(judge, agreement):
    options = {"bind": "finding", "control": "others", "agreement": agreement}
    assert judge("cyst", ["cyst"], 2, **options).value == pytest.approx(1 - 2 / 3)  # two of three show a cyst
    assert judge("cyst", ["cyst"], 2, eyes=CONTRADICTING, **options).value == pytest.approx(-2 / 3)
    assert judge("cyst", ["stone"], 2, **options).value == 0.0


@pytest.mark.parametrize(("evidence", "by_finding", "by_slice"), TABLE["paid"])
def test_each_finding_is_looked_for_on_its_own_slice(judge, evidence, by_finding, by_slice):
    found = judge("both", PAIR, evidence, cite="finding", bind="finding")
    assert found.value == pytest.approx(by_finding)
    assert judge("both", PAIR, evidence, cite="finding").value == pytest.approx(by_slice)


def test_the_mask_gate_pays_only_where_a_mask_shows_a_finding(judge):
    everywhere = {"always": report(*PAIR)}
    assert judge("both", PAIR, 5, eyes=everywhere).value == 1.0
    shut = judge("both", PAIR, 5, eyes=everywhere, mask_gate=True)
    assert (shut.value, shut.reason) == (0.0, "the mask shows no finding on the named slice")
    assert judge("both", PAIR, 3, eyes=everywhere, mask_gate=True).value == 1.0
    own = judge("both", PAIR, 3, eyes=everywhere, mask_gate=True, bind="finding")
    assert own.value == pytest.approx(1 / 2)  # the stone lies there, the cyst does not


UNSEEN = {"instead": {("case-1", z): report("cyst") for z in (1, 2)} | {("case-1", 3): report()}}


@pytest.mark.parametrize(
    ("affirmed", "z", "eyes", "costs", "free"),
    [
        (PAIR, 2, {}, 1.0, 1.0),  # both are seen on slice 2
        (PAIR, 1, {}, 1 / 2, 2 / 3),  # the stone, on slice 1 not seen, is seen elsewhere: 2·1/(1 + 2)
        (["cyst"], 1, {}, 2 / 3, 2 / 3),  # as if it had been left out
        (PAIR, 1, UNSEEN, 1 / 2, 2 / 3),  # a stone that is seen nowhere is a false one: 2·1/(2 + 1)
        (["cyst"], 1, UNSEEN, 2 / 3, 1.0),  # and need not be told: 2·1/(1 + 1)
        (PAIR, 5, {}, 0.0, 0.0),
    ],
)
def test_what_is_seen_on_another_slice_can_be_free(judge, affirmed, z, eyes, costs, free):
    for elsewhere, value in (("costs", costs), ("free", free)):
        found = judge("both", affirmed, z, eyes=eyes, bind="finding", elsewhere=elsewhere)
        assert found.value == pytest.approx(value)
    local = judge("both", affirmed, z, eyes=eyes, bind="finding", elsewhere="free", agreement="local")
    false = eyes is UNSEEN and affirmed == PAIR
    assert local.value == (0.0 if z == 5 else 0.5 if false else 1.0)


def test_neither_a_finding_that_the_case_does_not_have_nor_one_that_is_seen_nowhere_is_free(judge):
    def free(affirmed, eyes):
        return judge("cyst", affirmed, 2, eyes=eyes, bind="finding", elsewhere="free")

    everywhere = {"instead": {("case-3", z): report(*PAIR) for z in range(6)}}
    assert free(PAIR, everywhere).value == pytest.approx(2 / 3)  # 2·1/(2 + 1)
    assert free(["stone"], everywhere).value == 0.0
    nowhere = "the reader sees its findings on no slice"
    assert free(["cyst"], {"always": report()}) == Unscored(kind="not-applicable", reason=nowhere)
    silent = {"instead": {("case-3", 4): "", ("case-3", 5): ""}}
    failed = "2 of 6 slices: the reader answered ''"
    assert free(["cyst"], silent) == Unscored(kind="failed", reason=failed)


@pytest.mark.parametrize("control", ["none", "others"])
@pytest.mark.parametrize("bind", ["slice", "finding"])
def test_a_healthy_scan_is_not_scored(judge, control, bind):
    reason = "case 'case-2' is healthy: no slice shows a finding"
    for affirmed, z in (([], "null"), (["cyst"], 2)):
        found = judge("healthy", affirmed, z, control=control, bind=bind, mask_gate=True)
        assert found == Unscored(kind="not-applicable", reason=reason)


@pytest.mark.parametrize("control", ["none", "others"])
@pytest.mark.parametrize(("evidence", "said"), TABLE["refused"])
@pytest.mark.parametrize("bind", ["slice", "finding"])
def test_an_answer_without_a_slice_is_paid_nothing_and_told_why(judge, evidence, said, control, bind):
    found = judge("both", PAIR, evidence, control=control, bind=bind)
    assert found.value == 0.0
    assert said in found.reason


@pytest.mark.parametrize(
    ("always", "said"),
    [
        ("", "slice 2: the reader answered ''"),
        (" ", "slice 2: the reader answered ' '"),
        ("There is a cyst. " * 2500, "slice 2: the reader answered 42500 characters, at most 4000"),
    ],
)
def test_a_reader_that_does_not_answer_pays_nothing_and_takes_nothing(judge, always, said):
    for bind in ("slice", "finding"):
        found = judge("cyst", ["cyst"], 2, eyes={"always": always}, bind=bind)
        assert found == Unscored(kind="failed", reason=said)


class Silent(Reader):
    """Answers only about slice 2 of a case, or not even that."""

    deterministic = True

    def __init__(self, path="", extra=0):
        self.path, self.extra = path, extra

    def __call__(self, questions):
        own = [one.crops[0].volume.path == self.path and not one.crops[0].blank for one in questions]
        return [report("cyst") if is_own else None for is_own in own] + [None] * self.extra


@pytest.mark.parametrize("control", ["blank", "others"])
def test_none_is_no_verdict_and_a_reader_with_too_many_answers_is_named(judge, cases, control):
    found = judge("cyst", ["cyst"], 2, reader=Silent())
    assert found == Unscored(kind="failed", reason="slice 2: the reader answered None")
    reader = Silent(cases["cyst"].volumes[0].path)
    found = judge("cyst", ["cyst"], 2, reader=reader, control=control)
    assert found == Unscored(kind="failed", reason="control of slice 2: the reader answered None")
    with pytest.raises(ValueError, match="its reader gave 3 answers to 1 questions"):
        judge("cyst", ["cyst"], 2, reader=Silent(extra=2))


def test_what_the_labeler_cannot_read_is_no_verdict(judge):
    found = judge("cyst", ["cyst"], 2, labeler=Unreading())
    assert found.reason == "slice 2: the reader's answer could not be read: timed out"
    found = judge("cyst", ["cyst"], 2, labeler=Unreading(), bind="finding")
    assert found == Unscored(kind="failed", reason="the report could not be read: timed out")


def test_what_the_case_is_uncertain_of_counts_nowhere(judge):
    def unsure(case):
        findings = [case.findings[0], Finding(name="stone", state="uncertain")]
        return dataclasses.replace(case, findings=tuple(findings))

    eyes = {"instead": {("case-3", 2): report(*PAIR)}}
    for bind in ("slice", "finding"):
        assert judge("cyst", PAIR, 2, eyes=eyes, bind=bind, edit=unsure).value == 1.0


def test_what_is_not_known_or_like_no_other_slice_is_not_scored(judge, reward_of, asked):
    def without(**fields):
        return lambda case: dataclasses.replace(case, **fields)

    found = judge("cyst", ["cyst"], 2, edit=without(findings=()))
    assert found.reason == "case 'case-3' has no known findings: no slice shows a finding"
    for options in ({"control": "others"}, {"mask_gate": True}):
        found = judge("cyst", ["cyst"], 2, edit=without(masks={}), **options)
        assert found == Unscored(kind="not-applicable", reason="finding 'cyst' has no mask")
    assert judge("cyst", ["cyst"], 2, edit=without(masks={})).value == 1.0
    task, prompt = asked("cyst")
    (found,) = reward_of("cyst", "healthy")(answer_group(task, prompt, [task.gold(prompt)[0]]), {})
    assert found == Unscored(kind="not-applicable", reason="no other patient has a slice like 2")


def test_a_labeler_without_the_words_of_the_data_is_refused(reward_of):
    reward_of().ready()
    reward_of(labeler=NegationRules(findings=PAIR)).ready()
    for labeler in (NegationRules(), Unreading()):
        with pytest.raises(DataError, match=r"reads no finding 'cyst' in 'There is .* findings = \['cyst'"):
            reward_of(labeler=labeler).ready()


def test_others_of_one_patient_and_free_findings_without_bound_ones_are_refused(reward_of):
    with pytest.raises(RecipeError, match=r"elsewhere: 'free' is .* bind = 'slice' asks for none"):
        reward_of(elsewhere="free")
    reward_of("cyst", control="blank").ready()
    with pytest.raises(DataError, match=r"of the 1 training cases .* are of 1 patients\. Give more patients"):
        reward_of("cyst", control="others").ready()


def test_the_reader_is_asked_about_each_slice_once_and_told_no_report(cases, reward_of, asked):
    reader = TrueEyes(cases.values())
    reward = reward_of(reader=reader, control="blank", question="What is there?")
    task, prompt = asked("both")
    gold, _ = task.gold(prompt)
    reward(answer_group(task, prompt, [gold, gold, gold.replace("2}", "1}")]), {})
    assert [(one.crops[0].box_zyx[0], one.crops[0].blank) for one in reader.asked] == [
        (2, False), (2, True), (1, False), (1, True),
    ]  # fmt: skip
    assert {one.text for one in reader.asked} == {"What is there?"}


@pytest.mark.parametrize("control", ["none", "blank", "text", "others"])
@pytest.mark.parametrize("bind", ["slice", "finding"])
@pytest.mark.parametrize("agreement", AGREEMENTS)
def test_it_keeps_the_contract_of_a_reward(reward_of, asked, control, bind, agreement):
    reward = reward_of(control=control, bind=bind, agreement=agreement)
    assert reward.bounds == ((-1.0, 1.0) if control == "others" else (0.0, 1.0))
    good, bad = [], []
    for group, name in enumerate(PAIR):
        task, prompt = asked(name)
        gold, _ = task.gold(prompt)
        wrong = gold.split("<evidence>")[0] + '<evidence>{"slice": 5}</evidence>'
        good += answer_group(task, prompt, [gold, gold], group)
        bad += answer_group(task, prompt, [wrong, gold.split("<evidence>")[0]], group)
    check_reward(reward, good, bad)
