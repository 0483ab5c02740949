"""What is trained: encoder, bridge, language model, token weights, and the policy as others see it."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from evidcore.case import Case, Prompt, Span, Turn
from evidcore.contracts.answering import Task
from evidcore.contracts.dataset import View
from evidcore.data.encoder_input import EncoderInput, Grid


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Texts that a tokenizer's vocabulary may be counted in."""

    texts: Callable[[], list[str]] = list  # prompts and gold answers of the training cases
    phrases: tuple[str, ...] = ()  # names of findings


class Language(ABC):
    """A causal language model with its tokenizer and chat template.

    Core gives: `recipe_folder` (relative paths start there). A `[model] language` table without `use` is
    `pretrained`. A component that has a `fit` is trained by a `fit` stage of `model.language`. What it writes
    is read back as `pretrained`.
    """

    from evidcore.contracts.model import Corpus as Corpus

    has_weights: ClassVar[bool] = True  # False: a shape alone, until a fit stage has trained it
    counts_words: ClassVar[bool] = False  # its vocabulary is counted in a Corpus

    @classmethod
    def problems(cls, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield (key, sentence) for what the options say against each other; key "" for the whole table."""
        yield from ()

    @abstractmethod
    def width(self) -> int | None:
        """Return the width of its embeddings; None where that needs a download."""

    @abstractmethod
    def config(self, corpus: Corpus) -> Any | None:
        """Return its transformers configuration, without weights; None where that needs a download."""

    @abstractmethod
    def tokenizer(self, corpus: Corpus) -> Any | None:
        """Return its tokenizer; None where that needs a download."""

    @abstractmethod
    def load(self, corpus: Corpus, seed: int) -> tuple[Any, Any]:
        """Return model and tokenizer; a vision-language model is returned whole.

        Raises:
            DataError: if it cannot be loaded; says what to check.
        """

    def vision(self) -> Any | None:
        """Return its transformers configuration if that may describe a vision model, else None."""
        return None

    def published(self) -> Mapping[str, Any]:
        """Return what its published model expects, as far as it is known: fields of transformers' processor.

        `boxes` is the unit in which it was trained to write them, in the words of `View.box_unit`.
        """
        return {}

    def missing_weights(self) -> str:
        """Say which weights are not on this machine, and how to get them; else ""."""
        return ""


@dataclasses.dataclass(frozen=True)
class Patches:
    """An encoder's output.

    `features` has shape (volume, patch, width), patches in `z, y, x` raster order over `grid_zyx`;
    `centres_mm` has shape (patch, 3): patch centres from the input's centre, `z, y, x` in mm (in input voxels
    where the input declares no spacing).
    """

    features: Float[Tensor, "volume patch width"]
    grid_zyx: Grid
    centres_mm: Float[Tensor, "patch 3"]


class Encoder(nn.Module, ABC):
    """Turn volumes into patch features.

    Core gives: `recipe_folder` (where relative paths start) where a recipe is run; take it with a default,
    since a model that is read back from a folder knows no recipe. `vision`: the vision configuration of the
    language model as transformers writes it, None where it is a model of text alone.
    """

    published_names: Mapping[str, str] = {}
    """How names of its weights begin here, and in the model that it was published in; empty if in none."""

    input: EncoderInput
    width: int
    is_batch_invariant: ClassVar[bool] = False
    """True where no bit of a volume's features depends on the volumes beside it, as in a loop over them."""
    caveat: ClassVar[str] = ""  # a sentence for results, where features are not computed here

    @classmethod
    def read_published(cls, language: Language) -> Mapping[str, Any]:
        """Return what it needs to know of the recipe's language model; `vision` has it as "published".

        Of it the processor reads `picture`: how the model's own writes a picture, image tokens included.
        """
        return {}

    @abstractmethod
    def grid(self, size_zyx: Grid) -> Grid:
        """Return the patch grid for an input of `size_zyx` voxels, without weights."""

    @abstractmethod
    def forward(self, volumes: Float[Tensor, "volume channel z y x"]) -> Patches:
        """Encode volumes that were prepared as `input` declares."""

    def mismatches(self, published: Mapping[str, Any], sizes: Collection[Grid]) -> Iterator[str]:
        """Say what it does otherwise than `Language.published` expects, shown volumes of these `sizes`."""
        yield from ()

    def load_pretrained(self) -> None:
        """Fetch the published weights that the options name; called once, where a recipe makes the model."""

    def reopen(self, recipe_folder: Path) -> None:
        """Look again for files that are no weights; called where a run reads the model back from a folder."""

    def load_from(self, published: nn.Module) -> None:
        """Take weights from the published model that the language model is part of; called once, too."""

    def missing_weights(self) -> str:
        """Say which weights that the options name are not on this machine, and how to get them; else ""."""
        return ""


class Bridge(nn.Module, ABC):
    """Turn patches into language-model embeddings.

    Core gives: `width`, `text_width`, `grid_zyx` (the encoder's usual grid), and `vision` as to an encoder.

    With `deep_layers` above 0 a token has as many further embeddings, which are added to its place after each
    of the language model's first layers (DeepStack, arXiv 2406.04334).
    """

    published_names: Mapping[str, str] = {}  # as an encoder's

    deep_layers: int = 0

    @abstractmethod
    def tokens(self, grid_zyx: Grid) -> int:
        """Return the number of embeddings for a patch grid, without weights."""

    def token_grid(self, grid_zyx: Grid) -> Grid | None:
        """Return the grid that the tokens of a patch grid form, None if they are only a sequence.

        A language model with multimodal rotary positions (Qwen-VL) then counts along the grid's axes.
        """
        return None

    @abstractmethod
    def forward(self, patches: Patches) -> Float[Tensor, "volume token layers_and_text_width"]:
        """Return the embeddings that take the place of the image tokens.

        The last axis is (1 + deep_layers) * text_width long: the embedding, then those of the layers.
        """

    def load_from(self, published: nn.Module) -> None:
        """Take weights from the published model that the language model is part of, as an encoder does."""

    def set_anchor(self, embeddings: Float[Tensor, "vocabulary text_width"]) -> None:
        """Take what is needed from the language model's embeddings, once, after its weights are loaded.

        Whatever is kept must be a persistent buffer: weights may be sharded or trained later.
        """


class Reweighter(ABC):
    """Weigh the target tokens of supervised fine-tuning. Core gives: nothing."""

    @abstractmethod
    def __call__(
        self, text: str, spans: Sequence[Span], offsets: Sequence[tuple[int, int]]
    ) -> Sequence[float]:
        """Return a weight ≥ 0 for each token of `text`, given each token's characters (start, end).

        Tokens without characters (end of turn) come as (n, n). Padding and prompt tokens are not shown here;
        the core gives them weight 0.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Completion:
    """What a policy wrote to a prompt."""

    text: str  # its last turn, without special tokens
    turns: tuple[Turn, ...] = ()  # those before, to which tools replied
    is_cut_off: bool = False  # at `max_new_tokens`, before it came to an end


class Policy(ABC):
    """A model that answers prompts: what evaluation, audits and re-querying rewards see of it."""

    caveat = ""  # a sentence for results, as in `Encoder.caveat`
    answers_alone = False  # each answer rests on its own prompt and on no other that was asked

    @abstractmethod
    def generate(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[str]:
        """Return one completion per prompt, without special tokens; temperature 0 is greedy."""

    def complete(
        self, prompts: Sequence[Prompt], *, max_new_tokens: int, temperature: float = 0.0
    ) -> list[Completion]:
        """Return what `generate` does with the turns before it; there are none where no tool is called."""
        texts = self.generate(prompts, max_new_tokens=max_new_tokens, temperature=temperature)
        return [Completion(text=text) for text in texts]

    @abstractmethod
    def log_likelihoods(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """Return the log-probability in nats of each prompt's candidate completions, summed over tokens."""


class ForwardingPolicy(Policy):
    """A policy that another one answers for."""

    @abstractmethod
    def forward(
        self, method: str, prompts: Sequence[Prompt], *columns: Sequence[Any], **settings: Any
    ) -> Any:
        """Return what a method of the other gives, an entry for each prompt."""

    def generate(self, prompts: Sequence[Prompt], **settings: Any) -> list[str]:
        """Return what the other writes."""
        return cast(list[str], self.forward("generate", prompts, **settings))

    def complete(self, prompts: Sequence[Prompt], **settings: Any) -> list[Completion]:
        """Return what the other writes, with its turns."""
        return cast(list[Completion], self.forward("complete", prompts, **settings))

    def log_likelihoods(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """Return what the other thinks of the completions."""
        return cast(list[list[float]], self.forward("log_likelihoods", prompts, completions))


@dataclasses.dataclass(frozen=True)
class FitData:
    """What a `fit` stage gives a component."""

    train: Sequence[Case]
    validation: Sequence[Case]
    folder: Path  # an empty one
    seed: int
    log: Callable[[Mapping[str, float]], object]  # takes the figures of a step
    # of a language model alone
    tasks: Mapping[str, Task] = dataclasses.field(default_factory=dict)
    shares: Mapping[str, float] = dataclasses.field(default_factory=dict)  # of the rows, by task
    phrases: Sequence[str] = ()
    view: View | None = None
    image_tokens: int = 0  # that stand for a volume


@runtime_checkable
class Fittable(Protocol):
    """A component that a `fit` stage can train.

    Keyword-only parameters of `fit` are the stage's `options` in the recipe, checked like a constructor's.
    """

    def fit(self, given: FitData) -> None:
        """Train on `train`, choose on `validation`, write weights and `fit.json` (figures) into `folder`."""

    def load(self, folder: Path) -> None:
        """Read back what `fit` wrote."""
