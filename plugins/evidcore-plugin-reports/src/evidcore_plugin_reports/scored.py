"""Metric `scorer`: the mean of any scorer over reports, or what was thought, and the cases' reports."""

from collections.abc import Sequence

from evidcore.api import Metric, Scorer, Unscored
from evidcore.contracts import Measured, TextSample
from evidcore.errors import PluginError
from evidcore.registry.factory import offer_of
from evidcore_plugin_reports.sentences import NO_REFERENCE, reference_of, words


class Scored(Metric):
    """Measure by a scorer, such as `embedding-f1` or `token-f1`; the mean over texts, 0 to 1.

    The figure is called as the scorer is: `embedding_f1`. What is thought before a choice is measured too,
    against the report of the case: by the scorer that a reward uses, it says what that reward has earned.

    Args:
        scorer: a table, or the name of a service.
    """

    reads = frozenset({"report", "think"})

    def __init__(self, *, scorer: Scorer) -> None:
        self.scorer = scorer

    def ready(self) -> None:
        self.scorer.ready()

    def __call__(self, texts: Sequence[TextSample]) -> Sequence[Measured | Unscored]:
        """Return the score of each text; 0 for one without a word, whatever the scorer makes of that."""
        references = [reference_of(text) for text in texts]
        pairs = zip(texts, references, strict=True)
        asked = [(text.text, said, text.asked) for text, said in pairs if said and words(text.text)]
        scores = iter(self.scorer(*(zip(*asked, strict=True) if asked else ((), (), ()))))
        silent = Unscored(kind="failed", reason="the scorer gave no score")
        result: list[Measured | Unscored] = []
        for text, said in zip(texts, references, strict=True):
            if said is None:
                result.append(NO_REFERENCE)
                continue
            score = next(scores) if words(text.text) else 0.0
            result.append(silent if score is None else Measured(figures={self._name(): score}))
        return result

    def _name(self) -> str:
        try:
            return offer_of(self.scorer).name.replace("-", "_")
        except PluginError:  # made without a recipe
            return "score"
