"""Our rewards in stock TRL, and TRL's functions as our rewards: both ways give the same numbers."""

import json
import runpy

import pytest
from evidcore_plugin_hub.trl_reward import TrlFunction, TrlReward, reward_of, trl_reward
from evidcore_testing import TinyDataset, answer_group, tiny_language

from evidcore.api import find
from evidcore.builtin.rewards import ChoiceAccuracy
from evidcore.errors import ContractError, RecipeError
from evidcore.reward.composer import NamedReward

TEXTS = ("<think>x</think><answer>A</answer>", "<think>x</think><answer>B</answer>", "A", "")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    task, view = find("task", "choice").load()(), find("view", "volume").load()()
    cases = TinyDataset(tmp_path_factory.mktemp("cases"), train=3).cases("train")
    return task, [prompt for case in cases for prompt in task.prompts(case, view, 1)]


def rows(prompts, texts=TEXTS):
    """Return what TRL would give for some completions of each prompt."""
    each = [prompt for prompt in prompts for _ in texts]
    columns = {key: [prompt.reference[key] for prompt in each] for key in prompts[0].reference}
    return {
        "prompts": [prompt.words() for prompt in each],
        "completions": list(texts) * len(prompts),
        "case_id": [prompt.case.id for prompt in each],
        **columns,
    }


def test_a_function_gives_what_the_reward_gives(prompts):
    task, asked = prompts
    given = [answer_group(task, prompt, TEXTS, group=number) for number, prompt in enumerate(asked)]
    expected = [item.value for item in ChoiceAccuracy()([item for group in given for item in group], {})]
    assert trl_reward("choice-accuracy")(**rows(asked), trainer_state=None) == expected
    assert 0 < sum(expected) < len(expected)


def test_messages_are_read_as_texts_are(prompts):
    plain, reward = rows(prompts[1]), trl_reward("choice-accuracy")
    chat = dict(plain)
    chat["prompts"] = [
        [{"role": "user", "content": [{"type": "text", "text": item}]}] for item in plain["prompts"]
    ]
    chat["completions"] = [[{"role": "assistant", "content": item}] for item in plain["completions"]]
    assert reward(**chat) == reward(**plain)


def test_a_reward_goes_out_and_comes_back(prompts):
    task, asked = prompts
    made = trl_reward("choice-accuracy", options={"reading": "lenient"})
    back = reward_of(made, judges={"correctness"})()
    group = answer_group(task, asked[0], TEXTS)
    expected = [item.value for item in ChoiceAccuracy(reading="lenient")(group, {})]
    assert [item.value for item in back(group, {})] == expected
    assert (back.judges, back.bounds) == (frozenset({"correctness"}), (0.0, 1.0))
    direct = TrlFunction(made, {"choice": task}, name="made", is_chat=False)
    assert [item.value for item in direct(group, {})] == expected


def test_other_tasks_are_not_applicable_to_a_function(prompts):
    task, asked = prompts
    back = reward_of(lambda completions, **_: [1.0] * len(completions), judges=(), tasks=("report",))()
    assert back(answer_group(task, asked[0], TEXTS), {}) == [None] * len(TEXTS)
    more = reward_of(lambda completions, **_: [1.0, *range(len(completions))], judges=())()
    with pytest.raises(ValueError, match="longer"):
        more(answer_group(task, asked[0], TEXTS), {})


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")  # TRL's own default
def test_stock_grpo_trainer_trains_on_an_exported_reward(prompts, evid, tmp_path, monkeypatch):
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    monkeypatch.chdir(tmp_path)
    (tmp_path / "choice_accuracy_trl.py").symlink_to(tmp_path / "own.py")  # a stranger's, to nothing yet
    said = json.loads(evid("export", "reward", "choice-accuracy", "--to", "trl", "--json").output)
    assert said == {"file": "choice_accuracy_trl.py", "function": "choice_accuracy", "to": "trl"}
    assert not (tmp_path / "own.py").exists()
    function = runpy.run_path(said["file"])["choice_accuracy"]
    again = evid("export", "reward", "choice-accuracy", "--to", "trl", exit_code=2)
    assert "is there already" in again.stderr
    folder = tiny_language(tmp_path / "language")
    columns = rows(prompts[1], texts=("",))
    data = Dataset.from_dict({
        "prompt": columns["prompts"], **{name: columns[name] for name in ("case_id", "letter", "options")}
    })  # fmt: skip
    heard = []

    def beside(completions, letter, options, **_):
        heard.append((len(completions), letter[0] in "ABCD", len(options[0])))
        return [0.0] * len(completions)

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        processing_class=AutoTokenizer.from_pretrained(folder),
        reward_funcs=[function, beside],
        train_dataset=data,
        args=GRPOConfig(
            output_dir=str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=2, num_generations=2,
            max_completion_length=4, report_to=[], use_cpu=True, beta=0.0, bf16=False,
        ),
    )  # fmt: skip
    trainer.train()
    assert "rewards/choice_accuracy/mean" in trainer.state.log_history[0]
    assert heard == [(2, True, 4)]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cross-view", {}, r"reward 'cross-view': needs .*'reader'"),
        ("choice-accuracy", {"reading": "lenint"}, r"reading.*'lenint'"),
    ],
)
def test_what_only_a_run_gives_and_a_wrong_option_are_named(name, options, message):
    with pytest.raises(RecipeError, match=message):
        trl_reward(name, options=options)


def test_options_that_are_no_json_are_refused(evid):
    said = evid("export", "reward", "format", "--to", "trl", "--options", "{x", exit_code=2).stderr
    assert "--options: must be a JSON object, got '{x'" in said


def test_columns_of_another_length_are_refused(prompts):
    short = {**rows(prompts[1]), "letter": ["A"]}
    with pytest.raises(RecipeError, match="choice_accuracy: column 'letter' has 1 rows for 12"):
        trl_reward("choice-accuracy")(**short)


def test_a_reward_that_breaks_its_contract_is_named_in_trl_too(prompts):
    class Short(ChoiceAccuracy):
        def __call__(self, rollouts, earlier):
            return super().__call__(rollouts[1:], earlier)

    made = TrlReward(NamedReward(name="short", reward=Short(), package="mine 1"), prompts[0], "choice")
    with pytest.raises(ContractError, match="mine 1: reward 'short' returned 11 scores for 12 rollouts"):
        made(**rows(prompts[1]))


def test_radevals_rewards_are_components():
    rewards = pytest.importorskip("radeval.rewards", reason="radeval is not installed")
    made = reward_of(rewards.make_reward_fn("bleu", reference_column="report"), judges={"report"})()
    from evidcore_plugin_hub.lint.linting import made_prompts

    row = next(row for row in made_prompts()[1] if row.prompt.task == "report")
    group = answer_group(row.task, row.prompt, [row.prompt.case.report.text, "There is no nodule.", ""])
    right, other, nothing = (item.value for item in made(group, {}))
    assert right == pytest.approx(1.0)
    assert right > other > nothing == 0.0
