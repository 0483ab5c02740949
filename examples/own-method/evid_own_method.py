"""What a run of the core alone lacks: scans with a bright spot on a side, an encoder, a language model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from evidcore.api import Case, Dataset, Encoder, EncoderInput, Language, Patches, Question, VolumeRef

Split = Literal["train", "validation", "test"]
SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
)  # fmt: skip
CHAT_TEMPLATE = """\
{%- for message in messages -%}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- else -%}{{ part['text'] }}{%- endif -%}
{%- endfor -%}{%- endif -%}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""


class BrightSpot(Dataset):
    """Noise of 8 x 16 x 16 voxels with a bright spot on one side, and a question about it.

    Args:
        cases_per_split: how many; a seed of their own draws each.
    """

    def __init__(self, cache_folder: Path, *, cases_per_split: Annotated[int, Ge(1)] = 24) -> None:
        self.folder, self.count = cache_folder / "bright-spot", cases_per_split

    def cases(self, split: Split) -> Iterator[Case]:
        """Yield the cases of a split, one patient each; scans are written when they are first asked for."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for number in range(self.count):
            name = f"{split}-{number}"
            rng = np.random.default_rng([number, *name.encode()])
            side = int(rng.integers(2))
            array = rng.normal(-800, 20, (8, 16, 16)).astype(np.float32)
            array[3:5, 6:10, 12 * side : 12 * side + 4] = 300  # x runs to the patient's left
            path = self.folder / f"{name}.npy"
            if not path.exists():
                np.save(path, array)
            volume = VolumeRef(path=str(path), axes="SPL", spacing_mm_zyx=(3.0, 3.0, 3.0))
            text = "On which side is the bright spot?"
            question = Question(id=f"{name}:side", text=text, options=("right", "left"), answer=side)
            yield Case(id=name, patient=name, volumes=(volume,), questions=(question,))

    def fingerprint(self) -> str:
        """Return what tells these cases from others."""
        return f"bright-spot 1, {self.count}"


class Blocks(Encoder):
    """Project each block of 4 x 4 x 4 voxels to a vector."""

    def __init__(self) -> None:
        super().__init__()
        size_zyx, spacing_mm_zyx = (8, 16, 16), (3.0, 3.0, 3.0)
        self.input = EncoderInput(
            size_zyx=size_zyx, spacing_mm_zyx=spacing_mm_zyx, windows=((-1000.0, 400.0),)
        )
        self.width = 32
        self.project = nn.Conv3d(1, self.width, kernel_size=4, stride=4)

    def grid(self, size_zyx: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return one patch per block."""
        z, y, x = (length // 4 for length in size_zyx)
        return z, y, x

    def forward(self, volumes: Tensor) -> Patches:
        """Encode volumes, shape (volume, channel, z, y, x)."""
        z, y, x = volumes.shape[2:]
        grid = self.grid((z, y, x))
        index = torch.cartesian_prod(*(torch.arange(count) for count in grid))
        centres_mm = (index - (torch.tensor(grid) - 1) / 2) * 12.0
        return Patches(self.project(volumes).flatten(2).transpose(1, 2), grid, centres_mm.to(volumes))


class Bytes(Language):
    """A Qwen2 of two small layers with random weights, over bytes."""

    has_weights: ClassVar[bool] = False

    def width(self) -> int:
        """Return the width of its embeddings."""
        return 64

    def tokenizer(self, corpus: Language.Corpus) -> Any:
        """Return the tokenizer."""
        words = enumerate([*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())])
        tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in words}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            eos_token="<|im_end|>",
            pad_token="<|endoftext|>",
            padding_side="left",
            chat_template=CHAT_TEMPLATE,
        )

    def config(self, corpus: Language.Corpus) -> Any:
        """Return the configuration."""
        tokenizer = self.tokenizer(corpus)
        return Qwen2Config(
            vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip

    def load(self, corpus: Language.Corpus, seed: int) -> tuple[Any, Any]:
        """Return model and tokenizer; equal seeds give equal weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Qwen2ForCausalLM(self.config(corpus)), self.tokenizer(corpus)
