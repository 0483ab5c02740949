"""Every view by axe-core, in light and dark, and on a telephone: names, contrast, width, no errors."""

import pytest
from evidcore_plugin_view.niivue import FetchError, fetch_member

AXE = "axe-core@4.14.1"
INTEGRITY = "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
VIEWS = {
    "answers": ("#", ".answer .text"),
    "pointing": ("#task=point", ".answer .facts button"),
    "report": ("#task=tell", ".answer .findings-cited button"),
    "3d": ("#task=point&scan=3d", ".refusal, .volume[data-painted]"),
    "rollouts": ("#view=rollouts", ".rollout"),
    "forks": ("#view=rollouts&at=tell/train-00000:report@4", ".forks"),
    "audits": ("#view=audits", ".staircase"),
    "results": ("#view=results", "#figures table"),
}


@pytest.fixture(scope="session")
def axe():
    """The source of axe-core; skipped where npm cannot fetch it."""
    try:
        return fetch_member(AXE, INTEGRITY, "package/axe.min.js").decode()
    except FetchError as error:
        pytest.skip(str(error))


def each_view(reader):
    """Open every view in turn; give its name once it is drawn."""
    for name, (fragment, drawn) in VIEWS.items():
        reader.go(fragment)
        reader.page.wait_for_selector(drawn)
        reader.page.wait_for_function("() => !document.querySelector('.waiting')", timeout=120_000)
        yield name


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, served, open_page, axe, scheme):
    reader, told = open_page(browser, served, color_scheme=scheme), []
    for name in each_view(reader):
        reader.page.evaluate(axe)
        result = reader.page.evaluate("async () => (await axe.run()).violations")
        told += [
            (name, item["id"], [node["html"][:120] for node in item["nodes"][:3]])
            for item in result
            if item["impact"] in ("serious", "critical")
        ]
    assert told == []


@pytest.mark.slow
def test_nothing_is_wider_than_a_telephone_and_every_control_has_a_name(browser, served, open_page):
    reader, wider = open_page(browser, served), []
    reader.page.set_viewport_size({"width": 390, "height": 800})
    for name in each_view(reader):
        width = reader.page.evaluate("document.documentElement.scrollWidth")
        wider += [(name, width)] if width > 390 else []
        outside = reader.page.evaluate(
            """() => [...document.querySelectorAll('body *')]
              .filter((one) => one.offsetParent && !one.closest('.scroll, .unseen, svg, .rows'))
              .filter((one) => one.getBoundingClientRect().right > 391)
              .map((one) => one.outerHTML.slice(0, 120))"""
        )
        nameless = reader.page.evaluate(
            """() => [...document.querySelectorAll('button, select, input, a')]
              .filter((one) => one.offsetParent && ![one.textContent, one.ariaLabel ?? '', one.title,
                one.closest('label')?.textContent ?? ''].join('').trim())
              .map((one) => one.outerHTML)"""
        )
        wider += [(name, item) for item in (*outside, *nameless)]
    assert wider == []
