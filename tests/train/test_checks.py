import dataclasses
import functools
import re

import pytest
import torch

from evidcore.builtin.projection import Projection
from evidcore.builtin.rollouts import Plain
from evidcore.case import Answer, MaskRef
from evidcore.errors import ContractError, EvidError, RecipeError
from evidcore.model.policy import VLMPolicy
from evidcore.prompts.targets import Targets
from evidcore.train.checks import check_rows, check_start
from evidcore.train.sampler import RolloutPolicy


def check(bench, parts, max_new_tokens=8, **changed):
    model, processor = parts
    check_start(model, processor, bench.source(**changed), max_new_tokens=max_new_tokens, where="stage.grpo")


def test_numbers_that_are_not_finite_are_named_with_prompt_and_volume(bench):
    model, processor = bench.model()
    with torch.no_grad():
        next(model.model.bridge.parameters()).fill_(torch.nan)
    message = (
        r"prompt 'case-\d.*': encoder 'vit3d' and bridge 'projection' give numbers that are not finite for '/"
    )
    with pytest.raises(ContractError, match=message):
        check(bench, (model, processor))


def test_a_bridge_that_announces_another_number_of_tokens_is_named(bench):
    model, processor = bench.model()
    images = processor.image_processor
    encoder, _, view = images.parts()

    class Boasting(Projection):
        def tokens(self, grid_zyx):
            return 7

    images.connect(encoder, Boasting(24, 64, (2, 2, 2)), view, images.bank)
    with pytest.raises(ContractError, match="bridge 'projection' announces 7 tokens and gives 4"):
        check(bench, (model, processor))


def giving(text, parse=None):
    """Have a task give another gold answer to one case's questions."""

    def plant(group, case):
        gold = group.task.gold
        group.task.gold = lambda prompt: (text, ()) if prompt.case.id == case.id else gold(prompt)
        group.task.parse = parse or group.task.parse

    return plant


def read(prompt, text):
    return Answer(text=text)


FAULTS = {  # what is wrong with one row of twelve, by what it is called
    r"RecipeError: prompt '{}:.*' has \d+ tokens and its answer up to \d{{4}}, .*": giving("A " * 3000, read),
    r"ContractError: .*: task 'choice' finds its own gold answer 'I .*' to prompt '{}:.* malf": giving(
        "I think A"
    ),
    r"DataError: prompt '{}:.*': its gold answer: its text holds .* token '<.im_end": giving(
        "A <|im_end|>", read
    ),
    r"DataError: prompt '{}:.*': its gold answer is empty": giving(" ", read),
    r"DataError: prompt '{}:.*': /gone.nii: there is no such file": None,
}


@pytest.mark.parametrize("place", [0, 7, 11])
@pytest.mark.parametrize(("says", "plant"), FAULTS.items())
def test_every_row_counts(bench, says, plant, place):
    cases = [*bench.cases, *(dataclasses.replace(case, id=f"more-{case.id}") for case in bench.cases[:4])]
    if plant is None:
        gone = {"left nodule": MaskRef(path="/gone.nii")}
        cases[place] = dataclasses.replace(cases[place], masks=gone)
    group = bench.set_of(cases=cases)
    if plant is not None:
        plant(group, cases[place])
    model, processor = bench.model()
    with pytest.raises(EvidError) as caught:
        check_start(model, processor, bench.source(group), max_new_tokens=0, where="stage.sft")
    assert re.match(says.format(cases[place].id), f"{type(caught.value).__name__}: {caught.value}")
    if "token" not in says:  # the tokenizer need not be here
        with pytest.raises(type(caught.value), match=re.escape(str(caught.value))):
            check_rows(bench.source(group).every_row(), None, "", max_new_tokens=0, where="stage.sft")


def test_rows_beyond_the_time_are_told_and_refused_when_they_are_read(bench, caplog):
    group = bench.set_of("report")
    _, processor = bench.model()
    source = bench.source(group)
    processor.context_tokens = 40
    check_rows(source.every_row(), processor, "", max_new_tokens=0, where="stage.sft", seconds=-1.0)
    assert caplog.messages == ["stage.sft: 0 rows were looked at in -1 s; the others are when they are read."]
    with pytest.raises(RecipeError, match=r"prompt 'case-.*' has .* context holds 40\. Shorten"):
        Targets(processor, source).row(0)


@pytest.mark.parametrize("kind", [VLMPolicy, functools.partial(RolloutPolicy, strategy=Plain())])
def test_a_question_that_leaves_no_room_for_an_answer_is_not_asked(bench, kind):
    policy = kind(*bench.model())
    prompt = bench.source()[0].prompt
    with pytest.raises(RecipeError, match=r"prompt 'case-.*' has .* its answer up to 2040, .* holds 2048"):
        policy.generate([prompt], max_new_tokens=2040)
