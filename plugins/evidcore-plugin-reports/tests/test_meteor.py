import gc
import shutil

import pytest
from evidcore_plugin_reports.meteor import Meteor

from evidcore.errors import RecipeError

HEAD = "  1 These lines stand where WordNet's files tell their licence.\n"


def wordnet(data):
    """Write a WordNet of one noun synset with two members, lesion and spot, as NLTK keeps it."""
    folder = data / "corpora" / "wordnet"
    folder.mkdir(parents=True)
    offset = len(HEAD)
    (folder / "data.noun").write_text(f"{HEAD}{offset:08d} 04 n 02 lesion 0 spot 0 000 | a place\n")
    lines = [f"{word} n 1 0 1 0 {offset:08d}\n" for word in ("lesion", "spot")]
    (folder / "index.noun").write_text(HEAD + "".join(lines))
    senses = [f"{word}%1:04:00:: {offset:08d} 1 0\n" for word in ("lesion", "spot")]
    (folder / "index.sense").write_text("".join(senses))
    for part in ("verb", "adj", "adv"):
        (folder / f"data.{part}").write_text(HEAD)
        (folder / f"index.{part}").write_text(HEAD)
    for part in ("noun", "verb", "adj", "adv"):
        (folder / f"{part}.exc").write_text("")
    (folder / "lexnames").write_text("".join(f"{number:02d}\tname{number}\t1\n" for number in range(5)))
    (folder / "cntlist.rev").write_text("")
    return data


def by_hand(matches, stretches, ours, theirs):
    precision, recall = matches / ours, matches / theirs
    mean = precision * recall / (0.9 * precision + 0.1 * recall)
    return mean * (1 - 0.5 * (stretches / matches) ** 3)


def test_words_match_exactly_and_by_stem(tmp_path, written):
    metric = Meteor(tmp_path)
    texts = written(
        ("The nodules are seen left", "Left lung: the nodule is seen"), ("a nodule", "a nodule"),
        ("", "a nodule"), ("nodule", "heart"), ("Größe unverändert", "Größe unverändert"),
    )  # fmt: skip
    result = [item.figures["meteor_without_synonyms"] for item in metric(texts)]
    # 4 of 5 and of 6 words: the nodules | seen | left, in 3 stretches
    assert result[0] == pytest.approx(by_hand(4, 3, 5, 6))
    assert result[1] == pytest.approx(by_hand(2, 1, 2, 2))
    assert result[2:4] == [0.0, 0.0]
    assert result[4] == pytest.approx(by_hand(2, 1, 2, 2))
    note = "exact words and stems only: no WordNet was named, so no synonyms"
    assert metric.notes() == {"meteor_without_synonyms": note}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # NLTK leaves files open
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_synonyms_match_where_wordnet_is_named(tmp_path, written, packed):
    data = wordnet(tmp_path / "nltk_data")
    if packed:
        corpora = data / "corpora"
        shutil.make_archive(str(corpora / "wordnet"), "zip", corpora, "wordnet")
        shutil.rmtree(corpora / "wordnet")
    texts = written(("a small spot", "a small lesion"))
    (with_,) = Meteor(tmp_path, nltk_data="nltk_data")(texts)
    (without,) = Meteor(tmp_path)(texts)
    assert with_.figures["meteor"] == pytest.approx(by_hand(3, 1, 3, 3))
    assert without.figures["meteor_without_synonyms"] == pytest.approx(by_hand(2, 1, 3, 3))
    assert Meteor(tmp_path, nltk_data="nltk_data").notes() == {}
    gc.collect()


def test_a_folder_without_wordnet_is_told_before_training(tmp_path):
    said = rf"nltk_data: {tmp_path}/empty holds no WordNet .*nltk.downloader -d {tmp_path}/empty wordnet"
    with pytest.raises(RecipeError, match=said):
        Meteor(tmp_path, nltk_data="empty").ready()
    Meteor(tmp_path).ready()
