"""The model, prompts and reward that benchmarks of training share: real parts, random weights."""

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from evidcore_testing import tiny_tokenizer
from evidcore_testing.data import volume_case
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

from evidcore.api import Case, Prompt, Reward, Rollout, Score, TextPart, VisualPart
from evidcore.model import assemble
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.prompts.rows import PromptSet, PromptSource, Row
from evidcore.registry import factory

logging.disable_progress_bar()
VIEW = {"use": "volume"}
# 8 x 8 x 8 patches into 64 visual tokens
VIT_S = {
    "use": "vit3d", "size_zyx": [64, 128, 128], "patch_zyx": [8, 16, 16], "stem": "patch", "width": 384,
    "layers": 12, "heads": 6,
}  # fmt: skip
DEMO_ENCODER = {"use": "vit3d"}  # 8 x 8 x 8 patches of 32 x 64 x 64 voxels
BRIDGE = {"use": "projection", "pool_zyx": [2, 2, 2]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """A language model's shape; the default is that of the claims."""

    hidden: int = 512
    layers: int = 8
    vocabulary: int = 8192
    markup: tuple[str, ...] = ()  # written as a token each, as published tokenizers nearly do


class TextHash(Reward):
    """Rewards anything: no two answers get the same, so that no group is left out."""

    def __call__(self, rollouts: Sequence[Rollout], earlier: Mapping[str, Any]) -> list[Score]:
        """Judge each by itself."""
        return [Score(value=text_hash(rollout.text)) for rollout in rollouts]


def text_hash(text: str) -> float:
    """Return a number in 0..1."""
    return zlib.crc32(text.encode()) / 0xFFFFFFFF


class ExactSource(PromptSource):
    """Prompts of exactly so many tokens: one volume, and a question filled up or cut."""

    def __init__(
        self, sets: Sequence[PromptSet], processor: VolumeProcessor, prompt_tokens: int, in_turn: int = 1
    ) -> None:
        super().__init__(sets, seed=1, in_turn=in_turn)
        self.processor, self.prompt_tokens = processor, prompt_tokens

    def __getitem__(self, position: int) -> Row:
        """Cut the question; the position comes first, so that no two prompts are equal."""
        row = super().__getitem__(position)
        shown = [part for part in row.prompt.parts if isinstance(part, VisualPart)][:1]
        asked = f"{position} " + "".join(part.text for part in row.prompt.parts if isinstance(part, TextPart))

        def prompt(text: str) -> Prompt:
            return dataclasses.replace(row.prompt, parts=(*shown, TextPart(text=text)))

        # a token a letter: the tokenizer has no merges
        room = self.prompt_tokens - len(self.processor.encode(prompt("")).ids)
        if room < 8:
            raise SystemExit(f"a prompt of {self.prompt_tokens} tokens has no room for a question")
        return Row(prompt((asked * (room // len(asked) + 1))[:room]), row.task)


def cases(folder: Path, count: int, size_zyx: tuple[int, int, int] = (32, 64, 64)) -> list[Case]:
    """Return volumes on disk."""
    return [volume_case(folder, seed, size_zyx=size_zyx) for seed in range(count)]


def source(
    some: Sequence[Case],
    processor: VolumeProcessor,
    prompt_tokens: int,
    task: str = "choice",
    in_turn: int = 1,
) -> ExactSource:
    """Return questions about cases, or demands for their reports."""
    table = {"use": task, **({"think": False} if task == "choice" else {})}
    asking = factory.build("task", table, given={}, where="benchmark")
    view = factory.build("view", VIEW, given={}, where="benchmark")
    return ExactSource(
        [PromptSet(name=task, task=asking, view=view, cases=some)], processor, prompt_tokens, in_turn
    )


def build(
    size: Size, encoder_table: Mapping[str, Any] = DEMO_ENCODER, bridge_table: Mapping[str, Any] = BRIDGE
) -> tuple[VolumeVLM, VolumeProcessor]:
    """Return a model, the same each time, with its feature bank."""
    tokenizer = words(size.vocabulary, size.markup)
    torch.manual_seed(0)
    language = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=size.vocabulary,
            hidden_size=size.hidden,
            intermediate_size=size.hidden * 8 // 3 // 32 * 32,
            num_hidden_layers=size.layers,
            num_attention_heads=size.hidden // 64,
            num_key_value_heads=max(size.hidden // 128, 1),
            max_position_embeddings=4096,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        )
    )
    encoder = factory.build("encoder", dict(encoder_table), given={}, where="benchmark")
    return assemble.assemble(
        language,
        tokenizer,
        encoder,
        encoder_table=dict(encoder_table),
        bridge_table=dict(bridge_table),
        view_table=VIEW,
    )


def words(vocabulary: int, markup: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Return the tiny tokenizer with words for the rest of a vocabulary, so that every token can be read."""
    tiny = tiny_tokenizer()
    table = json.loads(tiny.backend_tokenizer.to_str())
    known = table["model"]["vocab"]
    known |= {text: len(known) + number for number, text in enumerate(markup)}
    known |= {f"w{number}": number for number in range(len(known), vocabulary)}
    tokenizer = Tokenizer.from_str(json.dumps(table))
    tokenizer.add_tokens([*markup])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=tiny.eos_token,
        pad_token=tiny.pad_token,
        padding_side="left",
        chat_template=tiny.chat_template,
    )
