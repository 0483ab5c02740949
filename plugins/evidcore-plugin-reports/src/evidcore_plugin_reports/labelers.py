"""Labelers `phrases` and `negation-rules`: findings in English text, with state and details.

The rules are regular expressions without regard to case. What stands between a word that denies, doubts or
dates and a mention decides about it. A finding of two words that stand apart ("calcific plaques are seen in
the aorta and the coronary arteries") is written with `_NEAR` between them; the group `at` is then what is
marked as the mention, so that one word can belong to two findings. No expression matches over the end of a
sentence.
"""

import bisect
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from evidcore.api import Finding, Labeler, Span
from evidcore.case import Side, State
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS
from evidcore_plugin_reports.sentences import Stretch, sentences

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
    r"(?:not|without|no)(?: signs? of)? (?:malignan(?:t|cy)|benign|suspicious)",
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
    r",(?= (?:no (?!longer)|none (?:on|in|at) ))",  # "on the right, none on the left"
)  # fmt: skip
TELLS_HISTORY = (
    r"history of", r"previous(?:ly)? (?:known|reported|treated|operated)?", r"known", r"status post",
    r"prior",
    r"operated for", r"treated for",
)  # fmt: skip


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
# the words of a finding's name that are written otherwise too
OTHERWISE: Mapping[str, str] = {
    "kidney": "kidneys?|renal", "liver": "liver|hepatic", "splenic": "splenic|spleen",
    "pancreatic": "pancreatic|pancreas", "tumour": "tumou?rs?", "tumor": "tumou?rs?",
    "metastasis": "metastas[ei]s|metastatic lesions?", "haemangioma": "ha?emangiomas?",
}  # fmt: skip
LUNGS = (r"lungs?", r"pulmonary", r"lobes?", r"segments?", r"lingular?", r"subpleural", r"fissures?", r"apex")


LOCATIONS: Mapping[str, str] = {
    "liver": r"liver|hepatic", "kidney": r"kidneys?|renal", "spleen": r"spleen|splenic",
    "pancreas": r"pancreas|pancreatic", "gallbladder": r"gall ?bladder|gallstones?|cholecyst\w+",
    "bladder": r"(?:urinary )?bladder", "stomach": r"stomach|gastric", "colon": r"colon|colonic",
    "adrenal gland": r"adrenals?|surrenal", "upper lobe": r"upper lobes?", "middle lobe": r"middle lobe",
    "lower lobe": r"lower lobes?", "lingula": r"lingular?",
}  # fmt: skip
_NATURE = re.compile(
    r"\b(?:(?P<not>not|no(?: signs? of)?|non) |(?P<doubt>possibly|probably|likely|suspicious for|may be) )?"
    r"(?:(?P<malignant>malignan(?:t|cy))|benign)\b",
    re.IGNORECASE,
)
_PLAIN_DENIAL = re.compile(r"\b(?:no|not|without|absent|none|never)\b", re.IGNORECASE)
_SIDE = re.compile(r"\b(left|right|both|bilateral(?:ly)?)\b", re.IGNORECASE)
_SIZE = re.compile(r"(?<!\d)(\d++(?:[.,]\d+)?)(?:\s*[x\u00d7]\s*\d+(?:[.,]\d+)?)*\s*(mm|cm)\b", re.IGNORECASE)


_WHOLE = 1000  # characters of a sentence that is read whole; the longest of 699 reports of CT-RATE has 823
_REACH = 400  # characters to each side of a mention that are read of a longer one
Vocabulary = Callable[[], tuple[str, ...]]


class _ByName(Labeler):
    """Looks for findings by their names."""

    def __init__(self, vocabulary: Vocabulary = tuple, *, findings: tuple[str, ...] = ()) -> None:
        self._vocabulary, self._findings = vocabulary, findings

    def label_names(self) -> tuple[str, ...]:
        """Return the names that it looks for."""
        return self._findings or self._vocabulary() or CT_RATE_FINDINGS


class Phrases(_ByName):
    """Find findings by their exact names; a cue anywhere in the sentence decides whether it is denied.

    Right for phantom reports and for verdicts on options ("B lung nodule present."), where each sentence
    speaks of findings in one way; `negation-rules` is for radiologists' sentences.

    Args:
        findings: the names to look for; left out, those of the recipe's data sets, or the 18 of CT-RATE.
    """

    def __call__(self, text: str) -> tuple[Finding, ...]:
        """Return every mention, in the order of the text."""
        result = []
        for sentence_text, offset, mentions in _sentences_that_mention(text, _names(self.label_names())):
            state: State = "present"
            if _either(DOUBTS_AFTER + DOUBTS_BEFORE).search(sentence_text):
                state = "uncertain"
            elif _PLAIN_DENIAL.search(sentence_text):
                state = "absent"
            result += [_finding(name, state, sentence_text, mention, offset) for name, mention in mentions]
        return tuple(result)


class NegationRules(_ByName):
    """Find findings in radiologists' English, each with the reach of "no", "cannot be excluded" and the like.

    Within a sentence, a denial or doubt before a mention reaches forward to it and one behind reaches back,
    unless a word such as "but" or another statement stands between. Where both reach, doubt wins over denial.
    A mention that only tells history ("history of …") says nothing of this scan and is left out.

    Args:
        findings: the names to look for; left out, those of the recipe's data sets, or the 18 of CT-RATE. For
            these 18 radiologists' other words are known, for all others what `_ways` says.
    """

    def __call__(self, text: str) -> tuple[Finding, ...]:
        """Return every mention, in the order of the text."""
        result = []
        for sentence_text, offset, mentions in _sentences_that_mention(text, _lexicon(self.label_names())):
            for name, mention in mentions:
                state = None if _is_elsewhere(name, sentence_text) else _state(sentence_text, mention)
                if state is not None:
                    result.append(_finding(name, state, sentence_text, mention, offset))
        return tuple(result)


def _sentences_that_mention(
    text: str, lexicon: Mapping[str, re.Pattern[str]]
) -> Iterator[tuple[str, int, list[tuple[str, Stretch]]]]:
    """Yield each sentence that names findings, where it starts, and where in it they are named.

    Of overlapping mentions the longest is meant. Patterns run over the whole text, which is much faster than
    over each sentence; none of them can match a full stop, so no mention reaches into the next sentence. Of
    a very long sentence each mention is given its own surroundings, so that work grows as the text does.
    """
    every = [
        (name, Stretch(*match.span(match.lastgroup or 0)))  # of a group `at_…` that took part, else of all
        for name, pattern in lexicon.items()
        for match in pattern.finditer(text)
    ]
    every.sort(key=lambda item: (item[1].start - item[1].end, item[1].start))
    longest: list[tuple[str, Stretch]] = []
    is_taken = bytearray(len(text))
    for name, stretch in every:
        if not any(is_taken[stretch.start : stretch.end]):
            is_taken[stretch.start : stretch.end] = b"\1" * (stretch.end - stretch.start)
            longest.append((name, stretch))
    longest.sort(key=lambda item: item[1].start)
    starts = [stretch.start for _, stretch in longest]
    for sentence in sentences(text):
        first, last = (bisect.bisect_left(starts, at) for at in (sentence.start, sentence.end))
        inside = [(name, stretch) for name, stretch in longest[first:last] if stretch.end <= sentence.end]
        is_long = sentence.end - sentence.start > _WHOLE
        for mentions in ([item] for item in inside) if is_long else [inside] if inside else []:
            start = max(sentence.start, mentions[0][1].start - _REACH) if is_long else sentence.start
            end = min(sentence.end, mentions[0][1].end + _REACH) if is_long else sentence.end
            placed = [(name, Stretch(entry.start - start, entry.end - start)) for name, entry in mentions]
            yield text[start:end], start, placed


def _is_elsewhere(name: str, sentence_text: str) -> bool:
    """Tell whether a sentence speaks of another organ than the finding's."""
    others = ELSEWHERE.get(name)
    return (
        others is not None
        and _either(others).search(sentence_text) is not None
        and _either(LUNGS).search(sentence_text) is None
    )


def _state(sentence_text: str, mention: Stretch) -> State | None:
    """Return what a sentence says of a mention, None where it only tells history."""
    before, after = sentence_text[: mention.start], _either(ASIDE).sub(" ", sentence_text[mention.end :])
    ends = list(_either(ENDS_SCOPE).finditer(before))
    before = before[ends[-1].end() :] if ends else before
    end = _either(ENDS_SCOPE).search(after)
    after = after[: end.start()] if end else after
    if _either(TELLS_HISTORY).search(_either(COMPARES).sub(" ", before)):
        return None
    before = _either(DENIES_NOTHING).sub(" ", before)
    after = _either(DENIES_NOTHING).sub(" ", after)
    if _either(DOUBTS_AFTER).search(before) or _either(DOUBTS_BEFORE).search(after):
        return "uncertain"
    inside = sentence_text[mention.start : mention.end]  # "lymph nodes were not enlarged"
    if _either(DENIES_AFTER).search(f"{before} {inside}") or _either(DENIES_BEFORE).search(after):
        return "absent"
    return "present"


def _finding(name: str, state: State, sentence_text: str, mention: Stretch, offset: int) -> Finding:
    return Finding(
        name=name,
        state=state,
        side=_side(sentence_text, mention),
        size_mm=_size_mm(sentence_text, mention) if state != "absent" else None,
        malignant=_malignant(sentence_text, mention) if state != "absent" else None,
        location=_location(sentence_text, mention),
        span=Span(start=offset + mention.start, end=offset + mention.end, label=state),
    )


def _side(sentence_text: str, mention: Stretch) -> Side | None:
    """Return the side said nearest to a mention, in its own clause."""
    start = max((m.end() for m in re.finditer(r"[,;]", sentence_text[: mention.start])), default=0)
    stop = re.search(r"[,;]", sentence_text[mention.end :])
    clause = sentence_text[start : mention.end + stop.start() if stop else len(sentence_text)]
    result = [match.group(1).lower() for match in _SIDE.finditer(clause)]
    if not result:
        return None
    if any(side.startswith(("both", "bilateral")) for side in result) or {"left", "right"} <= set(result):
        return "both"
    return "left" if result[0] == "left" else "right"


def _size_mm(sentence_text: str, mention: Stretch) -> float | None:
    """Return the size said nearest to a mention, the larger axis where two are given."""
    size = _nearest(_SIZE, sentence_text, mention)
    if size is None:
        return None
    numbers = [float(n.replace(",", ".")) for n in re.findall(r"\d+(?:[.,]\d+)?", size.group())]
    return max(numbers) * (10.0 if size.group(2).lower() == "cm" else 1.0)


def _malignant(sentence_text: str, mention: Stretch) -> bool | None:
    """Return whether the word nearest to a mention calls it malignant; None without one, or in doubt."""
    word = _nearest(_NATURE, sentence_text, mention)
    return None if word is None or word["doubt"] else bool(word["malignant"]) != bool(word["not"])


def _location(sentence_text: str, mention: Stretch) -> str | None:
    """Return the organ, or the part of one, that is named nearest to a mention, or in it."""
    place = _nearest(_places(), sentence_text, mention)
    return None if place is None or place.lastgroup is None else place.lastgroup.replace("_", " ")


def _nearest(pattern: re.Pattern[str], sentence_text: str, mention: Stretch) -> re.Match[str] | None:
    """Return what matches nearest to a mention, of equally near the first."""
    result = pattern.finditer(sentence_text)
    return min(result, key=lambda m: max(mention.start - m.end(), m.start() - mention.end, 0), default=None)


@functools.cache
def _places() -> re.Pattern[str]:
    ways = "|".join(f"(?P<{name.replace(' ', '_')}>{way})" for name, way in LOCATIONS.items())
    return re.compile(rf"\b(?:{ways})\b", re.IGNORECASE)


@functools.cache
def _either(cues: Sequence[str]) -> re.Pattern[str]:
    # cues of letters only match whole words; punctuation cues match as they are
    inner = "|".join(cue if cue[0] in ",;:\\" else rf"(?<![\w-])(?:{cue})(?![\w-])" for cue in cues)
    return re.compile(inner, re.IGNORECASE)


@functools.cache
def _names(findings: tuple[str, ...]) -> Mapping[str, re.Pattern[str]]:
    return {name: re.compile(rf"\b{re.escape(name)}(?:s|es)?\b", re.IGNORECASE) for name in findings}


@functools.cache
def _lexicon(findings: tuple[str, ...]) -> Mapping[str, re.Pattern[str]]:
    return {name: _pattern([re.escape(name), *(CHEST_WORDS.get(name) or _ways(name))]) for name in findings}


def _ways(name: str) -> Iterator[str]:
    """Yield how else a finding is written: "renal cysts", "cyst in the left kidney"."""
    words = [OTHERWISE.get(word, rf"{re.escape(word)}(?:s|es)?") for word in name.lower().split()]
    yield " ".join(f"(?:{word})" for word in words)
    if len(words) == 2:
        organ, lesion = words
        yield rf"(?P<at>{lesion})(?: (?:is|are) seen)? (?:in|of|within) (?:the |both )?(?:\w+ )?(?:{organ})"


def _pattern(ways: Sequence[str]) -> re.Pattern[str]:
    # a group may be named once: `at` becomes `at_0`, `at_1`, ...
    named = [way.replace("(?P<at>", f"(?P<at_{number}>") for number, way in enumerate(ways)]
    return re.compile(rf"\b(?:{'|'.join(named)})\b", re.IGNORECASE)
