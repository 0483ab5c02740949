"""Fit the tiny language model on text alone: to read what stands in the volume's place, and to answer.

Order of events: documents are drawn from the tasks' own prompts and gold answers; where the prompt shows a
volume, the case's impression stands instead, its sentences in random order at random places among full
stops, as long as the bridge's tokens will be; where it shows slices, each sentence stands on the slice that
shows most of its finding. So the model meets the format, the words, their priors and the slices of findings,
but no voxel.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from evidcore.api import Case, InlineOptions, Language
from evidcore.compute.clock import clock_for
from evidcore.contracts import Corpus, FitData
from evidcore_plugin_phantoms.language.documents import Document, DocumentDrawer, shown_ids, vocabulary_texts
from evidcore_plugin_phantoms.language.lookup_llama import tiny_config, tiny_model
from evidcore_plugin_phantoms.language.word_tokenizer import build_tokenizer, spellings

if TYPE_CHECKING:
    from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

_CHECKED = 64  # questions that tell whether a fit is worth finishing
_FAR = 1_000_003  # between the seeds of attempts


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextFit:
    """How the model is fitted on text.

    Args:
        steps: optimiser updates.
        documents_per_step: prompts with their answers in one update.
        learning_rate: at its highest, after 40 steps; it falls along a cosine to 2 %.
        easy_share: the first part of the steps, in which short prefixes with few findings become rarer.
        omitted: how many of an impression's sentences are left out, drawn anew each time (not in the easy
            part). A model that knows impressions to be incomplete stays in doubt over what is not
            mentioned; one that takes silence for absence never names a finding that its bridge does not
            show it yet, so that GRPO has nothing to choose among.
        emphasis: loss weight of the tokens of a text, by the text (space and all); 1 where not given.
        phrase_gain: loss weight of the names of findings.
        abnormal_gain: loss weight of tokens in sentences on something abnormal.
        noise: greatest spread of Gaussian noise on the embeddings of the impression, in units of the
            embeddings' own spread; it grows from 0 over the steps, and each embedding draws its spread
            uniformly from 0 on. A model that reads words through noise (as after NEFTune,
            arXiv:2310.05914) reads a bridge's tokens while they are still far from any word, and faint
            ones beside clear ones.
        restarts: how often to begin anew, from other weights, if half way through the steps fewer than
            half of the validation questions are answered rightly. Small models get stuck.
        validation_questions: how many questions with a letter are answered at the end.
    """

    steps: Annotated[int, Ge(1)] = 600
    documents_per_step: Annotated[int, Ge(1)] = 24
    learning_rate: Annotated[float, Gt(0)] = 1.5e-3
    easy_share: Annotated[float, Ge(0), Le(1)] = 0.5
    omitted: Annotated[float, Ge(0), Lt(1)] = 0.3
    emphasis: Mapping[str, float] | None = None
    phrase_gain: Annotated[float, Gt(0)] = 2.0
    abnormal_gain: Annotated[float, Gt(0)] = 3.0
    noise: Annotated[float, Ge(0)] = 3.0
    restarts: Annotated[int, Ge(0)] = 2
    validation_questions: Annotated[int, Ge(1)] = 200


TEXT_FIT = TextFit()


class Tiny(Language):
    """A language model of some hundred thousand weights, trained on a recipe's own texts by a fit stage.

    Args:
        width: of the embeddings.
        layers: of the decoder.
        heads: of each layer; they share the width evenly.
        ordered_numbers: numbers begin like their neighbours, as in models that have read much.
    """

    has_weights = False
    counts_words = True

    def __init__(
        self,
        *,
        width: Annotated[int, Ge(8)] = 128,
        layers: Annotated[int, Ge(1), Le(1000)] = 4,
        heads: Annotated[int, Ge(1)] = 4,
        ordered_numbers: bool = False,
    ) -> None:
        self._shape = {"width": width, "layers": layers, "heads": heads}
        self._ordered_numbers = ordered_numbers
        self.model: Any = None  # set by `fit`

    def width(self) -> int:
        return self._shape["width"]

    def config(self, corpus: Corpus) -> LlamaConfig:
        """Return its shape; the vocabulary needs the texts."""
        return tiny_config(self.tokenizer(corpus), **self._shape)

    def tokenizer(self, corpus: Corpus) -> PreTrainedTokenizerFast:
        return build_tokenizer(corpus.texts(), corpus.phrases)

    def load(self, corpus: Corpus, seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
        tokenizer = self.tokenizer(corpus)
        config = tiny_config(tokenizer, **self._shape)
        return tiny_model(config, tokenizer, seed, ordered_numbers=self._ordered_numbers), tokenizer

    def fit(self, given: FitData, *, options: Annotated[TextFit, InlineOptions] = TEXT_FIT) -> None:
        """Train on text and write a transformers folder and `fit.json`.

        Raises:
            DataError: if a case has no impression, or no task asks anything.
        """
        cases, tasks, view = [case for case in given.train if case.present()], given.tasks, given.view
        assert view is not None  # as in every fit of a language model
        corpus = Corpus(lambda: vocabulary_texts(given.train[:500], tasks, view), tuple(given.phrases))
        emphasis = dict.fromkeys(spellings(given.phrases), options.phrase_gain) | dict(options.emphasis or {})
        for attempt in range(options.restarts + 1):
            drawn = given.seed + attempt * _FAR
            self.model, tokenizer = self.load(corpus, drawn)
            shown = view, given.image_tokens
            drawer = DocumentDrawer(tokenizer, tasks, *shown, cases, given.shares, options.omitted)
            weights = _token_weights(tokenizer, self.model.config.vocab_size, emphasis)
            asked = 0 if attempt == options.restarts else min(options.validation_questions, _CHECKED)
            if _train(self.model, drawer, weights, options, drawn, given, asked):
                break
        most, at_once = options.validation_questions, options.documents_per_step
        figures = _figures(self.model, drawer, given.validation, most, at_once)
        self.model.save_pretrained(given.folder)
        tokenizer.save_pretrained(given.folder)
        result = {"steps": options.steps, "restarts": attempt, **figures}
        (given.folder / "fit.json").write_text(json.dumps(result, indent=2), encoding="utf-8")


def _train(
    model: Any, drawer: DocumentDrawer, weights: Tensor, plan: TextFit, seed: int, given: FitData, asked: int
) -> bool:
    """Train the model in place; return False if it was given up half way, `asked` questions unread."""
    rng = random.Random(f"text-fit/{seed}")
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), plan.learning_rate, weight_decay=0.01, betas=(0.9, 0.98)
    )
    model.train()
    clock = clock_for(model.device)
    for step in range(plan.steps):
        if asked and step == plan.steps // 2:
            model.eval()
            figures = _figures(model, drawer, given.validation, asked, plan.documents_per_step)
            model.train()
            rates = [value for name, value in figures.items() if name.endswith("_text_accuracy")]
            if rates and max(rates) < 0.5:  # of the task that is read best
                return False
        done = step / plan.steps
        rate = plan.learning_rate * min(1.0, (step + 1) / 40) * (0.51 + 0.49 * math.cos(math.pi * done))
        optimizer.param_groups[0]["lr"] = rate
        ease = max(0.0, 1.0 - done / plan.easy_share) if plan.easy_share else 0.0
        with clock.part("data"):
            documents = [drawer.draw(rng, ease) for _ in range(plan.documents_per_step)]
        with clock.part("forward_backward"):
            pad, gain, noise = drawer.tokenizer.pad_token_id, plan.abnormal_gain, plan.noise * done
            loss = answer_loss(
                model, documents, pad, weights, abnormal_gain=gain, noise=noise, generator=generator
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        with clock.part("optimizer"):
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        figures = {"loss": loss.item(), "gradient_norm": norm.item(), "learning_rate": rate}
        given.log({"step": step + 1, **figures, **clock.lap()})
    model.eval()
    return True


@torch.no_grad()
def _figures(
    model: Any, drawer: DocumentDrawer, cases: Sequence[Case], most: int, at_once: int
) -> dict[str, float]:
    """Answer the validation questions from the impression, per task that asks for a letter."""
    figures: dict[str, float] = {}
    rng, tokenizer = random.Random("text-fit/validation"), drawer.tokenizer
    for name, task in drawer.tasks.items():
        asked = [prompt for case in cases for prompt in task.prompts(case, drawer.view, 0)[:1]]
        asked = [prompt for prompt in asked if "letter" in prompt.reference][:most]
        if not asked:
            continue
        right = 0
        longest = max(len(tokenizer(task.gold(prompt)[0]).input_ids) for prompt in asked) + 8
        for start in range(0, len(asked), at_once):
            batch = asked[start : start + at_once]
            prompts = []
            for prompt in batch:
                shown = shown_ids(tokenizer, prompt, drawer.image_tokens, rng)
                prompts.append({"input_ids": drawer.prompt_ids(prompt, shown)[0]})
            padded = tokenizer.pad(prompts, return_tensors="pt")
            out = model.generate(**padded, max_new_tokens=longest, do_sample=False)
            texts = tokenizer.batch_decode(out[:, padded["input_ids"].shape[1] :], skip_special_tokens=True)
            for prompt, text in zip(batch, texts, strict=True):
                right += task.parse(prompt, text).choice == prompt.reference["letter"]
        figures[f"{name}_text_accuracy"] = right / len(asked)
        figures[f"{name}_questions"] = len(asked)
    return figures


def answer_loss(
    model: Any,
    documents: Sequence[Document],
    pad: int,
    weights: Tensor,
    *,
    abnormal_gain: float = 1.0,
    noise: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the weighted mean cross-entropy, in nats, of the answers' tokens.

    A token weighs `weights[token]`, times `abnormal_gain` in a sentence on something abnormal. `noise` is the
    greatest spread of the noise on what stands for the volume, see `Tiny.fit`.
    """

    def padded(rows: Sequence[Sequence[float]], fill: float) -> Tensor:
        return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=fill)

    ids = padded([item.ids for item in documents], pad)
    mask = padded([[1] * len(item.ids) for item in documents], 0)
    shows = padded([[*map(float, item.shows), *[0.0] * len(item.answer_ids)] for item in documents], 0.0)
    gains = torch.zeros(ids.shape)  # 0 where there is no answer
    for row, item in zip(gains, documents, strict=True):
        answer = torch.tensor(item.is_abnormal)
        row[len(item.prompt_ids) : len(item.ids)] = torch.where(answer, abnormal_gain, 1.0)
    embeddings = model.get_input_embeddings()(ids)
    if noise:
        spread = noise * torch.rand(*ids.shape, 1, generator=generator) * embeddings.detach().std()
        drawn = spread * torch.randn(embeddings.shape, generator=generator)
        embeddings = embeddings + drawn * shows.unsqueeze(-1)
    hidden = model.model(inputs_embeds=embeddings, attention_mask=mask).last_hidden_state[:, :-1]
    answers = gains[:, 1:] > 0
    target = ids[:, 1:][answers]
    losses = functional.cross_entropy(model.lm_head(hidden[answers]).float(), target, reduction="none")
    weight = weights[target] * gains[:, 1:][answers]
    return (losses * weight).sum() / weight.sum()


def _token_weights(tokenizer: Any, size: int, emphasis: Mapping[str, float]) -> Tensor:
    weights = torch.ones(size)
    for text, weight in emphasis.items():
        for token in tokenizer(text, add_special_tokens=False).input_ids:
            weights[token] = weight
    return weights
