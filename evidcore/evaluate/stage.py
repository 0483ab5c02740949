"""Stage `evaluate`: answer every question of the data entries greedily, and measure the answers.

A linear probe may be asked for beside: what a straight reading of the frozen encoder's features can tell of
each finding. It bounds from below what the features hold, and says where a gap lies: a policy far under the
probe's accuracy on the same questions loses in bridge or language model what its encoder found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from evidcore.case import Case, Prompt, VisualPart
from evidcore.compute.logistic import Logistic, roc_auc
from evidcore.contracts import Answers, Asking, Encoder, Policy, Row, StageContext, StageResult, View
from evidcore.evaluate.asking import AskingStage, learnt_from, training
from evidcore.evaluate.bootstrap import Interval, mean_interval
from evidcore.evaluate.reference_lines import answer_place, cluster_of, row
from evidcore.evaluate.sealed import unsealed
from evidcore.model.bank import FeatureBank
from evidcore.proof.passes import prove_policy

Features = Float[np.ndarray[Any, Any], "case feature"]
Labels = np.ndarray[Any, Any]
Pooled = Callable[[Sequence[Case]], Features]

FEWEST_EXAMPLES = 5  # of each kind, or the finding is left out and named
_HANDLES_AT_ONCE = 64  # bounds what is held beside the pooled features


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """Findings read from features by one straight line each."""

    auc: Mapping[str, float]  # on the test cases, by finding
    cases: int
    patients: int
    left_out: Mapping[str, str]  # finding -> why
    questions: tuple[float, ...] = ()  # 1 where the most probable option is right
    clusters: tuple[str, ...] = ()

    def accuracy(self) -> Interval | None:
        """Return the accuracy on the questions, the linear-probe ceiling; None without questions."""
        return mean_interval(self.questions, self.clusters) if self.questions else None

    def rows(self, name: str = "linear probe") -> list[Row]:
        """Return the results rows: accuracy on the questions, mean and lowest AUC, AUC by finding."""
        found = []
        if (accuracy := self.accuracy()) is not None:
            found.append(row(name, "probe_accuracy", accuracy, is_headline=True))
        note = "; ".join(f"left out: {finding} ({why})" for finding, why in self.left_out.items())
        values = list(self.auc.values())
        if values:
            found.append(row(name, "probe_auc_mean", self._plain(sum(values) / len(values)), note=note))
            worst = min(self.auc, key=lambda finding: self.auc[finding])
            found.append(row(name, "probe_auc_min", self._plain(min(values)), note=worst))
        return found + [
            row(name, f"probe_auc/{finding}", self._plain(value)) for finding, value in self.auc.items()
        ]

    def _plain(self, value: float) -> Interval:
        return Interval(value=value, low=None, high=None, values=self.cases, patients=self.patients)


def linear_probe(
    pooled: Pooled,
    training: Sequence[Case],
    test: Sequence[Case],
    prompts: Sequence[Prompt] = (),
    *,
    strength: float = 1.0,
) -> Probe:
    """Fit a logistic regression per finding on training cases and measure it on test cases.

    Args:
        pooled: gives one feature vector per case, from the frozen encoder.
        training: cases with findings.
        test: cases with findings, of other patients.
        prompts: questions on test cases; the option with the highest probability is the probe's answer.
        strength: inverse of the L2 penalty on standardised features.

    Raises:
        ValueError: if cases are missing or a prompt asks about a case that is not in `test`; names it.
    """
    if not training or not test:
        raise ValueError(f"a probe needs cases, got {len(training)} for training and {len(test)} for testing")
    seen, shown = pooled(training), pooled(test)
    probabilities: dict[str, np.ndarray[Any, Any]] = {}
    auc: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for finding in dict.fromkeys(item.name for case in training for item in case.findings):
        known, label = _labels(training, finding)
        tested, truth = _labels(test, finding)
        fewest = min(label.sum(), len(label) - label.sum())
        if fewest < FEWEST_EXAMPLES:
            left_out[finding] = f"{fewest} training cases of the rarer kind, fewer than {FEWEST_EXAMPLES}"
            continue
        probabilities[finding] = Logistic(seen[known], label, strength=strength).probabilities(shown)
        if 0 < truth.sum() < len(truth):
            auc[finding] = roc_auc(truth, probabilities[finding][tested])
        else:
            left_out[finding] = "no AUC: all test cases are of one kind"
    places = {case.id: number for number, case in enumerate(test)}
    return Probe(
        auc=auc,
        cases=len(test),
        patients=len({case.patient or case.id for case in test}),
        left_out=left_out,
        questions=tuple(_answered(prompt, places, probabilities) for prompt in prompts),
        clusters=tuple(cluster_of(prompt) for prompt in prompts),
    )


def encoder_features(encoder: Encoder, view: View, bank: FeatureBank | None = None) -> Pooled:
    """Return a function that pools a frozen encoder's patches of each case: mean, then maximum, per feature.

    A case that is shown in several parts is pooled over all of them.

    Args:
        encoder: with its weights.
        view: what is shown of a case.
        bank: where features of this encoder are kept already; a passing one if left out.
    """
    kept = bank or FeatureBank(encoder.input)

    def pooled(cases: Sequence[Case]) -> Features:
        handles = [
            [kept.handle(part.crop, view.size_zyx(part, encoder.input)) for part in _visual(view, case)]
            for case in cases
        ]
        means: dict[int, Tensor] = {}
        peaks: dict[int, Tensor] = {}
        flat = list(dict.fromkeys(handle for some in handles for handle in some))
        for start in range(0, len(flat), _HANDLES_AT_ONCE):
            for group, patches in kept.patches(flat[start : start + _HANDLES_AT_ONCE], encoder):
                features = patches.features.detach().float().cpu()
                means |= dict(zip(group, features.mean(dim=1), strict=True))
                peaks |= dict(zip(group, features.amax(dim=1), strict=True))
        rows = [
            torch.cat([
                torch.stack([means[handle] for handle in some]).mean(dim=0),
                torch.stack([peaks[handle] for handle in some]).amax(dim=0),
            ])
            for some in handles
        ]
        return torch.stack(rows).numpy()

    return pooled


def _visual(view: View, case: Case) -> list[VisualPart]:
    return [part for part in view.render(case) if isinstance(part, VisualPart)]


def _labels(cases: Sequence[Case], finding: str) -> tuple[list[int], Labels]:
    """Return which cases know of a finding, and whether it is present in them."""
    known = [(place, case.state_of(finding)) for place, case in enumerate(cases)]
    sure = [(place, state == "present") for place, state in known if state in ("present", "absent")]
    return [place for place, _ in sure], np.array([label for _, label in sure], dtype=np.int64)


def _answered(prompt: Prompt, places: Mapping[str, int], probabilities: Mapping[str, Labels]) -> float:
    """Return 1 if the most probable option is right; one that no line was fitted for is never chosen."""
    if prompt.case.id not in places:
        raise ValueError(f"prompt {prompt.id!r} asks about case {prompt.case.id!r}, which is not a test case")
    place = places[prompt.case.id]
    beliefs = [
        float(probabilities[option][place]) if option in probabilities else -1.0
        for option in prompt.reference["options"]
    ]
    return float(beliefs.index(max(beliefs)) == answer_place(prompt))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(AskingStage):
    """Measure the model as the stages before left it."""

    probe: bool = False  # also how well a linear probe reads each finding off the frozen encoder

    def ask(self, policy: Policy, asking: Asking, context: StageContext) -> StageResult:
        """Answer, measure, and print beside it what blind rules score."""
        rows: list[Row] = []
        answers: list[Mapping[str, Any]] = []
        lines = {}
        asked: list[Prompt] = []
        for use in self.data:
            prompts, task = self.prompts(use, context), context.tasks[use.task]
            prove_policy(unsealed(policy), prompts, context.where)
            evaluation = self.evaluation(use, context)
            said = evaluation.answer(policy, prompts, task, asking)
            [scored] = evaluation.score([Answers(prompts, said)], task, use.task)
            rows += scored.rows()
            blind = evaluation.references(prompts, training(use, context), task, use.task)
            if blind is not None:
                rows += blind.rows
                lines[use.task] = blind.figures
                asked = asked or prompts
            values = scored.values(evaluation.headline)
            answers += [{**line, "value": value} for line, value in zip(scored.lines(), values, strict=True)]
        if self.probe:
            use = self.data[0]
            model = unsealed(policy).model.model  # type: ignore[attr-defined]  # a VLMPolicy
            pooled = encoder_features(model.encoder, context.view, model.bank)
            learnt = [case for one in learnt_from(use, context) for case in context.cases(one)]
            probe = linear_probe(pooled, learnt, context.cases(use), asked)
            rows += probe.rows()
        return StageResult(rows=tuple(rows), answers=tuple(answers), reference_lines=lines)
