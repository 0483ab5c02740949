import dataclasses

import pytest
import torch
from evidcore_plugin_med3d_r1.reweighter import Abnormality

from evidcore.builtin.choice import Choice
from evidcore.case import TextPart, Turn, VisualPart
from evidcore.contracts import LabelError, Reweighter, RolloutStrategy
from evidcore.errors import ContractError, DataError
from evidcore.prompts.targets import Targets
from evidcore.registry import Offer


class Capitals(Reweighter):
    """Weighs a token by the place of its first character, so that each weight says where it came from."""

    def __call__(self, text, spans, offsets):
        return [float(start + 1) for start, _ in offsets]


class Given(Reweighter):
    def __init__(self, answer):
        self.answer = answer

    def __call__(self, text, spans, offsets):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if isinstance(self.answer, list) else [self.answer] * len(offsets)


def test_a_row_is_the_prompt_and_its_gold_answer_with_an_end_and_weights_follow_its_characters(bench):
    _, processor = bench.model()
    source = bench.source(bench.set_of("report"))
    row, placed, weighed = (
        Targets(processor, source, *reweighter).row(0)
        for reweighter in ((), (Capitals(),), (Abnormality(gain=2.0),))
    )
    text, spans = source[0].task.gold(source[0].prompt)
    assert row.prompt_ids == processor.encode(source[0].prompt).ids
    assert processor.tokenizer.decode(row.answer_ids) == f"{text}<|im_end|>"
    assert row.weights == (1.0,) * len(row.answer_ids)
    assert len(row.handles) == 1
    # one byte is one token in this tokenizer, and these reports are plain ASCII
    assert placed.weights == tuple(float(index + 1) for index in range(len(row.answer_ids)))
    heavy = "".join(item for item, weight in zip(text, weighed.weights, strict=False) if weight == 2.0)
    assert heavy == "".join(text[span.start : span.end] for span in spans if span.label == "abnormal")


LOOK = '<tool_call>{"name": "look"}</tool_call>'


class Looks(Choice):
    """Looks again before it answers."""

    def gold_turns(self, prompt):
        return [
            Turn(text=LOOK, actions=(), reply=(TextPart(text="again:"), VisualPart(crop=prompt.crops()[0])))
        ]


class Told(RolloutStrategy):
    """Tells a function."""

    stop_texts = ("</tool_call>",)
    call_form = LOOK
    functions = ({"type": "function", "function": {"name": "look", "description": "Look again."}},)

    def __call__(self, sampler, prompts, answers_per_prompt):
        raise AssertionError


def test_tools_turns_in_a_gold_answer_are_read_and_carry_no_loss(bench):
    _, processor = bench.model()
    source = bench.source(dataclasses.replace(bench.set_of(), task=Looks(think=False)))
    targets = Targets(processor, source, Given(3.0))
    row = targets.row(0)
    prompt = source[0].prompt
    reply = processor.encode_tool_turn(Looks().gold_turns(prompt)[0].reply)
    gold, _ = source[0].task.gold(prompt)
    call, answer = (processor.encode_answer(text).ids for text in (LOOK, gold))
    assert row.answer_ids == call[: -len(processor.end_ids)] + reply.ids + answer
    assert row.answer_ids.count(processor.image_token_id) == processor.image_processor.tokens(reply.crops[0])
    assert row.handles == 2 * row.handles[:1]  # the volume, twice
    before, after = len(call) - len(processor.end_ids), len(answer)
    assert row.loss_mask == (1,) * before + (0,) * len(reply.ids) + (1,) * after
    assert row.weights == (1.0,) * before + (0.0,) * len(reply.ids) + (3.0,) * after  # the re-weighter's
    batch = targets.batch([{"prompt": "0"}])
    trained = batch["labels"][0] != -100
    assert trained.tolist() == [False] * len(row.prompt_ids) + [bool(own) for own in row.loss_mask]


def test_a_model_that_learns_calls_is_told_its_functions(bench):
    _, processor = bench.model()
    source = bench.source()
    prompt = source[0].prompt
    told = processor.tokenizer.decode(Targets(processor, source, strategy=Told()).row(0).prompt_ids)
    plain = processor.write(prompt)
    before = processor.turns.before_question
    listed = '{"name": "look", "description": "Look again."}'
    words = f"Tools:\n{listed}\nTo call one, write {LOOK}\n\n"  # the tiny template knows no functions
    assert told == before + words + plain.removeprefix(before)
    system = "<|im_start|>system\n{{ tools | tojson }} as <tool_call></tool_call><|im_end|>\n"
    processor.chat_template = f"{{%- if tools %}}{system}{{%- endif %}}{processor.chat_template}"
    opening = processor.opening_of(Told())
    assert opening.startswith("<|im_start|>system\n[")
    assert opening.endswith(before)
    other = Told()
    other.stop_texts = ("[/CALL]",)  # the template would teach another form than the strategy reads
    assert processor.opening_of(other) == before + words


def test_prompts_and_padding_have_no_label_and_no_weight(bench):
    _, processor = bench.model()
    source = bench.source(bench.set_of(), bench.set_of("report"))
    batch = Targets(processor, source, Given(3.0)).batch([{"prompt": "0"}, {"prompt": "1"}])
    rows = [Targets(processor, source).row(index) for index in range(2)]
    assert len({len(row.prompt_ids) + len(row.answer_ids) for row in rows}) == 2
    for number, row in enumerate(rows):
        start, stop = len(row.prompt_ids), len(row.prompt_ids) + len(row.answer_ids)
        answer = torch.zeros(batch["labels"].shape[1], dtype=torch.bool)
        answer[start:stop] = True
        assert ((batch["labels"][number] != -100) == answer).all()
        assert ((batch["weights"][number] == 3.0) == answer).all()
        assert not batch["weights"][number][~answer].any()
        assert batch["attention_mask"][number].tolist() == [1] * stop + [0] * (len(answer) - stop)
    assert batch["pixel_values"].shape == (2, 1)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (LabelError("a text of 12 characters"), "a text of 12 characters"),  # which no labeler could read
        ([1.0, 2.0], r"gave 2 weights for \d+ tokens"),
        (-0.5, "must be a finite number of 0 or more, got -0.5"),
        (float("nan"), "must be a finite number of 0 or more, got nan"),
        (ValueError("no labels"), ": ValueError: no labels"),
    ],
)
def test_a_reweighter_that_breaks_its_contract_is_named(bench, answer, message):
    _, processor = bench.model()
    source = bench.source(bench.set_of("report"))
    names = {"kind": "reweighter", "name": "given", "package": "theirs", "target": "theirs:Given"}
    targets = Targets(processor, source, Given(answer), Offer(**names, version="0.3"))
    prompt = source[0].prompt.id
    with pytest.raises((ContractError, DataError), match=message) as caught:
        targets.row(0)
    assert type(caught.value) is (DataError if isinstance(answer, LabelError) else ContractError)
    assert f"prompt {prompt!r}" in str(caught.value)
    if not isinstance(answer, LabelError):
        assert str(caught.value).startswith("reweighter 'given' from theirs 0.3")
