import dataclasses
import random

import pytest

from evidcore.api import Case, Finding, Prompt, Question
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.evaluate.reference_lines import best_rule, cluster_of, reference_lines, training_prompts


def prompt(options, letter, *, true=None, name="a", patient="p", states=None):
    findings = tuple(Finding(name=item, state=state) for item, state in (states or {}).items())
    case = Case(id=name, patient=patient, volumes=(), findings=findings)
    place = "ABCD".index(letter)
    reference = {"options": list(options), "letter": letter, "finding": options[place]}
    reference["true_options"] = list(true if true is not None else [place])
    return Prompt(id=f"{name}:{options}:{letter}", case=case, task="choice", parts=(), reference=reference)


# e is right 3 times of 3 offered, n 2 of 5, c 1 of 4, h 0 of 6; the letter A is right most often
TRAINING = [
    prompt(["e", "n", "c"], "A"),
    prompt(["e", "n", "h"], "A"),
    prompt(["e", "c", "h"], "A"),
    prompt(["n", "c", "h"], "A"),
    prompt(["h", "n", "h"], "B"),
    prompt(["h", "n", "c"], "C"),
]


def test_chance_is_one_over_the_options_and_perception_cannot_tell_true_ones_apart():
    questions = [prompt(["e", "n", "c"], "A"), prompt(["e", "n", "c", "h"], "A", true=[0, 2])]
    questions.append(prompt(["e", "n", "c"], "B", true=[0, 1, 2]))
    lines = reference_lines(questions, TRAINING)
    assert lines.uniform_chance == (1 / 3, 0.25, 1 / 3)
    assert lines.blind("choice").figures["uniform_chance"] == pytest.approx(11 / 36)
    assert lines.perfect_perception == (1.0, 0.5, pytest.approx(1 / 3))


def test_a_rule_that_cannot_decide_tosses_a_coin():
    toss = reference_lines([prompt(["x", "y", "h"], "A")], [prompt(["e", "n"], letter) for letter in "AB"])
    assert toss.rules["most often right in training"] == pytest.approx(1 / 3)
    options = ["e", "n", "c", "h"]
    balanced = [prompt(options[i:] + options[:i], "ABCD"[j]) for i in range(4) for j in range(4)]
    assert reference_lines(balanced, TRAINING).blind("choice").figures["prior_only"] == 0.25


def test_prior_only_picks_what_was_right_in_training():
    questions = [prompt(["h", "e"], "B"), prompt(["c", "n"], "B"), prompt(["n", "e"], "A")]
    lines = reference_lines(questions, TRAINING)
    assert lines.rules["most often right in training"] == pytest.approx(2 / 3)
    assert lines.rules["most often right when offered"] == pytest.approx(2 / 3)
    assert lines.rules["letter most often right"] == pytest.approx(1 / 3)
    assert lines.prior_only == (1.0, 1.0, 0.0)


def test_right_when_offered_differs_from_right_most_often():
    asked = [(["a", "b"], "A")] * 3 + [(["a", "c"], "B")] * 5 + [(["b", "d"], "B")] * 2
    training = [
        prompt(*item, patient=f"p{at}-{number}") for number in range(4) for at, item in enumerate(asked)
    ]
    # a: right 3 of 8 offered; d: right 2 of 2
    lines = reference_lines([prompt(["a", "d"], "B")], training)
    assert lines.rules["most often right in training"] == 0.0
    assert lines.rules["most often right when offered"] == 1.0


def test_prevalence_counts_each_training_case_once():
    common = prompt(["x", "y"], "A", name="a", states={"x": "present", "y": "present"})
    training = [common, common, prompt(["x", "y"], "B", name="b", states={"x": "absent", "y": "present"})]
    lines = reference_lines([prompt(["x", "y"], "B")], training)
    assert lines.rules["most prevalent in training"] == 1.0
    assert lines.rules["most often right in training"] == 0.0


def test_a_finding_left_open_is_no_case_without_it():
    # 2 of 3 cases that know of it have x, 3 of 5 have y
    states = [*[{"x": "present", "y": "present"}] * 2, {"x": "absent", "y": "present"}]
    states += [{"x": "uncertain", "y": "absent"}] * 2
    training = [prompt(["x", "y"], "AB"[at % 2], name=f"c{at}", states=one) for at, one in enumerate(states)]
    lines = reference_lines([prompt(["x", "y"], "A")], training)
    assert lines.rules["most prevalent in training"] == 1.0


def test_the_best_rule_is_chosen_without_the_test_questions():
    questions = [prompt(["h", "e"], "A"), prompt(["h", "n"], "A")]
    training = [
        prompt(["e", *pair], "A", patient=f"p{number}")
        for number in range(5)
        for pair in (["n", "c"], ["c", "h"], ["h", "n"])
    ] + [prompt(["n", "e", "c"], "B", patient=f"p{number}") for number in range(5)]
    lines = reference_lines(questions, training)
    assert lines.prior_rule == best_rule(training) == "most often right in training"  # e, always
    assert lines.prior_only == (0.0, 0.5)  # h was never right, nor was n
    assert lines.rules["letter most often right"] == 1.0 > lines.blind("choice").figures["prior_only"]


def test_a_rule_is_judged_on_patients_it_has_not_learnt_from():
    """Every patient is asked in words of his own: who knows them by heart knows nothing of another one."""
    training = [
        worded(f"Which one is it, {number}?", ["same", f"other {number}", f"third {number}"], letter, number)
        for number in range(10)
        for letter in ("ABCABBA"[number % 7],) * 3
    ]
    assert best_rule(training) != "most often right to the same words"


def worded(question, options, letter, patient):
    asked = prompt(options, letter, patient=f"p{patient}", name=f"c{patient}")
    return dataclasses.replace(asked, reference={**asked.reference, "question": question})


def test_with_one_patient_the_rules_are_judged_by_their_own_questions():
    lines = reference_lines(TRAINING, TRAINING)
    assert lines.rules[best_rule(TRAINING)] == max(lines.rules.values())


WORDS = ("nodule", "fluid", "clot", "large", "basal", "left", "small", "lower", "dense", "round")


def drawn(rng, patients, questions, *, longest=None, start=0):
    """Questions of random words; the longest of four options is right in the share `longest`, else any is."""
    result = []
    for patient in range(start, start + patients):
        for _ in range(questions):
            options = [" ".join(rng.sample(WORDS, size)) for size in rng.sample(range(1, 7), 4)]
            place = rng.randrange(4)
            if longest is not None:
                most = max(range(4), key=lambda at: len(options[at]))
                is_most = rng.random() < longest
                place = most if is_most else rng.choice([at for at in range(4) if at != most])
            result.append(worded(f"Which is seen, {rng.choice(WORDS)}?", options, "ABCD"[place], patient))
    return result


def test_the_longest_option_gives_itself_away():
    rng = random.Random(3)
    lines = reference_lines(drawn(rng, 100, 3, longest=0.7), drawn(rng, 100, 3, longest=0.7, start=1000))
    assert lines.blind("choice").figures["prior_only"] == pytest.approx(0.7, abs=0.05)
    assert lines.rules["longest option"] == pytest.approx(0.7, abs=0.05)
    assert lines.rules["shortest option"] < 0.2


def test_words_that_the_option_shares_with_the_question_give_it_away():
    def asked(number):
        organ, place = WORDS[number % 5], number % 4
        options = [f"the {word}" for word in WORDS[5:9]]
        options[place] = f"the {organ}"
        return worded(f"How large is the {organ}?", options, "ABCD"[place], number)

    lines = reference_lines([asked(number) for number in range(40)], [asked(number) for number in range(60)])
    assert lines.rules["option with most words of the question"] == 1.0
    assert lines.blind("choice").figures["prior_only"] == 1.0


def test_the_regression_learns_which_option_belongs_to_which_words_of_a_question():
    def asked(number, rng):
        organ, filler = rng.choice(["liver", "spleen"]), rng.sample(WORDS, 3)
        letter = "AB"[organ == "spleen"]
        return worded(f"{' '.join(filler)}: where is the {organ}?", ["right", "left"], letter, number)

    rng = random.Random(1)
    train, test = ([asked(number, rng) for number in some] for some in (range(80), range(80, 160)))
    lines = reference_lines(test, train)
    assert lines.rules["regression on the words"] == 1.0
    assert lines.rules["most often right to the same words"] < 0.8  # hardly any words come twice
    assert lines.blind("choice").figures["prior_only"] == 1.0
    again = reference_lines(test, train)
    assert (again.rules, again.prior_only) == (lines.rules, lines.prior_only)


@pytest.mark.slow
@pytest.mark.parametrize(("patients", "simulations"), [(25, 40), (60, 24), (200, 8)])
def test_without_a_signal_the_line_is_chance(patients, simulations):
    """The best of the rules on the test questions themselves would be 2 to 5 points above it."""
    values, highest = [], []
    for seed in range(simulations):
        rng = random.Random(seed)
        lines = reference_lines(drawn(rng, patients, 5), drawn(rng, 30, 3, start=1000))
        values.append(lines.blind("choice").figures["prior_only"])
        highest.append(max(lines.rules.values()))
    assert sum(values) / simulations == pytest.approx(0.25, abs=0.01)
    assert sum(highest) / simulations > 0.265


def test_rows_tell_the_rule_and_the_patients():
    questions = [prompt(["e", "n"], "A", patient=f"p{number}") for number in range(25)]
    rows = {row.metric: row for row in reference_lines(questions, TRAINING).blind("choice").rows}
    assert rows["prior_only"].note == (
        "best blind rule: most often right in training; "
        "all values are equal: exact binomial bound over patients"
    )
    assert (rows["uniform_chance"].value, rows["uniform_chance"].patients) == (0.5, 25)
    assert {row.name for row in rows.values()} == {"choice"}
    assert cluster_of(prompt(["e", "n"], "A", patient=None, name="c3")) == "case c3"


def test_without_options_there_are_no_lines():
    bare = Prompt(id="r1", case=Case(id="a", patient="p", volumes=()), task="report", parts=())
    with pytest.raises(ValueError, match="prompt 'r1' has no options"):
        reference_lines([bare], TRAINING)


def test_the_words_of_a_question_may_give_its_answer_away():
    def side(organ, answer):
        asked = prompt(["left", "right"], answer, name=organ)
        return dataclasses.replace(asked, reference={**asked.reference, "question": f"Where is the {organ}?"})

    training = [side("liver", "B"), side("spleen", "A")] * 3 + [side("tumour", "A"), side("tumour", "B")]
    questions = [side("liver", "B"), side("spleen", "A"), side("tumour", "A"), side("kidney", "B")]
    lines = reference_lines(questions, training)
    # the tumour was on either side once, no kidney was asked about: a coin each
    assert lines.rules["most often right to the same words"] == pytest.approx((1 + 1 + 0.5 + 0.5) / 4)
    assert lines.rules["most often right when offered"] == pytest.approx(0.5)
    assert lines.prior_only == (1.0, 1.0, 0.5, 0.5)


def test_perfect_perception_is_not_known_where_the_true_options_are_not():
    unknown = prompt(["e", "n"], "A", name="b")
    unknown = dataclasses.replace(unknown, reference={**unknown.reference, "truth_known": False})
    lines = reference_lines([prompt(["e", "n"], "A"), unknown], TRAINING)
    assert lines.perfect_perception is None
    assert lines.blind("choice").figures["perfect_perception"] is None
    assert lines.blind("choice").figures["uniform_chance"] == 0.5
    row = next(row for row in lines.blind("choice").rows if row.metric == "perfect_perception")
    assert (row.value, row.low, row.high) == (None, None, None)
    assert (row.questions, row.note) == (2, "which other options are true is not known")


def test_rules_learn_from_given_questions_and_from_drawn_ones():
    names = ("nodule", "effusion", "cyst", "scar")
    side = Question(id="q", text="On which side is the liver?", options=("left", "right"), answer=1)
    cases = [
        Case(
            id=f"c{number}", patient=f"p{number}", volumes=(), questions=(side,),
            findings=tuple(
                Finding(name=name, state="present" if name == "nodule" else "absent") for name in names
            ),
        )
        for number in range(8)
    ]  # fmt: skip

    def ask(task, some):
        return lambda seed: [item for case in some for item in task.prompts(case, Volume(), seed)]

    drawing, giving = Choice(), Choice(training_questions="given")
    training = training_prompts(ask(drawing, cases[:4]))
    assert {item.reference["question"] for item in training} == {side.text, "Which finding is present?"}
    # who knows the training questions answers every one of these without looking
    assert reference_lines(ask(drawing, cases[4:])(0), training).blind("choice").figures["prior_only"] == 1.0
    assert len(training_prompts(ask(giving, cases[:4]))) == 4  # the same in both, each once
