"""Who sees that something is there and takes its side from elsewhere, held to what lies on the other side."""

import random

import numpy as np
import pytest
from evidcore_testing.data import save_nifti

from evidcore.api import Case, EvalOptions, Finding, MaskRef, Policy, VolumeRef, read
from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.registry import factory

SHAPE = (6, 24, 48)  # z, y, x
TASK = Choice(think=False, options_per_question=2)
CONDITIONS = ["blank", "other-patient", "occluded", "replaced", "occluded-elsewhere"]


def prompts(folder, split, count):
    asked = []
    for number in range(count):
        rng = np.random.default_rng([number, split])
        voxels, spot, is_left = (
            rng.normal(0, 10, SHAPE),
            np.zeros(SHAPE, dtype=np.uint8),
            bool(rng.integers(2)),
        )
        z, y, x = rng.integers((2, 5, 5 + 24 * is_left), (4, 19, 19 + 24 * is_left))
        spot[z : z + 2, y : y + 3, x : x + 3] = 1
        voxels[spot > 0] += 200
        voxels[0, 0, -1 if is_left else 0] = 500  # a cue of the side, which no cover touches
        stem = folder / f"{split}-{number}"
        ref = VolumeRef(path=str(save_nifti(f"{stem}.nii.gz", voxels.astype(np.int16), (4.0,) * 3, "LPS")))
        names = ("left spot", "right spot") if is_left else ("right spot", "left spot")
        findings = [
            Finding(name=name, state=state) for name, state in zip(names, ("present", "absent"), strict=True)
        ]
        mask = MaskRef(path=str(save_nifti(f"{stem}-mask.nii.gz", spot, (4.0,) * 3, "LPS")))
        case = Case(
            id=stem.name, patient=stem.name, volumes=(ref,), findings=tuple(findings), masks={names[0]: mask}
        )
        asked += TASK.prompts(case, Volume(), 1)
    return asked


class Reads(Policy):
    """Looks for the spot; where there is one, says its side or that of the cue."""

    def __init__(self, by_cue):
        self.by_cue = by_cue

    def generate(self, prompts, *, max_new_tokens, temperature=0.0):
        return [self.letter(prompt) for prompt in prompts]

    def letter(self, prompt):
        voxels = read(prompt.crops()[0].volume).array
        inside = voxels[1:]
        side = random.Random(prompt.id).choice(["left", "right"])
        if not prompt.crops()[0].blank and (inside > 100).any():
            at = voxels[0] if self.by_cue else inside
            side = "left" if np.argmax(at.reshape(-1, SHAPE[2]).max(axis=0)) >= SHAPE[2] / 2 else "right"
        options = ["left spot", "right spot"] if "A) left" in prompt.words() else ["right spot", "left spot"]
        return f"<answer>{'AB'[options.index(f'{side} spot')]}</answer>"

    def log_likelihoods(self, prompts, completions):
        return [[0.0 for _ in some] for some in completions]


@pytest.mark.parametrize("by_cue", [False, True])
def test_who_takes_the_side_from_elsewhere_is_told_apart_by_what_lies_on_the_other_side(tmp_path, by_cue):
    asked, training = prompts(tmp_path, 0, 60), prompts(tmp_path, 1, 60)
    evaluation = factory.build("evaluation", {"use": "choice"}, given={}, where="test")

    def verdict(*names):
        table = {"use": "policy", "conditions": [{"use": name} for name in (*CONDITIONS, *names)]}
        audit = factory.build("audit", table, given={}, where="test")
        asking = EvalOptions(max_new_tokens=8)
        return audit(Reads(by_cue), asked, TASK, evaluation, lambda: training, asking, "choice").verdict()

    assert verdict().startswith("What is asked is seen: ")
    if by_cue:
        assert verdict("moved").startswith("The volume is used, but no sign that what is asked is seen")
    else:
        assert verdict("moved").startswith("What is asked is seen: ")
        assert "over the same patients with what is asked in its mirror place" in verdict("moved")
