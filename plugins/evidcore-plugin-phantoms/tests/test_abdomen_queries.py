"""Queries mean what their words say, and words alone do not tell left from right."""

import collections
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from evidcore_plugin_phantoms.abdomen import dataset as abdomen
from evidcore_plugin_phantoms.abdomen.lesions import FINDINGS, Facts, Lesion
from evidcore_plugin_phantoms.abdomen.lesions import KINDS as LESION_KINDS
from evidcore_plugin_phantoms.abdomen.queries import HOSTS, KINDS, chosen, referents, text_of
from evidcore_plugin_phantoms.abdomen.scene import ORGANS
from evidcore_plugin_phantoms.wording import written

PHANTOMS = 80  # in each half
ML = dict.fromkeys(ORGANS, 100.0) | {"left kidney": 130.0, "right kidney": 100.0}


def lesion(mask, organ, *, size_mm=20.0, z=0.0, x=0.0):
    finding = re.sub(r" \d+$", "", mask)
    side = organ.split()[0] if " " in organ else None
    return Lesion(
        mask=mask, finding=finding, organ=organ, side=side, malignant=LESION_KINDS[finding].malignant,
        fluid=LESION_KINDS[finding].fluid, size_mm=size_mm, volume_ml=4.0, centre_mm=(z, 0.0, x),
    )  # fmt: skip


def asked(*lesions, organs_ml=ML):
    return {
        (referent.kind, referent.host, referent.told_by): referent
        for referent in referents(Facts(lesions=lesions, organs_ml=organs_ml))
    }


def meant(*lesions, **options):
    return {key: referent.masks for key, referent in asked(*lesions, **options).items()}


def test_a_healthy_abdomen_is_asked_about_its_organs():
    assert meant() == {
        **{("organ", organ, ""): (organ,) for organ in ORGANS[:2] + ORGANS[4:9]},
        ("both organs", "kidney", ""): ("left kidney", "right kidney"),
        ("organ beside another", "kidney", "spleen"): ("left kidney",),
        ("organ beside another", "kidney", "liver"): ("right kidney",),
        ("larger organ", "kidney", ""): ("left kidney",),
        ("smaller organ", "kidney", ""): ("right kidney",),
    }


TUMOUR = lesion("kidney tumour", "right kidney", z=30)
CYSTS = {
    sides: [lesion(f"kidney cyst {index}", f"{side} kidney") for index, side in enumerate(sides, start=1)]
    for sides in (("left", "left"), ("left", "right"))
}


@pytest.mark.parametrize(
    ("lesions", "told"),
    [
        ([lesion("kidney cyst", "left kidney"), TUMOUR], {"cyst": "left", "tumour": "right"}),
        (CYSTS["left", "left"], {"cyst": "left", "": "right"}),
        (CYSTS["left", "right"], {}),
    ],
)
def test_a_kidney_is_told_by_its_lesion_or_by_having_none(lesions, told):
    result = meant(*lesions)
    kinds = dict.fromkeys(("cyst", "tumour"), "organ with the lesion") | {"": "organ without a lesion"}
    for word, kind in kinds.items():
        expected = (f"{told[word]} kidney",) if word in told else None
        assert result.get((kind, "kidney", word)) == expected


def test_one_of_two_lesions_is_told_by_size_height_and_nature():
    large = lesion("liver cyst", "liver", size_mm=24, z=0, x=10)
    small = lesion("liver metastasis", "liver", size_mm=20, z=12, x=-10)
    result = {kind: item for (kind, host, _), item in asked(large, small).items() if host == "liver"}
    for kind, name, side in (
        ("larger lesion", "liver cyst", "left"), ("smaller lesion", "liver metastasis", "right"),
        ("upper lesion", "liver metastasis", "right"), ("lower lesion", "liver cyst", "left"),
        ("malignant lesion", "liver metastasis", "right"), ("benign lesion", "liver cyst", "left"),
    ):  # fmt: skip
        assert (result[kind].masks, result[kind].side) == ((name,), side)  # x grows to the patient's left
    assert result.pop("all lesions").masks == ("liver cyst", "liver metastasis")
    assert {item.among for kind, item in result.items() if kind != "organ"} == {
        ("liver cyst", "liver metastasis")
    }


def test_what_is_nearly_alike_is_not_told_apart():
    stones = [
        lesion("gallstone 1", "gallbladder", size_mm=11),
        lesion("gallstone 2", "gallbladder", size_mm=13, z=11),
    ]
    result = meant(*stones, organs_ml=ML | {"left kidney": 110.0})
    assert [kind for kind, host, _ in result if host == "gallbladder"] == ["organ", "all lesions"]
    assert not {"larger organ", "smaller organ"} & {kind for kind, _, _ in result}


def test_three_lesions_are_told_together_and_one_alone():
    three = [lesion(name, "liver") for name in ("liver cyst", "liver metastasis", "liver haemangioma")]
    assert [kind for kind, host, _ in meant(*three) if host == "liver"] == ["organ", "all lesions"]
    assert meant(three[0])["only lesion", "liver", ""] == ("liver cyst",)


def test_every_kind_of_query_has_words_and_none_names_an_organ_or_a_side():
    assert {kind.organ for kind in LESION_KINDS.values()} == set(HOSTS)
    rng = np.random.default_rng(0)
    two = [lesion("splenic cyst", "spleen", size_mm=30), lesion("splenic metastasis", "spleen", z=40)]
    several = [lesion("kidney tumour", "left kidney"), lesion("liver cyst", "liver")]
    groups = ((*two, lesion("kidney cyst", "left kidney")), several, ())
    everything = [referent for group in groups for referent in asked(*group).values()]
    texts = collections.defaultdict(set)
    for referent in everything:
        for _ in range(60):
            texts[referent.kind, referent.host].add(text_of(referent, rng, None))
    assert {kind for kind, _ in texts} == set(KINDS)
    assert min(len(result) for result in texts.values()) >= 8  # frames times descriptions
    named = [*ORGANS, *HOSTS, "renal", "hepat", "splen", "pancrea", "left", "right", "gallstone"]
    for text in set().union(*texts.values()):
        assert not [name for name in named if re.search(rf"\b{name}", text.lower())], text
        assert "{" not in text
        assert text[0].isupper()
        assert text.endswith(".")


def patients(count, **options):
    drawn = (abdomen.draw_patient(np.random.default_rng([3, number]), **options) for number in range(count))
    return [SimpleNamespace(wishes=wishes, kind=kind, side=side) for wishes, kind, side in drawn]


def test_text_predicts_findings_and_sides_only_as_far_as_the_prior_strength_says():
    gains, toward = {}, {}
    for strength in (0.0, 1.0):
        group = patients(3000, prevalence=0.15, prior_strength=strength)
        own = [
            any(wish.finding == finding for wish in patient.wishes)
            for patient in group
            for finding in abdomen.INDICATIONS[patient.kind]
        ]
        gains[strength] = np.mean(own) / 0.15
        toward[strength] = np.mean([
            next(wish.organ for wish in patient.wishes if wish.finding == finding).split()[0] == patient.side
            for patient in group
            for finding in ("kidney cyst", "kidney tumour")
            if any(wish.finding == finding for wish in patient.wishes)
        ])
    assert gains[0.0] == pytest.approx(1, abs=0.1)
    assert gains[1.0] == pytest.approx(5, abs=0.2)
    assert toward[0.0] == pytest.approx(0.5, abs=0.05)
    assert toward[1.0] == pytest.approx(0.95, abs=0.02)


def test_no_organ_gets_a_second_lesion_of_a_kind_beside_two():
    for patient in patients(500, prevalence=0.6, prior_strength=0.0):
        for organ in {wish.organ for wish in patient.wishes}:
            here = [wish.finding for wish in patient.wishes if wish.organ == organ]
            assert len(here) <= max(2, len(set(here)))


def queries(prior_strength):
    """Return (words, what the text says, which side is right) of train and test phantoms on a coarse grid."""
    dataset = abdomen.PhantomAbdomen(
        Path(), seed=11, prior_strength=prior_strength, prevalence=0.45, size_zyx=(20, 48, 64)
    )
    halves = []
    for split in ("train", "test"):
        phantoms = [dataset.draw(split, number).known for number in range(PHANTOMS)]
        streams = [dataset.stream(split, number, 3) for number in range(PHANTOMS)]
        facts = [each.facts for each in phantoms]
        result = chosen(facts, KINDS, 8, streams, np.random.default_rng(0))
        halves.append([
            (text_of(referent, streams[number], phantoms[number].indication), referent)
            for number, wanted in enumerate(result)
            for referent in wanted
            if referent.side is not None
        ])
    return halves


@pytest.fixture(scope="module")
def without_prior():
    return queries(0.0)


@pytest.fixture(scope="module")
def with_prior():
    return queries(1.0)


def by_table(train, test):
    """Return how often the best guess from kind, organ and side of the pain is right on unseen queries."""

    def key(text, referent):
        return referent.kind, referent.host, "left" if "on the left" in text else "right"

    votes = collections.defaultdict(collections.Counter)
    for text, referent in train:
        votes[key(text, referent)][referent.side] += 1
    return np.mean([
        votes[key(text, referent)].most_common(1)[0][0] == referent.side
        for text, referent in test
        if votes[key(text, referent)]
    ])


def by_words(train, test):
    """Return the same of a linear model over words and pairs of neighbours."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    words = CountVectorizer(ngram_range=(1, 2), binary=True)
    model = LogisticRegression(C=0.1)
    model.fit(words.fit_transform([text for text, _ in train]), [each.side for _, each in train])
    return model.score(words.transform([text for text, _ in test]), [each.side for _, each in test])


@pytest.mark.slow
def test_of_each_kind_left_and_right_are_meant_equally_often(without_prior, with_prior):
    for half in (*without_prior, *with_prior):
        counts = collections.Counter((referent.kind, referent.side) for _, referent in half)
        kinds = {kind for kind, _ in counts}
        assert len(kinds) >= 8
        assert all(counts[kind, "left"] == counts[kind, "right"] for kind in kinds)


def test_without_a_prior_words_alone_are_right_by_chance(without_prior):
    train, test = without_prior
    margin = 2.6 * 0.5 / np.sqrt(len(test))
    assert by_table(train, test) < 0.5 + margin
    assert by_words(train, test) < 0.5 + margin


@pytest.mark.slow
def test_with_a_prior_words_alone_are_often_right(with_prior, without_prior):
    assert by_table(*with_prior) > by_table(*without_prior) + 0.1
    kinds = ("organ with the lesion", "larger lesion", "smaller lesion")
    some = ([item for item in half if item[1].kind in kinds] for half in with_prior)
    assert by_table(*some) > 0.75


def test_what_is_normal_is_told_first_and_every_lesion_once_with_all_that_is_known():
    shown = (
        lesion("kidney tumour 1", "left kidney", size_mm=27.4),
        lesion("liver cyst", "liver", size_mm=31.6),
        lesion("kidney tumour 2", "right kidney", size_mm=18.2),
    )
    texts = set()
    for seed in range(40):
        lines = abdomen.sentences(np.random.default_rng(seed), Facts(lesions=shown, organs_ml=ML))
        labels = [line.label for line in lines]
        assert labels == sorted(labels, reverse=True)  # "normal" before "abnormal"
        told = [line.finding for line in lines if line.finding]
        absent = [name for name in FINDINGS if name not in ("liver cyst", "kidney tumour")]
        assert told == [*absent, "liver cyst", "kidney tumour", "kidney tumour"]
        liver, left, right = lines[-3:]
        for line, facts in ((liver, ("32 mm", "benign")), (left, ("27 mm", "left", "malignant")),
                            (right, ("18 mm", "right", "malignant"))):  # fmt: skip
            assert all(fact in line.text for fact in facts)
        report, named = written(lines)
        for name, span in named.items():
            assert report.text[span.start : span.end].lower() == name
        texts.add(left.text)
    assert texts == {
        "There is a kidney tumour of 27 mm on the left, malignant.",
        "Kidney tumour of 27 mm is seen on the left, malignant.",
        "Kidney tumour on the left, 27 mm, malignant.",
    }
    assert abdomen.impression(shown) == "Kidney tumour on the left. Liver cyst. Kidney tumour on the right."
    assert abdomen.impression(()) == "No abnormality."
