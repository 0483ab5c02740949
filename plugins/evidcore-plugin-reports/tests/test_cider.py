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


def test_one_reference_cannot_tell_what_is_rare(written):
    item, other = Cider()(written(("a nodule", "a nodule"), ("a", "")))
    assert isinstance(item, Unscored)
    assert "at least two references" in item.reason
    assert other.reason == "no reference report"
