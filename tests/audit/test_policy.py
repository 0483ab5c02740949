import dataclasses
import functools
import json
import re

import planted
import pytest
from planted import ASKING, EVALUATION, NAMES, NEVER, SEEN, Contrary, Looker, Memory, TextOnly, World, audited

from evidcore.api import Answers, Condition, DataError
from evidcore.errors import ContractError
from evidcore.evaluate.eval_stage import AnonymizedPolicy

TRAINING = World(400, seed=99, confounded=0.8)
WORLD = World(100, seed=3, confounded=0.8)
BLANK = [{"use": "blank"}]


def rows_of(audit):
    return {(row.name, row.metric): row for row in audit.rows()}


@pytest.mark.slow
@pytest.mark.parametrize("policy", NEVER)
def test_what_does_not_look_is_never_told_to_see(policy):
    for seed in range(3):
        world = World(100, seed=seed, confounded=0.8)
        said = audited(policy(world), world, TRAINING, seed=seed).verdict()
        assert SEEN not in said
        assert "The volume is used" not in said or policy is planted.Company  # it does read volumes


@pytest.mark.parametrize("questions", [2, 3])
def test_who_keeps_what_was_asked_must_beat_what_the_questions_about_a_scan_tell_together(questions):
    world = World(120, seed=20, questions=questions)
    conditions = [*BLANK, {"use": "scrambled"}, {"use": "other-patient"}, {"use": "perturbed"}]
    policy = planted.Hearsay(world)
    audit = audited(policy, world, TRAINING, conditions=conditions)
    assert audit.verdict().startswith("No sign that looking helps")
    assert "other questions about the scan, then" in audit.gain.says
    policy.answers_alone = True  # which is not so
    fooled = audited(policy, world, TRAINING, conditions=conditions)
    assert fooled.verdict().startswith("The volume is used")
    assert "blind-rule-of-a-scan" not in {rung.name for rung in fooled.rungs}


@pytest.mark.parametrize("conditions", [None, [*BLANK, {"use": "scrambled"}, {"use": "other-patient"}]])
def test_who_does_as_well_over_another_patient_s_volumes_is_told_nothing(conditions):
    world = World(100, seed=21)
    audit = audited(planted.Startled(world), world, TRAINING, conditions=conditions)
    assert audit.gain.above.low > 0.1
    assert audit.other.above.value == 0.0
    assert audit.verdict().startswith("Not told" if conditions is None else "No sign that looking helps")


def test_blank_volumes_alone_prove_no_sight():
    world = World(100, seed=21)
    for policy in (planted.Startled, planted.Looker):
        assert audited(policy(world), world, TRAINING, conditions=BLANK).verdict().startswith("Not told")


@pytest.mark.slow
def test_each_shortcut_falls_on_its_own_rung():
    def above(policy):
        return {rung.name: rung.above for rung in audited(policy(WORLD), WORLD, TRAINING).rungs}

    header, histogram, company, memory = map(
        above, (planted.HeaderOnly, planted.Histogram, planted.Company, Memory)
    )
    assert header["other-patient"].low > 0.1  # what was called a grounding margin
    assert header["blank"].value == 0.0
    assert histogram["twin"].low > 0.3
    assert histogram["scrambled"].value == 0.0
    assert company["other-patient"].low > 0
    assert not company["twin"].low > 0
    assert memory["twin"].low > 0.3
    assert memory["perturbed"].low > 0.3


@functools.cache
def looker(hit=1.0, false=0.0, *conditions):
    """Return the audit of a policy that looks, once for all tests."""
    tables = [{"use": name} for name in conditions] or None
    return audited(Looker(WORLD, hit, false), WORLD, TRAINING, conditions=tables)


def rung(audit, name):
    return next(rung for rung in audit.rungs if rung.name == name)


def verdict_with(audit, name, instead, /, **changed):
    """Return the verdict where a rung were another."""
    other = dataclasses.replace(rung(audit, name), **changed)
    rungs = [one for one in audit.rungs if one.name != instead]
    return dataclasses.replace(audit, rungs=(*rungs, other)).verdict()


@pytest.mark.parametrize(("hit", "false"), [(0.8, 0.05), (0.5, 0.1)])
def test_a_policy_that_looks_is_told_to_see(hit, false):
    audit = looker(hit, false)
    assert audit.verdict().startswith(f"{SEEN}: +")
    assert "over the same patients without what is asked" in audit.verdict()
    assert "in part" not in audit.verdict()
    assert rung(audit, "sham").above.value < 0.05
    gain = audit.gain  # twins do not beat all that does not look: no part of it either
    weak = tuple(one + 0.5 for one in gain.differences)
    assert verdict_with(audit, gain.name, gain.name, differences=weak).startswith(f"{SEEN}: +")
    unruled = dataclasses.replace(audit, blind=None).verdict()
    assert "The weaker claim: no blind arm was trained beside it, and no blind rule is known." in unruled


def test_a_policy_that_sees_and_reads_a_proxy_too_is_told_to_see_in_part():
    class Both(Looker):
        """Sees some findings; else goes by the kind of patient, which the voxels tell too."""

        def liking(self, option, crop, prompt):
            kind = self.world.kind[crop.volume.path] == NAMES.index(option) % 2
            is_seen = option in self.seen(crop) and super().liking(option, crop, prompt)
            return 2 * is_seen + (kind and bool(self.seen(crop)))

    audit = audited(Both(WORLD, 0.4, 0.0), WORLD, TRAINING)
    assert audit.verdict().startswith(f"{SEEN} in part: +")
    elsewhere = r"The rest is something else in the scan: without what is asked \+[\d.]+ over the best that"
    assert re.search(elsewhere, audit.verdict())


def test_without_twins_nothing_is_told_to_be_seen():
    world = World(100, seed=4)
    blind = [{"use": "blank"}, {"use": "scrambled"}, {"use": "other-patient"}]
    for conditions in (blind, [*blind, {"use": "matched"}]):
        used = audited(Looker(world), world, TRAINING, conditions=conditions).verdict()
        assert used.startswith("The volume is used: +")
        assert "Cues that come with what is asked are not excluded: no scan was shown" in used
        assert ("over like patients without what is asked" in used) == (conditions is not blind)


def test_what_notices_changes_is_not_told_to_see_where_no_other_patient_shows_it():
    class Noticing(Looker):
        """Knows what it sees in scans as they are, and answers with what is least common else."""

        def liking(self, option, crop, prompt):
            if " without " in crop.volume.path:
                return NAMES.index(option)
            return super().liking(option, crop, prompt)

    world, training = (World(count, seed=seed, prior=0.95) for count, seed in ((150, 5), (400, 6)))
    twins = [*BLANK, {"use": "twin"}]
    told = audited(Noticing(world), world, training, conditions=twins).verdict()
    assert told.startswith("Not told: +")
    assert "so it may notice the change. Ask over like patients too (condition `matched`)" in told
    told = audited(Noticing(world), world, training, conditions=[*twins, {"use": "sham"}]).verdict()
    assert "are lost over the same patients without something else" in told


@pytest.mark.slow
def test_few_patients_leave_it_open_whether_all_of_the_gain_is_sight():
    class Proxy(Looker):
        """Sees little; else goes by the kind of patient, which the voxels tell too."""

        def liking(self, option, crop, prompt):
            kind = self.world.kind[crop.volume.path] == NAMES.index(option) % 2
            return 2 * super().liking(option, crop, prompt) + (kind and bool(self.seen(crop)))

    told = []
    for seed in range(40):
        world = World(30, seed=seed, confounded=0.8, questions=3)
        told.append(audited(Proxy(world, 0.2), world, TRAINING, seed=seed).verdict().partition(":")[0])
    assert told.count(SEEN) <= 2
    assert f"{SEEN}, in whole or in part" in told


@pytest.mark.slow
def test_the_best_that_does_not_look_may_be_a_trained_blind_arm():
    class Learnt(planted.Planted):
        """Knows without a look what no blind rule finds: here, the answers about every second patient."""

        def liking(self, option, crop, prompt):
            assert crop.blank
            number = int(crop.volume.path.removesuffix(".nii").partition("-")[2])
            return number % 2 and option in self.world.shows[crop.volume.path]

    policy, alone = Looker(WORLD, 0.3, 0.1), looker(0.3, 0.1)
    assert alone.verdict().startswith(SEEN)
    assert "The weaker claim: no blind arm was trained beside it." in alone.verdict()
    for arm, is_seen in ((TextOnly(WORLD), True), (Learnt(WORLD), False)):
        audit = audited(policy, WORLD, TRAINING, blind_arm=arm)
        assert (SEEN in audit.verdict()) == is_seen
        assert "weaker claim" not in audit.verdict()
        rows = rows_of(audit)
        own, dark = audit.score("own").value, audit.score("blind-arm").value
        assert rows["choice", "own_minus_blind_arm"].value == pytest.approx(own - dark)
        assert rows["a policy trained alike over blank volumes", "strict_accuracy"].condition == "blind-arm"
        assert [line["condition"] for line in audit.lines()].count("blind-arm") == len(WORLD.prompts())
    assert audit.gain.name == "blind-arm"
    assert "over a policy trained alike over blank volumes" in audit.verdict()


@pytest.mark.slow
def test_a_weak_looker_that_throws_its_priors_away_is_not_told_to_use_the_volume():
    world, training = (World(count, seed=seed, prior=0.95) for count, seed in ((150, 5), (400, 6)))
    audit = audited(Looker(world, 0.25, 0.1), world, training)
    assert audit.other.above.value > 0.05  # own minus another patient's
    assert audit.gain.name == "blind-rule"
    assert audit.gain.above.value < 0
    assert not audit.verdict().startswith((SEEN, "The volume is used"))


def test_a_policy_below_what_does_not_look_is_told_so():
    said = audited(Contrary(WORLD), WORLD, TRAINING).verdict()
    assert said.startswith("It scores below the best that does not look: -")


def test_nothing_found_names_what_would_be_missed():
    audit = audited(TextOnly(WORLD), WORLD, TRAINING)
    assert audit.verdict().startswith("No sign that looking helps: ")
    assert "would be missed" in audit.verdict() or "the same in every draw" in audit.verdict()


def test_own_minus_another_by_hand():
    policy = Looker(WORLD, 0.5)
    audit = audited(
        policy, WORLD, TRAINING, conditions=[{"use": "blank"}, {"use": "other-patient", "repeats": 2}]
    )
    own, other = (audit.score(condition).value for condition in ("own", "other-patient"))
    assert audit.other.above.value == pytest.approx(own - other)
    rows = rows_of(audit)
    assert rows["own volumes", "strict_accuracy"].value == pytest.approx(own)
    assert rows["another patient's volumes", "strict_accuracy"].note == "mean over 2 exchanges of volumes"
    assert rows["choice", "grounding_margin"].value == pytest.approx(own - other)
    assert rows["choice", "own_minus_blank"].value == pytest.approx(own - audit.score("blank").value)
    blind = rows["choice", "own_minus_blind"]
    assert blind.value == min(rung.above.value for rung in audit.rungs if rung.role == "blind")
    assert blind.extra["against"] in ("blank", "blind-rule")
    assert {row.condition for row in audit.rows()} == {"own", "other-patient", "blank", ""}
    json.dumps([row.to_json() for row in audit.rows()])


def test_findings_that_are_not_looked_at_are_marked():
    class Partial(Looker):
        """Sees the first finding alone."""

        def seen(self, crop):
            return super().seen(crop) & {planted.NAMES[0]}

    rows = rows_of(audited(Partial(WORLD), WORLD, TRAINING, conditions=BLANK))
    assert "no sign" not in rows["choice", f"own_minus_blind/{planted.NAMES[0]}"].note
    assert rows["choice", f"own_minus_blind/{planted.NAMES[5]}"].note.startswith("no sign of looking")


def test_answers_of_every_condition_are_kept_and_those_of_the_blind_rule():
    audit = audited(
        Looker(WORLD), WORLD, TRAINING, conditions=[*BLANK, {"use": "other-patient", "repeats": 2}]
    )
    lines, count = {}, len(WORLD.prompts())
    for line in audit.lines():
        lines.setdefault(line["condition"], []).append(line)
    names = ("own", "other-patient", "blank", "blind-rule")
    assert [len(lines[name]) for name in names] == [count, 2 * count, count, count]
    assert all(line["images"][0].endswith("&blank=1") for line in lines["blank"])
    assert not any(line["images"] for line in lines["blind-rule"]), "a rule looks at nothing"
    scores = [line["figures"]["strict_accuracy"] for line in lines["blind-rule"]]
    assert sum(scores) / count == pytest.approx(audit.reference_lines()["prior_only"])


def test_own_answers_are_those_that_the_evaluation_alone_would_score():
    policy, prompts = Looker(WORLD), WORLD.prompts()
    asking = dataclasses.replace(ASKING, headline_only=True)
    said = EVALUATION.answer(AnonymizedPolicy(policy), prompts, WORLD.task, asking)
    [alone] = EVALUATION.score([Answers(prompts, said)], WORLD.task, "choice")
    assert looker(1.0, 0.0, "blank").results["own"] == (alone,)


def test_few_twins_are_no_sign_for_or_against():
    twins = [*BLANK, {"use": "other-patient"}, {"use": "twin", "max_questions": 15}]
    said = audited(Looker(WORLD), WORLD, TRAINING, conditions=twins).verdict()
    assert said.startswith("The volume is used, and undecided is what in it: +")
    assert "too few patients" in said
    # of several showings without what is asked, the one that fails is named
    audit = audited(Looker(WORLD), WORLD, TRAINING, conditions=[*twins, {"use": "matched"}])
    zero = dataclasses.replace(rung(audit, "matched").above, value=0.0, low=-0.1, high=0.1)
    said = verdict_with(audit, "matched", "matched", above=zero)
    assert "no sign that what is asked is seen" in said
    assert "+0.0 points over like patients without what is asked, 95 % interval -10.0 to +10.0" in said


def test_a_rung_of_few_patients_leaves_it_undecided_and_is_named():
    audit = looker(1.0, 0.0, "blank")
    above = rung(audit, "blank").above
    few = dataclasses.replace(above, value=1.0, low=None, high=None, note="too few patients (3 of 20)")
    said = verdict_with(audit, "blank", "", name="dark", says="a dark volume", above=few)
    assert said == "Undecided: +100.0 points over a dark volume, too few patients (3 of 20)."


def test_no_verdict_rests_on_what_is_no_number(monkeypatch):
    from evidcore.evaluate.choice import ChoiceResult

    own = ChoiceResult.values
    monkeypatch.setattr(ChoiceResult, "values", lambda self, metric: (float("nan"), *own(self, metric)[1:]))
    with pytest.raises(ContractError, match=r"strict_accuracy: 1 of \d+ answers have no finite value"):
        audited(Looker(WORLD), WORLD, TRAINING, conditions=BLANK)


def test_two_patients_who_agree_mark_no_finding():
    world = World(100, seed=3, questions=1)
    prompts = world.prompts()
    rare = planted.NAMES[0]
    asked = [one for one in prompts if one.reference["finding"] == rare]
    prompts = [*asked[:2], *(one for one in prompts if one.reference["finding"] != rare)]
    rows = rows_of(audited(Looker(world), world, TRAINING, conditions=BLANK, prompts=prompts))
    assert rows["choice", f"own_minus_blind/{rare}"].note.startswith("no sign of looking")
    assert rows["choice", f"own_minus_blind/{rare}"].extra["p_holm"] >= 0.5


def test_a_condition_that_cannot_be_asked_is_left_out():
    class Bare(World):
        def without(self, case, finding):
            return None

    world = Bare(40, seed=9)
    audit = audited(Looker(world), world, TRAINING)
    assert audit.conditions.keys() - audit.results.keys() == {"twin", "sham"}
    assert "twin" not in {row.condition for row in audit.rows()}


@pytest.mark.parametrize(
    ("show", "message"), [(lambda prompts, seed: prompts[1:], "38 questions shown of 39")]
)
def test_a_condition_that_loses_questions_is_refused(show, message, offered):
    class Losing(Condition):
        says, role, repeats = "some volumes", "other", 2

        def show(self, prompts, *, seed, dataset):
            return show(list(prompts), seed)

    offered("evid-losing", "[evidcore.condition]\nlosing = evid_losing:It\n", It=Losing)
    world = World(20, seed=1)
    with pytest.raises(DataError, match=message):
        audited(Looker(world), world, TRAINING, conditions=[{"use": "losing"}])


def test_a_sealed_prompt_holds_text_and_pixels_alone():
    prompt = WORLD.prompts()[0]
    sealed = prompt.sealed(7)
    assert sealed.parts == prompt.parts
    assert (sealed.id, dict(sealed.reference)) == ("prompt-7", {})
    case = sealed.case
    assert (case.patient, case.report, case.findings, case.volumes) == (None, None, (), ())
    assert not {prompt.id, prompt.case.id, str(prompt.case.patient)} & {sealed.id, sealed.case.id}
