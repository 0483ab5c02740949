import dataclasses

from evidcore_plugin_reports.scored import Scored
from evidcore_testing.checks_metric import written_texts

from evidcore.api import Report, Unscored


def test_an_empty_report_earns_nothing_even_where_the_scorer_calls_two_silences_equal():
    (text, _) = written_texts()
    normal = dataclasses.replace(text, text="", reference=Report(text="The heart is of normal size."))

    def scorer(candidates, references, questions):
        return [1.0] * len(candidates)

    said = dataclasses.replace(normal, text="Normal heart.")
    unknown = dataclasses.replace(text, reference=None)
    empty, full, none = Scored(scorer=scorer)([normal, said, unknown])
    assert empty.figures == {"score": 0.0}
    assert full.figures == {"score": 1.0}
    assert isinstance(none, Unscored)
