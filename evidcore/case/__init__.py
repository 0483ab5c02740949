"""A scan, what is asked about it and what a model answered: plain frozen data.

Arrays are `z, y, x`: z to superior, y to posterior, x to the patient's left (LPS), spacing in the same order.
Belongs here: values that pass between rooms and into rewards. No file is read here. Imported by all; imports
`errors`.
"""

from evidcore.case.scan import Case as Case
from evidcore.case.scan import Finding as Finding
from evidcore.case.scan import Intensity as Intensity
from evidcore.case.scan import MaskRef as MaskRef
from evidcore.case.scan import Query as Query
from evidcore.case.scan import Question as Question
from evidcore.case.scan import Report as Report
from evidcore.case.scan import Side as Side
from evidcore.case.scan import Span as Span
from evidcore.case.scan import Split as Split
from evidcore.case.scan import State as State
from evidcore.case.scan import Tilted as Tilted
from evidcore.case.scan import VolumeRef as VolumeRef
from evidcore.case.shown import Action as Action
from evidcore.case.shown import Answer as Answer
from evidcore.case.shown import Box as Box
from evidcore.case.shown import Change as Change
from evidcore.case.shown import Crop as Crop
from evidcore.case.shown import Drawing as Drawing
from evidcore.case.shown import Episode as Episode
from evidcore.case.shown import Evidence as Evidence
from evidcore.case.shown import Part as Part
from evidcore.case.shown import Prompt as Prompt
from evidcore.case.shown import Reply as Reply
from evidcore.case.shown import Rollout as Rollout
from evidcore.case.shown import Score as Score
from evidcore.case.shown import TextPart as TextPart
from evidcore.case.shown import Turn as Turn
from evidcore.case.shown import Unscored as Unscored
from evidcore.case.shown import Verdict as Verdict
from evidcore.case.shown import VisualPart as VisualPart
from evidcore.case.shown import written as written
