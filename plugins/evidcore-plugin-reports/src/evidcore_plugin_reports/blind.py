"""Rules that write a report without a look at the scan: what training reports affirm.

A rule affirms a set of findings: the one set that fits training best, or what patients with like words or a
like header have. A header is the size and spacing of the grid: these differ between scanners and protocols.
The rule is taken that is best about training patients it has not learnt from. So a prompt that gives findings
away, as an indication may, raises this line and not the policy's margin.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.preprocessing import StandardScaler

from evidcore.api import DataError, Prompt, TextPart
from evidcore.data import read_geometry
from evidcore.evaluate.reference_lines import cluster_of, folds
from evidcore_plugin_reports.agreement import states

MOST_QUESTIONS = 1500  # of training, that rules learn from
MOST_SETS = 200  # of findings that are tried as the one to affirm each time
NEIGHBOURS = (1, 10)
CHANCES = (0.2, 0.35, 0.5)  # from which a finding is affirmed
Worth = Callable[[frozenset[str]], float]
# given training questions and those that are asked: features of both, or what is affirmed
Read = Callable[[Sequence["Question"], Sequence["Question"]], tuple[Any, Any]]
Rule = Callable[[Sequence["Question"], Sequence["Question"]], list[frozenset[str]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """What may be known without a look, and the findings, which a rule reads in training alone."""

    patient: str
    words: str
    header: tuple[float, ...]  # size and spacing of the first volume; zeros where it cannot be read
    present: frozenset[str]
    absent: frozenset[str]

    worth: Worth | None = None  # what it is worth to affirm some findings; None: F1

    @classmethod
    def of(cls, prompt: Prompt, worth: Worth | None = None) -> "Question":
        """Read a prompt; a volume that cannot be read is refused where it is shown."""
        words = " ".join(part.text for part in prompt.parts if isinstance(part, TextPart))
        known, header = states(prompt.case.findings), tuple([0.0] * 6)
        with contextlib.suppress(DataError):
            for grid in map(read_geometry, prompt.case.volumes[:1]):
                header = (*map(float, grid.shape_zyx), *map(float, grid.spacing_mm_zyx))
        state = {
            wanted: frozenset(name for name, each in known.items() if each == wanted)
            for wanted in ("present", "absent")
        }
        return cls(patient=cluster_of(prompt), words=words, header=header, worth=worth, **state)

    def score(self, affirmed: frozenset[str]) -> float:
        """Return what it is worth to affirm some findings, if nothing else is said F1 as of reports."""
        if self.worth is not None:
            return self.worth(affirmed)
        right, wrong = len(affirmed & self.present), len(affirmed & self.absent)
        total = len(self.present) + right + wrong
        return 2 * right / total if total else 0.0


def best_findings(
    prompts: Sequence[Prompt], training: Sequence[Prompt], worth: Sequence[Worth | None] | None = None
) -> tuple[str, list[frozenset[str]]] | None:
    """Return the rule that is best about training patients it has not learnt from, and what it affirms.

    The findings and voxels of `prompts` are not looked at. None where no training case has known findings.
    `worth` is of each training prompt what it is worth to affirm some findings; without, F1.
    """
    questions = map(Question.of, training, worth or [None] * len(training))
    every = [item for item in questions if item.present or item.absent]
    if not every:
        return None
    learnt = every[:: -(-len(every) // MOST_QUESTIONS)]
    rules, scores = _rules(learnt), collections.defaultdict[str, float](float)
    for others, fold in folds([item.patient for item in learnt]):
        asked = [learnt[index] for index in fold]
        for name, rule in rules.items():
            answers = rule([learnt[index] for index in others], asked)
            scores[name] += sum(item.score(answer) for item, answer in zip(asked, answers, strict=True))
    best = max(rules, key=lambda name: scores[name])
    return best, rules[best](learnt, [Question.of(prompt) for prompt in prompts])


def _rules(learnt: Sequence[Question]) -> dict[str, Rule]:
    """Return the rules by what they do; those by words or headers only where these differ."""
    rules: dict[str, Rule] = {"the same findings each time": _constant}
    if len({item.words for item in learnt}) > 1:
        for count in NEIGHBOURS:
            rules[f"findings of the {count} nearest by the words"] = _nearest(_words, count)
        for chance in CHANCES:
            rules[f"findings that the words make {chance:.0%} likely"] = _linear(chance)
    if len({item.header for item in learnt}) > 1:
        for count in NEIGHBOURS:
            rules[f"findings of the {count} nearest by the scan's header"] = _nearest(_headers, count)
    return rules


def _constant(training: Sequence[Question], asked: Sequence[Question]) -> list[frozenset[str]]:
    """Affirm the set with the highest F1 over all, of those that a report has or the most frequent make."""
    reports = collections.Counter(item.present for item in training)
    counts = collections.Counter(name for item in training for name in sorted(item.present))
    frequent = [name for name, _ in counts.most_common()]
    sets = [item for item, _ in reports.most_common(MOST_SETS)]
    sets += [frozenset(frequent[:count]) for count in range(1, len(frequent) + 1)]
    return [max(sets, key=lambda affirmed: sum(item.score(affirmed) for item in training))] * len(asked)


def _nearest(read: Read, count: int) -> Rule:
    """Affirm what most of the nearest training reports do."""
    return lambda training, asked: _affirmed(
        training, asked, read, KNeighborsRegressor(min(count, len(training))), chance=0.5
    )


def _linear(chance: float) -> Rule:
    """Affirm what a ridge regression on the words gives more than a chance."""
    return lambda training, asked: _affirmed(training, asked, _words, Ridge(), chance)


def _affirmed(
    training: Sequence[Question], asked: Sequence[Question], read: Read, model: Any, chance: float
) -> list[frozenset[str]]:
    """Fit a model of how likely each finding is, and affirm those above a chance."""
    names = sorted(frozenset[str]().union(*(item.present for item in training)))
    labels = np.array([[float(name in item.present) for name in names] for item in training])
    features, rows = read(training, asked)
    likely = model.fit(features, labels).predict(rows).reshape(len(asked), len(names))
    return [
        frozenset(name for name, share in zip(names, row, strict=True) if share > chance) for row in likely
    ]


def _words(training: Sequence[Question], asked: Sequence[Question]) -> tuple[Any, Any]:
    scale = TfidfVectorizer(token_pattern=r"\w+").fit([item.words for item in training])
    return tuple(scale.transform([item.words for item in some]) for some in (training, asked))


def _headers(training: Sequence[Question], asked: Sequence[Question]) -> tuple[Any, Any]:
    scale = StandardScaler().fit([item.header for item in training])
    return tuple(scale.transform([item.header for item in some]) for some in (training, asked))
