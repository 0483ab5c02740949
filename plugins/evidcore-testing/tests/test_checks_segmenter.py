import nibabel
import numpy as np
import pytest
from evidcore_testing import check_segmenter, prompts_from
from mutants import altered, caught, changing
from scipy import ndimage

from evidcore.api import Segmenter, read, read_mask
from evidcore.contracts import BoxPrompt, MaskPrompt, PointPrompt, SegmenterSession, TextPrompt


class Region(SegmenterSession):
    """Soft tissue in a column over the prompted box, point or mask, as far as it goes without a gap."""

    def __init__(self, ref):
        self.soft = read(ref).array > -400
        self.answers = {}

    def mask(self, prompts, z_window=None):
        self.refuse(prompts, z_window)
        out = np.zeros(self.soft.shape, dtype=bool)
        for prompt in prompts:
            out |= self.grown(self.seed(prompt))
        start, stop = z_window or (0, len(out))
        out[:start] = out[stop:] = False
        return out

    def refuse(self, prompts, z_window):
        self.refuse_unusable(prompts, z_window, self.soft.shape)

    def seed(self, prompt):
        seed = np.zeros(self.soft.shape, dtype=bool)
        match prompt:
            case BoxPrompt(box=box):
                seed[box.z, box.y0 : box.y1, box.x0 : box.x1] = True
            case PointPrompt(z=z, y=y, x=x):
                seed[z, max(0, y - 2) : y + 3, max(0, x - 2) : x + 3] = True
            case MaskPrompt(z=z, mask=mask):
                seed[z] = mask
        return seed

    def grown(self, seed):
        start = seed & self.soft if (seed & self.soft).any() else seed
        upright = np.zeros((3, 3, 3), dtype=bool)
        upright[:, 1, 1] = True
        return ndimage.binary_propagation(start, upright, mask=self.soft | start)


class Named(Region):
    """Finds what is soft by its name, or what a box shows."""

    takes = (TextPrompt, BoxPrompt)

    def seed(self, prompt):
        return self.soft if isinstance(prompt, TextPrompt) else Region.seed(self, prompt)


class OnlyNamed(Named):
    takes = (TextPrompt,)


class Columns(Segmenter):
    session_class = Region

    def session(self, volume):
        return self.session_class(volume)


def segmenter(session):
    return altered(Columns, session_class=session)


def mutant(**methods):
    return segmenter(altered(Region, **methods))


def masking(change):
    """Return a segmenter that changes each mask."""
    return segmenter(changing(Region, "mask", change))


def remembers(self, *given):
    """Grow with each mask, as a session that keeps a memory of prompts would."""
    mask = Region.mask(self, *given)
    self.soft = self.soft | np.roll(mask, 1, axis=0)
    return mask


def lenient(self, *given):
    try:
        return Region.mask(self, *given)
    except ValueError:
        return np.zeros(self.soft.shape, dtype=bool)


def deaf(self, prompts, z_window):
    """Pass over text, which gives an empty mask then."""
    heard = [prompt for prompt in prompts if not isinstance(prompt, TextPrompt)]
    if heard or not prompts:
        self.refuse_unusable(heard, z_window, self.soft.shape)


def first_alone(self, prompts, z_window=None):
    self.refuse(prompts, z_window)
    return Region.mask(self, prompts[:1], z_window)


def shared(self, prompts, z_window=None):
    """Hand out the remembered array itself."""
    return self.answers.setdefault((tuple(prompts), z_window), Region.mask(self, prompts, z_window))


def aliased(self, requests):
    for request in requests:
        self.answers.setdefault(request, self.mask(request.prompts, request.z_window))
    return [self.answers[request] for request in requests]


def unread(self, ref):
    """Read the voxels as they are, NaN too."""
    self.soft = np.asarray(nibabel.load(ref.path).dataobj).transpose(2, 1, 0) > -400


UNUSABLE = "a prompt or a window that cannot be used raises a ValueError."
MUTANTS = {
    r"on the volume's grid. must be bool \(12, 16, 16\), got bool \(16, 16, 12\)": masking(np.transpose),
    "gives no empty mask. got one for BoxPrompt": masking(np.zeros_like),
    r"nothing lies outside the window. \d+ voxels beyond slices \d+\.\.\d": mutant(
        mask=lambda self, prompts, z_window=None: Region.mask(self, prompts)
    ),
    r"equal prompts get equal masks. \d+ voxels differ for BoxPrompt": mutant(mask=remembers),
    rf"{UNUSABLE} \[\] was accepted": mutant(mask=lenient),
    rf"{UNUSABLE} the window \(0, 0\) with .* was accepted": mutant(
        refuse=lambda self, prompts, z_window: self.refuse_unusable(prompts, None, self.soft.shape)
    ),
    rf"{UNUSABLE} \[TextPrompt\(words='.*'\)\] was accepted": mutant(refuse=deaf),
    r"one call are OR-ed. \d+ voxels differ from the union": mutant(mask=first_alone),
    r"order of the requests. request \d: \d+ voxels": segmenter(
        changing(Region, "masks", lambda masks: masks[::-1])
    ),
    "changes no later mask. 3072 voxels differ for BoxPrompt": mutant(mask=shared),
    "changes no later mask. 3072 voxels differ for .*BoxPrompt": mutant(masks=aliased),
    "names the file. a volume with NaN was accepted": mutant(__init__=unread),
    r"an easy object is found. Dice 0\.\d\d for BoxPrompt": segmenter(
        changing(Region, "grown", np.ones_like)
    ),
}


def check(segmenter, cases, named=False):
    volume = cases[0].volumes[0]
    if named:
        return check_segmenter(segmenter, volume, [TextPrompt(words="soft tissue")])
    truth = read_mask(cases[0].masks["lung nodule"], like=read(volume))
    check_segmenter(segmenter, volume, prompts_from(truth), truth=truth, least_dice=0.7)


def test_a_sound_segmenter_passes(cases):
    check(Columns(), cases)


@pytest.mark.parametrize("session", [Named, OnlyNamed])
def test_a_segmenter_that_takes_text_passes_and_must_be_asked_with_it(session, cases):
    check(segmenter(session)(), cases, named=True)
    with caught("one that takes text is asked with text. give check_segmenter a TextPrompt"):
        check(segmenter(session)(), cases)


@pytest.mark.parametrize("message", MUTANTS)
def test_a_segmenter_that_breaks_a_clause_is_caught(message, cases):
    with caught(message):
        check(MUTANTS[message](), cases)
