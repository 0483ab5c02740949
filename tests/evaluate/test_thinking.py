import pytest

from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.case import Case, Question, Report, TextPart, Turn, VolumeRef
from evidcore.contracts import Answers, Completion, EvalOptions, Measured, Metric, Policy
from evidcore.evaluate.choice import ChoiceEvaluation, measure_thinking
from evidcore.evaluate.eval_stage import AnonymizedPolicy
from evidcore.evaluate.measuring import NamedMetric
from evidcore.registry.factory import build


class Words(Metric):
    """Counts words, and keeps what it was shown."""

    unit = "plain"
    reads = frozenset({"think"})

    def __call__(self, texts):
        self.shown = list(texts)
        return [Measured(figures={"words": float(len(item.text.split()))}) for item in texts]


class Calls(Metric):
    """Counts turns before the last."""

    unit = "plain"
    reads = frozenset({"turns"})

    def __call__(self, texts):
        return [Measured(figures={"calls": float(len(item.turns))}) for item in texts]


@pytest.fixture
def metric(offered):
    lines = "words = evid_words:Words\ncalls = evid_words:Calls\n"
    offered("evid-words", f"[evidcore.metric]\n{lines}", Words=Words, Calls=Calls)
    return build("metric", {"use": "words"}, given={}, where="test")


CASE = Case(
    id="a", patient="p", volumes=(VolumeRef(path="a.nii"),), report=Report(text="No emphysema."),
    questions=(Question(id="q", text="Which?", options=("a", "b", "c", "d"), answer=0),),
)  # fmt: skip


def test_thinking_is_measured_against_the_report_of_the_case(metric):
    (prompt,) = Choice().prompts(CASE, Volume(), 0)
    answers = ["<think>it shows nothing</think><answer>A</answer>", "<answer>A</answer>"]
    result = measure_thinking([NamedMetric(metric=metric, name="words")], [prompt] * 2, answers, Choice())
    assert [item.text for item in metric.shown] == ["it shows nothing", ""]
    assert {item.reference.text for item in metric.shown} == {"No emphysema."}
    assert metric.shown[0].asked == prompt.written()
    (row,) = result.rows("choice", ["p", "p"])
    assert (row.metric, row.value, row.unit) == ("words", 1.5, "plain")


def test_where_nobody_thinks_nothing_is_measured(metric):
    (prompt,) = Choice(think=False).prompts(CASE, Volume(), 0)
    named = [NamedMetric(metric=metric, name="words")]
    result = measure_thinking(named, [prompt], ["<answer>A</answer>"], Choice(think=False))
    assert result.rows("choice", ["p"]) == []
    assert not hasattr(metric, "shown")


def test_a_scorer_says_how_well_thoughts_agree_with_reports():
    table = {"use": "scorer", "name": "", "scorer": {"use": "findings-f1", "scope": "candidate"}}
    metric = build("metric", table, given={"labeler": None, "recipe_folder": None}, where="test")
    (prompt,) = Choice().prompts(CASE, Volume(), 0)
    answers = [
        "<think>There is no emphysema.</think><answer>A</answer>",
        "<think>There is emphysema.</think><answer>A</answer>",
    ]
    result = measure_thinking([NamedMetric(metric=metric, name="scorer")], [prompt] * 2, answers, Choice())
    (row,) = result.rows("choice", ["p", "p"])
    assert (row.metric, row.value, row.unit) == ("findings_f1", 0.5, "score")


def test_turns_before_an_answer_are_measured_and_kept_with_it(metric):
    calls = build("metric", {"use": "calls"}, given={}, where="test")
    (prompt,) = Choice().prompts(CASE, Volume(), 0)
    turn = Turn(text="look", actions=(), reply=(TextPart(text="there"),))

    class Looks(Policy):
        def generate(self, prompts, **options):
            raise AssertionError("the turns would be lost")

        def complete(self, prompts, **options):
            text = "<think>it shows</think><answer>A</answer>"
            return [
                Completion(text=text, turns=(turn,) * n, is_cut_off=n == 1) for n, _ in enumerate(prompts)
            ]

        def log_likelihoods(self, prompts, completions):
            return [[0.0] * len(some) for some in completions]

    evaluation = ChoiceEvaluation(rescue=None, labeler=None, metric=(calls, metric))
    prompts = [prompt, prompt]
    asked = AnonymizedPolicy(Looks())
    said = evaluation.answer(asked, prompts, Choice(), EvalOptions(max_new_tokens=8, headline_only=True))
    [scored] = evaluation.score([Answers(prompts, said)], Choice(), "choice")
    rows = {row.metric: row.value for row in scored.rows()}
    assert (rows["calls"], rows["words"]) == (0.5, 2.0)
    [row] = asked.rows("choice", 8)
    assert (row.metric, row.value) == ("cut_off_rate", 0.5)
    assert row.note == "1 of 2 answers had no end after max_new_tokens = 8"
    bare, looked = scored.lines()
    assert "turns" not in bare
    assert looked["turns"] == [{"text": "look", "actions": [], "reply": "there", "crops": []}]
    assert (looked["figures"]["calls"], looked["figures"]["words"]) == (1.0, 2.0)
