"""Fit the tiny language model on text alone: to read what stands in the volume's place, and to answer.

Order of events: documents are drawn from the tasks' own prompts and gold answers; where the prompt shows a
volume, the case's impression stands instead, its sentences in random order at random places among full
stops, as long as the bridge's tokens will be. So the model meets the format, the words and their priors, but
no voxel.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn import functional as F

from evidcore.case import Case, Prompt, VisualPart
from evidcore.contracts import FitLog, Task, View
from evidcore.errors import DataError
from evidcore.model.language import IMAGE_TOKEN, load_language

_FILLER = "."
_IGNORED = -100
_EASY_TOKENS = 16  # the shortest prefix of the first steps


class TextFit:
    """The language model as a component that a `fit` stage trains.

    Args:
        source: the recipe's `model.language`.
        tasks: what it learns to answer, by name.
        view: how the prompts show a case.
        image_tokens: how many embeddings the bridge gives for one visual part.
        phrases: names of findings; each becomes one token.
    """

    def __init__(
        self,
        source: Mapping[str, Any],
        tasks: Mapping[str, Task],
        view: View,
        image_tokens: int,
        phrases: Sequence[str] = (),
    ) -> None:
        self.source = source
        self.tasks = tasks
        self.view = view
        self.image_tokens = image_tokens
        self.phrases = phrases
        self.model: Any = None
        self.tokenizer: Any = None

    def load(self, folder: Path) -> None:
        """Read back what `fit` wrote."""
        self.model, self.tokenizer = load_language({"folder": str(folder)})

    def fit(
        self,
        train: Sequence[Case],
        validation: Sequence[Case],
        folder: Path,
        seed: int,
        log: FitLog,
        *,
        steps: Annotated[int, Ge(1)] = 500,
        documents_per_step: Annotated[int, Ge(1)] = 24,
        learning_rate: Annotated[float, Gt(0)] = 1.5e-3,
        easy_share: Annotated[float, Ge(0), Le(1)] = 0.4,
        shares: Mapping[str, float] | None = None,
        emphasis: Mapping[str, float] | None = None,
        validation_questions: Annotated[int, Ge(1)] = 200,
    ) -> None:
        """Train on text and write a transformers folder and `fit.json`.

        Args:
            train: cases with an impression in their notes.
            validation: cases for the figures.
            folder: where everything goes.
            seed: of weights, order, questions and places.
            log: told the loss of each step.
            steps: optimiser updates.
            documents_per_step: prompts with their answers in one update.
            learning_rate: at its highest, after 40 steps; it falls along a cosine to 2 %.
            easy_share: the first part of the steps, in which short prefixes with few findings become rarer.
            shares: how often each task is drawn, by name; 1 where not given.
            emphasis: loss weight of the tokens of a text, by the text; 1 where not given.
            validation_questions: how many questions with a letter are answered at the end.

        Raises:
            DataError: if a case has no impression, or no task asks anything.
        """
        cases = [case for case in train if case.present()]
        texts = _texts(train[:500], self.tasks, self.view)
        self.model, self.tokenizer = load_language(self.source, texts=texts, phrases=self.phrases, seed=seed)
        weights = _token_weights(self.tokenizer, self.model.config.vocab_size, emphasis or {})
        drawer = DocumentDrawer(self.tokenizer, self.tasks, self.view, self.image_tokens, cases, shares or {})
        dice = random.Random(f"text-fit/{seed}")
        optimizer = torch.optim.AdamW(
            self.model.parameters(), learning_rate, weight_decay=0.01, betas=(0.9, 0.98)
        )
        self.model.train()
        for step in range(steps):
            done = step / steps
            rate = learning_rate * min(1.0, (step + 1) / 40) * (0.51 + 0.49 * math.cos(math.pi * done))
            for group in optimizer.param_groups:
                group["lr"] = rate
            ease = max(0.0, 1.0 - done / easy_share) if easy_share else 0.0
            documents = [drawer.draw(dice, ease) for _ in range(documents_per_step)]
            loss = answer_loss(self.model, documents, self.tokenizer.pad_token_id, weights)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            log({"step": step + 1, "loss": loss.item(), "gradient_norm": norm.item(), "learning_rate": rate})
        self.model.eval()
        figures = self._figures(validation, validation_questions, documents_per_step)
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        (folder / "fit.json").write_text(json.dumps({"steps": steps, **figures}, indent=2), encoding="utf-8")

    @torch.no_grad()
    def _figures(self, cases: Sequence[Case], most: int, at_once: int) -> dict[str, float]:
        """Answer the validation questions from the impression, per task that asks for a letter."""
        figures: dict[str, float] = {}
        dice = random.Random("text-fit/validation")
        for name, task in self.tasks.items():
            asked = [prompt for case in cases for prompt in task.prompts(case, self.view, 0)[:1]]
            asked = [prompt for prompt in asked if "letter" in prompt.reference][:most]
            if not asked:
                continue
            right = 0
            longest = max(len(self.tokenizer(task.gold(prompt)[0]).input_ids) for prompt in asked) + 8
            for start in range(0, len(asked), at_once):
                batch = asked[start : start + at_once]
                said = [prefix_ids(self.tokenizer, item.case, self.image_tokens, dice) for item in batch]
                ids = [
                    prompt_ids(self.tokenizer, item, prefix) for item, prefix in zip(batch, said, strict=True)
                ]
                for prompt, text in zip(batch, self._complete(ids, longest), strict=True):
                    right += task.parse(prompt, text).choice == prompt.reference["letter"]
            figures[f"{name}_text_accuracy"] = right / len(asked)
            figures[f"{name}_questions"] = len(asked)
        return figures

    def _complete(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> list[str]:
        pad = self.tokenizer.pad_token_id
        width = max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(row)) + list(row) for row in prompts])
        out = self.model.generate(
            ids, attention_mask=(ids != pad).long(), max_new_tokens=max_new_tokens, do_sample=False
        )
        return list(self.tokenizer.batch_decode(out[:, width:], skip_special_tokens=True))


class DocumentDrawer:
    """Draw documents: a prompt in which text stands for the volume, and its gold answer."""

    def __init__(
        self,
        tokenizer: Any,
        tasks: Mapping[str, Task],
        view: View,
        image_tokens: int,
        cases: Sequence[Case],
        shares: Mapping[str, float],
    ) -> None:
        """Keep what is drawn from.

        Raises:
            DataError: if there is no case with a finding, or a share names no task.
        """
        if not cases:
            raise DataError(
                "fit of model.language: no training case has a present finding; check the data set's labels."
            )
        if unknown := sorted(set(shares) - set(tasks)):
            raise DataError(f"fit of model.language: shares names {unknown[0]!r}; tasks: {', '.join(tasks)}.")
        self._tokenizer, self._tasks, self._view, self._tokens = tokenizer, tasks, view, image_tokens
        self._names = list(tasks)
        self._shares = [shares.get(name, 1.0) for name in tasks]
        self._cases = cases
        few = sorted(cases, key=lambda case: len(case.present()))
        self._easy = few[: max(1, len(few) // 2)]

    def draw(self, dice: random.Random, ease: float) -> tuple[list[int], int]:
        """Return token ids and how many of them are the prompt's; `ease` in 0..1 favours short prefixes."""
        for _ in range(100):
            easy = dice.random() < ease
            case = dice.choice(self._easy if easy else self._cases)
            task = self._tasks[dice.choices(self._names, self._shares)[0]]
            prompts = task.prompts(case, self._view, dice.randrange(1, 2**31))
            if not prompts:
                continue
            prompt = dice.choice(prompts)
            shortest = min(_EASY_TOKENS, self._tokens) if ease else self._tokens
            tokens = shortest if easy else dice.randint(shortest, self._tokens)
            prefix = prefix_ids(self._tokenizer, case, tokens, dice)
            ids = prompt_ids(self._tokenizer, prompt, prefix)
            answer = self._tokenizer(task.gold(prompt)[0], add_special_tokens=False).input_ids
            return [*ids, *answer, self._tokenizer.eos_token_id], len(ids)
        raise DataError(
            f"fit of model.language: 100 draws in a row asked nothing; tasks: {', '.join(self._names)}."
        )


def prefix_ids(tokenizer: Any, case: Case, tokens: int, dice: random.Random) -> list[int]:
    """Return `tokens` token ids that say the case's impression, at random places among full stops.

    Sentences come in random order; those that do not fit are left out.

    Raises:
        DataError: if the case has no impression.
    """
    text = case.notes.get("impression")
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"case {case.id!r}: notes['impression'] is {text!r}; the language model is fitted on "
            "impressions, so every case needs one. Or start from a pretrained model with { id = … }."
        )
    sentences = re.split(r"(?<=\.)\s+", text.strip())
    dice.shuffle(sentences)
    pieces = [
        tokenizer((" " if number else "") + sentence, add_special_tokens=False).input_ids
        for number, sentence in enumerate(sentences)
    ]
    while sum(map(len, pieces)) > tokens:
        pieces.pop()
    filler = tokenizer(_FILLER, add_special_tokens=False).input_ids[:1]
    for _ in range(tokens - sum(map(len, pieces))):
        pieces.insert(dice.randint(0, len(pieces)), filler)
    return [token for piece in pieces for token in piece]


def prompt_ids(tokenizer: Any, prompt: Prompt, prefix: Sequence[int]) -> list[int]:
    """Return the chat's token ids up to the answer, with `prefix` in place of each visual part."""
    content = [
        {"type": "image"} if isinstance(part, VisualPart) else {"type": "text", "text": part.text}
        for part in prompt.parts
    ]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    image = tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
    ids: list[int] = []
    for token in tokenizer(text, add_special_tokens=False).input_ids:
        ids.extend(prefix if token == image else [token])
    return ids


def answer_loss(
    model: Any, documents: Sequence[tuple[Sequence[int], int]], pad: int, weights: Tensor
) -> Tensor:
    """Return the weighted mean cross-entropy, in nats, of the tokens after each document's prompt."""
    width = max(len(ids) for ids, _ in documents)
    ids = torch.tensor([list(row) + [pad] * (width - len(row)) for row, _ in documents])
    labels = torch.full_like(ids, _IGNORED)
    mask = torch.zeros_like(ids)
    for number, (row, start) in enumerate(documents):
        labels[number, start : len(row)] = ids[number, start : len(row)]
        mask[number, : len(row)] = 1
    hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state[:, :-1]
    kept = labels[:, 1:] != _IGNORED
    target = labels[:, 1:][kept]
    losses = F.cross_entropy(model.lm_head(hidden[kept]).float(), target, reduction="none")
    weight = weights[target]
    return (losses * weight).sum() / weight.sum()


def _token_weights(tokenizer: Any, size: int, emphasis: Mapping[str, float]) -> Tensor:
    weights = torch.ones(size)
    for text, weight in emphasis.items():
        for form in {text, " " + text}:
            for token in tokenizer(form, add_special_tokens=False).input_ids:
                weights[token] = weight
    return weights


def _texts(cases: Sequence[Case], tasks: Mapping[str, Task], view: View) -> list[str]:
    """Return texts that hold every word of prompts, answers and impressions."""
    texts = [str(case.notes.get("impression", "")) for case in cases]
    for case in cases:
        for task in tasks.values():
            for prompt in task.prompts(case, view, 1):
                texts.append(task.gold(prompt)[0])
                texts += [part.text for part in prompt.parts if not isinstance(part, VisualPart)]
    return [*texts, "user\n", "assistant\n"]
