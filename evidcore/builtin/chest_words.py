"""How English chest CT reports name the 18 CT-RATE findings: regular expressions without regard to case."""

from __future__ import annotations

from collections.abc import Mapping

CHEST_WORDS: Mapping[str, tuple[str, ...]] = {
    "medical material": (
        r"medical (?:material|device)s?",
        r"(?:port |central venous |venous |tracheostomy )?catheters?",
        r"port(?:-a-cath|acath)?",
        r"pacemakers?",
        r"(?:metallic |surgical )?(?:sutures?|clips?|stents?|staples?)",
        r"sternotomy wires?",
        r"(?:tracheostomy |nasogastric |endotracheal |chest |drainage )tubes?",
        r"(?:tracheal |tracheostomy )cannulas?",
        r"prosthe(?:sis|ses|tic (?:heart )?valves?)",
    ),
    "arterial wall calcification": (
        r"arterial wall calcifications?",
        r"(?:calcifi\w+|calcified|atheroma\w*|atherosclero\w+)(?: \w+){0,5}? "
        r"(?:aort\w+|arch|great vessels|supraaortic|arter(?:y|ies) walls?)",
        r"(?:aort\w+|aortic arch|great vessels)(?: \w+){0,4}? (?:calcifi\w+|atheroma\w*|atherosclero\w+)",
        r"wall calcifications?",
    ),
    "cardiomegaly": (
        r"cardiomegaly",
        r"(?:heart|cardiac)(?: \w+){0,4}? (?:enlarged|increased|larger than normal)",
        r"(?:enlarged|enlargement of the|increased) (?:heart|cardiac)(?: size| silhouette)?",
        r"(?:heart|cardiac) enlargement",
    ),
    "pericardial effusion": (
        r"pericardial(?: minimal| mild| small| massive)?(?: and pleural)? (?:effusions?|fluid)",
        r"pericardial(?: or |, | and |/)pleural effusions?",
        r"(?:effusions?|fluid) in the pericardi(?:um|al space)",
        r"haemopericardium|hemopericardium",
    ),
    "coronary artery wall calcification": (
        r"coronary(?: artery| arteries| arterial)?(?: wall)?(?: \w+){0,2}? "
        r"(?:calcifi\w+|atheroma\w*|atherosclero\w+)",
        r"(?:calcifi\w+|atheroma\w*|atherosclero\w+)(?: \w+){0,8}? coronary",
    ),
    "hiatal hernia": (r"(?:sliding )?(?:type \w+ )?hiat(?:al|us) hernias?", r"hiatal herniation"),
    "lymphadenopathy": (
        r"lymphadenopath(?:y|ies)",
        r"(?:enlarged|pathological(?:ly enlarged)?)(?: \w+){0,3}? lymph nodes?",
        r"lymph nodes?(?: \w+){0,8}? pathological (?:size|dimensions?|appearance)",
        r"lymph nodes?(?: \w+){0,3}? (?:are|is|were) enlarged",
    ),
    "emphysema": (r"emphysema(?:tous)?(?: changes?| areas?)?", r"bull(?:ae|ous)", r"blebs?"),
    "atelectasis": (r"atelecta(?:sis|ses|tic)(?: \w+)?", r"lung collapse|collapse of the lung"),
    "lung nodule": (
        r"(?:lung|pulmonary|parenchymal|subpleural|calcified|nonspecific|solid|millimetric|ground[- ]glass)"
        r"(?: \w+){0,3}? nodules?",
        r"(?:micro)?nodules?",
        r"nodular lesions?",
    ),
    "lung opacity": (
        r"(?:lung|pulmonary|parenchymal)? ?opacit(?:y|ies)",
        r"ground[- ]glass(?: density| densities| areas?| opacit(?:y|ies)| appearances?)?",
        r"density increases?|infiltrat(?:es?|ions?|ive lesions?)",
    ),
    "pulmonary fibrotic sequela": (
        r"(?:pulmonary )?fibrotic(?: \w+){0,2}? ?(?:sequelae?|changes?|bands?|recessions?|densities)?",
        r"sequelae?(?: \w+){0,3}? (?:changes?|fibro\w+|bands?|densities)",
        r"pulmonary fibrosis|fibrosis|fibroatelecta\w+",
    ),
    "pleural effusion": (
        r"pleural(?: minimal| mild| small| massive)?(?: and pericardial)? (?:effusions?|fluid)",
        r"pleural(?: or |, | and |/)pericardial effusions?",
        r"(?:effusions?|fluid) in the pleural spaces?",
        r"hydrothorax",
    ),
    "mosaic attenuation pattern": (r"mosaic(?: \w+)? (?:patterns?|perfusion|attenuation(?: patterns?)?)",),
    "peribronchial thickening": (
        r"(?:peri)?bronchial (?:wall )?thickenings?|peribronchial thickness increases?",
        r"thickening (?:of|in) the (?:peri)?bronchial(?: walls?)?",
        r"bronchial wall thickness increases?|peribronchial cuffing",
    ),
    "consolidation": (r"consolidat(?:ions?|ive|ed)(?: areas?)?",),
    "bronchiectasis": (r"(?:traction )?bronchiecta(?:sis|ses|tic)(?: changes?)?", r"bronchial dilatations?"),
    "interlobular septal thickening": (
        r"(?:inter|intra)?(?:lobular )?septal thickenings?",
        r"thickening (?:of|in) the (?:inter|intra)lobular sept(?:a|um)",
        r"(?:inter|intra)lobular septal? (?:thickness increases?|prominence)",
    ),
}

# What stands between these and a mention decides about it; see `NegationRules`.
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
)  # fmt: skip
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
