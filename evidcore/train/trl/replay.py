"""Replay: a policy that learns from rewards is held to what it gave to other rows' answers at the start.

A reward says nothing about tasks that it does not judge, and each step moves them too. The distance from the
start is measured over the whole vocabulary at every token of those tasks' gold answers (distillation from
oneself: Li and Hoiem 2016, Learning without Forgetting, arXiv:1606.09282, section 3). It is 0 at the start,
so the gold answers teach nothing that the model did not give them already: a training control that replays
learns no more than one that does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from evidcore.errors import RecipeError
from evidcore.model.processor import VolumeProcessor
from evidcore.train.rows import PromptSource
from evidcore.train.targets import IGNORED, Targets
from evidcore.train.trl.timing import timed
from evidcore.train.trl.trainer import GroupTrainer


class Replay:
    """The rows that a stage replays, and how much they count."""

    def __init__(
        self, processor: VolumeProcessor, source: PromptSource, *, rows_per_step: int, weight: float
    ) -> None:
        """Take the stream.

        Args:
            processor: the model's.
            source: prompts whose tasks write gold answers.
            rows_per_step: over all passes and processes.
            weight: of the divergence, in nats a token, beside the policy's loss.
        """
        self.targets = Targets(processor, source)
        self.rows_per_step, self.weight = rows_per_step, weight

    def check(self, passes: int, where: str) -> None:
        """Refuse rows that cannot be dealt evenly.

        Raises:
            RecipeError: naming the key and a number that can.
        """
        if self.rows_per_step % passes:
            raise RecipeError(
                f"{where}.replay.rows_per_step: {self.rows_per_step} rows cannot be dealt evenly to the "
                f"{passes} passes of a step, over all processes; take a multiple of {passes}."
            )

    def batch(self, step: int, number: int, passes: int) -> dict[str, Tensor]:
        """Return the rows of pass `number` of a step's `passes`, over all processes; both count from 0."""
        rows = self.rows_per_step // passes
        first = step * self.rows_per_step + number * rows
        return self.targets.batch([{"prompt": str(first + place)} for place in range(rows)])


class ReplayTrainer(GroupTrainer):
    """Adds the distance from the start, on the replayed rows, to the loss of each pass."""

    needs_start = True

    def __init__(self, *args: Any, replay: Replay, **options: Any) -> None:
        """Take what is replayed, and what a `GroupTrainer` takes."""
        super().__init__(*args, **options)
        self.replay = replay

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        """Add the weighted divergence; the pixel-flow proof looks at the policy's own loss alone."""
        loss = super()._compute_loss(model, inputs)
        if self.proof is not None or not self.model.training:
            return loss
        divergence = self._divergence(model)
        kept = self.accelerator.reduce(divergence.detach(), "mean").item()
        self._metrics["train"]["replay_kl"].append(kept)
        return loss + self.replay.weight * divergence / self.current_gradient_accumulation_steps

    @timed("replay")
    def _divergence(self, model: Any) -> Float[Tensor, ""]:
        """Return the mean over this pass's rows of KL(start || policy)."""
        passes, processes = self.current_gradient_accumulation_steps, self.accelerator.num_processes
        number = self._step % passes * processes + self.accelerator.process_index
        batch = self.replay.batch(self.state.global_step, number, passes * processes)
        is_answer = batch.pop("labels")[:, 1:] != IGNORED
        begin = int(is_answer.any(dim=0).nonzero()[0])  # of the first answer; before it no logits are needed
        is_answer = is_answer[:, begin:].to(self.accelerator.device)
        inputs: dict[str, Any] = {name: value.to(is_answer.device) for name, value in batch.items()}
        inputs |= {"use_cache": False, "logits_to_keep": is_answer.shape[1] + 1}  # the last predicts nothing
        with torch.no_grad(), self._start() as start:
            wanted = start(**inputs).logits[:, :-1]
        given = model(**inputs).logits[:, :-1]
        return row_divergence(wanted, given, is_answer).mean()

    @contextlib.contextmanager
    def _start(self) -> Iterator[Any]:
        """Give the model as it was at the start: the reference, or what lies beneath PEFT's additions."""
        if self.ref_model is not None:
            yield self.ref_model
        else:
            with self.accelerator.unwrap_model(self.model).disable_adapter():
                yield self.model

    def step_figures(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Return the divergence beside the other figures."""
        return {**super().step_figures(logs), "replay_kl": logs["replay_kl"]}


def row_divergence(
    wanted: Float[Tensor, "row token word"],
    given: Float[Tensor, "row token word"],
    is_answer: Bool[Tensor, "row token"],
) -> Float[Tensor, " row"]:
    """Return each row's mean of KL(wanted || given) over its answer's tokens, in nats, from logits."""
    per_token = torch.zeros(is_answer.shape, device=given.device).masked_scatter(
        is_answer,
        functional.kl_div(
            given[is_answer].float().log_softmax(-1),
            wanted[is_answer].float().log_softmax(-1),
            reduction="none",
            log_target=True,
        ).sum(-1),
    )
    return per_token.sum(-1) / is_answer.sum(-1)
