"""The settling test, with readers that see, and with readers that go by something else."""

import dataclasses

import pytest
from disc_cases import disc_case
from evidcore_plugin_emrl.cross_view import CrossView
from evidcore_plugin_emrl.matched_slices import NOTHING, MatchedSlices, shown_findings
from evidcore_plugin_emrl.report_evidence import ReportEvidence
from evidcore_plugin_emrl.settled import FALSE
from evidcore_plugin_emrl.settling import OracleReader
from evidcore_plugin_emrl.settling_conditions import CONDITIONS, conditions

from evidcore.api import Reader, Rollout, Score
from evidcore.builtin.views import Slices
from evidcore.data.preparation import show

KINDS = {"cyst": 0.0, "stone": 90.0, "scar": 130.0, "bleed": 170.0, "fat": -60.0, "gas": -200.0}
TAG_HU = 1000


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Return 48 patients with one finding or two, with a tag that tells whose scan it is, and 4 healthy."""
    folder, names = tmp_path_factory.mktemp("settling"), list(KINDS)
    found = []
    for number in range(48):
        present = [names[number % 6]] + ([names[(number + 1) % 6]] if number % 4 == 0 else [])
        found.append(disc_case(folder, number, present, kinds=KINDS, tag_hu=TAG_HU + number))
    return [*found, *(disc_case(folder, number, [], kinds=KINDS) for number in range(48, 52))]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def matched(cases, cache):
    return MatchedSlices(lambda: cases, cache)


def gold(cases, cache, cite="report", margin_slices=0):
    task, found = ReportEvidence(cache, cite=cite, margin_slices=margin_slices), []
    for group, case in enumerate(cases):
        for prompt in task.prompts(case, Slices(slices=6), 0):
            text, _ = task.gold(prompt)
            found.append(Rollout(prompt=prompt, group=group, text=text, answer=task.parse(prompt, text)))
    return found


@pytest.fixture(scope="module")
def settle(cases, cache, matched):
    """Return a function that gives the checks of a reader by name under options, and what was settled."""
    rollouts = gold(cases, cache)

    def run(reader, made=CrossView, **options):
        reward = made(lambda: cases, cache, reader=reader, **options)
        reward.matched = matched
        settled = reward.settled(rollouts)
        return {one.check.removeprefix("settling: "): one for one in settled.checks()}, settled

    return run


def tagged(cases, crop):
    """Read the tag in the corner, which neither air nor noise has."""
    number = int(show(crop).array[0, 0, 0]) - TAG_HU
    patients = list(cases.values())
    return patients[number].present() if 0 <= number < len(patients) else []


# what a reader names that goes by something else than lesions, of cases by their file and a crop
PLANTED = {
    "prior": lambda cases, crop: ["cyst", "stone"],
    "everything": lambda cases, crop: KINDS,
    "nothing": lambda cases, crop: [],
    "height": lambda cases, crop: [list(KINDS)[crop.box_zyx[0]]],
    "file name": lambda cases, crop: cases[crop.volume.path].present(),
    "tag": tagged,
}


class Planted(Reader):
    deterministic = True

    def __init__(self, goes_by, cases=()):
        self.goes_by, self.cases = goes_by, {case.volumes[0].path: case for case in cases}

    def __call__(self, questions):
        return [self.answer(crops[0] if (crops := question.crops) else None) for question in questions]

    def answer(self, crop):
        if crop is None and self.goes_by not in ("prior", "everything"):
            return None
        return " ".join(f"There is a {name}." for name in PLANTED[self.goes_by](self.cases, crop)) or NOTHING


@pytest.mark.parametrize("bind", ["slice", "finding"])
@pytest.mark.parametrize("agreement", ["whole", "local"])
def test_perfect_eyes_raise_no_alarm(cases, cache, settle, agreement, bind):
    checks, _ = settle(OracleReader(cases, cache), agreement=agreement, bind=bind)
    assert {name: one.outcome for name, one in checks.items()} == dict.fromkeys(checks, "fine")
    wanted = {"reader", "goes by", *CONDITIONS} | ({FALSE} if bind == "finding" else set())
    assert checks.keys() == wanted
    assert checks["goes by"].says.startswith("the reader goes by the lesions of the slice; ")
    names = "names 100.0% of the findings that the right slices show, leaves 100.0%"
    assert checks["reader"].says.startswith(names)


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        ("prior", "the reader says the same of every slice: cyst, stone; "),
        ("everything", "the reader says the same of every slice: bleed, cyst, fat, gas, scar, stone; "),
        ("nothing", "the reader says the same of every slice: nothing; "),
        ("height", "the reader goes by the slice's height in the scan; "),
        ("file name", "the reader goes by the patient and not by the slice: by the file; "),
        ("tag", "by the patient and not by the slice: by something that all slices of a patient show; "),
    ],
)
def test_each_planted_reader_is_named(cases, settle, planted, says):
    checks, _ = settle(Planted(planted, cases))
    assert checks["goes by"].outcome == "alarm"
    assert says in checks["goes by"].says
    assert checks["reader"].outcome == "note"
    if planted in ("prior", "everything", "nothing", "height"):
        assert checks["right"].outcome == "alarm"
        assert checks["right"].says.endswith("; at least 0.4 is needed")


def test_a_prior_is_paid_on_contradicting_slices_unless_a_control_takes_it_off(cases, settle):
    checks, settled = settle(Planted("everything"), control="none")
    assert checks["contradicting"].outcome == "alarm"
    assert checks["contradicting"].says.endswith("; the upper bound may be 0.05 at most")
    assert checks["contradicting"].says.startswith(f"pays {settled.pays['contradicting']} over")
    assert settled.pays["blank"].value > 0.05
    assert checks["blank"].outcome == "fine"
    for control in ("blank", "text", "others"):
        _, settled = settle(Planted("everything"), control=control)
        assert settled.pays["contradicting"].value == pytest.approx(0.0)
        assert settled.pays["contradicting"].high < 0.1  # all alike: the exact bound over 48 patients


@pytest.mark.parametrize(
    ("value", "outcome", "ends"),
    [(0.27, "alarm", "; at least 0.28 is needed, 80% of what perfect eyes are paid"), (0.29, "fine", "")],
)
def test_a_line_that_perfect_eyes_do_not_reach_is_drawn_lower(cases, cache, settle, value, outcome, ends):
    _, settled = settle(OracleReader(cases, cache))
    right = dataclasses.replace(settled.pays["right"], value=value, eyes=0.35)
    low = dataclasses.replace(settled, pays={**settled.pays, "right": right})
    (found,) = (one for one in low.checks() if one.check == "settling: right")
    assert found.outcome == outcome
    assert found.says.endswith(ends)


class PaysWords(CrossView):
    """Pays for every finding that a report affirms."""

    def __call__(self, rollouts, earlier):
        super().__call__(rollouts, earlier)
        return [Score(value=0.2 * one.answer.report.count("There is a")) for one in rollouts]


def test_a_false_finding_that_pays_is_an_alarm(cases, cache, settle):
    checks, _ = settle(OracleReader(cases, cache), PaysWords, bind="finding")
    assert checks[FALSE].outcome == "alarm"
    assert checks[FALSE].says.startswith("pays 0.200 (95 %")
    assert checks["contradicting"].outcome == "alarm"


def test_a_false_report_is_paid_in_full_where_the_slice_is_bound_and_it_is_said(cases, cache, settle):
    checks, settled = settle(OracleReader(cases, cache))
    for name in ("swapped", "invented"):
        assert settled.pays[name].value == settled.pays["right"].value
        assert checks[name].says.endswith("; by its formula, which has no report in it")


def test_pay_of_perfect_eyes_by_hand(cases, cache, settle):
    """Without a control and of one finding a scan, the right slice is paid 1 and all others nothing."""
    checks, settled = settle(OracleReader(cases, cache), control="none", agreement="local")
    for name in CONDITIONS:
        pay = settled.pays[name]
        wanted = 1.0 if name in ("right", "swapped", "invented") else 0.0
        assert (pay.value, pay.eyes) == (wanted, wanted)
        assert pay.pairs == 48
    share = 1 - 0.025 ** (1 / 48)  # exact binomial bound over 48 patients who are all alike
    figures = {"value": 1.0, "low": pytest.approx(1 - share), "high": 1.0, "pairs": 48.0, "eyes": 1.0}
    assert checks["right"].figures == figures
    _, settled = settle(OracleReader(cases, cache), agreement="local")
    assert settled.pays["contradicting"].value < 0  # what others are paid is taken off


def test_the_mask_gate_shuts_what_the_masks_do_not_show(cases, settle):
    (checks, plain), (gated_checks, gated) = (
        settle(Planted("everything"), control="none", mask_gate=is_gated) for is_gated in (False, True)
    )
    for name in ("contradicting", "empty"):
        assert plain.pays[name].value > 0.2
        assert gated.pays[name].value == 0.0
    assert gated.pays["right"] == plain.pays["right"]
    assert gated_checks["goes by"] == checks["goes by"]  # told from the same slices
    assert plain.looks > 3 * 48  # other patients' among them


def test_a_second_reader_gives_a_kappa(cases, cache, settle):
    eyes = OracleReader(cases, cache)
    checks, settled = settle(eyes, second_reader=eyes)
    assert settled.kappa == 1.0
    assert checks["reader"].says.endswith("; kappa with the second reader 1.000")
    _, settled = settle(eyes, second_reader=Planted("everything"))
    assert settled.kappa == pytest.approx(0.0)


def test_each_question_is_asked_once(cases, cache, settle):
    asked = []

    class Counted(OracleReader):
        def __call__(self, questions):
            asked.extend(questions)
            return super().__call__(questions)

    settle(Counted(cases, cache))
    assert len(asked) == len(set(asked))


def test_too_few_scans_or_nothing_that_contradicts_them_are_a_note_and_the_reader_is_not_asked(cases, cache):
    cysts = [case for case in cases if case.present() == ("cyst",)]
    alike = [dataclasses.replace(case, id=f"{case.id} {copy}") for copy in range(5) for case in cysts]
    too_few = (
        "7 scans with a finding are too few to say whether a contradicting slice pays; raise --limit (20 are "
        "needed, 200 are enough)"
    )
    nothing = (
        f"of {len(alike)} scans with a finding none has masks and another patient's slice to contradict it"
    )
    for known, judged, says in ((cases, cases[:7], too_few), (cysts, alike, nothing)):
        reward = CrossView(lambda known=known: known, cache, reader=Planted("no reader"))
        (found,) = reward.checks(gold(judged, cache))
        assert (found.check, found.outcome) == ("settling", "note")
        assert found.says.startswith(says)


def test_fewer_than_20_pairs_tell_nothing(cases, cache):
    settled = CrossView(lambda: cases, cache, reader=OracleReader(cases, cache)).settled(
        gold(cases[:9], cache)
    )
    checks = {one.check: one for one in settled.checks()}
    assert checks["settling: contradicting"].outcome == "note"
    assert checks["settling: contradicting"].says.endswith("; 9 pairs are too few to say; raise --limit")


def test_what_the_conditions_show(cases, cache, matched):
    (rollout,) = gold(cases[1:2], cache)
    case = rollout.prompt.case
    z = rollout.answer.evidence.slice
    made = conditions(rollout, matched, list(KINDS), cache)
    crops = {name: one.prompt.crops()[0] for name, one in made.items()}
    assert all(len(one.prompt.crops()) == 1 for one in made.values())
    assert crops["right"].box_zyx[0] == z
    assert crops["blank"] == dataclasses.replace(crops["right"], blank=True)
    assert crops["noise"] == dataclasses.replace(crops["right"], change="scrambled")
    other = next(one for one in cases if one.volumes[0] == crops["contradicting"].volume)
    shown = shown_findings(other, crops["contradicting"], cache)
    assert shown
    assert not shown & set(case.present())
    assert made["contradicting"].answer.evidence.slice == crops["contradicting"].box_zyx[0]
    assert crops["empty"].volume == case.volumes[0]
    assert not shown_findings(case, crops["empty"], cache)
    assert abs(crops["empty"].box_zyx[0] - z) <= 2
    (present,) = case.present()
    assert made["invented"].answer.report.count("There is a") == 2
    assert present not in made["swapped"].answer.report
    assert len({one.prompt.id for one in made.values()}) == len(made)


def test_slices_cited_for_findings_are_each_contradicted(cases, cache, matched):
    (rollout,) = gold(cases[4:5], cache, cite="finding")
    cited = rollout.answer.evidence.slices
    made = conditions(rollout, matched, list(KINDS), cache)
    assert made["contradicting"].answer.evidence.slices.keys() == cited.keys()
    assert len(made["contradicting"].prompt.crops()) == len(set(cited.values()))
    swapped = made["swapped"].answer.evidence.slices
    assert set(swapped.values()) == set(cited.values())
    assert len(set(swapped) & set(cited)) == 1
    assert made["omitted"].answer.evidence.slices.keys() < cited.keys()


def test_an_answer_without_a_slice_has_no_conditions(cases, cache, matched):
    (healthy,) = gold(cases[-1:], cache)
    assert conditions(healthy, matched, list(KINDS), cache) == {}


def test_labels_that_are_off_by_a_margin_settle_as_the_right_slices_do(cases, cache):
    reward = CrossView(lambda: cases, cache, reader=OracleReader(cases, cache))
    exact, off = (reward.settled(gold(cases, cache, margin_slices=some)) for some in (0, 2))
    assert exact.pays == off.pays
