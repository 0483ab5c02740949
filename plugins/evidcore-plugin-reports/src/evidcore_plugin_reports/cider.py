"""Metric `cider`: n-grams shared with the reference, those that few references hold counting most."""

import collections
import math
from collections.abc import Mapping, Sequence

from evidcore.api import Metric, Unscored
from evidcore.contracts import Measured, TextSample
from evidcore_plugin_reports.sentences import NO_REFERENCE, measured, reference_of, words

ORDERS = (1, 2, 3, 4)
SIGMA_WORDS = 6.0  # Vedantam et al. 2015, section 6
SCALE = 10.0  # Vedantam et al. 2015, section 6
Grams = collections.Counter[tuple[str, ...]]
Weights = dict[tuple[str, ...], float]


class Cider(Metric):  # no maintained library computes it without Java
    """CIDEr and CIDEr-D of each report against its reference; means over reports, 0 to 10.

    An n-gram weighs its count times log(references / references that hold it), n-grams that no reference
    holds as if one did. CIDEr is the mean over n = 1 … 4 of the cosine between the weights of report and
    reference, times 10. CIDEr-D cuts each weight of the report to the reference's, so that repeating a
    rare word earns nothing, and multiplies by exp(-d² / 72) at d words more or less; it is what the
    captioning tools of COCO print as CIDEr. Words are not stemmed, as there.

    What is rare is counted in the references at hand, so figures from different sets of cases cannot be
    compared, and intervals hold for this set's rarities. With fewer than two references nothing is rare.

    Source:
        Vedantam, Zitnick & Parikh 2015, CIDEr, CVPR, arXiv:1411.5726, equations 1-3 and section 6.
    """

    unit = "plain"

    def __call__(self, texts: Sequence[TextSample]) -> Sequence[Measured | Unscored]:
        """Return both scores of each report; 0 for one without a word."""
        references = [said for text in texts if (said := reference_of(text)) is not None]
        if (count := len(references)) < 2:
            why = "needs at least two references to tell what is rare"
            alone = Unscored(kind="not-applicable", reason=why)
            return [NO_REFERENCE if reference_of(text) is None else alone for text in texts]
        held: Grams = collections.Counter(gram for said in references for gram in _grams(words(said)))
        rarity = {gram: math.log(count / holders) for gram, holders in held.items()}
        unseen = math.log(count)

        def figures(text: str, reference: str) -> dict[str, float]:
            ours, theirs = words(text), words(reference)
            penalty = math.exp(-((len(ours) - len(theirs)) ** 2) / (2 * SIGMA_WORDS**2))
            said, given = (_weights(_grams(some), rarity, unseen) for some in (ours, theirs))
            plain = cut = 0.0
            for mine, other in zip(said.values(), given.values(), strict=True):  # a cosine for each order
                length = math.hypot(*mine.values()) * math.hypot(*other.values())
                shared = [(weight, other[gram]) for gram, weight in mine.items() if gram in other]
                plain += sum(one * two for one, two in shared) / (length or 1.0)
                cut += sum(min(one, two) * two for one, two in shared) / (length or 1.0)
            scale = SCALE / len(ORDERS)
            return {"cider_d": scale * penalty * cut, "cider": scale * plain}

        return measured(texts, figures)

    def notes(self) -> Mapping[str, str]:
        return {"cider_d": "0 to 10; rarity counted in these references", "cider": "0 to 10"}


def _grams(said: Sequence[str]) -> Grams:
    return collections.Counter(
        tuple(said[start : start + order]) for order in ORDERS for start in range(len(said) - order + 1)
    )


def _weights(grams: Grams, rarity: Mapping[tuple[str, ...], float], unseen: float) -> dict[int, Weights]:
    result: dict[int, Weights] = {order: {} for order in ORDERS}
    for gram, count in grams.items():
        result[len(gram)][gram] = count * rarity.get(gram, unseen)
    return result
