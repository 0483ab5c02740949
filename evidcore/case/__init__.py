"""A scan, what is asked about it and what a model answered: plain frozen data.

Arrays are `z, y, x`: z to superior, y to posterior, x to the patient's left (LPS), spacing in the same order.
"""

from evidcore.case.answer import (
    Action,
    Answer,
    Box,
    Episode,
    Evidence,
    Rollout,
    Score,
    Unscored,
    Verdict,
)
from evidcore.case.scan import (
    Case,
    Finding,
    Intensity,
    MaskRef,
    Query,
    Question,
    Report,
    Side,
    Span,
    Split,
    State,
    Tilted,
    VolumeRef,
)
from evidcore.case.shown import Crop, Part, Prompt, TextPart, VisualPart

__all__ = [
    "Action",
    "Answer",
    "Box",
    "Case",
    "Crop",
    "Episode",
    "Evidence",
    "Finding",
    "Intensity",
    "MaskRef",
    "Part",
    "Prompt",
    "Query",
    "Question",
    "Report",
    "Rollout",
    "Score",
    "Side",
    "Span",
    "Split",
    "State",
    "TextPart",
    "Tilted",
    "Unscored",
    "Verdict",
    "VisualPart",
    "VolumeRef",
]
