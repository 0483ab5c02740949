"""How answers are measured, how an audit asks whether they were earned, and the rows of figures found."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar, cast

from evidcore.case import Evidence, Prompt, VolumeRef
from evidcore.contracts.answering import Task
from evidcore.contracts.dataset import Dataset
from evidcore.contracts.judging import Component
from evidcore.contracts.segmenting import Mask

if TYPE_CHECKING:
    from evidcore.contracts.model import Policy  # loads torch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with the interval around it; `low` and `high` are None where `note` says why."""

    value: float
    low: float | None
    high: float | None
    values: int  # questions, or whatever was averaged
    patients: int
    note: str = ""
    is_tied: bool = False  # every draw gave `value`
    standard_error: float | None = None  # of the draws; None where there is no interval from them


_ALWAYS = ("name", "metric", "value", "low", "high", "questions", "patients", "note")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One figure with its interval: an entry of `rows` in `results/<stage>.json`.

    A metric whose name ends in "/…" is a detail of the one before the slash.
    """

    name: str  # what was measured, mostly a task; under an audit's conditions the condition
    metric: str
    value: float | None  # None: not measured, and `note` says why
    low: float | None = None  # ends of the 95 % interval, None where there is none
    high: float | None = None
    questions: int = 0  # prompts that counted
    patients: int = 0  # clusters that the interval is drawn over
    note: str = ""
    unit: str = ""  # "rate" is written 41.2 %, "score" 0.412, "plain" as it is; empty: by the metric's name
    task: str = ""  # where `name` is not the task
    condition: str = ""  # of an audit
    is_headline: bool = False  # shown at a glance on the page
    summary: str = ""  # what the end of a run calls it; empty: it is not told there
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # further columns, JSON values

    @classmethod
    def of(cls, name: str, metric: str, interval: Interval, *, note: str = "", **columns: Any) -> Self:
        """Return the row of an interval; `columns` are further fields of the row."""
        return cls(
            name=name, metric=metric, value=interval.value, low=interval.low, high=interval.high,
            questions=interval.values, patients=interval.patients,
            note="; ".join(part for part in (note, interval.note) if part), **columns,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the row as results files hold it; empty columns are left out."""
        result = {key: getattr(self, key) for key in _ALWAYS}
        named = {key: getattr(self, key) for key in ("unit", "task", "condition", "summary")}
        shown = {"headline": True} if self.is_headline else {}
        return result | {key: value for key, value in named.items() if value} | shown | dict(self.extra)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Read a row of a results file."""
        known = {item.name for item in dataclasses.fields(cls)} - {"extra", "is_headline"}
        extra = {key: value for key, value in row.items() if key not in {*known, "headline"}}
        columns = {key: value for key, value in row.items() if key in known}
        return cls(**columns, is_headline=bool(row.get("headline")), extra=extra)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageResult:
    """What a stage leaves in `result.json` and `answers.jsonl`, beside a checkpoint."""

    rows: tuple[Row, ...] = ()
    answers: tuple[Mapping[str, Any], ...] | None = None  # lines of `answers.jsonl`; None: it asks nothing
    figures: Mapping[str, Any] | None = None  # of the training; None: the stage trains nothing
    # by task; None: the stage measures nothing
    reference_lines: Mapping[str, Mapping[str, float | None]] | None = None
    verdict: Mapping[str, str] | None = None  # by task; None: the stage is no audit

    def to_json(self) -> dict[str, Any]:
        """Return what `result.json` holds."""
        result = {"figures": self.figures, "rows": [row.to_json() for row in self.rows]}
        result |= {"reference_lines": self.reference_lines, "verdict": self.verdict}
        return {key: value for key, value in result.items() if value is not None}


AnswerT = TypeVar("AnswerT")  # an evaluation's own form of an answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """How a policy is asked: greedily."""

    max_new_tokens: int
    prompts_per_batch: int = 64
    headline_only: bool = False  # nothing that the headline does not need, as option likelihoods
    seed: int = 0  # of whatever an audit draws
    dataset: Dataset | None = None  # gives other showings of its cases to an audit

    def batches(self, prompts: Sequence[Prompt]) -> Iterator[Sequence[Prompt]]:
        """Yield `prompts` in pieces of at most `prompts_per_batch`."""
        for start in range(0, len(prompts), self.prompts_per_batch):
            yield prompts[start : start + self.prompts_per_batch]


@dataclasses.dataclass(frozen=True)
class Answers(Generic[AnswerT]):
    """What a policy, or a rule in its place, said to prompts as they were shown."""

    prompts: Sequence[Prompt]
    said: Sequence[AnswerT]  # one a prompt
    condition: str = "own"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claims:
    """What an audit may claim of each finding that answers speak of, in place of one claim for all."""

    verdict: str  # which are seen, and which not
    rows: tuple[Row, ...]


class EvalResult(ABC):
    """Answers, measured."""

    from evidcore.contracts.evaluating import Claims as Claims

    name: str  # what rows call it; mostly the task

    @property
    @abstractmethod
    def clusters(self) -> tuple[str, ...]:
        """Return the patient of each prompt, or the case where no patient is known."""

    @abstractmethod
    def rows(self) -> list[Row]:
        """Return the results rows, most important first."""

    @abstractmethod
    def lines(self) -> list[dict[str, Any]]:
        """Return a line of `answers/<stage>.jsonl` for each prompt.

        A line holds at least `prompt_id`, `case_id`, `patient`, `task`, `condition`, `prompt`, `text` and
        `malformed`; what a row sums over the prompts stands under `figures` as `{metric: number}`.
        """

    @property
    def asked_about(self) -> tuple[str, ...]:
        """Return what each prompt asks about, for figures by finding; empty where that is not known."""
        return ()

    @abstractmethod
    def values(self, metric: str) -> tuple[float, ...]:
        """Return a metric of each prompt, of those that audits compare; what cannot be measured counts 0."""

    def unit(self, metric: str) -> str:
        """Return the unit of a metric that audits compare, as in `Row.unit`."""
        return ""

    def claims(
        self, showings: Mapping[str, Mapping[str, Sequence[EvalResult]]], blind: BlindRule | None
    ) -> Claims | None:
        """Return what an audit may claim of each finding; None where a question is about one thing.

        Args:
            showings: the results under other conditions, by their role and name.
            blind: the best rule that does not look, where there is one.
        """
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlindRule:
    """What the best rule scores that never looks at the volume.

    Rules that look at the scan, and never at what is asked (an atlas on the body's outline), stand in
    `also`, each under a name of its own: they are not blind, and a policy must beat them too.
    """

    values: tuple[float, ...]  # the evaluation's headline of each prompt
    rule: str  # what the rule does
    label: str  # in the name of the row that compares with it: `other_patient_minus_<label>`
    rows: tuple[Row, ...]  # of all such rules, beside an audit's own
    name: str = "blind-rule"  # of its rung, and the condition of its answers' lines
    also: tuple[BlindRule, ...] = ()
    is_joint: bool = False  # it knows all questions about a scan: no bar for who answers each alone
    # `reference_lines` of the result
    figures: Mapping[str, float | None] = dataclasses.field(default_factory=dict)


class Evaluation(Component, ABC, Generic[AnswerT]):
    """Measure a policy's answers to a task's prompts.

    A task names its evaluation; a data entry may name another. Options are keys of the stages that measure
    or audit the task. Core gives: `recipe_folder`, `cache_folder`; services may be named for options.
    """

    from evidcore.contracts.evaluating import BlindRule as BlindRule

    headline: ClassVar[str]  # the metric that audits compare, in 0..1 for each prompt; more is better
    beside: ClassVar[tuple[str, ...]] = ()  # metrics that an audit prints beside it
    points: ClassVar[str] = "points"  # what a hundredth of the headline is called

    def refusal(self, task: Task, prompts: Sequence[Prompt]) -> str:
        """Return why it cannot measure these prompts, as a sentence after the task's name; "" if it can."""
        return ""

    def answer(
        self, policy: Policy, prompts: Sequence[Prompt], task: Task, asking: EvalOptions
    ) -> Sequence[AnswerT]:
        """Ask the policy, and return what it said, one a prompt.

        If not overridden, it is asked greedily, and an answer is what the task reads in the text.

        Raises:
            ValueError: if there are no prompts.
        """
        if not prompts:
            raise ValueError("there is no prompt to evaluate")
        texts: list[str] = []
        for batch in asking.batches(prompts):
            texts += policy.generate(batch, max_new_tokens=asking.max_new_tokens)
        return [cast(Any, task.parse(*pair)) for pair in zip(prompts, texts, strict=True)]

    @abstractmethod
    def score(self, answers: Sequence[Answers[AnswerT]], task: Task, name: str) -> list[EvalResult]:
        """Measure sets of answers that were given to the same questions, whatever was shown.

        All sets come at once, so that what they share (a mask of the gold answer) is made once.
        """

    def references(
        self, prompts: Sequence[Prompt], training: Callable[[], Sequence[Prompt]], task: Task, name: str
    ) -> BlindRule | None:
        """Return what blind rules score on `prompts`, for an evaluate stage to print; None if it has none.

        Args:
            prompts: the questions.
            training: gives the training questions, from which rules learn; the test split teaches nothing.
            task: writes and reads gold answers.
            name: what rows call it.
        """
        return None

    def score_beside_blind(
        self,
        answers: Sequence[Answers[AnswerT]],
        prompts: Sequence[Prompt],
        training: Callable[[], Sequence[Prompt]],
        task: Task,
        name: str,
    ) -> tuple[list[EvalResult], BlindRule | None]:
        """Measure sets of answers, and the best rule that does not look, on the same questions."""
        return self.score(answers, task, name), self.references(prompts, training, task, name)

    def follow(self, prompt: Prompt, evidence: Evidence, volume: VolumeRef) -> tuple[Mask, object] | None:
        """Return the 3D mask that an answer's evidence stands for, and the component that made it.

        Args:
            prompt: what was asked.
            evidence: of the answer, in voxels of the volume.
            volume: the scan.

        Returns:
            A mask (z, y, x) on the volume's grid; None where the evidence stands for no more than itself.
        """
        return None


Role = Literal["blind", "removed", "kept", "other"]


class Condition(ABC):
    """The same questions over another showing, or in other words: a rung of the ladder. Core gives: nothing.

    `role` says what follows from the answers:

    - "blind": nothing of what is asked can be seen, so what it scores was not earned by looking;
    - "removed": what is asked about is not there, so a score that rests on it must fall;
    - "kept": nothing that the answer rests on has changed, so the score must stay;
    - "other": it tells how a policy errs, and decides nothing.
    """

    says: str  # what results call it: "another patient's volumes"
    role: ClassVar[Role]
    repeats: int = 1  # showings, each drawn with a seed of its own; results are their mean

    @abstractmethod
    def show(
        self, prompts: Sequence[Prompt], *, seed: int, dataset: Dataset | None
    ) -> Sequence[Prompt | None]:
        """Return each question over another showing, or in other words; None where there is none.

        Args:
            prompts: the questions, over the cases' own volumes.
            seed: of whatever is drawn.
            dataset: of the questions, where it is known.

        Raises:
            DataError: if the questions cannot be shown so for a reason that the data can mend.
        """


class AuditResult(ABC):
    """What an audit found of one task."""

    @abstractmethod
    def rows(self) -> list[Row]:
        """Return the results rows."""

    @abstractmethod
    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of `answers/<stage>.jsonl`, of every condition."""

    @abstractmethod
    def verdict(self) -> str:
        """Return in words what the figures say, and what they cannot."""

    def reference_lines(self) -> Mapping[str, float | None]:
        """Return the figures of rules that never look, by name."""
        return {}


class Audit(ABC):
    """Ask the same questions under several conditions: were the answers earned by the volume?

    Any evaluation can be audited. Options are keys of the audit stage. Core gives: `recipe_folder`.
    """

    from evidcore.contracts.evaluating import AuditResult as AuditResult

    @abstractmethod
    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        task: Task,
        evaluation: Evaluation[Any],
        training: Callable[[], Sequence[Prompt]],
        asking: EvalOptions,
        name: str,
        blind_arm: Policy | None = None,
    ) -> AuditResult:
        """Audit a policy on `prompts`.

        Args:
            policy: the model.
            prompts: questions of `task`.
            task: reads the completions.
            evaluation: measures them.
            training: gives the training questions, from which blind rules learn.
            asking: how the policy is asked.
            name: what rows call it.
            blind_arm: a policy that was trained alike over blank volumes, where there is one.

        Raises:
            DataError: if the questions cannot be asked under a condition; names the patient.
        """
