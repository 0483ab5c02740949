from __future__ import annotations

import dataclasses
import json
import random

import pytest

from evidcore.audit.policy import PolicyAudit, blanked, exchanged
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.case import Case, Finding, VolumeRef
from evidcore.contracts import Answers, Asking, Policy
from evidcore.errors import DataError
from evidcore.registry import factory

NAMES = tuple(f"finding {letter}" for letter in "abcdefghijkl")
TASK = Choice(think=False, questions_per_case=2)


def population(count, *, first=0, seed=0, prior=0.0):
    """Draw cases; `prior` is how much likelier the first findings of the list are."""
    rng = random.Random(seed)
    cases = []
    for number in range(first, first + count):
        chances = [0.25 + prior * (6 - index) / 24 for index in range(len(NAMES))]
        states = ["present" if rng.random() < chance else "absent" for chance in chances]
        cases.append(
            Case(
                id=f"c{number}",
                patient=f"p{number}",
                volumes=(VolumeRef(path=f"{number}.nii"),),
                findings=tuple(Finding(name=n, state=s) for n, s in zip(NAMES, states, strict=True)),
            )
        )
    return cases


def asked(cases, seed=1):
    return [prompt for case in cases for prompt in TASK.prompts(case, Volume(), seed)]


class Looker(Policy):
    """Knows what every volume shows and answers with it; of several or none it takes one by a fixed die.

    `sight` is the share of findings that it sees.
    """

    def __init__(self, cases, sight=1.0):
        rng = random.Random(1)
        self.shows = {
            case.volumes[0].path: {name for name in case.present() if rng.random() < sight} for case in cases
        }

    def generate(self, prompts, *, max_new_tokens, temperature=0.0):
        return [f"<answer>{self.letter(prompt)}</answer>" for prompt in prompts]

    def letter(self, prompt):
        (crop,) = prompt.crops()
        seen = set() if crop.blank else self.shows[crop.volume.path]
        options = prompt.reference["options"]
        fitting = [index for index, name in enumerate(options) if name in seen] or range(len(options))
        return "ABCD"[random.Random(f"{prompt.id}{crop.uri()}").choice(list(fitting))]

    def log_likelihoods(self, prompts, completions):
        return [
            [0.0 if self.letter(prompt) in text else -1.0 for text in some]
            for prompt, some in zip(prompts, completions, strict=True)
        ]


class Guesser(Looker):
    """Never looks: takes the option that stands first in the list of findings, which is the likeliest."""

    def __init__(self):
        super().__init__([])

    def letter(self, prompt):
        options = prompt.reference["options"]
        return "ABCD"[options.index(min(options, key=NAMES.index))]


class Leaker(Looker):
    """Reads the key: what a policy does when questions give their answers away."""

    def __init__(self):
        super().__init__([])

    def letter(self, prompt):
        return prompt.reference["letter"]


TEST = population(250, first=10_000, seed=5, prior=0.9)
PROMPTS = asked(TEST)
TRAINING = asked(population(400, seed=6, prior=0.9))


EVALUATION = factory.build("evaluation", {"use": "choice"}, given={}, where="test")
ASKING = Asking(max_new_tokens=8)


def audited(policy, *, prompts=PROMPTS, exchanges=3, seed=0):
    audit, asking = PolicyAudit(exchanges=exchanges), dataclasses.replace(ASKING, seed=seed)
    return audit(policy, prompts, TASK, EVALUATION, lambda: TRAINING, asking, "choice")


def test_a_policy_that_never_looks_has_no_margin_however_good_its_priors():
    audit = audited(Guesser())
    assert audit.score("own").value > 0.4  # far over the 25 % of a fair die
    assert (audit.margin.value, audit.margin.low, audit.margin.is_tied) == (0.0, None, True)
    assert audit.over_blind.covers(0.0)
    assert audit.verdict().startswith(
        "No sign that the volume is used: margin +0.0 points, the same in every draw of patients. "
    )
    assert "scores as the best blind rule does" in audit.verdict()


@pytest.mark.parametrize("sight", [1.0, 0.3])
def test_a_policy_that_looks_has_one(sight):
    audit = audited(Looker(TEST, sight))
    assert audit.margin.low > 0.0
    assert not audit.margin.covers(0.0)
    assert audit.verdict().startswith("The volume is used: margin +")
    assert audit.score("blank").covers(0.25)


def test_a_noisy_policy_that_never_looks_gets_an_interval_over_0():
    class Drifting(Looker):
        """Answers by a die that changes with what is shown, without knowing what that is."""

        def letter(self, prompt):
            return random.Random(f"{prompt.id}{prompt.crops()[0].uri()}").choice("ABCD")

    audit = audited(Drifting([]))
    assert audit.margin.covers(0.0)
    assert 0 < audit.margin.high - audit.margin.low < 0.12


def test_questions_that_give_answers_away_are_told():
    audit = audited(Leaker())
    assert audit.margin.value == 0.0
    assert audit.over_blind.low > 0.2
    assert "something else gives answers away" in audit.verdict()


def test_a_policy_misled_by_volumes_is_told():
    class Contrary(Looker):
        def letter(self, prompt):
            right = super().letter(prompt)
            return next(letter for letter in "ABCD" if letter != right)

    verdict = audited(Contrary(TEST)).verdict()
    assert verdict.startswith("The right volume misleads: margin -")
    assert "stays below the best blind rule" in verdict


def test_margin_is_the_mean_of_the_differences_by_hand():
    policy = Looker(TEST, 0.5)
    audit = audited(policy, exchanges=2, seed=7)
    own = [policy.letter(prompt) == prompt.reference["letter"] for prompt in PROMPTS]
    other = [
        [policy.letter(prompt) == prompt.reference["letter"] for prompt in exchanged(PROMPTS, seed=seed)]
        for seed in (7, 8)
    ]
    count = len(PROMPTS)
    assert audit.margin.value == pytest.approx(sum(own) / count - sum(map(sum, other)) / (2 * count))
    rows = {(row.name, row.metric): row for row in audit.rows()}
    assert rows["own volumes", "strict_accuracy"].value == pytest.approx(sum(own) / count)
    assert rows["another patient's volumes", "strict_accuracy"].value == pytest.approx(
        sum(map(sum, other)) / (2 * count)
    )
    assert rows["another patient's volumes", "strict_accuracy"].note == "mean over 2 exchanges of volumes"
    assert rows["choice", "other_patient_minus_prior_only"].value == pytest.approx(
        sum(map(sum, other)) / (2 * count) - audit.reference_lines()["prior_only"]
    )
    assert {row.condition for row in audit.rows()} == {"own", "other-patient", "blank", ""}
    json.dumps([row.to_json() for row in audit.rows()])


def test_more_exchanges_narrow_the_interval():
    one, four = (audited(Looker(TEST, 0.5), exchanges=count) for count in (1, 4))
    assert four.margin.high - four.margin.low < one.margin.high - one.margin.low


def test_answers_of_every_condition_are_kept():
    audit = audited(Looker(TEST), exchanges=2)
    found = [line["condition"] for line in audit.lines()]
    assert [found.count(c) for c in ("own", "other-patient", "blank")] == [
        len(PROMPTS), 2 * len(PROMPTS), len(PROMPTS),
    ]  # fmt: skip
    shown = {line["images"][0] for line in audit.lines() if line["condition"] == "blank"}
    assert all(uri.endswith("&blank=1") for uri in shown)


def test_own_answers_are_those_that_the_evaluation_alone_would_score():
    policy = Looker(TEST)
    said = EVALUATION.answer(policy, PROMPTS, TASK, dataclasses.replace(ASKING, headline_only=True))
    [alone] = EVALUATION.score([Answers(PROMPTS, said)], TASK, "choice")
    assert audited(policy).results["own"] == (alone,)


def test_few_patients_leave_it_undecided():
    few = asked(TEST[:12])
    audit = audited(Looker(TEST), prompts=few)
    assert audit.verdict().startswith("Undecided: margin")
    assert audit.verdict().endswith("too few patients (12 of at least 20).")


@pytest.mark.parametrize("seed", range(5))
def test_nobody_keeps_his_own_volume_and_everyone_gives_his_once(seed):
    moved = exchanged(PROMPTS, seed=seed)
    donors = {}
    for before, after in zip(PROMPTS, moved, strict=True):
        assert after.crops() != before.crops()
        assert (after.id, after.case, after.reference) == (before.id, before.case, before.reference)
        donors.setdefault(before.case.patient, set()).add(after.crops())
    assert all(len(given) == 1 for given in donors.values())
    assert len({given for some in donors.values() for given in some}) == len(donors)
    assert moved == exchanged(PROMPTS, seed=seed)


def test_two_scans_of_one_patient_are_never_exchanged_with_each_other():
    cases = [dataclasses.replace(case, patient=f"p{number // 2}") for number, case in enumerate(TEST[:40])]
    owner = {case.volumes[0].path: case.patient for case in cases}
    for prompt in exchanged(asked(cases)):
        assert owner[prompt.crops()[0].volume.path] != prompt.case.patient


def test_prompts_of_another_number_of_volumes_are_passed_over():
    pair = dataclasses.replace(TEST[0], volumes=(VolumeRef(path="x.nii"), VolumeRef(path="y.nii")))
    twin = dataclasses.replace(TEST[1], volumes=(VolumeRef(path="v.nii"), VolumeRef(path="w.nii")))
    moved = {prompt.case.id: prompt.crops() for prompt in exchanged(asked([pair, twin, *TEST[2:8]]))}
    assert [crop.volume.path for crop in moved[pair.id]] == ["v.nii", "w.nii"]
    with pytest.raises(
        DataError, match=rf"of '{pair.patient}' shows 2 volumes and no other of the 7 patients"
    ):
        exchanged(asked([pair, *TEST[2:8]]))


def test_a_single_patient_has_nobody_to_exchange_with():
    with pytest.raises(DataError, match="no other of the 1 patients"):
        exchanged(asked(TEST[:1]))


def test_a_blank_prompt_shows_the_same_volume_as_air():
    (crop,) = blanked(PROMPTS[0]).crops()
    assert crop == dataclasses.replace(PROMPTS[0].crops()[0], blank=True)
