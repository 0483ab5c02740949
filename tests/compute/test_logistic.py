import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from evidcore.compute.logistic import Logistic, roc_auc


def drawn(seed, cases=120, features=40):
    rng = np.random.default_rng(seed)
    shown = (rng.normal(size=(cases, features)) * rng.uniform(0.1, 5, features)).astype(np.float32)
    labels = (shown[:, 0] / shown[:, 0].std() + rng.normal(size=cases) > 0.3).astype(np.int64)
    return shown, labels


@pytest.mark.parametrize("strength", [0.1, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_probabilities_are_those_of_scikit_learn(seed, strength):
    shown, labels = drawn(seed)
    held, _ = drawn(seed + 100)
    line = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=5000)).fit(shown, labels)
    ours = Logistic(shown, labels, strength=strength)
    np.testing.assert_allclose(ours.probabilities(held), line.predict_proba(held)[:, 1], atol=1e-4)
    np.testing.assert_allclose(ours.log_odds(held), line.decision_function(held), atol=1e-2)


def test_a_feature_without_spread_says_nothing():
    shown, labels = drawn(0)
    flat = np.concatenate([shown, np.full((len(shown), 1), 7, np.float32)], axis=1)
    alike = Logistic(shown, labels).probabilities(shown)
    np.testing.assert_allclose(Logistic(flat, labels).probabilities(flat), alike, atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_the_area_under_the_curve_is_that_of_scikit_learn_to_the_bit(seed):
    rng = np.random.default_rng(seed)
    labels = np.append([0, 1], rng.integers(0, 2, 48))
    scores = rng.integers(0, 12, 50) / 7 if seed % 2 else rng.normal(size=50)
    assert roc_auc(labels, scores) == roc_auc_score(labels, scores)
