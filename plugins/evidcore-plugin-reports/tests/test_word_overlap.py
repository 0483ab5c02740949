import pytest
from evidcore_plugin_reports.sentences import NO_REFERENCE, words
from evidcore_plugin_reports.word_overlap import Bleu, RougeL
from nltk.translate.bleu_score import corpus_bleu
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from evidcore.contracts import Measured
from evidcore.evaluate.pooling import pooled


def over_all(metric, texts):
    result = metric(texts)
    return {name: pooled([item.figures[name] for item in result]) for name in result[0].figures}


def split(text):
    return Tokenizer13a()(text.lower()).split()


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_bleu_over_all_reports_is_that_of_nltk(written, pairs, order):
    # NLTK counts one n-gram where a text is too short for any
    long = [(text, said) for text, said in pairs if len(split(text)) >= 4]
    ours, theirs = [split(text) for text, _ in long], [[split(said)] for _, said in long]
    expected = corpus_bleu(theirs, ours, weights=[1 / order] * order)
    assert over_all(Bleu(), written(*long))[f"bleu_{order}_corpus"] == pytest.approx(expected)
    assert 0.1 < expected < 0.9


@pytest.mark.parametrize("order", [1, 4])
def test_bleu_by_report_is_the_mean_of_sacrebleu_s_sentence_scores(written, pairs, order):
    alone = BLEU(lowercase=True, effective_order=True, max_ngram_order=order)
    expected = sum(alone.sentence_score(text, [said]).score for text, said in pairs) / len(pairs) / 100
    assert over_all(Bleu(), written(*pairs))[f"bleu_{order}_by_report"] == pytest.approx(expected)


def test_two_ways_of_bleu_differ_and_say_which_they_are(written, pairs):
    figures, notes = over_all(Bleu(), written(*pairs)), Bleu().notes()
    assert figures["bleu_4_corpus"] != pytest.approx(figures["bleu_4_by_report"], abs=0.01)
    assert notes["bleu_4_corpus"] == "counts of all reports pooled"
    assert notes["bleu_4_by_report"] == "mean over reports, each smoothed"


def test_case_counts_where_the_recipe_says_so(written):
    texts = written(("NODULE LEFT", "nodule left"))
    assert over_all(Bleu(), texts)["bleu_2_corpus"] == pytest.approx(1.0)
    assert over_all(Bleu(lowercase=False), texts)["bleu_1_corpus"] == 0.0


def test_rouge_l_is_that_of_google_s_package_over_the_same_words(written, pairs):
    class Words:
        def tokenize(self, text):
            return words(text)

    scorer = RougeScorer(["rougeL"], tokenizer=Words())
    for (text, said), result in zip(pairs, RougeL()(written(*pairs)), strict=True):
        expected = scorer.score(said, text)["rougeL"]
        assert result.figures["rouge_l"] == pytest.approx(expected.fmeasure)
        assert result.figures["rouge_l_precision"] == pytest.approx(expected.precision)
        assert result.figures["rouge_l_recall"] == pytest.approx(expected.recall)


@pytest.mark.parametrize("metric", [Bleu(), RougeL()], ids=["bleu", "rouge-l"])
def test_equal_texts_score_one_and_an_empty_report_none(written, metric):
    same = "There is a nodule in the left lung, größer als 5.5 mm."
    figures = over_all(metric, written(("", same)))
    assert set(figures.values()) == {0.0}
    assert list(over_all(metric, written((same, same))).values()) == pytest.approx([1.0] * len(figures))


@pytest.mark.parametrize("metric", [Bleu(), RougeL()], ids=["bleu", "rouge-l"])
@pytest.mark.parametrize("reference", ["", " \n", "...", None])
def test_without_a_word_of_reference_nothing_is_measured(written, metric, reference):
    first, second = metric(written(("A nodule.", reference), ("A nodule.", "A nodule.")))
    assert first == NO_REFERENCE
    assert isinstance(second, Measured)


def test_words_keep_sizes_and_scripts_together_and_drop_punctuation():
    assert words("A 5.5 x 3,2 cm Größe; 結節!") == ["a", "5.5", "x", "3,2", "cm", "größe", "結節"]
