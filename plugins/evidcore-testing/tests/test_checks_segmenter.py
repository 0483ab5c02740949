import nibabel
import numpy as np
import pytest
from evidcore_testing import check_segmenter, prompts_from, volume_case

from evidcore.contracts import (
    BoxPrompt,
    MaskPrompt,
    PointPrompt,
    Segmenter,
    SegmenterSession,
    refuse_unusable,
)
from evidcore.volume import read, read_mask


class Region(SegmenterSession):
    """Soft tissue in a column over the prompted box, point or mask, as far as it goes without a gap."""

    def __init__(self, ref):
        self.soft = read(ref).array > -400

    def mask(self, prompts, z_window=None):
        self.refuse(prompts, z_window)
        out = np.zeros(self.soft.shape, dtype=bool)
        for prompt in prompts:
            out |= self.grown(self.seed(prompt))
        start, stop = z_window or (0, len(out))
        out[:start] = out[stop:] = False
        return out

    def refuse(self, prompts, z_window):
        refuse_unusable(prompts, z_window, self.soft.shape)

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


def mutant(name, **methods):
    return type(name, (Columns,), {"session_class": type(name + "Session", (Region,), methods)})


def scores(self, prompts, z_window=None):
    return Region.mask(self, prompts, z_window).astype(np.float32)


def turned(self, prompts, z_window=None):
    return Region.mask(self, prompts, z_window).transpose(2, 1, 0)


def nothing(self, prompts, z_window=None):
    return Region.mask(self, prompts, z_window) & False


def boundless(self, prompts, z_window=None):
    return Region.mask(self, prompts)


def growing(self, prompts, z_window=None):
    """Remember what was found, as a session that keeps a memory of prompts would."""
    found = Region.mask(self, prompts, z_window)
    if z_window is None:
        self.soft = self.soft | np.roll(found, 1, axis=0)
    return found


def lenient(self, prompts, z_window=None):
    try:
        return Region.mask(self, prompts, z_window)
    except ValueError:
        return np.zeros(self.soft.shape, dtype=bool)


def unchecked(self, prompts, z_window):
    if not prompts:
        raise ValueError("no prompt")


def windowless(self, prompts, z_window):
    refuse_unusable(prompts, None, self.soft.shape)


def first_alone(self, prompts, z_window=None):
    self.refuse(prompts, z_window)
    return Region.mask(self, prompts[:1], z_window)


def backwards(self, requests):
    return Region.masks(self, requests)[::-1]


def once(self, requests):
    return Region.masks(self, list(dict.fromkeys(requests)))


def shared(self, prompts, z_window=None):
    """Keep masks, and hand out the kept array itself."""
    if not hasattr(self, "kept"):
        self.kept = {}
    key = (tuple(prompts), z_window)
    if key not in self.kept:
        self.kept[key] = Region.mask(self, prompts, z_window)
    return self.kept[key]


def frozen(self, prompts, z_window=None):
    found = Region.mask(self, prompts, z_window)
    found.setflags(write=False)
    return found


def aliased(self, requests):
    if not hasattr(self, "kept"):
        self.kept = {}
    for request in requests:
        if request not in self.kept:
            self.kept[request] = self.mask(request.prompts, request.z_window)
    return [self.kept[request] for request in requests]


def unread(self, ref):
    """Read the voxels as they are, NaN too."""
    self.soft = np.asarray(nibabel.load(ref.path).dataobj).transpose(2, 1, 0) > -400


def everything(self, seed):
    return np.ones_like(seed)


@pytest.fixture(scope="module")
def nodule(tmp_path_factory):
    case = volume_case(tmp_path_factory.mktemp("case"))
    truth = read_mask(case.masks["lung nodule"], like=read(case.volumes[0]))
    return case.volumes[0], prompts_from(truth), truth


def test_a_sound_segmenter_passes(nodule):
    volume, prompts, truth = nodule
    check_segmenter(Columns(), volume, prompts, truth=truth, least_dice=0.7)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            mutant("Scores", mask=scores),
            r"Scores breaks its .* must be bool \(12, 16, 16\), got float32 \(12,",
        ),
        (
            mutant("Turned", mask=turned),
            r"on the volume's grid. must be bool \(12, 16, 16\), got bool \(16, 16, 12\)",
        ),
        (mutant("Nothing", mask=nothing), "gives no empty mask. got one for BoxPrompt"),
        (
            mutant("Boundless", mask=boundless),
            r"nothing lies outside the window. \d+ voxels beyond slices \d+\.\.\d",
        ),
        (
            mutant("Growing", mask=growing),
            r"equal prompts get equal masks. \d+ voxels differ for BoxPrompt",
        ),
        (mutant("Lenient", mask=lenient), r"cannot be used raises a ValueError. \[\] was accepted"),
        (mutant("Unchecked", refuse=unchecked), r"cannot be used .*Box\(z=12.* raised IndexError: index 12"),
        (
            mutant("Windowless", refuse=windowless),
            r"cannot be used .* the window \(0, 0\) with .* was accepted",
        ),
        (mutant("FirstAlone", mask=first_alone), r"one call are OR-ed. \d+ voxels differ from the union"),
        (mutant("Backwards", masks=backwards), r"in the order of the requests. request \d: \d+ voxels"),
        (mutant("Once", masks=once), r"in the order of the requests. 5 masks for 6"),
        (mutant("Shared", mask=shared), r"changes no later mask. 3072 voxels differ for BoxPrompt"),
        (mutant("Frozen", mask=frozen), r"changes no later mask. writing raised ValueError"),
        (mutant("Aliased", masks=aliased), r"changes no later mask. 3072 voxels differ for BoxPrompt"),
        (mutant("Unread", __init__=unread), r"names the file. a volume with NaN was accepted"),
        (mutant("Everything", grown=everything), r"an easy object is found. Dice 0\.\d\d for BoxPrompt"),
    ],
)
def test_a_segmenter_that_breaks_a_clause_is_caught(broken, message, nodule):
    volume, prompts, truth = nodule
    with pytest.raises(AssertionError, match=message):
        check_segmenter(broken(), volume, prompts, truth=truth, least_dice=0.7)
