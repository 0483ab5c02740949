import json

import numpy as np
import pytest
from evidcore_plugin_lab.ablation.contrasts import Arms, Item
from sklearn.metrics import f1_score

from evidcore.contracts import Measured, Metric, Totals
from evidcore.errors import PluginError
from evidcore.evaluate.bootstrap import figure_interval
from evidcore.evaluate.pooling import from_json, pooled, to_json

RNG = np.random.default_rng(7)


def test_numbers_are_averaged_and_sums_are_pooled():
    assert pooled([0.5, 1.0, 0.0]) == 0.5
    assert pooled([Totals("ratio", (1, 4)), Totals("ratio", (1, 1))]) == pytest.approx(2 / 5)
    differences = [Totals("difference", (1, 1, 0, 1)), Totals("difference", (0, 1, 0, 3))]
    assert pooled(differences) == pytest.approx(1 / 2 - 0 / 4)
    assert pooled([Totals("mean_ratio", (1, 2, 0, 0)), Totals("mean_ratio", (1, 2, 0, 0))]) == 0.5
    assert pooled([Totals("ratio", (0, 0))]) is None
    assert pooled([Totals("difference", (1, 1, 0, 0))]) is None
    assert pooled([Totals("mean_ratio", (0, 0))]) is None
    for other in (Totals("bleu", (1, 2, 3, 4)), 0.5):
        with pytest.raises(ValueError, match="must be of one kind"):
            pooled([Totals("ratio", (1, 2)), other])


def test_mean_ratio_is_macro_f1():
    truth, said = RNG.random((30, 4)) < 0.4, RNG.random((30, 4)) < 0.5
    figures = []
    for true, named in zip(truth, said, strict=True):
        hits = [(2.0 * (t and n), float(t) + float(n)) for t, n in zip(true, named, strict=True)]
        figures.append(Totals("mean_ratio", tuple(number for pair in hits for number in pair)))
    assert pooled(figures) == pytest.approx(f1_score(truth, said, average="macro"))


def test_figures_go_to_json_and_back():
    for figure in (0.25, Totals("bleu", (1.0, 2.0, 3.0, 4.0))):
        assert from_json(json.loads(json.dumps(to_json(figure)))) == figure
    assert to_json(Totals("ratio", (1.0, 2.0))) == {"ratio": [1.0, 2.0]}
    for strange in ({"ratio": 1}, {"ratio": ["1"]}, {"ratio": [1], "bleu": [2]}, "0.5", None, True):
        with pytest.raises(ValueError, match="no figure of a text"):
            from_json(strange)


class RootLetters(Metric):
    """The root of all letters over the number of texts: no ratio of sums."""

    def __call__(self, texts):
        return [
            Measured(figures={"root-letters": Totals("root-letters", (len(text.text), 1.0))})
            for text in texts
        ]

    @staticmethod
    def pool(sums):
        return np.sqrt(sums[:, 0]) / sums[:, 1]


class Silent(Metric):
    def __call__(self, texts):
        return [Measured(figures={}) for _ in texts]


def test_a_metric_of_a_package_brings_its_own_pool(offered):
    lines = "[evidcore.metric]\nroot-letters = evid_roots:RootLetters\nsilent = evid_roots:Silent\n"
    offered("evid-roots", lines, RootLetters=RootLetters, Silent=Silent)
    lengths = RNG.integers(4, 40, 60)
    # as a line of answers holds it
    figures = [from_json({"root-letters": [int(length), 1]}) for length in lengths]
    owners = [f"p{index // 2}" for index in range(60)]
    assert pooled(figures) == pytest.approx(np.sqrt(lengths.sum()) / 60)
    alone = figure_interval(figures, owners)
    loop = []
    for _ in range(3000):
        picked = RNG.integers(30, size=30)
        loop.append(np.sqrt(sum(lengths[2 * item] + lengths[2 * item + 1] for item in picked)) / 60)
    assert [alone.low, alone.high] == pytest.approx(list(np.quantile(loop, [0.025, 0.975])), abs=0.01)
    items = {f"q{index}": Item(*pair) for index, pair in enumerate(zip(owners, figures, strict=True))}
    arm = Arms({"a": {0: items}}, patients_shared=True).contrast({"a": 1.0})
    assert (arm.low, arm.high) == (alone.low, alone.high)
    with pytest.raises(PluginError, match=r"metric 'silent' from evid-roots .*: pools no sums"):
        pooled([Totals("silent", (1.0,))])
    with pytest.raises(PluginError, match=r"no metric is called 'median'\. Installed: "):
        pooled([from_json({"median": [1.0]})])
