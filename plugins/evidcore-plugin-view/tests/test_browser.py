"""The viewer as a reader uses it: in a browser, with keys, wheel and clicks; pixels, not only elements."""

import json
import re
import shutil
import threading
from wsgiref.simple_server import make_server

import numpy as np
import pytest
from browser_page import at_voxels, near, rows

from evidcore.api import read as read_volume
from evidcore.api import read_mask

ORANGE, VIOLET = (255, 167, 51), (183, 156, 255)  # boxes of sides A and B


@pytest.mark.slow
def test_the_key_is_in_no_cookie_no_link_and_nothing_that_another_port_is_sent(browser, served, open_page):
    reader = open_page(browser, served)
    reader.page.reload()
    reader.ready()
    second = reader.context.new_page()
    second.goto(served.address)
    second.goto(served.address)  # where it is shown already
    second.wait_for_selector("body[data-ready] .screen.large[data-painted]")
    for page in (reader.page, second):
        assert (served.key in page.url, page.evaluate("document.cookie")) == (False, "")
        picture = page.locator(".screen.large img")
        assert picture.get_attribute("src").startswith("blob:")
        assert picture.evaluate("(image) => image.decode().then(() => image.naturalWidth)") > 0
    assert reader.context.cookies() == []
    without = reader.context.new_page()
    without.goto(f"{reader.address}#task=point")
    assert f"printed: it begins with {reader.address}#key=" in without.locator("#head .bad").inner_text()
    sent = []  # to another program of this machine

    def blank(environ, start):
        sent.append(str(environ))
        start("200 OK", [])
        return []

    with make_server("127.0.0.1", 0, blank) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        second.goto(f"http://127.0.0.1:{other.server_port}/")  # in the tab that holds the key
        read = "([url, headers]) => fetch(url, { headers }).then((answer) => answer.text(), () => 'refused')"
        for headers in ({}, {"Authorization": f"Bearer {served.key}"}):
            assert second.evaluate(read, [f"{reader.address}api/runs", headers]) == "refused"
        other.shutdown()
    assert sent
    assert served.key not in "".join(sent)


@pytest.mark.slow
def test_what_training_broke_is_found_in_two_actions(browser, served, open_page):
    page = open_page(browser, served).page
    assert page.locator("#side-a").input_value() == "a:02-evaluate"  # before
    assert page.locator("#side-b").input_value() == "a:04-evaluate"  # after, without being asked for
    count = rows(page).count()
    page.click('[data-show="broke"]')
    assert rows(page).count() == 1 < count
    page.wait_for_function("() => document.querySelector('.answer.b .pill')?.textContent === 'wrong'")
    assert page.locator(".answer.a .pill").inner_text() == "right"
    page.click('[data-show="mended"]')
    page.select_option('[data-pick="task"]', "choice")
    assert rows(page).count() == 1
    page.wait_for_function("() => document.querySelector('.answer.b .pill')?.textContent === 'right'")
    page.select_option('[data-pick="task"]', "point")
    assert rows(page).count() == 2  # graded answers are right from half on
    page.select_option('[data-pick="task"]', "")
    page.click('[data-show="all"]')
    finding = page.locator('[data-pick="finding"] option').nth(1).get_attribute("value")
    page.select_option('[data-pick="finding"]', finding)
    assert {finding in text for text in rows(page).all_inner_texts()} == {True}
    page.select_option('[data-pick="finding"]', "")
    page.select_option('[data-pick="sort"]', "change")
    told = [text.split("\n")[-1] for text in rows(page).all_inner_texts()[:2]]
    assert sorted(told) == ["+100", "\N{MINUS SIGN}100"]


@pytest.mark.slow
def test_masks_and_boxes_lie_where_they_should_and_are_switched_one_by_one(browser, served, open_page, cases):
    reader = open_page(browser, served)
    page = reader.page
    page.select_option('[data-pick="task"]', "point")
    reader.ready()
    case = cases["abdomen"]["test"][0]
    name = sorted(case.masks)[0]
    page.wait_for_selector(f'.switch input[data-overlay="case/truth/{name}"]')
    reader.ready()
    mask_switch = page.locator(f'input[data-overlay="case/truth/{name}"]')
    mask = read_mask(case.masks[name], read_volume(case.volumes[0]))
    z = int(page.locator(".screen.large").get_attribute("data-painted"))
    with_mask = reader.colours()
    mask_switch.uncheck()
    without = reader.colours()
    changed = np.abs(with_mask - without).sum(axis=2) > 12
    grid = at_voxels(changed, mask.shape[1:])
    assert grid[mask[z]].mean() > 0.9  # what the mask covers has changed colour
    assert grid[~mask[z]].mean() < 0.05  # and nothing else has
    both = reader.colours()
    assert near(both, ORANGE).sum() > 50
    assert near(both, VIOLET).sum() > 50
    page.locator('input[data-overlay="a/predicted/box"]').uncheck()
    page.locator('input[data-overlay="a/predicted/slice"]').uncheck()  # named in a corner, in its colour
    item = reader.colours()
    assert near(item, ORANGE).sum() == 0
    assert near(item, VIOLET).sum() > 50


BEGINS = """async ([pointed, role]) => {
    const { ScanView } = await import("/assets/scan.js");
    const extent = (axial, most) => ({ axial, fullest: { axial: most }, window: null });
    const overlays = [{ role: "truth", asked: true, extent: extent([10, 11, 12, 13], 11) },
                      { role, asked: true, extent: extent(pointed, pointed[0]) }];
    const scene = { overlays, windows: {} };
    const view = Object.assign(Object.create(ScanView.prototype), { scene, at: {} });
    view.start();
    return view.at.axial;
}"""


def test_it_begins_where_both_what_is_asked_and_what_was_pointed_at_are_seen(browser, served, open_page):
    page = open_page(browser, served).page
    assert page.evaluate(BEGINS, [[13], "predicted"]) == 13
    assert page.evaluate(BEGINS, [[9, 10, 12, 13], "looked-at"]) == 10  # the first of the nearest
    assert page.evaluate(BEGINS, [[14], "predicted"]) == 11  # no slice shows both
    assert page.evaluate(BEGINS, [[13], "followed"]) == 11  # a segmenter's mask is nowhere pointed at


@pytest.mark.slow
def test_wheel_keys_and_drag_move_slices_window_and_crosshair(browser, served, open_page):
    reader = open_page(browser, served)
    page = reader.page
    start = int(page.locator(".screen.large").get_attribute("data-painted"))
    page.hover(".screen.large .picture")
    page.mouse.wheel(0, 100)
    reader.painted(start + 1)
    page.keyboard.press("ArrowUp")
    reader.painted(start)
    assert page.evaluate("scrollY") == 0
    page.wait_for_function("() => /HU/.test(document.querySelector('.under').textContent)")
    assert re.search(r"HU\s+·\s+z .* mm", page.locator(".under").inner_text())
    before, level = reader.colours(), page.locator(".level").inner_text()
    box = page.locator(".screen.large .picture").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 180, box["y"] + 160, steps=4)
    page.mouse.up()
    assert page.locator(".level").inner_text() != level
    assert np.abs(reader.colours() - before).mean() > 3
    page.click('[data-window="bone"]')
    assert page.locator('[data-window="bone"]').get_attribute("aria-pressed") == "true"
    coronal = page.locator('.screen[data-plane="coronal"]').get_attribute("data-painted")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 4)
    moved = "(before) => document.querySelector('.screen[data-plane=coronal]').dataset.painted !== before"
    page.wait_for_function(moved, arg=coronal)
    page.click('.screen[data-plane="sagittal"] .enlarge')
    assert page.locator(".screen.large").get_attribute("data-plane") == "sagittal"
    page.focus("body")
    page.keyboard.press("j")
    second = page.locator("#list a[aria-current]").get_attribute("data-key")
    page.keyboard.press("k")
    assert page.locator("#list a[aria-current]").get_attribute("data-key") != second


@pytest.mark.slow
def test_a_link_leads_back_texts_stay_texts_and_a_long_one_is_cut(browser, served, open_page):
    reader = open_page(browser, served)
    page = reader.page
    page.click('[data-show="malformed"]')
    page.wait_for_selector('.answer.a .text:has-text("<b>bold</b>")')
    assert page.locator(".answer b b").count() == 0
    assert "broken" not in page.title()
    page.keyboard.press("j")
    page.wait_for_selector(".answer .cut")
    assert "of 10 000 000 characters" in page.locator(".answer.a .cut").inner_text().replace("\u202f", " ")
    assert len(page.locator(".answer.a .text").inner_text()) < 30_000
    link, chosen = page.url, page.locator("#list a[aria-current]").get_attribute("data-key")
    assert "key=" not in link
    page.goto("about:blank")
    page.goto(link)
    reader.ready()
    assert page.locator("#list a[aria-current]").get_attribute("data-key") == chosen
    assert page.locator('[data-show="malformed"]').get_attribute("aria-pressed") == "true"
    page.fill('[data-pick="words"]', "Where is the")
    page.press('[data-pick="words"]', "Enter")
    page.click('[data-show="all"]')
    page.wait_for_function("() => document.querySelector('.count b').textContent === '2'")


@pytest.mark.slow
def test_groups_show_rewards_and_what_a_rollout_looked_at(browser, served, open_page):
    reader = open_page(browser, served)
    page = reader.page
    page.click('nav button:text("Rollouts")')
    page.wait_for_selector(".rollout")
    reader.ready()
    assert rows(page).count() == 4
    assert page.locator(".rollout").count() == 3
    assert "IoU with the box" in page.locator(".rollout").first.inner_text()
    page.locator('.rollout input[type="radio"]').nth(1).check()
    page.wait_for_selector('input[data-overlay="a/looked-at/look 1"]')
    assert page.locator('input[data-overlay="a/predicted/box"]').is_checked()
    page.click('[data-show="zero"]')
    assert rows(page).count() == 1
    page.click('nav button:text("Results")')
    page.wait_for_selector("#figures table")
    assert re.search(r"50(\.0)? %", page.locator("#figures").inner_text())


@pytest.mark.slow
def test_a_rollout_that_is_chosen_before_the_scan_is_there_is_drawn(browser, served, open_page):
    reader = open_page(browser, served)
    page, held = reader.page, []
    page.route("**/api/scene*", lambda asked: held.append(asked) if len(held) < 2 else asked.continue_())
    page.click('nav button:text("Rollouts")')
    page.locator('.rollout input[type="radio"]').nth(1).check()
    while len(held) < 2:  # the group's own and that of the rollout
        page.wait_for_timeout(50)
    for asked in held:
        asked.continue_()
    page.wait_for_selector('input[data-overlay="a/looked-at/look 1"]')
    reader.ready()
    assert reader.colours().min() < 10  # air is black, and not pale


@pytest.mark.slow
def test_two_runs_are_side_by_side_and_new_groups_join_the_list(browser, serve, looked, open_page, tmp_path):
    other = tmp_path / "looked" / "20261121-221504-3fa9c1"
    shutil.copytree(looked, other)
    lines = (other / "answers" / "04-evaluate.jsonl").read_text().splitlines(keepends=True)
    (other / "answers" / "04-evaluate.jsonl").write_text("".join(lines[1:]))  # one question fewer
    (other / "STATUS").write_text(json.dumps({"state": "running", "stage": "", "step": 0, "message": ""}))
    reader = open_page(browser, serve(looked, other))
    page = reader.page
    assert page.locator("#side-a").input_value() == "a:04-evaluate"
    assert page.locator("#side-b").input_value() == "b:04-evaluate"
    assert rows(page).count() == len(lines) - 1  # those that both were asked
    page.click('nav button:text("Rollouts")')
    page.wait_for_selector(".rollout")
    page.select_option("#side-a", "b:03-grpo")
    page.wait_for_function("() => document.querySelector('.count b').textContent === '4'")
    with (other / "rollouts" / "03-grpo.jsonl").open("a") as file:
        file.write((other / "rollouts" / "03-grpo.jsonl").read_text().splitlines()[0] + "\n")
    status = {"state": "failed", "stage": "03-grpo", "step": 4, "message": "the disk is full"}
    (other / "STATUS").write_text(json.dumps(status))
    page.wait_for_function("() => document.querySelector('.count b').textContent === '5'")
    assert page.locator(".state.failed").get_attribute("title") == "the disk is full"
