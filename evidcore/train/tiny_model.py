"""A model of two small layers and one question without pixels: what a dry run takes steps on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from evidcore.case import Case, Question
from evidcore.contracts import Encoder, EncoderInput, Grid, Patches
from evidcore.prompts.rows import PromptSet, PromptSource
from evidcore.registry import factory

if TYPE_CHECKING:  # slow, and no check of a component needs them
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

    from evidcore.model.processor import VolumeProcessor
    from evidcore.model.vlm import VolumeVLM

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
)  # fmt: skip

CHAT_TEMPLATE = Path(__file__).with_suffix(".jinja").read_text(encoding="utf-8")


def tiny_model() -> tuple[VolumeVLM, VolumeProcessor, PromptSource]:
    """Return the model, its processor, and prompts of the one question."""
    from evidcore.model.assemble import assemble

    tokenizer = tiny_tokenizer()
    model, processor = assemble(
        tiny_decoder(tokenizer), tokenizer, OnePatch(), encoder_table={"use": "one-patch"},
        bridge_table={"use": "projection"}, view_table={"use": "volume"},
    )  # fmt: skip
    task = factory.build("task", {"use": "choice", "think": False}, given={}, where="stand-in")
    view = factory.build("view", {"use": "volume"}, given={}, where="stand-in")
    question = Question(id="stand-in", text="Which?", options=("one", "two"), answer=0)
    cases = [Case(id=name, patient=name, volumes=(), questions=(question,)) for name in ("a", "b")]
    asked = PromptSet(name="choice", task=task, view=view, cases=cases)
    return model, processor, PromptSource([asked], seed=0)


def tiny_tokenizer(special: Sequence[str] = SPECIAL_TOKENS, **options: Any) -> PreTrainedTokenizerFast:
    """Give a byte-level tokenizer, by default with Qwen's special tokens and a template that shows images."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    usual = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **{**usual, **options})


def tiny_decoder(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> Qwen2ForCausalLM:
    """Return a two-layer Qwen2 with random weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


class OnePatch(Encoder):
    """One patch, the mean of a volume: a dry run's question shows none."""

    width = 32
    input = EncoderInput(size_zyx=(12, 16, 16), spacing_mm_zyx=None, windows=((-1000.0, 400.0),))

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(1, self.width)

    def grid(self, size_zyx: Grid) -> Grid:
        """Return the patch grid."""
        return (1, 1, 1)

    def forward(self, volumes: Float[Tensor, "volume channel z y x"]) -> Patches:
        """Encode prepared volumes."""
        means = volumes.mean((2, 3, 4))[:, :1, None]
        return Patches(self.embed(means), (1, 1, 1), torch.zeros(1, 3, device=volumes.device))
