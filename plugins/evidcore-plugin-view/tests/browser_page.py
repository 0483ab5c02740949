"""A page of the viewer in a browser, and everything that went wrong in it."""

import io
import re

import numpy as np
from PIL import Image


class Reader:
    """A page on a server, and everything that went wrong in it."""

    def __init__(self, browser, server, **options):
        self.context = browser.new_context(viewport={"width": 1400, "height": 900}, **options)
        self.page = self.context.new_page()
        self.faults = []
        self.page.on("console", lambda said: self.faults.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.answers, self.requests = [], []
        self.page.on("response", lambda got: self.answers.append((got.status, got.url)))
        self.page.on("request", lambda asked: self.requests.append(asked.url))
        self.address = server.address.partition("#")[0]
        self.page.goto(server.address)
        self.ready()

    def ready(self):
        self.page.wait_for_selector("body[data-ready]")
        self.page.wait_for_selector(".screen.large[data-painted]")
        self.page.wait_for_function("() => !document.querySelector('.waiting')", timeout=120_000)

    def colours(self, plane="axial"):
        """The pixels of a plane, shape (y, x, rgb), the pointer elsewhere."""
        self.page.mouse.move(2, 2)
        self.page.wait_for_timeout(350)
        return self.shot(f'.screen[data-plane="{plane}"] .picture')

    def go(self, fragment):
        """Open a place of the viewer, as a link does."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.address}{fragment}")
        self.page.wait_for_selector("body[data-ready]")

    def shot(self, selector):
        """The pixels of an element, shape (y, x, rgb)."""
        shot = self.page.locator(selector).screenshot()
        return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int)

    def painted(self, slice_, plane="axial"):
        self.page.wait_for_selector(f'.screen[data-plane="{plane}"][data-painted="{slice_}"]')

    def close(self):
        self.context.close()
        assert self.faults + [answer for answer in self.answers if answer[0] >= 400] == []
        near = re.compile(r"(http://127\.0\.0\.1:|blob:|data:)")
        assert [url for url in self.requests if not near.match(url)] == []


def near(pixels, colour, within=60):
    """Where a picture has a colour, roughly."""
    return np.abs(pixels - np.array(colour)).sum(axis=2) < within


def at_voxels(pixels, shape):
    """A picture of a slice at the middle of each of its voxels, shape (y, x)."""
    sizes = zip(shape, pixels.shape, strict=False)
    return pixels[np.ix_(*(((np.arange(count) + 0.5) * size / count).astype(int) for count, size in sizes))]


def rows(page):
    return page.locator("#list .rows a")
