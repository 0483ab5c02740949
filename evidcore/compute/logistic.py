"""What linear probes need: logistic regression on standardised features, and the area under the ROC curve."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

_Features = Float[np.ndarray[Any, Any], "case feature"]
_LINE_SEARCHES = 50


class Logistic:
    """The probability of a label as a logistic function of standardised features, with an L2 penalty."""

    def __init__(
        self, features: _Features, labels: Int[np.ndarray[Any, Any], " case"], *, strength: float = 1.0
    ) -> None:
        """Fit it by L-BFGS.

        Args:
            features: of the training cases.
            labels: 1 or 0, both present.
            strength: inverse of the penalty: minimised is the summed log-loss plus |weights|² / (2 strength).
        """
        from scipy.optimize import minimize  # 0.3 s
        from scipy.special import expit

        self._mean = features.mean(axis=0, dtype=np.float64)
        spread = features.std(axis=0, dtype=np.float64)
        self._spread = np.where(spread < 10 * np.finfo(np.float64).eps, 1.0, spread)
        scaled, signs = self._standardised(features), labels.astype(np.float64)
        penalty = 1.0 / (strength * len(labels))  # scikit-learn's C; equal scores give its AUC to the bit

        def loss(parameters: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
            weights, raw = parameters[:-1], scaled @ parameters[:-1] + parameters[-1]
            error = (expit(raw) - signs) / len(signs)
            misfit = float(np.mean(np.logaddexp(0.0, raw) - signs * raw))
            value = misfit + 0.5 * penalty * float(weights @ weights)
            return value, np.append(scaled.T @ error + penalty * weights, error.sum())

        start = np.zeros(features.shape[1] + 1)
        options = {
            "maxiter": 5000, "maxls": _LINE_SEARCHES, "gtol": 1e-4, "ftol": 64 * np.finfo(float).eps,
        }  # fmt: skip
        self._parameters = minimize(loss, start, method="L-BFGS-B", jac=True, options=options).x

    def log_odds(self, features: _Features) -> Float[np.ndarray[Any, Any], " case"]:
        """Return the log-odds of label 1 of each case."""
        return np.asarray(self._standardised(features) @ self._parameters[:-1] + self._parameters[-1])

    def probabilities(self, features: _Features) -> Float[np.ndarray[Any, Any], " case"]:
        """Return the probability of label 1 of each case."""
        from scipy.special import expit

        return np.asarray(expit(self.log_odds(features)))

    def _standardised(self, features: _Features) -> _Features:
        return np.asarray((features - self._mean) / self._spread, dtype=features.dtype)


def roc_auc(
    labels: Int[np.ndarray[Any, Any], " case"], scores: Float[np.ndarray[Any, Any], " case"]
) -> float:
    """Return the area under the ROC curve by the trapezoidal rule; ties count one half.

    Labels are 1 or 0, both present; scores are higher for label 1.
    """
    order = np.argsort(scores, kind="stable")[::-1]
    ends = np.append(np.nonzero(np.diff(scores[order]))[0], len(scores) - 1)  # the last of equal scores
    true = np.cumsum(labels[order] != 0)[ends]
    false = 1 + ends - true
    bends = np.append(np.nonzero(np.diff(false, 2) | np.diff(true, 2))[0] + 1, len(ends) - 1)
    corners = np.unique(np.append(0, bends))  # points on a straight line add nothing but rounding
    rates = [np.append(0, counts[corners]) / counts[-1] for counts in (true, false)]
    return float(np.trapezoid(rates[0], rates[1]))
