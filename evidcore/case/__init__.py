"""A scan, what is asked about it and what a model answered: plain frozen data.

Arrays are `z, y, x`: z to superior, y to posterior, x to the patient's left (LPS), spacing in the same order.
Belongs here: values that pass between rooms and into rewards. No file is read here. Imported by all; imports
`errors`.
"""

from evidcore.case.interaction import Action as Action
from evidcore.case.interaction import Answer as Answer
from evidcore.case.interaction import Box as Box
from evidcore.case.interaction import Change as Change
from evidcore.case.interaction import Crop as Crop
from evidcore.case.interaction import Drawing as Drawing
from evidcore.case.interaction import Episode as Episode
from evidcore.case.interaction import Evidence as Evidence
from evidcore.case.interaction import Part as Part
from evidcore.case.interaction import Prompt as Prompt
from evidcore.case.interaction import Reply as Reply
from evidcore.case.interaction import Rollout as Rollout
from evidcore.case.interaction import Score as Score
from evidcore.case.interaction import TextPart as TextPart
from evidcore.case.interaction import Turn as Turn
from evidcore.case.interaction import Unscored as Unscored
from evidcore.case.interaction import Verdict as Verdict
from evidcore.case.interaction import VisualPart as VisualPart
from evidcore.case.interaction import written as written
from evidcore.case.scan import Case as Case
from evidcore.case.scan import Finding as Finding
from evidcore.case.scan import Intensity as Intensity
from evidcore.case.scan import MaskRef as MaskRef
from evidcore.case.scan import Oblique as Oblique
from evidcore.case.scan import Query as Query
from evidcore.case.scan import Question as Question
from evidcore.case.scan import Report as Report
from evidcore.case.scan import Side as Side
from evidcore.case.scan import Span as Span
from evidcore.case.scan import Split as Split
from evidcore.case.scan import State as State
from evidcore.case.scan import VolumeRef as VolumeRef
