"""Scorer `reward-model`: a sequence classifier that was trained on human preferences judges an answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from evidcore.api import DataError, Scorer
from evidcore.errors import RecipeError, RunError
from evidcore_plugin_reports.agreement import as_agreement
from evidcore_plugin_reports.text_cache import TextCache
from evidcore_plugin_reports.text_models import Pretrained, TextModel, Tokens, fits, padded, passes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARK = "{reference}"


class RewardModel(Scorer):
    """Let a reward model of transformers judge the candidate as an answer to the question.

    It reads a conversation through its tokenizer's chat template: the question, the candidate as the
    assistant's answer, and a turn of the user that tells the reference. Its one number r, of any size,
    becomes 1 / (1 + exp(-r)). Nothing is cut: a conversation without its end would have no reference.

    Args:
        model: a sequence classifier with one label and a chat template, such as weqweasdas/RM-Mistral-7B.
        reference_turn: how the reference is told; `{reference}` stands for it.

    Source:
        github laihaoran/Med3D-R1 @17ea522, stage2_rl/src/open_r1/grpo_3d.py, `rm_reward`.
    """

    is_exact = False
    audit_exemption = "a reward model reads every text"

    def __init__(
        self,
        recipe_folder: Path,
        *,
        model: Pretrained,
        reference_turn: str = "The correct answer is {reference}",  # as released
    ) -> None:
        self.who = f"scorer 'reward-model' ({model})"
        if MARK not in reference_turn:
            must = f"must hold {MARK}, for which the reference is put"
            raise RecipeError(f"{self.who}: reference_turn {must}, got {reference_turn!r}.")
        if model.too_long == "cut":
            what = "model.too_long = 'cut' would cut the reference off"
            raise RecipeError(f"{self.who}: {what}. Write 'refuse' or 'unscored'.")
        kind = "AutoModelForSequenceClassification"
        self.judge = TextModel(model, recipe_folder, self.who, kind=kind, check=self._check)
        self.reference_turn = reference_turn
        self._cache: TextCache[float | None] = TextCache()  # by conversation

    def ready(self) -> None:
        """Look at the model's configuration and tokenizer; fetch them where they come from the Hub."""
        _ = self.judge.settings

    def __call__(
        self, candidates: Sequence[str], references: Sequence[str], questions: Sequence[str] | None = None
    ) -> Sequence[float | None]:
        """Return the agreement per pair; None where a conversation is too long and the recipe says so.

        Raises:
            ValueError: without questions.
            DataError: if the model cannot be used, or a conversation is too long.
        """
        if questions is None:
            raise ValueError("a reward model judges the answer to a question; give the questions")
        turns = zip(candidates, references, questions, strict=True)
        return self._cache.get([self.conversation(*one) for one in turns], self._judge)

    def conversation(self, candidate: str, reference: str, question: str) -> str:
        """Return what the model reads, as text.

        Raises:
            DataError: if the chat template cannot write it.
        """
        from jinja2 import TemplateError

        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": candidate},
            {"role": "user", "content": self.reference_turn.replace(MARK, reference)},
        ]
        try:
            return str(self.judge.tokenizer.apply_chat_template(messages, tokenize=False))
        except TemplateError as cause:
            raise DataError(
                f"{self.who}: its chat template writes no conversation of user, assistant and user: {cause} "
                "Name a model whose template does."
            ) from cause

    def _judge(self, conversations: list[str]) -> list[float | None]:
        """Return the agreement of each conversation."""
        model, tokenizer, named = self.judge.model, self.judge.tokenizer, self.judge.named
        texts: list[Tokens] = [tokenizer(one, add_special_tokens=False)["input_ids"] for one in conversations]
        short = fits(texts, self.judge.most_tokens, named, self.who)
        fitting = [place for place, is_short in enumerate(short) if is_short]
        agreements: list[float | None] = [None] * len(texts)
        pad = model.config.get_text_config().pad_token_id
        together = 0 if pad is None else named.tokens_per_pass  # the model finds a text's end by it
        for group in passes([len(texts[place]) for place in fitting], together):
            chosen = [fitting[one] for one in group]
            batch = padded([texts[place] for place in chosen], pad or 0, model.device)
            with torch.inference_mode():
                raw = model(**batch).logits[:, 0].double().tolist()
            for place, score in zip(chosen, raw, strict=True):
                if not math.isfinite(score):
                    raise RunError(
                        f"{self.who}: gave {score} for a conversation of {len(texts[place])} tokens in "
                        f"{named.dtype}. Write model.dtype = 'bfloat16' or 'float32'."
                    )
                agreements[place] = as_agreement(score)
        return agreements

    def _check(self, config: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        if config.num_labels != 1:
            what = f"gives {config.num_labels} labels, and a reward model gives one number"
            raise DataError(f"{self.who}: {what}. Name one with num_labels = 1.")
        if tokenizer.chat_template is None:
            raise DataError(
                f"{self.who}: its tokenizer has no chat template, so a conversation cannot be written as the "
                "model learned it. Put its chat_template.jinja beside the tokenizer."
            )
