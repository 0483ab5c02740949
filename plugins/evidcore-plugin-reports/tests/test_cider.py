import pytest
from evidcore_plugin_reports.cider import Cider
from evidcore_plugin_reports.sentences import words
from pycocoevalcap.cider.cider import Cider as CocoCider

from evidcore.api import Unscored


def test_cider_d_is_that_of_the_captioning_tools_of_coco(written, pairs):
    theirs = {index: [" ".join(words(said))] for index, (_, said) in enumerate(pairs)}
    ours = {index: [" ".join(words(text))] for index, (text, _) in enumerate(pairs)}
    _, expected = CocoCider().compute_score(theirs, ours)
    result = [item.figures["cider_d"] for item in Cider()(written(*pairs))]
    assert result == pytest.approx(list(expected))
    assert max(result) > 5 > min(result) == 0


def test_repeating_a_rare_word_earns_nothing_under_cider_d(written):
    reference = "a nodule lies in the left upper lobe"
    others = [("", "no nodule"), ("", "the heart is normal")]
    texts = (reference, reference.replace("upper", "upper upper upper"))
    once, often = (Cider()(written((text, reference), *others))[0].figures for text in texts)
    assert once["cider_d"] == pytest.approx(10.0)
    assert often["cider_d"] < 0.8 * once["cider_d"]


def test_words_of_every_reference_weigh_nothing(written):
    first, second = Cider()(written(("a nodule", "a nodule"), ("a nodule", "a nodule")))
    assert first.figures["cider_d"] == second.figures["cider_d"] == 0.0


def test_one_reference_cannot_tell_what_is_rare(written):
    item, other = Cider()(written(("a nodule", "a nodule"), ("a", "")))
    assert isinstance(item, Unscored)
    assert "at least two references" in item.reason
    assert other.reason == "no reference report"
