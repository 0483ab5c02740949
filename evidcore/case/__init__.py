"""A scan, what is asked about it and what a model answered: plain frozen data.

Arrays are `z, y, x`: z to superior, y to posterior, x to the patient's left (LPS), spacing in the same order.
Belongs here: values that pass between rooms and into rewards. No file is read here. Imported by all.
"""

# fmt: off
# isort: off
from evidcore.case.interaction import (
    Action, Answer, Box, Change, Crop, Drawing, Episode, Evidence, Part, Prompt, Reply, Rollout, Score,
    TextPart, Turn, Unscored, Verdict, VisualPart, written,
)
from evidcore.case.scan import (
    Case, Finding, Intensity, MaskRef, Oblique, Query, Question, Report, Side, Span, Split, State,
    VolumeRef,
)

__all__ = [
    "Action", "Answer", "Box", "Case", "Change", "Crop", "Drawing", "Episode", "Evidence", "Finding",
    "Intensity", "MaskRef", "Oblique", "Part", "Prompt", "Query", "Question", "Reply", "Report", "Rollout",
    "Score", "Side", "Span", "Split", "State", "TextPart", "Turn", "Unscored", "Verdict", "VisualPart",
    "VolumeRef", "written",
]
# fmt: on
