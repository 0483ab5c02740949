"""How English chest CT reports name the 18 CT-RATE findings: regular expressions without regard to case.

A finding of two words that stand apart ("calcific plaques are seen in the aorta and the coronary arteries")
is written with `_NEAR` between them; the group `at` is then what is marked as the mention, so that one word
can belong to two findings. No expression matches over the end of a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping

# up to 120 characters of the same statement; a full stop between digits ends nothing
_NEAR = r"(?:(?!\b(?:but|however|while|whereas|although|except)\b)(?:[^.!?;\n]|(?<=\d)\.(?=\d))){0,120}?"
_CALCIUM = r"(?:calcifi\w+|atheroma\w*|atherosclero\w+|(?:calcific|calcified) plaques?)"
_VESSEL = (
    r"(?<![\w-])(?:aort(?:a|ic)(?! (?:valve|root))|arch|great vessels|supra-?aortic|subclavian|carotid|iliac"
    r"|brachiocephalic|vascular (?:structures?|walls?)|arter(?:y|ies|ial) walls?)\b"
)
_CORONARY = r"(?:coronary(?: arter(?:y|ies|ial))?|LAD|circumflex)\b"
_THICK = r"thick(?:ening|enings|ened|ness)"

CHEST_WORDS: Mapping[str, tuple[str, ...]] = {
    "medical material": (
        r"medical (?:material|device)s?",
        r"(?:port |central venous |venous |tracheostomy )?catheters?",
        r"port(?:-a-cath|acath)?",
        r"pacemakers?|pace ?maker",
        r"(?:metallic |surgical )?(?:sutures?|clips?|stents?|staples?)",
        r"sternotomy wires?|sternal wires?|wire sutures?",
        r"(?:tracheostomy |nasogastric |endotracheal |chest |drainage |thoracic )tubes?",
        r"(?:tracheal |tracheostomy )?cann?ulas?|tracheostomy",
        r"prosthe(?:sis|ses|tic (?:heart )?valves?)",
        r"screws?|fixat(?:or|ors|ion materials?)|metallic (?:materials?|densit(?:y|ies)|objects?|artifacts?)",
        r"electrodes?|implants?",
    ),
    "arterial wall calcification": (
        r"arterial wall calcifications?",
        rf"{_CALCIUM}{_NEAR}(?P<at>{_VESSEL})",
        rf"(?P<at>{_VESSEL}){_NEAR}{_CALCIUM}",
        r"wall calcifications?",
    ),
    "cardiomegaly": (
        r"cardiomegaly",
        rf"(?:heart|cardiac){_NEAR}(?:enlarged|increased?|increases|larger than normal)",
        r"(?:enlarged|enlargement (?:of|in) the|increased?|increase in) (?:heart|cardiac)"
        r"(?: size| silhouette)?",
        r"(?:heart|cardiac) enlargement",
        rf"cardiothoracic (?:index|ratio){_NEAR}(?:increased?|increases|larger|higher?|above)",
        r"(?:increased?|increase in|high) cardiothoracic (?:index|ratio)",
    ),
    "pericardial effusion": (
        rf"(?P<at>pericardi(?:al|um)){_NEAR}(?:effusions?|fluid)",
        rf"(?:effusions?|fluid){_NEAR}(?P<at>pericardi(?:al|um))",
        r"haemopericardium|hemopericardium",
    ),
    "coronary artery wall calcification": (
        rf"(?P<at>{_CORONARY}){_NEAR}{_CALCIUM}",
        rf"{_CALCIUM}{_NEAR}(?P<at>{_CORONARY})",
    ),
    "hiatal hernia": (r"(?:sliding )?(?:type \w+ )?hiat(?:al|us) hernias?", r"hiatal herniation"),
    "lymphadenopathy": (
        r"lymphadenopath(?:y|ies)",
        r"LAPs?",
        r"lymphadenomegal(?:y|ies)",
        r"lymph ?nodes?(?! (?:is|are|was|were|appear)(?: \w+)? (?:normal|unremarkable|natural)\b)",
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
        r"(?:ground|frosted)[- ]?glass(?: density| densities| areas?| opacit(?:y|ies)| appearances?)?",
        r"density increases?",
        r"infiltrat(?:es?|ions?|ive lesions?)",
    ),
    "pulmonary fibrotic sequela": (
        r"(?:pulmonary )?fibrotic(?: \w+){0,2}? ?(?:sequelae?|changes?|bands?|recessions?|densities)?",
        r"sequela[el]?",
        r"pulmonary fibrosis|fibrosis|fibroatelecta\w+",
        r"pleuroparenchymal (?:\w+ )?(?:bands?|recessions?|densities|density|changes?|thickenings?)",
    ),
    "pleural effusion": (
        rf"(?P<at>pleura(?:l|e)?){_NEAR}(?:effusions?|fluid)",
        rf"(?:effusions?|fluid){_NEAR}(?P<at>pleura(?:l|e)?)",
        rf"effusions?(?={_NEAR}(?:hemithora|lung|bilateral))",
        r"(?:bilateral|right|left)(?:-sided)? effusions?",
        r"hydro(?:pneumo)?thorax|ha?emothorax",
    ),
    "mosaic attenuation pattern": (r"mosaic(?: \w+)? (?:patterns?|perfusion|attenuation(?: patterns?)?)",),
    "peribronchial thickening": (
        r"(?:peri)?bronchial (?:wall )?thickenings?|peribronchial thickness increases?",
        rf"{_THICK} (?:of|in) the (?:peri)?bronch(?:ial|us|i)(?: walls?)?",
        rf"{_THICK}{_NEAR}(?P<at>peribronchial|bronch(?:us|ial|i) walls?)",
        rf"(?P<at>peribronchial|bronch(?:us|ial|i) walls?){_NEAR}{_THICK}",
        r"bronchial wall thickness increases?|peribronchial cuffing",
    ),
    "consolidation": (r"consolidat(?:ions?|ive|ed)(?: areas?)?",),
    "bronchiectasis": (r"(?:traction )?bronchiecta(?:sis|ses|tic)(?: changes?)?", r"bronchial dilatations?"),
    "interlobular septal thickening": (
        r"(?:inter|intra)?(?:lobular )?septal thickenings?",
        rf"{_THICK}{_NEAR}(?P<at>(?:inter|intra)lobular sept(?:a|um|al))",
        rf"(?P<at>(?:inter|intra)lobular (?:and \w+ )?sept(?:a|um|al)){_NEAR}"
        rf"(?:{_THICK}|prominen(?:ce|t)|clarification)",
    ),
}

# A sentence that names one of these, and no part of the lungs, speaks of another finding.
ELSEWHERE: Mapping[str, tuple[str, ...]] = {
    "lung nodule": (
        r"thyroid", r"adrenal", r"surrenal", r"breasts?", r"liver", r"hepatic", r"spleen", r"splenic",
        r"kidneys?", r"renal", r"subcutaneous", r"skin", r"pancrea\w*", r"parotid",
    ),
}  # fmt: skip
LUNGS = (r"lungs?", r"pulmonary", r"lobes?", r"segments?", r"lingular?", r"subpleural", r"fissures?", r"apex")
