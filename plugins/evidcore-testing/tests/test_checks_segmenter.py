import nibabel
import numpy as np
import pytest
from evidcore_testing import check_segmenter, prompts_from, volume_case

from evidcore.api import Segmenter, read, read_mask
from evidcore.contracts import BoxPrompt, MaskPrompt, PointPrompt, SegmenterSession


class Region(SegmenterSession):
    """Soft tissue in a column over the prompted box, point or mask, as far as it goes without a gap."""

    def __init__(self, ref):
        self.soft = read(ref).array > -400
        self.kept = {}

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
            case PointPrompt(z=pz, y=py, x=px):
                seed[pz, max(0, py - 2) : py + 3, max(0, px - 2) : px + 3] = True
            case MaskPrompt(z=pz, mask=mask):
                seed[pz] = mask
        return seed

    def grown(self, seed):
        column = seed.any(axis=0)
        soft = self.soft & column
        out = seed & self.soft if (seed & self.soft).any() else seed
        for z in list(range(1, len(out))) + list(range(len(out) - 2, -1, -1)):
            for near in {max(z - 1, 0), min(z + 1, len(out) - 1)}:
                out[z] |= soft[z] & out[near]
        return out


class Columns(Segmenter):
    session_class = Region

    def session(self, volume):
        return self.session_class(volume)


def mutant(**methods):
    return type("Mutant", (Columns,), {"session_class": type("Session", (Region,), methods)})


def after(change):
    """Return a segmenter that changes each mask."""
    return mutant(mask=lambda self, *given: change(self, Region.mask(self, *given)))


def remembers(self, found):
    """Grow with each mask, as a session that keeps a memory of prompts would."""
    self.soft = self.soft | np.roll(found, 1, axis=0)
    return found


def lenient(self, *given):
    try:
        return Region.mask(self, *given)
    except ValueError:
        return np.zeros(self.soft.shape, dtype=bool)


def first_alone(self, prompts, z_window=None):
    self.refuse(prompts, z_window)
    return Region.mask(self, prompts[:1], z_window)


def shared(self, prompts, z_window=None):
    """Hand out the kept array itself."""
    key = (tuple(prompts), z_window)
    return self.kept.setdefault(key, Region.mask(self, prompts, z_window))


def aliased(self, requests):
    for request in requests:
        self.kept.setdefault(request, self.mask(request.prompts, request.z_window))
    return [self.kept[request] for request in requests]


def unread(self, ref):
    """Read the voxels as they are, NaN too."""
    self.soft = np.asarray(nibabel.load(ref.path).dataobj).transpose(2, 1, 0) > -400


MUTANTS = {
    r"on the volume's grid. must be bool \(12, 16, 16\), got bool \(16, 16, 12\)": after(
        lambda self, found: found.transpose(2, 1, 0)
    ),
    "gives no empty mask. got one for BoxPrompt": after(lambda self, found: found & False),
    r"nothing lies outside the window. \d+ voxels beyond slices \d+\.\.\d": mutant(
        mask=lambda self, prompts, z_window=None: Region.mask(self, prompts)
    ),
    r"equal prompts get equal masks. \d+ voxels differ for BoxPrompt": after(remembers),
    r"cannot be used raises a ValueError. \[\] was accepted": mutant(mask=lenient),
    r"cannot be used .* the window \(0, 0\) with .* was accepted": mutant(
        refuse=lambda self, prompts, z_window: self.refuse_unusable(prompts, None, self.soft.shape)
    ),
    r"one call are OR-ed. \d+ voxels differ from the union": mutant(mask=first_alone),
    r"in the order of the requests. request \d: \d+ voxels": mutant(
        masks=lambda self, requests: Region.masks(self, requests)[::-1]
    ),
    "changes no later mask. 3072 voxels differ for BoxPrompt": mutant(mask=shared),
    "changes no later mask. 3072 voxels differ for .*BoxPrompt": mutant(masks=aliased),
    "names the file. a volume with NaN was accepted": mutant(__init__=unread),
    r"an easy object is found. Dice 0\.\d\d for BoxPrompt": mutant(
        grown=lambda self, seed: np.ones_like(seed)
    ),
}


@pytest.fixture(scope="module")
def nodule(tmp_path_factory):
    case = volume_case(tmp_path_factory.mktemp("case"))
    truth = read_mask(case.masks["lung nodule"], like=read(case.volumes[0]))
    return case.volumes[0], prompts_from(truth), truth


def test_a_sound_segmenter_passes(nodule):
    volume, prompts, truth = nodule
    check_segmenter(Columns(), volume, prompts, truth=truth, least_dice=0.7)


@pytest.mark.parametrize("message", MUTANTS)
def test_a_segmenter_that_breaks_a_clause_is_caught(message, nodule):
    volume, prompts, truth = nodule
    with pytest.raises(AssertionError, match=message):
        check_segmenter(MUTANTS[message](), volume, prompts, truth=truth, least_dice=0.7)
