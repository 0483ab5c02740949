"""The passes that the pixel-flow proof looks at: of GRPO, of supervised fine-tuning, and of an evaluation."""

import contextlib
import copy
import dataclasses
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from evidcore.case import Episode, Prompt
from evidcore.compute.processes import rng_preserved
from evidcore.contracts import Completion, Policy
from evidcore.model.generation import continue_rows
from evidcore.model.policy import VLMPolicy, sampling_of
from evidcore.model.processor import VolumeProcessor
from evidcore.prompts.rows import PromptSource
from evidcore.prompts.targets import IGNORED, Targets
from evidcore.proof import flow
from evidcore.proof.places import prove_images

GROUPS = 2  # prompts of a proof of GRPO
TARGETS = 3  # rows of a proof of fine-tuning
QUESTIONS = 3  # of an evaluation's
ANSWER_TOKENS = 32  # at most, in a proof of GRPO
WORDS = 8  # of the nonsense that questions are answered by
CANDIDATES = 4  # for each question
TIE = 1.0  # nats, between words either of which may be written


@dataclasses.dataclass
class Proof:
    """One look at the passes of GRPO."""

    shown: Mapping[int, Prompt]  # by position in the stream
    answers: dict[int, list[Episode]]  # scored, not sampled anew
    processor: VolumeProcessor
    rollout: Sequence[Sequence[float]] = ()
    policy: Tensor | None = None

    def episodes(self, positions: Sequence[int], sampled: Sequence[Episode]) -> list[Episode]:
        """Keep what was sampled as nonsense, or put what is kept under the prompts of this look."""
        if not self.answers:
            each = len(sampled) // len(positions)
            for place, one in enumerate(sampled):
                ids = flow.scrambled(one.ids, [*map(bool, one.loss_mask)], self.processor, place)
                saved = self.answers.setdefault(positions[place // each], [])
                saved.append(dataclasses.replace(one, ids=tuple(ids)))
        return [
            dataclasses.replace(answer, prompt=self.shown[position])
            for position in positions
            for answer in self.answers[position]
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


def prove_groups(trainer: Any, number: int = 0, *, slopes: bool = True) -> dict[str, float]:
    """Prove the passes of a `GroupTrainer` in training; return by how many nats each moved at least.

    `number` counts the proofs before; with `slopes`, gradients are compared with finite differences.
    """
    processor, answers = trainer.processing_class, trainer.num_generations
    with trainer.clock.part("proof", whole=True), undisturbed(trainer):
        prompts = _first_prompts(trainer, trainer.source, GROUPS)
        micro, looks, saved = trainer._step, 0, dict[int, list[Episode]]()
        batches: list[tuple[Proof, Any, Tensor]] = []
        size = trainer.args.per_device_train_batch_size  # that memory was planned for

        def score(positions: Sequence[int], shown: Mapping[int, Prompt]) -> flow.Rows:
            nonlocal looks
            later, looks = max(looks - 1, 0), looks + 1  # the second look is to equal the first
            trainer._step = micro + later % trainer.args.gradient_accumulation_steps
            proof = Proof(shown, saved, processor)
            trainer.proof = proof
            policy: list[Tensor] = []
            rows = [{"prompt": str(position)} for position in positions for _ in range(answers)]
            batch = trainer._generate_and_score_completions(rows)
            # with gradients, and as many rows at once as in training
            for part in trainer.parts_of(batch, max(1, len(rows) // size)):
                trainer.compute_loss(trainer.model_wrapped, trainer.whole(part))
                assert proof.policy is not None  # every look computes the loss
                policy.append(proof.policy.detach())
            proof.policy = torch.cat(policy)
            mask = batch["completion_mask"].bool() & batch["tool_mask"].bool()
            if not batches and len(rows) <= size:
                batches.append((proof, batch, mask))
            by_group = {"policy": _by_group(proof.policy, mask, answers)}
            for name, key in (("old policy", "old_per_token_logps"), ("reference", "ref_per_token_logps")):
                if key in batch:
                    by_group[name] = _by_group(batch[key], mask, answers)
            rollouts = [torch.tensor(one) if row.any() else torch.empty(0) for one, row in zip(
                proof.rollout, mask, strict=True)]  # fmt: skip
            return {**by_group, "rollout": _grouped(rollouts, answers)}

        def objective() -> Tensor:
            proof, batch, mask = batches[0]
            signs = torch.empty_like(mask, dtype=torch.float32)
            signs.bernoulli_(0.5, generator=torch.Generator(signs.device).manual_seed(0)).mul_(2).sub_(1)
            trainer.proof, trainer._step = proof, micro
            with rng_preserved():
                torch.manual_seed(0)
                trainer.compute_loss(trainer.model_wrapped, batch)
            assert proof.policy is not None
            return (proof.policy * signs * mask).sum() / mask.sum().clamp(min=1)

        moved = _prove(trainer, "grpo", prompts, score, objective, number, slopes=slopes)
        return moved | (_prove_replay(trainer, number) if hasattr(trainer, "targets") else {})


def prove_targets(trainer: Any, number: int = 0, *, slopes: bool = True) -> dict[str, float]:
    """Prove the pass of a `WeightedTrainer` in training, as `prove_groups` does for GRPO's."""
    targets, many = trainer.targets, trainer.settings.questions_per_volume
    most = max(trainer.args.per_device_train_batch_size // many, 1)  # that memory was planned for
    with trainer.clock.part("proof", whole=True), undisturbed(trainer):
        prompts = _first_prompts(trainer, targets.source, TARGETS)

        def batch_of(positions: Sequence[int], shown: Mapping[int, Prompt]) -> dict[str, Tensor]:
            rows = [position for position in positions for _ in range(many)]
            prepared: dict[str, Tensor] = trainer._prepare_inputs(_nonsense(targets, rows, shown))
            return prepared

        def score(positions: Sequence[int], shown: Mapping[int, Prompt]) -> flow.Rows:
            scores: list[list[Tensor]] = []
            for start in range(0, len(positions), most):  # with gradients and as many as in training
                some = positions[start : start + most]
                seen: list[Any] = []  # what the model's passes give
                with trainer.model.register_forward_hook(lambda *given, seen=seen: seen.append(given[-1])):
                    trainer.compute_loss(trainer.model_wrapped, batch_of(some, shown))
                [output] = [one for one in seen if getattr(one, "log_probs", None) is not None]
                answers = len(output.log_probs) // len(some)  # a packed volume is one row
                scores += _by_group(output.log_probs, output.label_mask.bool(), answers)
            return {"policy": scores}

        def objective() -> Tensor:
            some = list(prompts)[:most]
            with rng_preserved():
                torch.manual_seed(0)
                loss: Tensor = trainer.compute_loss(trainer.model_wrapped, batch_of(some, prompts))
            return loss

        return _prove(trainer, "sft", prompts, score, objective, number, slopes=slopes)


def _prove_replay(trainer: Any, number: int) -> dict[str, float]:
    """Prove the pass of the rows that a `ReplayTrainer` replays; at the start its loss has no gradient."""
    targets = trainer.targets
    prompts = _first_prompts(trainer, targets.source, GROUPS)
    passes = trainer.args.gradient_accumulation_steps * trainer.accelerator.num_processes
    most = trainer.keys.rows_per_step // passes

    def score(positions: Sequence[int], shown: Mapping[int, Prompt]) -> flow.Rows:
        scores: list[list[Tensor]] = []
        for start in range(0, len(positions), most):  # with gradients and as many as in training
            batch = _nonsense(targets, positions[start : start + most], shown)
            ids = batch["input_ids"][:, 1:].to(trainer.model.device)
            inputs, is_answer = trainer.answers_of(batch)
            logits = trainer.model(**inputs).logits[:, :-1].float().log_softmax(-1)
            ids = ids[:, -is_answer.shape[1] :]
            scores += _by_group(logits.gather(-1, ids[..., None])[..., 0], is_answer, 1)
        return {"replay": scores}

    return _prove(trainer, "grpo.replay", prompts, score, None, number, slopes=False)


def _nonsense(targets: Targets, rows: Sequence[int], shown: Mapping[int, Prompt]) -> dict[str, Tensor]:
    """Return a batch of rows with prompts shown otherwise and random words for answers."""
    source = targets.source
    changed = {place: dataclasses.replace(source[place], prompt=prompt) for place, prompt in shown.items()}
    targets.source = changed  # type: ignore[assignment]  # rows by their place, as a source has them
    try:
        batch = targets.batch([{"prompt": str(position)} for position in rows])
    finally:
        targets.source = source
    for row, (ids, labels) in enumerate(zip(batch["input_ids"], batch["labels"], strict=True)):
        is_answer = (labels != IGNORED).tolist()
        seed = rows[row] + rows[:row].count(rows[row])
        words = torch.tensor(flow.scrambled(ids.tolist(), is_answer, targets.processor, seed))
        ids.copy_(words)
        labels.copy_(torch.where(labels == IGNORED, labels, words))
    return batch


def _first_prompts(trainer: Any, source: PromptSource, wanted: int) -> dict[int, Prompt]:
    """Return prompts that the step to come begins with, and that show a volume."""
    first = trainer.state.global_step
    stream = ((position, source[position].prompt) for position in range(first, first + flow.LOOKED_AT))
    return flow.shown_prompts(stream, trainer.processing_class, wanted)


def _prove(
    trainer: Any,
    stage: str,
    prompts: Mapping[int, Prompt],
    score: flow.Score,
    objective: Callable[[], Tensor] | None,
    number: int,
    *,
    slopes: bool,
) -> dict[str, float]:
    """Prove images, rows and gradients; without an objective, rows alone."""
    if not prompts:
        return {}
    where = f"{trainer.args.output_dir}: stage.{stage}, step {trainer.state.global_step + 1}"
    tolerance = flow.Tolerance.of(trainer.model, is_mixed=trainer.args.bf16 or trainer.args.fp16)
    processor, is_sharded = trainer.processing_class, trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    if objective is not None and not is_sharded:
        prove_images(where, trainer.vlm, processor, next(iter(prompts.values())))
    moved = flow.prove_rows(where, prompts, processor, score, tolerance, number=number)
    if objective is None:
        return moved
    backward = trainer.accelerator.backward if trainer.is_deepspeed_enabled else Tensor.backward
    parts, slopes = trainer.settings.train, slopes and not is_sharded  # spread weights move by no hand
    flow.prove_gradient(where, trainer.model, parts, objective, backward, tolerance, slopes=slopes)
    return moved


def prove_policy(policy: Policy, prompts: Sequence[Prompt], where: str) -> dict[str, float]:
    """Prove what a model sees that is asked `prompts`, without gradients.

    Returns:
        By how many nats answers and likelihoods moved at least; nothing for another kind of policy, and for
        prompts without a volume.
    """
    if not isinstance(policy, VLMPolicy):
        return {}
    processor, model = policy.processor, policy.model
    with rng_preserved():
        looked_at = flow.shown_prompts(enumerate(prompts[: flow.LOOKED_AT]), processor, QUESTIONS)
        if not looked_at:
            return {}
        blank, tokenizer = [processor.tokenizer.pad_token_id] * WORDS, processor.tokenizer
        drawn = [flow.scrambled(blank, [True] * WORDS, processor, number) for number in range(CANDIDATES)]
        texts = [tokenizer.decode(ids) for ids in drawn]
        forced = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        sampling = sampling_of(model, processor, max_new_tokens=1, temperature=0.0)
        tolerance = flow.Tolerance.of(model, is_mixed=policy.dtype != torch.float32)

        def score(places: Sequence[int], shown: Mapping[int, Prompt]) -> flow.Rows:
            some = [shown[place] for place in places]
            prefixes = [policy.prefix(one) for one in some for _ in texts]
            with policy.asking():
                written = continue_rows(model, prefixes, sampling, forced=forced * len(some))
            tokens = _grouped([torch.tensor(one.log_probs) for one in written], CANDIDATES)
            whole = policy.log_likelihoods(some, [texts] * len(some))
            return {
                "token": tokens,
                "answer": [[torch.stack([one.double().mean() for one in rows])] for rows in tokens],
                "likelihood": [
                    [torch.tensor(row).double() / torch.tensor([len(one) for one in forced])] for row in whole
                ],
            }

        with policy.asking():
            prove_images(where, model, processor, next(iter(looked_at.values())))
        return flow.prove_rows(where, looked_at, processor, score, tolerance)


def prove_answers(
    policy: Policy, prompts: Sequence[Prompt], written: Sequence[Completion], where: str, **asked: Any
) -> None:
    """Prove that greedy answers are those to their own prompts: some are asked again, without the others.

    Where two words are all but equally likely, each may be written; nothing is said of answers with tools.
    """
    if not isinstance(policy, VLMPolicy) or asked.get("temperature"):
        return
    places = random.Random(0).sample(range(len(prompts)), min(QUESTIONS, len(prompts)))
    for place in places:
        given, (alone,) = written[place], policy.complete([prompts[place]], **asked)
        ways = [re.findall(r"\s*\S+", item.text) for item in (given, alone)]
        apart = next((at for at, pair in enumerate(zip(*ways, strict=False)) if len({*pair}) > 1), None)
        if apart is None or given.turns or alone.turns:
            continue
        texts = ["".join(way[: apart + 1]) for way in ways]
        [(ours, likely)] = policy.log_likelihoods([prompts[place]], [texts])
        if likely - ours > TIE:
            flow.stop(
                where, "own answer", f"the answer to prompt {prompts[place].id!r} has a word that is "
                f"{likely - ours:.1f} nats less likely than what is answered to it alone.",
                "how answers are dealt to questions, and what is shared between rows that are sampled",
            )  # fmt: skip


def _by_group(scores: Tensor, mask: Tensor, answers: int) -> list[list[Tensor]]:
    rows = [row[mask_row].detach().float().cpu() for row, mask_row in zip(scores, mask, strict=True)]
    return _grouped(rows, answers)


def _grouped(rows: Sequence[Tensor], answers: int) -> list[list[Tensor]]:
    return [list(rows[start : start + answers]) for start in range(0, len(rows), answers)]


TRAINER_STATE = (
    "num_iterations", "mask_truncated_completions", "use_vllm", "_step", "_total_train_tokens", "episodes",
    "rollouts", "judgement", "_ended", "proof",
)  # fmt: skip


@contextlib.contextmanager
def undisturbed(trainer: Any) -> Iterator[None]:
    """Leave no trace in what a run counts and draws; have GRPO's old-policy pass run even if it would not.

    A run that goes on proves again at its first step: what the proof draws must not move what comes after.
    """
    saved = {name: getattr(trainer, name) for name in TRAINER_STATE if hasattr(trainer, name)}
    seen, metrics = trainer.state.num_input_tokens_seen, copy.deepcopy(trainer._metrics)
    if "num_iterations" in saved:
        # answers are then used longer than one step, so trl computes the old policy's log-probabilities
        trainer.num_iterations += trainer.args.gradient_accumulation_steps
        trainer.mask_truncated_completions = False  # the proof's answers all are
        trainer.use_vllm = False  # the model itself samples them
    try:
        with rng_preserved():
            yield
    finally:
        for name, value in saved.items():
            setattr(trainer, name, value)
        trainer.state.num_input_tokens_seen, trainer._metrics = seen, metrics
