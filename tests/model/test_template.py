"""Every chat template that trl ships passes the round trip, or is refused by the names in the table."""

import re
import tomllib
from pathlib import Path

import pytest
import trl
from transformers import PreTrainedTokenizerFast

from evidcore.errors import RunError
from evidcore.model.template import control_tokens, read_turns, round_trip, tool_listing
from evidcore.train.tiny_model import tiny_tokenizer

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SHIPPED = {path.stem: path.read_text() for path in Path(trl.__file__).parent.glob("chat_templates/*.jinja")}
CONTROL = re.compile(
    r"<[|\uff5c][^<>\s|\uff5c'\"]{1,40}[|\uff5c]>|</?s>|<(?:start|end)_of_\w+>|<turn\|>|<\|turn>"
)

# template -> what is refused
REFUSED = {
    "glm4moe": "end of turn", "gptoss": "date, generation prompt", "llama3_2": "date",
    "muse_glimmer": "date, generation prompt",
}  # fmt: skip
OPENING = re.compile(r"deepseek_r1_distill|deepseekv3|nemotron_3|qwen3_5_think|qwen3_6|qwen3_8")  # a thought
PASSING_WHEN_TRAINING = {"glm4moe_training"}  # trl's variant loses less than what it replaces
TAKE_PARTS = {"idefics3", "llava_next", "smolvlm"}  # these leave a string out, and take a list of parts


def refused(name: str) -> str:
    return "" if name in PASSING_WHEN_TRAINING else REFUSED.get(name.removesuffix("_training"), "")


PASSING = sorted(name for name in SHIPPED if not refused(name))
CHATML = TABLE["chatml"]


def tokenizer_of(template: str) -> PreTrainedTokenizerFast:
    """Give a byte-level tokenizer with the control tokens that a template writes."""
    special = sorted({*CONTROL.findall(template), "<bos>", "<eos>"})
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": None}
    return tiny_tokenizer(special, **named, chat_template=template)


def changed_chatml(old: str, new: str) -> PreTrainedTokenizerFast:
    assert old in CHATML
    tokenizer = tokenizer_of(CHATML)
    tokenizer.chat_template = CHATML.replace(old, new)
    return tokenizer


def names(losses) -> str:
    return ", ".join(loss.what for loss in losses)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_each_template_of_trl_passes_or_is_refused_by_name(name):
    turns, losses = round_trip(tokenizer_of(SHIPPED[name]))
    assert names(losses) == refused(name)
    assert (turns is None) == bool(losses)
    for loss in losses:
        assert loss.remedy.startswith("Put beside the tokenizer a chat_template.jinja that ")


def test_trl_ships_some_forty_templates_and_most_pass():
    assert len([name for name in SHIPPED if not name.endswith("_training")]) >= 40
    assert len(PASSING) > len(SHIPPED) / 2


BOX = {"type": "object", "properties": {"box": {"type": "array", "items": {"type": "number"}}}}
ZOOM = {"name": "zoom", "description": "Look closer.", "parameters": BOX}
FUNCTION = {"type": "function", "function": ZOOM}


@pytest.mark.slow
@pytest.mark.parametrize("name", PASSING)
def test_functions_are_told_by_the_templates_that_know_some(name):
    tokenizer = tokenizer_of(SHIPPED[name])
    told = tool_listing(tokenizer, SHIPPED[name], [FUNCTION])
    turns = read_turns(tokenizer, where="here")
    assert (told is not None) == ("tools" in SHIPPED[name])
    if told is not None:
        assert "Look closer." in told
        assert told != turns.before_question


@pytest.mark.slow
@pytest.mark.parametrize("name", PASSING)
def test_turns_are_what_the_template_writes_around_a_question_and_its_answer(name):
    tokenizer = tokenizer_of(SHIPPED[name])
    turns = read_turns(tokenizer, where="here")
    question, answer = "Which organ?\n\nA) liver  B) spleen", "B) spleen"

    def written(*texts, asks):
        takes_parts = name.removesuffix("_training") in TAKE_PARTS
        content = [[{"type": "text", "text": text}] if takes_parts else text for text in texts]
        roles = ["user", "assistant", "user"]
        chat = [{"role": role, "content": item} for role, item in zip(roles, content, strict=False)]
        return tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=asks)

    prompt = turns.before_question + question + turns.before_answer
    opened = "<think>" if OPENING.match(name) else ""
    assert written(question, asks=True).removeprefix(prompt).strip() == opened
    trained = written(question, answer, asks=False)
    assert trained.startswith(prompt)
    between, after = trained.removeprefix(prompt).split(answer)
    assert between.replace("<think>", "").replace("</think>", "").strip() == ""
    assert after.startswith(turns.end_of_turn)
    assert [token in turns.end_of_turn for token in control_tokens(tokenizer)].count(True) == 1
    tool = written(question, answer, "slice 3", asks=True)
    _, _, left = tool.partition(answer + turns.after_answer + "slice 3" + turns.before_next_answer)
    assert left.strip() == opened


@pytest.mark.parametrize(("old", "new", "what", "sentence"), TABLE["lost"])
def test_a_template_that_loses_something_is_refused_with_the_sentence_and_the_remedy(
    old, new, what, sentence
):
    tokenizer = changed_chatml(old, new)
    assert set(names(round_trip(tokenizer)[1]).split(", ")) == set(what.split(", "))
    with pytest.raises(
        RunError, match=rf"(?s)^a model: its chat template cannot be used.*{sentence}.*Put beside the"
    ):
        read_turns(tokenizer, where="a model")


@pytest.mark.parametrize(("old", "new"), TABLE["kept"])
def test_what_a_run_writes_itself_is_not_refused(old, new):
    assert round_trip(changed_chatml(old, new)) == (read_turns(tokenizer_of(CHATML), where="here"), ())


def test_all_that_is_lost_is_said_at_once():
    tokenizer = tokenizer_of(SHIPPED["gptoss"])
    with pytest.raises(
        RunError, match=r"2 things would be lost or altered:\n    date: .*\n    generation prompt: "
    ):
        read_turns(tokenizer, where="gpt")
