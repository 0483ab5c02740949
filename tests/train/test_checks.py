import pytest
import torch

from evidcore.builtin.projection import Projection
from evidcore.errors import ContractError, RecipeError
from evidcore.train.checks import check_start


def check(bench, parts, max_new_tokens=8, **changed):
    model, processor = parts
    check_start(model, processor, bench.source(**changed), max_new_tokens=max_new_tokens, where="stage.grpo")


def test_a_sound_start_passes(bench):
    check(bench, bench.model())


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


def test_a_gold_answer_that_its_task_cannot_read_is_named(bench):
    group = bench.set_of()
    group.task.gold = lambda prompt: ("I think A", ())
    model, processor = bench.model()
    with pytest.raises(
        ContractError, match=r"task 'choice': finds its own gold answer to prompt 'case-.* malformed"
    ):
        check_start(model, processor, bench.source(group), max_new_tokens=8, where="stage.grpo")


def test_a_prompt_and_answer_beyond_the_context_are_named(bench):
    with pytest.raises(
        RecipeError, match=r"stage.grpo: prompt .* its answer up to 2040, but .* context holds 2048"
    ):
        check(bench, bench.model(), max_new_tokens=2040)
