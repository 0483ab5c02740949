import tomllib
from pathlib import Path

import numpy as np
import pytest
from evidcore_plugin_phantoms.chest import sentences as phantom_sentences
from evidcore_plugin_reports.agreement import states
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS
from evidcore_plugin_reports.labelers import NegationRules, Phrases, _lexicon, _sentences_that_mention
from evidcore_plugin_reports.sentences import labelled, sentences
from evidcore_testing.checks_text import check_labeler

from evidcore.api import Finding, Span

LABELERS = [Phrases(), NegationRules()]
BOTH = pytest.mark.parametrize("labeler", LABELERS, ids=["phrases", "negation-rules"])


@BOTH
def test_it_keeps_the_contract_of_a_labeler(labeler):
    check_labeler(labeler, expected={"No lung nodule. There is a left pleural effusion.": {
        "lung nodule": "absent", "pleural effusion": "present",
    }})  # fmt: skip


@BOTH
@pytest.mark.parametrize("finding", CT_RATE_FINDINGS)
def test_every_finding_is_read_from_plain_sentences(labeler, finding):
    for text, state in {
        f"There is {finding}.": "present",
        f"{finding.capitalize()} is seen.": "present",
        f"There is a left {finding} of 12 mm.": "present",
        f"{finding.capitalize()}.": "present",
        f"B {finding} present.": "present",
        f"No {finding}.": "absent",
        f"There is no {finding}.": "absent",
        f"{finding.capitalize()} is not seen.": "absent",
        f"A {finding} absent.": "absent",
        f"Possible {finding}.": "uncertain",
        f"{finding.capitalize()} cannot be excluded.": "uncertain",
    }.items():
        assert states(labeler(text)) == {finding: state}, text


@BOTH
def test_each_sentence_speaks_for_itself_and_spans_hold_the_words_of_the_finding(labeler):
    text = "The heart is normal. Left pleural effusion.  Lung nodule of 7.5 mm."
    found = [(text[item.span.start : item.span.end], item.side, item.size_mm) for item in labeler(text)]
    assert sorted(found) == [("Lung nodule", None, 7.5), ("pleural effusion", "left", None)]


SENTENCES = tomllib.loads(Path(__file__).with_name("sentences.toml").read_text(encoding="utf-8"))


def mentions(findings):
    return ", ".join(f"{item.name} {item.state}" for item in findings)


@pytest.mark.parametrize(("text", "wanted"), SENTENCES["chest"].items())
def test_rules_for_radiologists_sentences(text, wanted):
    assert mentions(NegationRules()(text)) == wanted


def test_sentences_are_labelled_by_what_is_found_in_them():
    text = "No nodule. Emphysema is seen. The bones are intact. Possible consolidation."
    assert [(text[span.start : span.end], span.label) for span in labelled(text, NegationRules())] == [
        ("No nodule.", "normal"),
        ("Emphysema is seen.", "abnormal"),
        ("The bones are intact.", "other"),
        ("Possible consolidation.", "abnormal"),
    ]


class Place(int):
    """A place in a text that counts with how many others it is compared."""

    compared = 0

    def __lt__(self, other):
        Place.compared += 1
        return int(self) < other

    def __gt__(self, other):
        Place.compared += 1
        return int(self) > other


def test_labelling_sentences_grows_as_the_text_does():
    def compared(count):
        spans = [Span(start=Place(9 * i), end=Place(9 * i + 7), label="") for i in range(count)]
        mentions = [Finding(name="nodule", span=span) for span in spans]
        before = Place.compared
        assert [span.label for span in labelled("Nodules. " * count, lambda _: mentions)] == [
            "abnormal"
        ] * count
        return Place.compared - before

    assert compared(2000) <= 2.5 * compared(1000)


@pytest.mark.parametrize(
    ("text", "side", "size"),
    [
        *SENTENCES["sizes"],
        (f"Nodule {'9' * 100_000} of 4 mm.", "", 0.0),  # far away; from each digit anew, it takes minutes
    ],
)
def test_side_and_size_are_those_said_of_the_finding(text, side, size):
    (nodule,) = (item for item in NegationRules()(text) if item.name == "lung nodule")
    assert (nodule.side, nodule.size_mm) == (side or None, size or None)


ABDOMEN = (
    "liver cyst", "liver metastasis", "liver haemangioma", "kidney cyst", "kidney tumour", "splenic cyst",
    "pancreatic tumour", "gallstone",
)  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), SENTENCES["abdomen"].items())
def test_traps_in_reports_of_abdomens(text, wanted):
    assert mentions(NegationRules(vocabulary=lambda: ABDOMEN)(text)) == wanted


@pytest.mark.parametrize(("text", "details"), SENTENCES["details"].items())
def test_details_of_an_abdomen_are_those_said_of_the_finding(text, details):
    (found,) = NegationRules(findings=ABDOMEN)(text)
    assert found.state == ("absent" if text.startswith("No ") else "present")
    wanted = {name: None if value == "unknown" else value for name, value in details.items()}
    assert {name: getattr(found, name) for name in details} == wanted


def test_of_two_findings_in_a_sentence_each_has_its_own_nature_and_place():
    cyst, tumour = NegationRules(findings=ABDOMEN)("Benign liver cyst and malignant renal tumour.")
    assert (cyst.malignant, cyst.location) == (False, "liver")
    assert (tumour.malignant, tumour.location) == (True, "kidney")


@BOTH
def test_findings_left_out_are_those_of_the_data_sets_or_of_ct_rate(labeler):
    made = type(labeler)
    assert made().label_names() == CT_RATE_FINDINGS
    assert made(vocabulary=lambda: ABDOMEN).label_names() == ABDOMEN
    assert made(vocabulary=lambda: ABDOMEN, findings=("gallstone",)).label_names() == ("gallstone",)
    assert [item.name for item in made(lambda: ABDOMEN)("Gallstone. Emphysema.")] == ["gallstone"]


def test_a_full_stop_between_digits_ends_no_sentence():
    text = " One of 5.5 mm. Two!\nThree"
    assert [text[item.start : item.end] for item in sentences(text)] == ["One of 5.5 mm.", "Two!", "Three"]


@BOTH
def test_phantom_reports_are_read_without_a_mistake(labeler):
    rng = np.random.default_rng(0)
    for _ in range(60):
        there = rng.random(len(CT_RATE_FINDINGS)) < 0.3
        shown = [
            Finding(
                name=str(name),
                side=("left", "right", None)[rng.integers(3)],
                size_mm=(None, 12.4)[rng.integers(2)],
            )
            for name in np.array(CT_RATE_FINDINGS)[there]
        ]
        absent = [str(name) for name in np.array(CT_RATE_FINDINGS)[~there]]
        written = phantom_sentences(rng, shown)
        found = labeler(" ".join(sentence.text for sentence in written))
        assert states(found) == dict.fromkeys(absent, "absent") | {str(one.name): "present" for one in shown}
        told = {item.name: item.side for item in found if item.state == "present"}
        assert told == {str(one.name): one.side for one in shown}


@pytest.mark.parametrize("repeated", ["emphysema ", "no emphysema, nodule 5 mm and ", "There is emphysema. "])
def test_what_is_read_grows_as_the_text_does(repeated):
    def read(count):
        return sum(len(said) for said, _, _ in _sentences_that_mention(repeated * count, lexicon))

    lexicon = _lexicon(("emphysema", "lung nodule"))
    assert read(1600) < 4.5 * read(400)


def test_in_a_sentence_without_end_words_far_away_say_nothing_of_a_mention():
    filler = "as it was on other images " * 40
    near, far = NegationRules()(f"No emphysema {filler} and {filler} emphysema")
    assert (near.state, far.state) == ("absent", "present")
    assert far.span is not None
    assert far.span.end - far.span.start == len("emphysema")
    [short] = NegationRules()(f"No {filler[:900]} emphysema")
    assert short.state == "absent"
