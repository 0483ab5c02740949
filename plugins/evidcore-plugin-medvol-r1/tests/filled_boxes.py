"""A task whose answers are boxes 'z y0 y1 x0 x1', and a segmenter that fills boxes from slice to slice."""

import numpy as np

from evidcore.api import Answer, Box, Segmenter, Task
from evidcore.case import Evidence
from evidcore.contracts import SegmenterSession

RIGHT_BOX, LEFT_BOX = (100, 500, 300, 700), (700, 500, 900, 750)  # rows 20 to 27 and 20 to 29 of the scan


def liver_box(z):
    """Rows 5 to 4 + z, columns 2 to 11 of the scan."""
    return (40, 125, 240, 125 + 25 * z)


class Boxed(Task):
    """Asks for masks; the case's notes hold a gold answer for each."""

    def prompts(self, case, view, seed):
        raise NotImplementedError("prompts are made by hand")

    def gold(self, prompt):
        return prompt.case.notes["gold"][prompt.reference["masks"][0]], ()

    def parse(self, prompt, completion):
        try:
            boxes = [[int(number) for number in text.split()] for text in completion.split(",")]
            boxes = [Box(z=z, y0=y0, y1=y1, x0=x0, x1=x1) for z, y0, y1, x0, x1 in boxes]
        except ValueError:
            return Answer(text=completion, malformed=f"no box: {completion!r}")
        return Answer(text=completion, evidence=Evidence(slice=boxes[-1].z, boxes=tuple(boxes)))


class Filled(SegmenterSession):
    """Fills each box on every slice of the window, and keeps what it was asked."""

    def __init__(self, shape, asked):
        self.shape, self.asked = shape, asked

    def mask(self, prompts, z_window=None):
        self.asked.append((prompts, z_window))
        mask = np.zeros(self.shape, dtype=bool)
        start, stop = z_window or (0, self.shape[0])
        for prompt in prompts:
            box = prompt.box
            if not start <= box.z < stop:
                raise ValueError(f"{box} lies outside slices {start} to {stop - 1}")
            self.fill(mask[start:stop], box)
        return mask

    def fill(self, part, box):
        part[:, box.y0 : box.y1, box.x0 : box.x1] = True


class Nothing(Filled):
    def fill(self, part, box):
        """Draw nothing."""


class Fills(Segmenter):
    """Opens sessions that fill boxes; keeps what was opened, and what each session was asked."""

    shape, session_class = (20, 40, 50), Filled

    def __init__(self):
        self.opened, self.asked = [], []

    def session(self, volume):
        self.opened.append(volume)
        self.asked.append([])
        return self.session_class(self.shape, self.asked[-1])
