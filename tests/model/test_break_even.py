import json
from pathlib import Path

import pytest

from evidcore.model.packed_attention import LEAST_SAVED, pays, tokens_saved

DOCS = Path(__file__).parents[2] / "docs"
MEASURED = json.loads((DOCS / "results" / "break_even.json").read_text(encoding="utf-8"))


def test_tokens_are_counted_as_they_are_laid_out():
    prompt, answers = ["p"] * 7, [["a"] * 5] * 3
    apart = sum(len(prompt) + len(answer) for answer in answers)
    row = prompt[:-1] + [token for answer in answers for token in (prompt[-1], *answer[:-1])]
    assert tokens_saved(7, 5, 3) == pytest.approx(apart / len(row))


def test_the_rule_takes_what_was_measured_to_be_faster():
    rules = set()
    for one in MEASURED["scoring"]:
        place = one["prompt"], one["answer"], one["answers"]
        chosen = one["together"] if pays(*place) else one["apart"]
        assert chosen <= min(one["together"], one["apart"]) / 0.95, one
        rules.add(pays(*place))
    assert rules == {True, False}
    assert any(one["masked"] > one["apart"] for one in MEASURED["scoring"])  # what a full mask would cost


def test_the_rule_is_the_ratio():
    assert tokens_saved(512, 64, 8) == pytest.approx(8 * 576 / (511 + 512))
    for prompt in (2, 20, 200, 2000):
        assert pays(prompt, 100, 8) == (tokens_saved(prompt, 100, 8) >= LEAST_SAVED)


def test_the_page_shows_what_was_measured():
    shown = (DOCS / "explanation" / "engine.md").read_text(encoding="utf-8")
    for one in MEASURED["scoring"]:
        place = one["prompt"], one["answer"], one["answers"]
        figures = tokens_saved(*place), one["apart"] / one["together"], one["apart"] / one["masked"]
        cells = [*map(str, place), *(f"{figure:.2f}" for figure in figures)]
        assert f"| {' | '.join(cells)} | {'one row' if pays(*place) else 'row by row'} |" in shown
    for one in MEASURED["sampling"]:
        ratio = one["apart"] / one["together"]
        assert f"| {one['prompt']} | {one['answer']} | {one['answers']} | {ratio:.2f} |" in shown
    assert f"at least {LEAST_SAVED:g} times fewer tokens" in shown
