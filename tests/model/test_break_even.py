import json
from pathlib import Path

import pytest

from evidcore.model.packed_attention import LEAST_SAVED, packing_pays, tokens_saved

DOCS = Path(__file__).parents[2] / "docs"
MEASURED = json.loads((DOCS / "results" / "break_even.json").read_text(encoding="utf-8"))


def test_tokens_are_counted_as_they_are_laid_out():
    prompt, answers = ["p"] * 7, [["a"] * 5] * 3
    apart = sum(len(prompt) + len(answer) for answer in answers)
    row = prompt[:-1] + [token for answer in answers for token in (prompt[-1], *answer[:-1])]
    assert tokens_saved(7, 5, 3) == pytest.approx(apart / len(row))


def test_the_rule_takes_what_was_measured_to_be_faster():
    rules = set()
    for item in MEASURED["scoring"]:
        place = item["prompt"], item["answer"], item["answers"]
        chosen = item["together"] if packing_pays(*place) else item["apart"]
        assert chosen <= min(item["together"], item["apart"]) / 0.95, item
        rules.add(packing_pays(*place))
    assert rules == {True, False}
    assert any(item["masked"] > item["apart"] for item in MEASURED["scoring"])  # what a full mask would cost


def test_the_page_shows_what_was_measured():
    shown = (DOCS / "explanation" / "engine.md").read_text(encoding="utf-8")
    for item in MEASURED["scoring"]:
        place = item["prompt"], item["answer"], item["answers"]
        figures = tokens_saved(*place), item["apart"] / item["together"], item["apart"] / item["masked"]
        cells = [*map(str, place), *(f"{figure:.2f}" for figure in figures)]
        assert f"| {' | '.join(cells)} | {'one row' if packing_pays(*place) else 'row by row'} |" in shown
    for item in MEASURED["sampling"]:
        ratio = item["apart"] / item["together"]
        assert f"| {item['prompt']} | {item['answer']} | {item['answers']} | {ratio:.2f} |" in shown
    assert f"at least {LEAST_SAVED:g} times fewer tokens" in shown
