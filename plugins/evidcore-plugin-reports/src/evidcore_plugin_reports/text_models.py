"""Pretrained text models of transformers: loading them without running their code, and passes over texts."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from evidcore.api import DataError
from evidcore.cache import plain_file
from evidcore.compute.loading import TELLING, device_of, refuse_random

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Tokens = Sequence[int]
States = Float[Tensor, "token width"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretrained:
    """Which model reads the texts, and how it is run: exactly one of `folder` and `id`.

    Args:
        folder: one that `save_pretrained` wrote; relative paths start at the recipe.
        id: a model on the Hugging Face Hub, with a `revision`.
        revision: its commit. Weights must be safetensors, as a pickle may run code.
        dtype: what it computes in.
        device: "auto" is the accelerator where there is one, else the CPU.
        tokens_per_pass: how many tokens, padding counted, pass at once. 0: each text by itself, so that a
            score is the same bits whatever else is scored; together they differ in the seventh digit.
        most_tokens: of one text; 0: as many as the model has places for.
        too_long: what becomes of a longer text. "refuse" stops; "unscored" gives no score and "cut" leaves
            the end out, both told in the log.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}

    folder: str = ""
    id: str = ""
    revision: str = ""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "auto"
    tokens_per_pass: Annotated[int, Ge(0)] = 0
    most_tokens: Annotated[int, Ge(0)] = 0
    too_long: Literal["refuse", "unscored", "cut"] = "refuse"

    def __post_init__(self) -> None:
        """Refuse a model that is named twice, not at all, or without its commit."""
        given = [key for key in ("folder", "id") if getattr(self, key)]
        if len(given) != 1:
            raise ValueError(f"must name folder or id, and one alone, not {' and '.join(given) or 'neither'}")
        if bool(self.id) != bool(self.revision):
            why = "id and revision go together: without a commit a recipe may mean another model tomorrow"
            raise ValueError(f"{why}; got id = {self.id!r}, revision = {self.revision!r}")
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", self.device):
            raise ValueError(f"device must be auto, cpu, cuda or cuda:<number>, not {self.device!r}")

    def __str__(self) -> str:
        return self.folder or f"{self.id}@{self.revision}"


class TextModel:
    """A pretrained model and its tokenizer; its weights are loaded when they are first asked for.

    Args:
        named: what the recipe says of it.
        recipe_folder: where a relative folder starts.
        who: whom messages speak of, with the model.
        kind: one of transformers' Auto classes.
        unused: beginnings of weights that the model may lack, or have no place for.
        check: raises an error for a configuration and a tokenizer of no use.
    """

    def __init__(
        self,
        named: Pretrained,
        recipe_folder: Path,
        who: str,
        *,
        kind: str = "AutoModel",
        unused: Sequence[str] = (),
        check: Callable[[Any, PreTrainedTokenizerBase], None] | None = None,
    ) -> None:
        self.named, self.recipe_folder, self.who = named, recipe_folder, who
        self._kind, self._unused, self._check = kind, tuple(unused), check

    @functools.cached_property
    def settings(self) -> tuple[Any, PreTrainedTokenizerBase]:
        """Configuration and tokenizer, without the weights.

        Raises:
            DataError: if there are none, if they are of no use, or if the weights are a pickle.
            RunError: if its device is not there.
        """
        import transformers

        device_of(self.named.device, self.who)
        name, revision = self._name(), self.named.revision or None
        with _naming(self.who):
            config = transformers.AutoConfig.from_pretrained(name, revision=revision)
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, revision=revision)
        if self._check is not None:
            self._check(config, tokenizer)
        return config, tokenizer

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """What cuts texts into tokens."""
        return self.settings[1]

    @functools.cached_property
    def model(self) -> PreTrainedModel:
        """The model for reading. The random numbers of training are left where they are.

        Raises:
            DataError: if there is none, if its weights are a pickle, or if they lack a part of the model.
            RunError: if its device is not there.
        """
        import transformers

        _ = self.settings
        with _naming(self.who), torch.random.fork_rng(devices=[]):
            model, result = getattr(transformers, self._kind).from_pretrained(
                self._name(),
                revision=self.named.revision or None,
                dtype=getattr(torch, self.named.dtype),
                use_safetensors=True,
                **TELLING,
            )
        refuse_random(f"{self.who}: {type(model).__name__}", result, unused=self._unused)
        loaded: PreTrainedModel = model.eval().requires_grad_(False)
        return loaded.to(device_of(self.named.device, self.who))

    @property
    def most_tokens(self) -> int:
        """How many tokens a text may have, special ones among them."""
        places = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        bounds = (self.named.most_tokens, places, self.tokenizer.model_max_length)
        return min(int(bound) for bound in bounds if bound)

    def _name(self) -> str:
        if not self.named.folder:
            return self.named.id
        folder = plain_file(self.recipe_folder / self.named.folder)
        if not (folder / "config.json").is_file():
            remedy = "Name a folder that save_pretrained wrote, or a model on the Hub by id and revision."
            raise DataError(f"{self.who}: {str(folder)!r} holds no config.json. {remedy}")
        if not any(folder.glob("*.safetensors")):
            why = "holds no weights as safetensors, and a pickle may run code when it is read"
            remedy = "Put its model.safetensors there, as save_pretrained writes it."
            raise DataError(f"{self.who}: {str(folder)!r} {why}. {remedy}")
        return str(folder)


def encoder(named: Pretrained, recipe_folder: Path, who: str) -> TextModel:
    """Return an encoder without a head; many are published without the pooler, which is not used here."""

    def check(config: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        if config.is_encoder_decoder:
            what = f"is an encoder with a decoder ({config.model_type})"
            raise DataError(f"{who}: {what}. Name an encoder, such as one of sentence-transformers.")

    return TextModel(named, recipe_folder, who, unused=["pooler.", "cls.", "lm_head."], check=check)


def states(encoder: TextModel, texts: Sequence[Tokens], layer: int = -1) -> Iterator[tuple[int, States]]:
    """Yield place and hidden states of each text, short ones first, on the CPU in 32 bits.

    `texts` hold the special tokens. Layer 0 are the embeddings below the first layer, -1 is the last.
    """
    for group in passes([len(text) for text in texts], encoder.named.tokens_per_pass):
        chosen = [texts[place] for place in group]
        batch = padded(chosen, encoder.tokenizer.pad_token_id or 0, encoder.model.device)
        with torch.inference_mode():
            if layer == -1:
                hidden = encoder.model(**batch).last_hidden_state
            else:
                hidden = encoder.model(**batch, output_hidden_states=True).hidden_states[layer]
        for place, rows in zip(group, hidden.float().cpu(), strict=True):
            yield place, rows[: len(texts[place])]


@contextlib.contextmanager
def _naming(who: str) -> Iterator[None]:
    """Name whom it is about, where something cannot be loaded."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, RuntimeError, SafetensorError) as cause:
        raise DataError(
            f"{who}: cannot be loaded: {str(cause).splitlines()[0]} Check the name, the files and the "
            "network. Without network: `hf download ID --revision COMMIT --local-dir FOLDER` elsewhere, and "
            "folder = 'FOLDER' here."
        ) from cause


def fits(texts: Sequence[Tokens], most: int, named: Pretrained, who: str) -> list[bool]:
    """Tell of each text whether it is short enough; what becomes of the others is logged.

    Raises:
        DataError: if one is not, and the recipe has it refused.
    """
    result = [len(text) <= most for text in texts]
    if not all(result):
        longest = max(map(len, texts))
        if named.too_long == "refuse":
            raise DataError(
                f"{who}: a text of {longest} tokens is longer than the {most} that may be read. Shorten it "
                "(an answer with max_new_tokens), name a model that reads more, or write model.too_long."
            )
        log.warning(
            "%s: %d of %d texts are longer than %d tokens and %s; the longest has %d",
            who, result.count(False), len(texts), most, named.too_long, longest,
        )  # fmt: skip
    return result


def passes(lengths: Sequence[int], tokens_per_pass: int) -> Iterator[list[int]]:
    """Yield places of texts that pass at once, short ones first.

    Args:
        lengths: tokens of each text.
        tokens_per_pass: bound on texts times the longest of them; a longer text passes alone, as all do at 0.
    """
    together: list[int] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if together and (len(together) + 1) * lengths[place] > tokens_per_pass:
            yield together
            together = []
        together.append(place)
    if together:
        yield together


def padded(texts: Sequence[Tokens], pad: int, device: torch.device) -> dict[str, Int[Tensor, "text token"]]:
    """Return token ids and attention mask, padded on the right, whatever side the tokenizer would take.

    There padding moves no position, and what stands before it cannot attend to it.
    """
    rows = [torch.tensor(text, device=device) for text in texts]
    ids = pad_sequence(rows, batch_first=True, padding_value=pad)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask}
