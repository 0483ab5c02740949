"""Stage `linear-probe`: what a straight reading of the frozen encoder's features tells of each finding.

It bounds from below what the features hold, and says where a gap lies: a policy far under the probe's
accuracy on the same questions loses in bridge or language model what its encoder found.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.metrics import roc_auc_score
from torch import Tensor

from evidcore.api import (
    Case,
    Encoder,
    Prompt,
    Row,
    Stage,
    StageContext,
    StageResult,
    View,
    VisualPart,
    Workload,
    mean_interval,
)
from evidcore.contracts.evaluating import Interval
from evidcore.errors import RecipeError
from evidcore.evaluate.eval_stage import training_set
from evidcore.evaluate.reference_lines import answer_place, cluster_of, logistic
from evidcore.model.bank import FeatureBank

Labels = np.ndarray[Any, Any]
Pooled = Callable[[Sequence[Case]], Float[np.ndarray[Any, Any], "case feature"]]

NAME = "linear probe"  # of its rows
FEWEST_EXAMPLES = 5  # of each kind, or the finding is left out and named
_HANDLES_AT_ONCE = 64  # bounds the patches in memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearProbe(Stage):
    """Fit a logistic regression per finding on training cases; measure it on the cases of one data entry.

    Where the entry's task asks choices, the option with the highest probability is the probe's answer.
    """

    traits = dataclasses.replace(Stage.traits, needs_tasks=False, measures=True)

    def workload(self) -> Workload:
        return Workload(text=f"linear probe on {self.data[0].dataset} {self.data[0].split}")

    def check(self, context: StageContext) -> None:
        """Refuse several data entries: their rows could not be told apart."""
        if len(self.data) > 1:
            text = f"a probe reads one entry, got {len(self.data)}. Give each a stage of its own."
            raise RecipeError(f"{context.where}.data: {text}")

    def run(self, context: StageContext) -> StageResult:
        use, model = self.data[0], context.model()[0].model
        pooled = encoder_features(model.encoder, context.view, model.bank)
        learnt = [case for entry in training_set(use, context) for case in context.cases(entry)]
        prompts = [one for one in (context.prompts(use) if use.task else ()) if one.reference.get("options")]
        probe = linear_probe(pooled, learnt, context.cases(use), prompts)
        return StageResult(rows=tuple(probe.rows()), reference_lines={})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """Findings read from features by one straight line each."""

    auc: Mapping[str, float]  # on the test cases, by finding
    left_out: Mapping[str, str]  # finding -> why
    accuracy: Interval | None  # on the questions; None without
    cases: int
    patients: int

    def rows(self) -> list[Row]:
        """Return the results rows: accuracy on the questions, mean and lowest AUC, AUC by finding."""
        result = []
        if self.accuracy is not None:
            result.append(Row.of(NAME, "probe_accuracy", self.accuracy, is_headline=True))
        if self.auc:
            note = "; ".join(f"left out: {finding} ({why})" for finding, why in self.left_out.items())
            result.append(self._row("probe_auc_mean", sum(self.auc.values()) / len(self.auc), note))
            worst = min(self.auc, key=lambda finding: self.auc[finding])
            result.append(self._row("probe_auc_min", self.auc[worst], worst))
        return result + [self._row(f"probe_auc/{finding}", value) for finding, value in self.auc.items()]

    def _row(self, metric: str, value: float, note: str = "") -> Row:
        return Row(
            name=NAME, metric=metric, value=value, questions=self.cases, patients=self.patients, note=note
        )


def linear_probe(
    pooled: Pooled, training: Sequence[Case], test: Sequence[Case], prompts: Sequence[Prompt] = ()
) -> Probe:
    """Fit a logistic regression per finding on training cases and measure it on test cases.

    Args:
        training: cases with findings.
        prompts: choices about test cases.
        pooled: gives one feature vector per case, from the frozen encoder.
        test: cases with findings, of other patients.

    Raises:
        ValueError: if cases are missing or a prompt asks about a case that is not in `test`; names it.
    """
    if not training or not test:
        raise ValueError(f"a probe needs cases, got {len(training)} for training and {len(test)} for testing")
    learnt, asked = pooled(training), pooled(test)
    probabilities: dict[str, Labels] = {}
    auc: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for finding in dict.fromkeys(item.name for case in training for item in case.findings):
        known, label = _labels(training, finding)
        tested, truth = _labels(test, finding)
        fewest = min(label.sum(), len(label) - label.sum())
        if fewest < FEWEST_EXAMPLES:
            left_out[finding] = f"{fewest} training cases of the rarer kind, fewer than {FEWEST_EXAMPLES}"
            continue
        probabilities[finding] = logistic(learnt[known], label, strength=1.0).predict_proba(asked)[:, 1]
        if 0 < truth.sum() < len(truth):
            auc[finding] = float(roc_auc_score(truth, probabilities[finding][tested]))
        else:
            left_out[finding] = "no AUC: all test cases are of one kind"
    places = {case.id: index for index, case in enumerate(test)}
    right = [_is_right(prompt, places, probabilities) for prompt in prompts]
    accuracy = mean_interval(right, [cluster_of(prompt) for prompt in prompts]) if prompts else None
    patients = len({case.patient or case.id for case in test})
    return Probe(auc=auc, left_out=left_out, accuracy=accuracy, cases=len(test), patients=patients)


def encoder_features(encoder: Encoder, view: View, bank: FeatureBank | None = None) -> Pooled:
    """Return a function that pools a frozen encoder's patches of each case: mean, then maximum, per feature.

    A case that is shown in several parts is pooled over all of them.

    A bank keeps the features of one encoder; without, nothing is kept.
    """
    bank = bank or FeatureBank(encoder.input)

    def pooled(cases: Sequence[Case]) -> Float[np.ndarray[Any, Any], "case feature"]:
        parts = [[part for part in view.render(case) if isinstance(part, VisualPart)] for case in cases]
        handles = [
            [bank.handle(part.crop, view.size_zyx(part, encoder.input)) for part in some] for some in parts
        ]
        ends: dict[int, tuple[Tensor, Tensor]] = {}  # mean and maximum of each handle's patches
        flat = list(dict.fromkeys(handle for some in handles for handle in some))
        for start in range(0, len(flat), _HANDLES_AT_ONCE):
            for group, patches in bank.patches(flat[start : start + _HANDLES_AT_ONCE], encoder):
                features = patches.features.detach().float().cpu()
                ends |= zip(group, zip(features.mean(dim=1), features.amax(dim=1), strict=True), strict=True)
        rows = []
        for some in handles:
            means, peaks = (torch.stack(side) for side in zip(*(ends[one] for one in some), strict=True))
            rows.append(torch.cat([means.mean(dim=0), peaks.amax(dim=0)]))
        return torch.stack(rows).numpy()

    return pooled


def _labels(cases: Sequence[Case], finding: str) -> tuple[list[int], Labels]:
    """Return which cases know of a finding, and whether it is present in them."""
    states = [(index, case.state_of(finding)) for index, case in enumerate(cases)]
    sure = [(index, state == "present") for index, state in states if state in ("present", "absent")]
    return [index for index, _ in sure], np.array([label for _, label in sure], dtype=np.int64)


def _is_right(prompt: Prompt, places: Mapping[str, int], probabilities: Mapping[str, Labels]) -> float:
    """Return 1 if the most probable option is right; one that no line was fitted for is never chosen."""
    if prompt.case.id not in places:
        raise ValueError(f"prompt {prompt.id!r} asks about case {prompt.case.id!r}, which is not a test case")
    index, options = places[prompt.case.id], prompt.reference["options"]
    beliefs = [float(probabilities[one][index]) if one in probabilities else -1.0 for one in options]
    return float(beliefs.index(max(beliefs)) == answer_place(prompt))
