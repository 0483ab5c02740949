import math
import shutil

import pytest
import torch
from evidcore_plugin_reports.agreement import as_agreement
from evidcore_plugin_reports.reward_model import RewardModel
from evidcore_plugin_reports.testing import tiny_reward_model
from evidcore_plugin_reports.text_models import Pretrained
from evidcore_testing import check_scorer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from evidcore.errors import DataError, RecipeError, RunError

QUESTIONS = ["Which finding is present?", "Q?", "Which finding is present?\nA) emphysema\nB) mass"]
CANDIDATES = ["A.", "There is emphysema in both lungs, and nothing else is seen.", "<think>B</think>"]
REFERENCES = ["emphysema", "mass", "No pleural effusion. A mass of 4 cm."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_reward_model(tmp_path_factory.mktemp("models") / "rm").parent


def scorer(folder, **options):
    return RewardModel(folder, model=Pretrained(folder="rm", **options))


def by_hand(folder, turn="The correct answer is {}"):
    """The logit of each conversation, alone and without padding, as the released code asks for it."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "rm")
    model = AutoModelForSequenceClassification.from_pretrained(folder / "rm", dtype=torch.float32)
    result = []
    for question, candidate, reference in zip(QUESTIONS, CANDIDATES, REFERENCES, strict=True):
        conversation = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": candidate},
            {"role": "user", "content": turn.format(reference)},
        ]
        ids = tokenizer.apply_chat_template(conversation, tokenize=True, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            result.append(float(model(ids).logits[0][0]))
    return result


def test_the_reference_is_told_in_the_recipes_words(folder):
    turn = "The report says: {reference} Does it agree?"
    wanted = [1 / (1 + math.exp(-item)) for item in by_hand(folder, turn.replace("{reference}", "{}"))]
    told = RewardModel(folder, model=Pretrained(folder="rm"), reference_turn=turn)
    result = told(CANDIDATES, REFERENCES, QUESTIONS)
    assert result == pytest.approx(wanted, rel=1e-6)
    assert result != pytest.approx(scorer(folder)(CANDIDATES, REFERENCES, QUESTIONS), rel=1e-3)


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder / "rm", tmp_path / "rm")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("budget", [0, 1, 300, 100_000])
def test_the_raw_score_is_the_logit_whatever_side_the_tokenizer_pads(folder, side, budget, copied):
    tokenizer = AutoTokenizer.from_pretrained(copied)
    tokenizer.padding_side = side
    tokenizer.save_pretrained(copied)
    assert AutoTokenizer.from_pretrained(copied).padding_side == side
    result = scorer(copied.parent, tokens_per_pass=budget)(CANDIDATES, REFERENCES, QUESTIONS)
    wanted = by_hand(folder)
    assert max(wanted) - min(wanted) > 0.1
    assert [math.log(item / (1 - item)) for item in result] == pytest.approx(wanted, abs=1e-5)


def test_one_by_one_is_the_same_bits_whatever_else_is_scored(folder):
    together = scorer(folder)(CANDIDATES, REFERENCES, QUESTIONS)
    for score, *texts in zip(together, CANDIDATES, REFERENCES, QUESTIONS, strict=True):
        assert scorer(folder)(*([text] for text in texts)) == [score]


def test_a_model_without_a_padding_token_reads_texts_one_by_one(folder, copied):
    model = AutoModelForSequenceClassification.from_pretrained(copied)
    model.config.pad_token_id = None
    model.save_pretrained(copied)
    result = scorer(copied.parent, tokens_per_pass=100_000)(CANDIDATES, REFERENCES, QUESTIONS)
    assert result == pytest.approx(scorer(folder)(CANDIDATES, REFERENCES, QUESTIONS), rel=1e-6)


def test_ready_reads_no_weights(folder):
    judge = scorer(folder)
    judge.ready()
    assert "model" not in vars(judge.judge)


def test_it_keeps_the_contract_of_a_scorer(folder):
    check_scorer(scorer(folder))
    check_scorer(scorer(folder, tokens_per_pass=4096))


@pytest.mark.parametrize("raw", [-800.0, -2.0, 0.0, 0.2, 1.6, 40.0, 800.0])
def test_raw_scores_of_any_size_become_agreements(raw):
    assert as_agreement(raw) == pytest.approx(0.5 * (1 + math.tanh(raw / 2)), abs=1e-15)


def test_without_a_question_there_is_nothing_to_judge(folder):
    with pytest.raises(ValueError, match="give the questions"):
        scorer(folder)(CANDIDATES, REFERENCES)


def test_a_reference_turn_needs_a_place_for_the_reference(folder):
    with pytest.raises(RecipeError, match=r"reference_turn must hold \{reference\}.*got 'Is it so\?'"):
        RewardModel(folder, model=Pretrained(folder="rm"), reference_turn="Is it so?")


def test_a_conversation_is_never_cut(folder):
    with pytest.raises(RecipeError, match=r"\(rm\): model.too_long = 'cut' would cut the reference off"):
        scorer(folder, too_long="cut")
    with pytest.raises(DataError, match=r"\(rm\): a text of 2\d{3} tokens is longer than the 2048"):
        scorer(folder)(["x" * 2000], ["mass"], ["Q?"])
    with pytest.raises(DataError, match=r"longer than the 100 that may be read"):
        scorer(folder, most_tokens=100)(["x" * 100], ["mass"], ["Q?"])
    lenient, alone = scorer(folder, too_long="unscored"), scorer(folder)(["A."], ["mass"], ["Q?"])
    assert lenient(["x" * 2000, "A."], ["mass"] * 2, ["Q?"] * 2) == [None, *alone]


def test_several_labels_are_refused(tmp_path):
    tiny_reward_model(tmp_path / "rm", labels=3)
    with pytest.raises(DataError, match=r"\(rm\): gives 3 labels"):
        scorer(tmp_path).ready()


def test_a_tokenizer_without_a_chat_template_is_refused(copied):
    tokenizer = AutoTokenizer.from_pretrained(copied)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(copied)
    (copied / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(DataError, match=r"\(rm\): its tokenizer has no chat template"):
        scorer(copied.parent).ready()


def test_a_template_that_cannot_write_the_conversation_is_named(copied):
    (copied / "chat_template.jinja").write_text("{{ raise_exception('only two turns') }}")
    with pytest.raises(DataError, match=r"\(rm\): its chat template writes no conversation .*only two turns"):
        scorer(copied.parent)(["A."], ["mass"], ["Q?"])


def test_a_score_that_is_no_number_is_named(copied):
    model = AutoModelForSequenceClassification.from_pretrained(copied)
    with torch.no_grad():
        model.score.weight.fill_(math.nan)
    model.save_pretrained(copied)
    with pytest.raises(RunError, match=r"\(rm\): gave nan for a conversation of \d+ tokens in float32"):
        scorer(copied.parent)(["A."], ["mass"], ["Q?"])
