import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax

from evidcore.prompts.targets import IGNORED, Targets
from evidcore.reward.composer import NamedReward
from evidcore.train.settings import Lora, Replay
from evidcore.train.trl.grpo import row_divergence


def run(bench, name, *, weight=1.0, rows=4, **changed):
    replay = Replay(data=(), rows_per_step=rows, weight=weight) if weight else None
    return bench.run(name, replay=replay, replayed=bench.source(bench.set_of("report")), **changed)


def test_the_divergence_of_rows_is_scipys():
    generator = np.random.default_rng(4)
    wanted, given = generator.normal(size=(2, 2, 3, 7))
    is_answer = np.array([[True, False, True], [False, True, False]])
    expected = []
    for row in range(2):
        here = [
            rel_entr(softmax(wanted[row, token]), softmax(given[row, token])).sum()
            for token in range(3)
            if is_answer[row, token]
        ]
        expected.append(sum(here) / len(here))
    result = row_divergence(torch.tensor(wanted), torch.tensor(given), torch.tensor(is_answer))
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)


def test_gold_answers_teach_nothing_where_the_rewards_do_not(bench):
    start, _ = bench.model()
    constant = NamedReward(name="constant", reward=bench.Constant())
    plain = {"rewards": [constant], "learning_rate": 0.05, "trl": {"optim": "sgd"}}  # Adam blows up 1e-9
    trained, heard = run(bench, "constant", **plain)
    assert [item["replay_kl"] for item in heard.steps] == pytest.approx([0.0, 0.0], abs=1e-6)
    torch.testing.assert_close(bench.flat(trained), bench.flat(start), rtol=0, atol=1e-6)


def told(bench, model, processor):
    """The log-probability of each token of the gold answers of eight replayed rows."""
    targets = Targets(processor, bench.source(bench.set_of("report")))
    batch = targets.batch([{"prompt": str(index)} for index in range(8)])
    labels = batch.pop("labels")[:, 1:]
    with torch.no_grad():
        log_probs = model(**batch).logits[:, :-1].log_softmax(-1)
    return log_probs.gather(-1, labels.clamp(min=0)[..., None])[..., 0][labels != IGNORED]


@pytest.mark.slow
def test_what_is_replayed_stays_nearer_to_what_it_was(bench):
    changed = {"steps": 12, "learning_rate": 5e-3}
    free, also = run(bench, "free", weight=0, **changed)
    held, heard = run(bench, "held", weight=20.0, **changed)
    model, processor = bench.model()
    was = told(bench, model, processor)
    moved = [(told(bench, item, processor) - was).abs().mean() for item in (free, held)]
    assert moved[1] < moved[0] / 2
    assert "replay_kl" not in also.steps[0]
    assert heard.steps[0]["replay_kl"] == pytest.approx(0.0, abs=1e-6)
    assert heard.steps[-1]["replay_kl"] > 0
    assert heard.steps[0]["replay_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("prompts_per_forward", [1, 2])
def test_rows_of_a_step_are_the_same_in_one_pass_and_in_several(bench, prompts_per_forward):
    plain = {"steps": 3, "learning_rate": 0.05, "weight": 3.0, "trl": {"optim": "sgd"}}
    once, heard = run(bench, "once", **plain)
    apart, also = run(bench, "apart", prompts_per_forward=prompts_per_forward, **plain)
    assert heard.steps[2]["replay_kl"] > 0
    assert also.steps[2]["replay_kl"] == pytest.approx(heard.steps[2]["replay_kl"], rel=1e-3)
    torch.testing.assert_close(bench.flat(once), bench.flat(apart), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_with_lora_the_start_is_the_model_without(bench):
    _, heard = run(bench, "lora", lora=Lora(rank=2, alpha=4.0), steps=2, learning_rate=1e-2)
    assert heard.steps[0]["replay_kl"] == pytest.approx(0.0, abs=1e-6)
    assert heard.steps[1]["replay_kl"] > 1e-5
