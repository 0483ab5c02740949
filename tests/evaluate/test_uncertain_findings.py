"""A finding that a report leaves open is known of no case: it is neither present nor absent."""

from evidcore.api import Case, Finding, Prompt
from evidcore.evaluate.reference_lines import reference_lines

STATES = {  # 2 of 3 cases that know of it have emphysema, 3 of 5 a nodule
    "emphysema": ("present", "present", "absent", "uncertain", "uncertain"),
    "nodule": ("present", "present", "present", "absent", "absent"),
}


def prompt(number, letter):
    findings = tuple(Finding(name=name, state=states[number]) for name, states in STATES.items())
    return Prompt(
        id=f"q{number}",
        case=Case(id=f"c{number}", patient=f"p{number}", volumes=(), findings=findings),
        task="choice",
        parts=(),
        reference={"options": [*STATES], "letter": letter, "true_options": ["AB".index(letter)]},
    )


def test_a_finding_left_open_is_no_case_without_it():
    training = [prompt(number, "AB"[number % 2]) for number in range(5)]
    rule = reference_lines([prompt(0, "A")], training).rules["most prevalent in training"]
    assert rule == 1.0  # emphysema: two of three, not two of five
