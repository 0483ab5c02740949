"""Three lines beside every accuracy: uniform chance, the best blind rule, and perfect eyes.

Chance is not one in four. A rule that never sees the volume, and picks the option that was most often right
in training, beats it wherever findings differ in prevalence; and where several options are true, perfect eyes
cannot know which one the key wants. Both lines are computed from the questions' own labels.

The best blind rule is chosen without the test questions: each rule learns from four fifths of the training
patients and answers the questions of the last fifth, five times. The rule that is right most often then
learns from all of training. So the choice does not raise the line; it is no bound either, since another rule
may do better.

Who keeps what was asked knows all questions about a scan: an option that several of them offer is rarely
right where wrong ones are drawn from what is absent, and a finding that one of them names is there. The rule
that first goes by this is no bar for a policy that answers each question alone.
"""

import collections
import dataclasses
import functools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from evidcore.case import Prompt
from evidcore.contracts import BlindRule, Row
from evidcore.contracts.evaluating import Interval
from evidcore.evaluate.bootstrap import mean_interval
from evidcore.text.tags import LETTERS

TRAINING_SEEDS = (0, 1)  # of evaluation's questions, which come with the cases, and of training's
UNKNOWN = "which other options are true is not known"
FOLDS = 5  # chosen on the test questions, the best of five rules gained 2 to 4 points
MOST_QUESTIONS = 1500  # that the regression learns from
MOST_FEATURES = 120
FEWEST_OFFERS = 5  # of a word, for the regression to weigh it
Preference = Callable[[Prompt, str, int], float]  # an option's name and place -> how much the rule likes it
Rule = Callable[[Prompt], Sequence[float]]  # how much it likes each option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReferenceLines:
    """Expected accuracy of three answerers, per question and on average."""

    clusters: tuple[str, ...]  # of each question
    uniform_chance: tuple[float, ...]
    prior_only: tuple[float, ...]
    perfect_perception: tuple[float, ...] | None  # None: which other options are true is not known
    rules: Mapping[str, float]  # accuracy of every blind rule that was tried
    prior_rule: str  # the one that was best on questions of training patients it had not learnt from
    together: tuple[float, ...]  # of that rule, after what other questions about the scan tell

    def intervals(self) -> dict[str, Interval | None]:
        """Return each line with its patient-clustered interval; None where it is not known."""
        lines = {name: getattr(self, name) for name in ("uniform_chance", "prior_only", "perfect_perception")}
        return {
            name: None if values is None else mean_interval(values, self.clusters)
            for name, values in lines.items()
        }

    def blind(self, name: str) -> BlindRule:
        """Return the best blind rule, with a row for each of the three lines."""
        notes = {
            "uniform_chance": "one option at random",
            "prior_only": f"best blind rule: {self.prior_rule}",
            "perfect_perception": "every finding known; one of the true options at random",
        }
        questions, patients = len(self.clusters), len(set(self.clusters))
        rows = []
        for metric, interval in self.intervals().items():
            row = Row(
                name=name, metric=metric, value=None, note=UNKNOWN, questions=questions, patients=patients
            )
            if interval is not None:
                summary = "the best blind rule" if metric == "prior_only" else ""
                row = Row.of(name, metric, interval, note=notes[metric], summary=summary)
            rows.append(row)
        joint = BlindRule(
            values=self.together, rule=f"other questions about the scan, then {self.prior_rule}",
            label="blind_rule_of_a_scan", rows=(), name="blind-rule-of-a-scan", is_joint=True,
        )  # fmt: skip
        return BlindRule(
            values=self.prior_only, rule=self.prior_rule, label="prior_only", rows=tuple(rows),
            figures={row.metric: row.value for row in rows},
            also=(joint,) if self.together != self.prior_only else (),
        )  # fmt: skip


def cluster_of(prompt: Prompt) -> str:
    """Return what a prompt is clustered by."""
    return cluster(prompt.case.patient, prompt.case.id)


def cluster(patient: str | None, case_id: str) -> str:
    """Return the patient, or the case where no patient is known."""
    return patient if patient is not None else f"case {case_id}"


def training_prompts(ask: Callable[[int], Iterable[Prompt]]) -> list[Prompt]:
    """Return what blind rules learn from: what is asked in evaluation and what in training, each once.

    `ask` gives the questions about the training cases under a seed.
    """
    result: dict[tuple[str, str, tuple[str, ...]], Prompt] = {}
    for seed in TRAINING_SEEDS:
        for prompt in ask(seed):
            reference = prompt.reference
            key = (prompt.id, str(reference.get("letter")), tuple(reference.get("options") or ()))
            result.setdefault(key, prompt)
    return list(result.values())


def reference_lines(prompts: Sequence[Prompt], training: Sequence[Prompt]) -> ReferenceLines:
    """Measure what the three answerers would score on `prompts`.

    The blind rules know the training questions with their keys and labels, and nothing of any volume.

    Args:
        prompts: the questions, each with `options`, `letter` and `true_options` in its reference, and
            `truth_known` = False where these may be more than are named.
        training: training questions in the same form: `training_prompts`.
    """
    for prompt in (*prompts, *training):
        if not prompt.reference.get("options"):
            raise ValueError(f"prompt {prompt.id!r} has no options, so it has no reference lines")
    blind_rules, best = _blind_rules(training), best_rule(training)
    by_rule = {
        name: tuple(_expected(prompt, rule(prompt)) for prompt in prompts)
        for name, rule in blind_rules.items()
    }
    is_known = all(prompt.reference.get("truth_known", True) for prompt in prompts)
    return ReferenceLines(
        clusters=tuple(cluster_of(prompt) for prompt in prompts),
        uniform_chance=tuple(1 / len(prompt.reference["options"]) for prompt in prompts),
        prior_only=by_rule[best],
        perfect_perception=tuple(1 / len({*p.reference["true_options"], answer_place(p)}) for p in prompts)
        if is_known
        else None,
        rules={name: sum(scores) / len(scores) for name, scores in by_rule.items()},
        prior_rule=best,
        together=_together(prompts, blind_rules[best]),
    )


def answer_place(prompt: Prompt) -> int:
    """Return the place of the right option, counted from 0."""
    return LETTERS.index(prompt.reference["letter"])


def best_rule(training: Sequence[Prompt]) -> str:
    """Return the blind rule that is right most often about training patients it has not learnt from.

    With one patient, or none of a fold, what a rule says of its own questions has to serve.
    """
    right: dict[str, float] = collections.defaultdict(float)
    for others, fold in folds([cluster_of(prompt) for prompt in training]):
        for name, rule in _blind_rules([training[index] for index in others]).items():
            right[name] += sum(_expected(training[index], rule(training[index])) for index in fold)
    return max(right, key=lambda name: right[name])


def folds(patients: Sequence[str]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield, for each fifth of the patients, the questions to learn from and those to answer.

    Of one patient alone, the questions are both.
    """
    each = sorted(set(patients))
    random.Random(0).shuffle(each)
    fold_of = {patient: index % FOLDS for index, patient in enumerate(each)}
    for fold in range(min(FOLDS, len(each))):
        left_out = [index for index, patient in enumerate(patients) if fold_of[patient] == fold]
        others = [index for index, patient in enumerate(patients) if fold_of[patient] != fold]
        yield others or left_out, left_out


def _expected(prompt: Prompt, liking: Sequence[Any]) -> float:
    """Return the accuracy of taking the option that is liked most, ties broken by a fair coin."""
    most = max(liking)
    return 1 / liking.count(most) if liking[answer_place(prompt)] == most else 0.0


def _together(prompts: Sequence[Prompt], rule: Rule) -> tuple[float, ...]:
    """Return the accuracy of a rule among the options that fewest other questions about the scan offer.

    Of these it first takes what the words of another question name.
    """
    about: dict[str, list[Prompt]] = collections.defaultdict(list)
    for prompt in prompts:
        about[prompt.case.id].append(prompt)

    def liking(prompt: Prompt) -> Iterator[tuple[int, bool, float]]:
        others = [other for other in about[prompt.case.id] if other is not prompt]
        for option, liked in zip(prompt.reference["options"], rule(prompt), strict=True):
            offered = sum(option in other.reference["options"] for other in others)
            yield -offered, any(_bag(option) <= _bag(_words(other)) for other in others), liked

    return tuple(_expected(prompt, [*liking(prompt)]) for prompt in prompts)


def _blind_rules(training: Sequence[Prompt]) -> dict[str, Rule]:
    """Return what can be learnt without pixels, as preferences over options."""
    right: collections.Counter[str] = collections.Counter()
    offered: collections.Counter[str] = collections.Counter()
    places: collections.Counter[int] = collections.Counter()
    right_to: collections.Counter[tuple[str, str]] = collections.Counter()
    offered_to: collections.Counter[tuple[str, str]] = collections.Counter()
    for prompt in training:
        options, words = prompt.reference["options"], _words(prompt)
        right_to[words, options[answer_place(prompt)]] += 1
        offered_to.update((words, option) for option in options)
        right[options[answer_place(prompt)]] += 1
        offered.update(options)
        places[answer_place(prompt)] += 1
    present: collections.Counter[str] = collections.Counter()
    known: collections.Counter[str] = collections.Counter()
    for case in {prompt.case.id: prompt.case for prompt in training}.values():
        for finding in case.findings:
            known[finding.name] += finding.state != "uncertain"
            present[finding.name] += finding.state == "present"
    preferences: dict[str, Preference] = {
        "most often right in training": lambda _, option, __: right[option],
        "most often right when offered": lambda _, option, __: right[option] / max(offered[option], 1),
        "most often right to the same words": lambda prompt, option, _: (
            right_to[_words(prompt), option] / max(offered_to[_words(prompt), option], 1)
        ),
        "most prevalent in training": lambda _, option, __: present[option] / max(known[option], 1),
        "letter most often right": lambda _, __, place: places[place],
        "longest option": lambda _, option, __: len(option),
        "shortest option": lambda _, option, __: -len(option),
        "option with most words of the question": lambda prompt, option, _: len(
            _bag(option) & _bag(_words(prompt))
        ),
    }
    rules: dict[str, Rule] = {name: _each(prefer) for name, prefer in preferences.items()}
    return {**rules, "regression on the words": _regression(training)}


def _each(prefer: Preference) -> Rule:
    return lambda prompt: [
        prefer(prompt, option, place) for place, option in enumerate(prompt.reference["options"])
    ]


def _regression(training: Sequence[Prompt]) -> Rule:
    """Learn a logistic regression of being right on an option's words, alone and beside the question's."""
    sample = training[:: -(-len(training) // MOST_QUESTIONS)]
    offers = collections.Counter(
        feature
        for prompt in sample
        for option in prompt.reference["options"]
        for feature in _features(_words(prompt), option)
    )
    common = sorted((-count, feature) for feature, count in offers.items() if count >= FEWEST_OFFERS)
    column_of = {feature: index for index, (_, feature) in enumerate(common[:MOST_FEATURES])}

    def described(prompts: Sequence[Prompt]) -> tuple[np.ndarray[Any, Any], list[int]]:
        """Return the features of each option, and 1 for the right ones."""
        rows = [
            (option, place, prompt)
            for prompt in prompts
            for place, option in enumerate(prompt.reference["options"])
        ]
        table = np.zeros((len(rows), len(column_of) + 1 + len(LETTERS)))
        for row, (option, place, prompt) in zip(table, rows, strict=True):
            for feature in _features(_words(prompt), option) & column_of.keys():
                row[column_of[feature]] = 1.0
            lengths = [len(other) for other in prompt.reference["options"]]
            row[len(column_of)] = len(option) / max(*lengths, 1)
            row[len(column_of) + 1 + place] = 1.0
        return table, [int(place == answer_place(prompt)) for _, place, prompt in rows]

    table, labels = described(sample)
    if len(set(labels)) < 2:
        return lambda prompt: [0.0] * len(prompt.reference["options"])
    model = logistic(table, np.array(labels), strength=0.1)
    return lambda prompt: model.decision_function(described([prompt])[0]).round(6).tolist()


def logistic(features: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], *, strength: float = 1.0) -> Any:
    """Return scikit-learn's logistic regression on standardised features, fitted; its C is `strength`."""
    from sklearn.linear_model import LogisticRegression  # 1 s
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=5000)).fit(
        features, labels
    )


@functools.lru_cache(maxsize=20_000)  # the same questions are described in every fold
def _features(words: str, option: str) -> frozenset[str]:
    """Return the option's words, the option as it is, and each beside each word of the question."""
    tokens = {option.lower(), *_bag(option)}
    return frozenset(tokens | {f"{word} {part}" for word in _bag(words) for part in tokens})


def _bag(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))


def _words(prompt: Prompt) -> str:
    """Return the question without its options: "Where is the liver?" has one answer in most people."""
    return str(prompt.reference.get("question", ""))
