import dataclasses

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from evidcore.api import Crop, VisualPart
from evidcore.model.packed_attention import answer_log_probs, pack, packing_blocker
from evidcore.model.positions import counted

LOG_PROBS = 1e-5  # nats, float32
GRADIENTS = 1e-4  # of the gradient's length


@pytest.fixture
def small(small):
    """The same with half the weights' size: a log-probability of -40 is a multiple of 4e-6 in float32."""
    with torch.no_grad():
        for weight in small.model.model.language_model.parameters():
            if weight.dim() > 1:
                weight.mul_(0.5)
    return small


@dataclasses.dataclass
class Rows:
    """Left-padded prompts, right-padded answers of different lengths, and image handles."""

    ids: torch.Tensor
    mask: torch.Tensor
    written: torch.Tensor
    there: torch.Tensor
    handles: list[list[int]]

    def packed(self):
        return pack(self.ids, self.mask, self.written, self.there, counted(self.mask))

    def pixels(self, row=None):
        handles = [item for own in self.handles for item in own] if row is None else self.handles[row]
        return torch.tensor(handles).reshape(-1, 1)


def rows_of(small, *, answers, longest, volumes=1, prompts=4, seed=0):
    rng = torch.Generator().manual_seed(seed)
    shown = [VisualPart(crop=Crop(volume=case.volumes[0])) for case in small.cases]
    encoded = []
    for index, prompt in enumerate(small.prompts[:prompts]):
        others = [shown[index - extra] for extra in range(1, volumes)]
        several = dataclasses.replace(prompt, parts=(*others, *prompt.parts))
        encoded.append(small.processor.encode(several))
    before = max(len(item.ids) for item in encoded)
    ids = torch.tensor([[0] * (before - len(item.ids)) + list(item.ids) for item in encoded])
    lengths = torch.tensor([len(item.ids) for item in encoded])
    mask = (torch.arange(before) >= before - lengths[:, None]).long()
    written = torch.randint(6, 262, (len(encoded), answers, longest), generator=rng)
    lengths = torch.randint(1, longest + 1, (len(encoded), answers), generator=rng)
    there = (torch.arange(longest) < lengths[..., None]).long()
    handles = [[small.processor.image_processor.handle(crop) for crop in item.crops] for item in encoded]
    return Rows(ids, mask, written * there, there, handles)


def one_by_one(model, rows):
    """Score each answer in a row of its own, from plain logits."""
    result = torch.zeros(rows.written.shape)
    for row in range(rows.written.shape[0]):
        prompt = rows.ids[row][rows.mask[row].bool()]
        for number in range(rows.written.shape[1]):
            answer = rows.written[row, number][rows.there[row, number].bool()]
            logits = model(input_ids=torch.cat([prompt, answer])[None], pixel_values=rows.pixels(row)).logits
            log_probs = logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
            result[row, number, : len(answer)] = log_probs.gather(-1, answer[:, None])[:, 0]
    return result


def packed_log_probs(model, rows):
    return answer_log_probs(model, rows.packed(), rows.pixels())


def gradients(model, score, weight):
    model.zero_grad()
    (score() * weight).sum().backward()
    return {name: item.grad.clone() for name, item in model.named_parameters() if item.grad is not None}


def agree(together, apart):
    """Compare gradients weight by weight, those that are nothing but rounding among them by the largest."""
    assert together.keys() == apart.keys()
    most = max(item.norm() for item in apart.values())
    for name, item in apart.items():
        assert (together[name] - item).norm() <= GRADIENTS * max(item.norm(), 1e-3 * most), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "drawn",
    [
        {"answers": 3, "longest": 7},
        {"answers": 2, "longest": 7, "volumes": 2},
        {"answers": 5, "longest": 40, "volumes": 3},
        {"answers": 8, "longest": 1},
        {"answers": 4, "longest": 12, "prompts": 1},  # nothing is padded
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [0, 1])
def test_answers_in_one_row_score_and_teach_as_in_rows_of_their_own(small, drawn, seed):
    rows = rows_of(small, seed=seed, **drawn)
    assert {len(handles) for handles in rows.handles} == {drawn.get("volumes", 1)}
    small.model.train_only(["bridge", "language"])
    with torch.no_grad():
        together = packed_log_probs(small.model, rows)
        apart = one_by_one(small.model, rows)
    assert apart.abs().max() > 1  # the comparison is about something
    torch.testing.assert_close(together, apart, rtol=0, atol=LOG_PROBS)
    weight = torch.randn(apart.shape, generator=torch.Generator().manual_seed(seed))
    agree(
        gradients(small.model, lambda: packed_log_probs(small.model, rows), weight),
        gradients(small.model, lambda: one_by_one(small.model, rows), weight),
    )


def test_an_answer_that_counts_nothing_keeps_its_places_and_scores_0(small):
    rows = rows_of(small, answers=3, longest=5)
    with torch.no_grad():
        before = packed_log_probs(small.model, rows)
        rows.there[1, 2] = 0
        packed = rows.packed()
        after = answer_log_probs(small.model, packed, rows.pixels())
    assert packed.layout.answer_valid[1, 2].all()
    assert not after[1, 2].any()
    others = torch.ones(4, 3, dtype=torch.bool)
    others[1, 2] = False
    torch.testing.assert_close(after[others], before[others], rtol=0, atol=LOG_PROBS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
def test_flex_attention_scores_the_same(small):
    rows = rows_of(small, answers=3, longest=9)
    with torch.no_grad():
        apart = one_by_one(small.model, rows)
        small.model.model.language_model.set_attn_implementation("flex_attention")
        with torch.compiler.set_stance("force_eager"):
            together = packed_log_probs(small.model, rows)
    torch.testing.assert_close(together, apart, rtol=0, atol=LOG_PROBS)


def test_a_text_model_of_another_family_packs_too():
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval()
    ids = torch.randint(6, 262, (2, 9))
    written = torch.randint(6, 262, (2, 3, 5))
    mask = torch.ones_like(ids)
    packed = pack(ids, mask, written, torch.ones_like(written), counted(mask))
    with torch.no_grad():
        together = answer_log_probs(model, packed)
        for row, number in ((0, 0), (1, 2)):
            whole = torch.cat([ids[row], written[row, number]])[None]
            log_probs = model(input_ids=whole).logits[0].log_softmax(-1)[8:-1]
            expected = log_probs.gather(-1, written[row, number][:, None])[:, 0]
            torch.testing.assert_close(together[row, number], expected, rtol=0, atol=LOG_PROBS)
    with_window = MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=7))
    assert packing_blocker(with_window) == "its layers attend within a window of 7 tokens"


def test_what_cannot_be_packed_is_said(small):
    assert packing_blocker(small.model) == ""
    config = small.model.model.language_model.config
    config.layer_types = ["full_attention", "sliding_attention"]
    assert packing_blocker(small.model) == "its layers attend by full_attention, sliding_attention"
    config.layer_types = ["full_attention"] * 2
    small.model.set_attn_implementation("eager")
    assert packing_blocker(small.model) == "its attention is 'eager', neither 'sdpa' nor 'flex_attention'"
    config.model_type = "gemma2"
    assert packing_blocker(small.model).startswith(
        "language models of type 'gemma2' are not among llama, mistral,"
    )
