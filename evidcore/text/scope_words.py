"""What denies, doubts or dates a finding in English reports: regular expressions without regard to case.

What stands between one of these and a mention decides about it; see `NegationRules`.
"""

from __future__ import annotations

DENIES_AFTER = (  # "no nodule"
    r"no", r"not", r"without", r"neither", r"nor", r"never", r"absence of", r"absent", r"free (?:of|from)",
    r"negative for", r"cleared? of", r"ruled out", r"rather than", r"no longer",
)  # fmt: skip
DENIES_BEFORE = (  # "a nodule is not seen"
    r"(?:is|are|was|were|has|have|be|been|could|can)? ?(?:not|never|no longer)(?: been)?(?: be)? ?"
    r"(?:seen|observed|detected|identified|found|present|noted|visualised|visualized|evident|demonstrated|shown"
    r"|distinguished|monitored|selected|encountered|appreciated)?",
    r"cannot be (?:seen|identified|found|detected)",
    r"(?:is|are|was|were) absent", r"absent",
    r"(?:is|are|was|were|has been|have been) (?:ruled out|excluded)",
    r"(?:is|are|was|were|has|have)?(?: been)? ?(?:completely )?(?:resolved|regressed completely|disappeared)",
    r"none", r"negative",
)  # fmt: skip
DOUBTS_AFTER = (  # "possible nodule"
    r"possible", r"possibly", r"probable", r"probably", r"suspected", r"suspicious (?:for|of)",
    r"suspicion of",
    r"may (?:be|represent|indicate|reflect|suggest)", r"might (?:be|represent)", r"could (?:be|represent)",
    r"suggest(?:s|ive of|ing)?", r"cannot (?:exclude|rule out)", r"not (?:exclude|excluded|rule out)",
    r"versus", r"questionable", r"equivocal", r"in favou?r of", r"concern(?:ing)? for",
)  # fmt: skip
DOUBTS_BEFORE = (  # "a nodule cannot be excluded"
    r"(?:cannot|can not|could not|can ?t) be (?:excluded|ruled out|differentiated)",
    r"(?:is|are|was|were) (?:possible|suspected|likely|questionable|equivocal)", r"suspected", r"possible",
    r"(?:is|are) not (?:excluded|ruled out)", r"\?",
)  # fmt: skip
DENIES_NOTHING = (  # looks like a denial and is none
    r"no (?:significant |obvious |interval )?(?:change|increase|progression|decrease|difference)s?(?: in)?",
    r"not (?:significantly |obviously )?(?:changed|increased|progressed|decreased|different)", r"not only",
    r"without (?:significant )?(?:change|progression)", r"no (?:need|doubt)", r"not necessarily",
    # nodes that are there, and small
    r"not (?:(?:reach(?:ed|ing)?|exceed(?:ed|ing)?|in|of|at|have|show|the|any|with) )*patholog\w+(?: \w+)?",
    r"without (?:any )?patholog\w+(?: \w+)?",
)  # fmt: skip
ASIDE = (  # "(small airway disease?)" tells a cause; "(?)" tells doubt
    r"\([^()?]*\w[^()]*\)?",
)
COMPARES = (  # looks like history and is none
    r"(?:compared|in comparison|according|relative) (?:to|with) (?:the |his |her |a )?"
    r"(?:previous|prior|old|earlier)",
    r"(?:than|in|from|since|on|at) (?:the |his |her |a )(?:previous|prior|old|earlier)"
    r"(?: \w+){0,3}? (?:examinations?|stud(?:y|ies)|scans?|ct|tomography|reports?|imaging)",
)
ENDS_SCOPE = (
    r"but", r"however", r"although", r"though", r"except(?: for)?", r"apart from", r"other than", r"besides",
    r"whereas", r"while", r"yet", r"which", r"there (?:is|are|was|were)", r";", r":",
    r",? (?:and |with )(?:a|an|the|there|multiple|several|bilateral|minimal|mild)\b", r", (?:a|an)\b",
)  # fmt: skip
TELLS_HISTORY = (
    r"history of", r"previous(?:ly)? (?:known|reported|treated|operated)?", r"known", r"status post",
    r"prior",
    r"operated for", r"treated for",
)  # fmt: skip
