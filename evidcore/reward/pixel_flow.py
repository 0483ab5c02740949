"""Proof that training looks at the volumes: each pass over the answers must react when the pixels change.

Before the first step, answers to one prompt are sampled and scored by the real code, then scored again as
answers to the same prompt over blank volumes, which have handles of their own. A pass whose log-probabilities
do not move is
blind: pixels were lost on its way, and training would go on as if the model were one of text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from evidcore.case import Episode, Prompt
from evidcore.errors import RunError
from evidcore.model.parts import part_of

MOVED = 1e-6  # nats; a blind pass gives exactly 0 on a CPU


@dataclasses.dataclass
class Proof:
    """One look at the passes."""

    blank: bool  # show blank volumes
    answers: Sequence[Episode] = ()  # score these instead of sampling
    rollout: Sequence[Sequence[float]] = ()
    policy: torch.Tensor | None = None

    def show(self, prompt: Prompt) -> Prompt:
        """Return the prompt over the pixels of this look."""
        if not self.blank:
            return prompt
        return prompt.showing([dataclasses.replace(crop, blank=True) for crop in prompt.crops()])

    def scramble(self, episodes: Sequence[Episode], ordinary_ids: Sequence[int]) -> list[Episode]:
        """Return the answers with every word that the model wrote replaced by any other.

        Log-probabilities of what a model is sure of are nearly 0 whatever it sees; those of nonsense are not.
        """
        rng = random.Random(0)
        return [
            dataclasses.replace(
                episode,
                ids=tuple(
                    rng.choice(ordinary_ids) if is_own else token
                    for token, is_own in zip(episode.ids, episode.loss_mask, strict=True)
                ),
            )
            for episode in episodes
        ]

    def under(self, prompts: Sequence[Prompt]) -> list[Episode]:
        """Return the kept answers, put under other prompts."""
        return [
            dataclasses.replace(answer, prompt=prompt)
            for answer, prompt in zip(self.answers, prompts, strict=True)
        ]

    @contextlib.contextmanager
    def watching(self, trainer: Any) -> Iterator[None]:
        """Keep the log-probabilities that the loss is made of."""
        real = trainer._get_per_token_logps_and_entropies

        def watched(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            self.policy = result[0]
            return result

        trainer._get_per_token_logps_and_entropies = watched
        try:
            yield
        finally:
            del trainer._get_per_token_logps_and_entropies


def prove(trainer: Any, rows: Sequence[Any]) -> dict[str, float]:
    """Run the proof on the first prompt of this process; return by how many nats each pass moved.

    Args:
        trainer: a `GroupTrainer` in training.
        rows: its rows of one group.

    Raises:
        RunError: naming the blind pass, or saying that no gradient reaches the bridge.
    """
    if not trainer.source[int(rows[0]["prompt"])].prompt.crops():
        return {}
    with trainer.clock.part("proof", whole=True), _undisturbed(trainer):
        own, batch = _look(trainer, rows, Proof(blank=False))
        mask = batch["completion_mask"].bool() & batch["tool_mask"].bool()
        _check_gradient(trainer, own, mask)
        again, blank = _look(trainer, rows, Proof(blank=True, answers=tuple(trainer.episodes)))
    assert own.policy is not None  # every look computes the loss
    assert again.policy is not None
    moved = {
        "rollout": max(
            abs(one - other)
            for mine, theirs in zip(own.rollout, again.rollout, strict=True)
            for one, other in zip(mine, theirs, strict=True)
        ),
        "policy": _most(own.policy.detach() - again.policy.detach(), mask),
        "old policy": _most(batch["old_per_token_logps"] - blank["old_per_token_logps"], mask),
    }
    if "ref_per_token_logps" in batch:
        moved["reference"] = _most(batch["ref_per_token_logps"] - blank["ref_per_token_logps"], mask)
    blind = [name for name, most in moved.items() if not most > MOVED]
    if blind:
        prompt = trainer.source[int(rows[0]["prompt"])].prompt
        figures = ", ".join(f"{name} {most:.1e}" for name, most in moved.items())
        raise RunError(
            f"{trainer.args.output_dir}: the {' and the '.join(blind)} pass is blind: prompt {prompt.id!r} "
            "over its own and over blank volumes gives the same log-probabilities (moved by, in nats: "
            f"{figures}). The volumes are lost on the way to that pass; training would not be about pixels. "
            "Check what was changed in the model, the processor or the trainer."
        )
    return moved


def _look(trainer: Any, rows: Sequence[Any], proof: Proof) -> tuple[Proof, Any]:
    """Let the trainer sample or replay, score with every pass, and compute its loss."""
    trainer.proof = proof
    batch = trainer._generate_and_score_completions(rows)
    if proof.blank:
        with torch.no_grad():
            trainer.compute_loss(trainer.model_wrapped, batch)
    else:
        trainer.compute_loss(trainer.model_wrapped, batch)
    return proof, batch


def _check_gradient(trainer: Any, own: Proof, mask: torch.Tensor) -> None:
    """Send a gradient back from the answers' log-probabilities and look for it at the bridge."""
    assert own.policy is not None
    trainer.accelerator.backward((own.policy * mask).sum())
    weights = {
        name: weight
        for name, weight in trainer.model.named_parameters()
        if part_of(name) == "bridge" and weight.requires_grad
    }
    reached = [
        name for name, weight in weights.items() if weight.grad is not None and bool(weight.grad.any())
    ]
    broken = [
        name
        for name, weight in weights.items()
        if weight.grad is not None and not bool(weight.grad.isfinite().all())
    ]
    trainer.model.zero_grad()
    if broken:
        raise RunError(
            f"{trainer.args.output_dir}: the gradient at {broken[0]!r} of the bridge is not finite."
        )
    if weights and not reached:
        raise RunError(
            f"{trainer.args.output_dir}: no gradient reaches any of the bridge's {len(weights)} weights, "
            "though the stage trains it; something between bridge and answers cuts the graph (a detach, or "
            "a bridge run without gradients)."
        )


def _most(difference: torch.Tensor, mask: torch.Tensor) -> float:
    return float((difference.abs() * mask).max())


@contextlib.contextmanager
def _undisturbed(trainer: Any) -> Iterator[None]:
    """Leave no trace in what the run counts and draws, and have the old-policy pass run even if it would not.

    A run that goes on proves again at its first step: what the proof draws must not move what comes after.
    """
    iterations, seen = trainer.num_iterations, trainer.state.num_input_tokens_seen
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    # answers are then used longer than one step, for which trl computes the old policy's log-probabilities
    trainer.num_iterations = iterations + trainer.args.gradient_accumulation_steps
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        trainer.num_iterations, trainer.state.num_input_tokens_seen = iterations, seen
        trainer.proof = None
        trainer._metrics["train"].clear()
