"""Reports that lead to slices, the staircase of an audit, the tree of a group: in a browser, with pixels."""

import numpy as np
import pytest
from browser_page import at_voxels, near, rows
from evidcore_plugin_view.background import RunProcess
from evidcore_plugin_view.public_lines import cited_sentences, staircases

from evidcore.api import read as read_volume
from evidcore.api import read_mask

ACCENT = (11, 107, 116)


@pytest.mark.slow
def test_a_sentence_leads_to_its_slice_and_highlights_the_mask(browser, served, open_page, cases):
    case = cases["abdomen"]["test"][0]
    mask = read_mask(case.masks["liver metastasis"], read_volume(case.volumes[0]))
    reader = open_page(browser, served)
    reader.go("#task=tell&b=")
    reader.ready()
    page = reader.page
    page.wait_for_selector(".answer.a .sentence")
    said = page.locator(".answer.a .sentence").all_inner_texts()
    # a wide letter before it moves nothing; no denial leads anywhere
    assert (said[0], len(said)) == ("Liver metastasis, 33 mm.", 3)
    best = int(mask.sum(axis=(1, 2)).argmax())
    page.locator('.answer.a .sentence[data-finding="liver metastasis"]').click()
    reader.painted(best)
    page.wait_for_selector('path.fill.highlighted[data-overlay="case/truth/liver metastasis"]')
    seen_here = f"Slice {best} is cited for liver metastasis: its mask is seen here."
    assert page.locator(".pointed").inner_text() == seen_here
    seen = reader.colours()
    green = at_voxels(seen[..., 1] - seen[..., 0], mask.shape[1:])
    assert green[mask[best]].mean() > 60
    assert green[~mask[best]].mean() < 10
    page.hover(".screen.large .picture")
    page.wait_for_function("() => /HU/.test(document.querySelector('.under').textContent)")
    page.locator('.answer.a .sentence[data-finding="kidney cyst"]').click()
    reader.painted(0)
    assert "its mask is not seen here, but on slices" in page.locator(".pointed").inner_text()
    page.locator('.answer.a [data-cites="gallstone"]').click()
    says_so = "() => document.querySelector('.pointed').textContent === 'No slice is cited for gallstone.'"
    page.wait_for_function(says_so)
    reader.painted(0)  # it goes nowhere
    page.locator(".switch.truth button").first.click()
    page.wait_for_selector("path.fill.drawn")
    page.wait_for_function("() => !document.querySelector('path.highlighted, path.dimmed')")
    assert "gallstone cites no slice" in page.locator(".answer.a .findings-cited").inner_text()


@pytest.mark.slow
def test_the_slice_of_an_answer_that_points_is_a_way_to_it(browser, served, open_page):
    reader = open_page(browser, served)
    reader.go("#task=point")
    reader.ready()
    page = reader.page
    start = int(page.locator(".screen.large").get_attribute("data-painted"))
    page.keyboard.press("ArrowDown")
    reader.painted(start + 1)
    page.locator(".answer.b .facts button").first.click()
    reader.painted(start)


@pytest.mark.slow
def test_forks_are_drawn_where_they_leave_and_lead_to_their_rollout(browser, served, open_page):
    reader = open_page(browser, served)
    reader.go("#view=rollouts")
    reader.ready()
    page = reader.page
    assert page.locator(".forks").count() == 0  # the first group has none
    rows(page).last.click()
    page.wait_for_selector(".forks")
    read = "(lines) => lines.map((one) => one.getAttribute('x1'))"
    starts = page.eval_on_selector_all(".forks .tokens", read)
    assert [float(one.removesuffix("%")) for one in starts] == pytest.approx([0, 78 * 20 / 60, 78 * 30 / 60])
    drawn = reader.shot(".forks svg")
    height, width = drawn.shape[:2]
    lines = near(drawn, ACCENT)
    at_20, at_40, at_50 = (int(0.78 * width * token / 60) for token in (20, 40, 50))
    assert lines[height // 6, : at_40 - 4].mean() > 0.9  # the root, from the first token
    assert not lines[height // 2, : at_20 - 6].any()  # its fork leaves it later
    assert lines[height // 2, at_20 + 4 : at_50 - 4].mean() > 0.9
    page.locator('.branch[data-rollout="2"]').click()
    assert page.locator('input[name="rollout"][value="2"]').is_checked()
    sentence = page.locator('.rollout[data-line$=":0"] .sentence[data-finding="liver metastasis"]')
    assert sentence.inner_text() == "Liver metastasis, 33 mm."  # the emoji before it moves nothing
    sentence.click()
    reader.painted(5)
    assert page.locator('input[name="rollout"][value="0"]').is_checked()


@pytest.mark.slow
def test_the_staircase_has_a_step_for_each_condition_and_leads_to_its_answers(browser, served, open_page):
    reader = open_page(browser, served)
    page = reader.page
    page.click('nav button:text("Audits")')
    page.wait_for_selector(".staircase")
    read = "(rows) => rows.map((one) => one.dataset.condition)"
    steps = page.eval_on_selector_all(".staircase tbody tr", read)
    assert steps == ["blank", "twin", "scrambled", "other-patient", "rule", "blurred", "own"]
    rule = page.locator('[data-condition="rule"]').inner_text()
    assert "the best blind rule (longest option)" in rule
    assert "45.0 %" in rule
    assert "41.0 % to 49.0 %" in rule
    assert "It looks: +30.0 points" in page.locator(".staircase .verdict").inner_text()
    places = []
    for name in ("blank", "own"):  # where the darkest pixels of a lane lie
        shot = reader.shot(f'[data-condition="{name}"] svg')
        ink = 255 * 3 - shot.sum(axis=2)
        columns = np.flatnonzero(ink[2:4].max(axis=0) < ink.max())
        assert columns.size
        places.append(np.argmax(ink.sum(axis=0)) / shot.shape[1])
    assert places == pytest.approx([0.25, 0.75], abs=0.05)
    page.locator('[data-condition="twin"] button').click()
    page.wait_for_selector("#list .rows a")
    assert page.locator("#side-a").input_value() == "a:05-audit"
    assert page.locator(".sides select").last.input_value() == "twin"


def test_a_rule_without_a_row_of_its_own_has_no_interval_and_other_stages_have_no_steps():
    about = {"task": "point", "metric": "dsc", "unit": "score", "headline": True, "value": 0.6}
    own = {**about, "name": "own volumes", "condition": "own", "low": None, "high": None, "note": "few"}
    above = {"name": "point", "metric": "own_minus_rule", "value": 0.2, "against": "rule"}
    rows = [own, {**above, "note": "own minus a rule; few"}]
    (audit,) = staircases({"stage": "05-audit", "rows": rows, "verdict": {}})
    assert {step["name"]: step["low"] for step in audit["steps"]} == {"a rule": None, "own volumes": None}
    assert audit["steps"][0]["value"] == pytest.approx(0.4)
    assert staircases({"stage": "02-evaluate", "rows": [{"name": "x", "metric": "dsc", "value": 1.0}]}) == []


@pytest.mark.slow
def test_one_slice_for_a_whole_report_is_that_of_every_finding_and_a_process_that_ended_is_started():
    reader = RunProcess()
    findings = {"affirmed": ["gallstone"], "absent": ["liver cyst"]}
    line = {"text": "There is a gallstone. No liver cyst.", **findings, "slices": {"": 7}}
    cited = cited_sentences(line, reader.sentences)
    assert cited["slices"] == {"gallstone": 7}
    assert cited["sentences"] == [{"start": 0, "end": 21, "findings": ["gallstone"]}]
    assert cited_sentences({"text": "words"}, reader.sentences) == {"sentences": [], "slices": {}}
    reader.close()
    assert reader.sentences("No cyst.", ["cyst"]) == []
    reader.close()
