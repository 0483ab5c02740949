import dataclasses

import bad_rewards as bad
import pytest
from evidcore_plugin_hub.lint import linting
from evidcore_plugin_hub.lint.twins import twins

from evidcore.builtin.choice import Choice
from evidcore.text.tags import LETTERS


def of(made, kind, place=0):
    return [twin.rollout for twin in made if twin.kind == kind and twin.place == place]


def test_a_copied_report_is_what_a_wrong_answer_says_that_it_thought():
    rows = bad.rows(prompts=4)
    made = twins(rows, thorough=False)
    for place, row in enumerate(rows):
        copied = of(made, "copied report", place)[0].answer
        assert copied.think == row.prompt.case.report.text
        assert copied.choice not in (None, row.prompt.reference["letter"])


def test_options_that_are_turned_keep_their_truth_in_words_and_reference():
    (row, *_) = rows = bad.rows(prompts=2)
    words = row.prompt.reference["options"][LETTERS.index(row.prompt.reference["letter"])]
    turned = of(twins(rows, thorough=False), "permuted")
    assert len(turned) == 3
    for item in turned:
        reference = item.prompt.reference
        assert reference["options"][LETTERS.index(reference["letter"])] == words
        assert [reference["options"][index] for index in reference["true_options"]] == [words]
        assert item.answer.choice == reference["letter"] != row.prompt.reference["letter"]
        for letter, option in zip("ABCD", reference["options"], strict=True):
            assert f"{letter}) {option}" in item.prompt.words()


def test_options_that_name_others_by_letter_are_not_turned():
    (row, *_) = bad.rows(prompts=1)
    options = [*row.prompt.reference["options"][:3], "Both A and B"]
    prompt = dataclasses.replace(row.prompt, reference={**row.prompt.reference, "options": options})
    made = twins([dataclasses.replace(row, prompt=prompt)], thorough=False)
    assert (len(of(made, "own order")), of(made, "permuted")) == (1, [])


def test_another_key_leaves_the_answer_and_moves_the_truth():
    made = twins(bad.rows(prompts=3), thorough=False)
    right, key, case = (of(made, kind)[0] for kind in ("right", "another key", "another case"))
    assert key.text == case.text == right.text
    assert key.prompt.reference["letter"] != right.prompt.reference["letter"]
    assert key.prompt.case is right.prompt.case
    assert case.prompt.case.patient != right.prompt.case.patient
    assert len({right.prompt.id, key.prompt.id, case.prompt.id}) == 3


def test_groups_answer_one_prompt_and_follow_each_other():
    made = twins(bad.rows(prompts=4), thorough=True)
    groups = {}
    for twin in made:
        groups.setdefault(twin.rollout.group, set()).add(twin.rollout.prompt.id)
    assert all(len(ids) == 1 for ids in groups.values())
    assert [twin.rollout.group for twin in made] == sorted(twin.rollout.group for twin in made)


@pytest.mark.parametrize("think", [True, False])
def test_words_of_options_are_no_patterns(monkeypatch, think):
    names = ("em\\physema", r"nodule (\1)", r"\g<x>", "card[io", "a+b", "$")
    monkeypatch.setattr(linting, "FINDINGS", names)
    rows = bad.rows(Choice(think=think), prompts=3)
    made = twins(rows, thorough=True)
    for place, row in enumerate(rows):
        said = [item.text for item in of(made, "everything affirmed", place)]
        assert any(" or ".join(row.prompt.reference["options"]) in text for text in said)
