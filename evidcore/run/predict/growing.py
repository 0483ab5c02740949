"""The 3D mask behind the boxes of an answer: made by the segmenter that the run was measured with."""

from __future__ import annotations

from evidcore.case import Evidence, Prompt, VolumeRef
from evidcore.contracts import BoxPrompt
from evidcore.recipe import Audit, Evaluate
from evidcore.registry import Offer, blame
from evidcore.registry.factory import offer_of
from evidcore.run.measuring import segmenter_of
from evidcore.run.parts import Parts
from evidcore.run.predict.evidence import Mask


def grown(parts: Parts, prompt: Prompt, evidence: Evidence, ref: VolumeRef) -> tuple[Mask, Offer] | None:
    """Return the mask, shape (z, y, x), and the segmenter that made it; None where none has a part in this.

    It is asked where a prompt asks for a segmentation and the answer has boxes. The segmenter is that of the
    recipe's last stage that measures the task.
    """
    if not evidence.boxes or "masks" not in prompt.reference:
        return None
    for place, stage in reversed(list(enumerate(parts.recipe.stages))):
        if isinstance(stage, Evaluate | Audit) and any(use.task == prompt.task for use in stage.data):
            segmenter = segmenter_of(parts, stage, parts.recipe.stage_name(place))
            offer = offer_of(segmenter)
            with blame(offer, f"following boxes through {ref.path}"):
                return segmenter.session(ref).mask([BoxPrompt(box=box) for box in evidence.boxes]), offer
    return None
