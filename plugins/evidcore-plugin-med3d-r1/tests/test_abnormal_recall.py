import pytest
from evidcore_plugin_med3d_r1.abnormal_recall import AbnormalRecall
from evidcore_plugin_reports.labelers import NegationRules
from evidcore_testing import check_metric

from evidcore.api import Labeler, Span
from evidcore.contracts import LabelError
from evidcore.evaluate.pooling import pooled
from evidcore.registry.factory import build

REFERENCE = (
    "The heart is normal. No pleural effusion. There is emphysema. The bones are sound. "
    "There is a hiatal hernia and atelectasis. There is a lung nodule."
)


def at(text, part, label="abnormal"):
    start = text.index(part)
    return Span(start=start, end=start + len(part), label=label)


def figures(metric, texts):
    result = metric(texts)
    return {name: pooled([item.figures[name] for item in result]) for name in result[0].figures}


def test_it_keeps_the_contract_of_a_metric():
    given = {"labeler": NegationRules()}
    check_metric(build("metric", {"use": "abnormal-recall"}, given=given, where="test"))


def test_each_abnormal_sentence_counts_once_by_the_share_of_its_findings(written):
    text = "There is emphysema. There is atelectasis. No lung nodule. There is a hiatal hernia on the left."
    metric = AbnormalRecall(NegationRules())
    result = figures(metric, written((text, REFERENCE)))
    # emphysema 1, hernia and atelectasis 2 of 2, nodule 0 (denied)
    assert result["abnormal_recall"] == pytest.approx(2 / 3)
    half = figures(metric, written((text.replace("There is atelectasis. ", ""), REFERENCE)))
    assert half["abnormal_recall"] == pytest.approx(1.5 / 3)
    assert metric.notes()["abnormal_recall"] == "3 abnormal sentences"


def test_a_sentence_falls_into_the_decile_of_its_middle(written):
    length = len(REFERENCE)
    metric = AbnormalRecall(NegationRules())
    result = figures(metric, written(("There is emphysema.", REFERENCE)))
    for part, recall in (("There is emphysema.", 1.0), ("There is a lung nodule.", 0.0)):
        span = at(REFERENCE, part)
        decile = int(10 * (span.start + span.end) / 2 / length) + 1
        assert result[f"abnormal_recall/decile {decile:02d}"] == recall
    assert result["abnormal_recall/decile 01"] is None  # no abnormal sentence stands there
    told = [note for name, note in metric.notes().items() if "decile" in name]
    assert sum(int(note.split()[0]) for note in told) == 3
    # emphysema stands before the middle, the other two behind it
    assert result["abnormal_recall_late_minus_early"] == pytest.approx(0 / 2 - 1 / 1)


def test_labels_of_the_data_win_over_the_labeler(written):
    spans = [at(REFERENCE, "There is emphysema."), at(REFERENCE, "The bones are sound.")]
    metric = AbnormalRecall(NegationRules())
    result = figures(metric, written(("There is emphysema.", REFERENCE), spans=spans))
    assert result["abnormal_recall"] == 1.0
    assert metric.notes()["abnormal_recall"] == (
        "1 abnormal sentences; 1 more affirm no finding that the labeler knows"
    )


def test_what_is_only_doubted_or_normal_is_not_looked_for(written):
    reference = "Emphysema cannot be excluded. No nodule."
    metric = AbnormalRecall(NegationRules())
    result = figures(metric, written(("There is emphysema.", reference)))
    assert set(result.values()) == {None}
    assert metric.notes()["abnormal_recall"].startswith("0 abnormal sentences; 1 more")


def test_a_finding_that_the_report_only_doubts_is_not_recalled(written):
    for said, recall in (("There is", 1.0), ("Possible", 0.0), ("No", 0.0)):
        result = figures(
            AbnormalRecall(NegationRules()), written((f"{said} emphysema.", "There is emphysema."))
        )
        assert result["abnormal_recall"] == recall, said
    assert {item.state for item in NegationRules()("Possible emphysema.")} == {"uncertain"}


def test_recall_over_reports_agrees_with_a_count_sentence_by_sentence(written):
    names = ("emphysema", "lung nodule", "atelectasis", "pericardial effusion", "hiatal hernia")
    pairs = []
    for number in range(40):
        present = [name for index, name in enumerate(names) if number >> index & 1]
        said = [name for index, name in enumerate(names) if (number * 7 + 3) >> index & 1]
        pairs.append((
            " ".join(f"There is {name}." for name in said) or "Clear.",
            " ".join(f"There is {'' if name in present else 'no '}{name}." for name in names),
        ))
    hits = misses = 0
    for text, reference in pairs:
        for sentence in reference.split(". "):
            if "no " not in sentence:
                said = sentence.removeprefix("There is ").rstrip(".") in text
                hits, misses = hits + said, misses + (not said)
    result = figures(AbnormalRecall(NegationRules()), written(*pairs))
    assert result["abnormal_recall"] == pytest.approx(hits / (hits + misses))
    assert hits > 10 < misses


def test_an_empty_report_recalls_nothing_and_an_empty_reference_is_not_measured(written):
    result = AbnormalRecall(NegationRules())(written(("", REFERENCE), ("There is emphysema.", "")))
    assert pooled([result[0].figures["abnormal_recall"]]) == 0.0
    assert result[1].reason == "no reference report"


def test_what_the_labeler_cannot_read_is_missing(written):
    class Shy(Labeler):
        def __call__(self, text):
            if "secret" in text:
                raise LabelError("a text that cannot be read")
            return NegationRules()(text)

    result = AbnormalRecall(Shy())(
        written(("secret", REFERENCE), ("Emphysema.", "secret"), ("Emphysema.", REFERENCE))
    )
    assert [item.reason for item in result[:2]] == [
        "the labeler could not read the report", "the labeler could not read its reference",
    ]  # fmt: skip
    assert pooled([result[2].figures["abnormal_recall"]]) == pytest.approx(1 / 3)
