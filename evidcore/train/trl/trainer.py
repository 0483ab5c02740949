"""GRPO on trl's trainer, with our rollouts, rewards and scoring; trl's advantages, losses and loop.

What is overridden, and why: `_generate` runs a rollout strategy over a sampler that computes each prompt
once; `_calculate_rewards` judges whole groups; `_prepare_inputs` keeps groups together (trl shuffles rows
over micro-batches), so that scoring computes each prompt once; the KL reference is a copy made at the start,
which needs no saved model.

Where another engine than the model itself samples, `use_vllm` is set: trl then scores the answers with the
policy, weighs each token or answer by what the policy gave it over what the engine gave it, and keeps the
figures of the difference. The policy's log-probabilities are among all tokens, also those that no sampler
may write; an engine's may be among the others: the weight is then how likely those are. What trl does with a
server of its own is in `_generate_single_turn`, never called.
"""

import contextlib
import copy
import logging
import operator
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import datasets
import torch
from accelerate.utils import gather_object
from jaxtyping import Float
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer
from trl.models import unwrap_model_for_generation
from trl.trainer.callbacks import SyncRefModelCallback
from trl.trainer.utils import (
    add_fused_lm_head,
    disable_dropout_in_model,
    split_pixel_values_by_grid,
    split_tensor_dict,
    unsplit_pixel_values_by_grid,
)

from evidcore.case import Episode, Prompt, Rollout
from evidcore.contracts import Engine, RolloutStrategy, Sampler
from evidcore.contracts.stage import EventSink
from evidcore.model.policy import sampling_of
from evidcore.model.processor import VolumeProcessor
from evidcore.model.vlm import VolumeVLM
from evidcore.prompts.rows import PromptSource, Row
from evidcore.prompts.targets import GivenImages
from evidcore.proof.passes import ANSWER_TOKENS, Proof, prove_groups
from evidcore.reward import composer
from evidcore.train.sampler import PolicySampler, parents, run_strategy
from evidcore.train.settings import GrpoSettings
from evidcore.train.trl import stage
from evidcore.train.trl.logprobs import Groups, PromptSharing, shared_scores
from evidcore.train.trl.timing import timed

log = logging.getLogger(__name__)


def read_answers(
    sampler: Sampler, episodes: Sequence[Episode], rows: Sequence[Row], answers_per_prompt: int
) -> list[Rollout]:
    """Have each task read what the model wrote in the last turn of the answers to its prompts."""
    rollouts = []
    for group, row in enumerate(rows):
        answers = episodes[group * answers_per_prompt : (group + 1) * answers_per_prompt]
        for episode, parent in zip(answers, parents(answers), strict=True):
            text = sampler.text(episode)
            rollouts.append(
                Rollout(
                    prompt=row.prompt,
                    group=group,
                    text=text,
                    answer=row.task.parse(row.prompt, text),
                    turns=sampler.past_turns(episode),
                    parent=parent,
                )
            )
    return rollouts


def without_rounding(
    advantages: Float[Tensor, " row"], totals: Sequence[float], answers_per_prompt: int
) -> Float[Tensor, " row"]:
    """Return advantages with exact zeros where a group's totals are equal.

    The mean of equal numbers is off by a rounding, which division by a spread of nearly 0 blows up.
    """
    result = advantages.clone()
    for start in range(0, len(totals), answers_per_prompt):
        group = totals[start : start + answers_per_prompt]
        if max(group) - min(group) < composer.EQUAL:
            result[start : start + answers_per_prompt] = 0.0
    return result


def add_credit(advantages: Float[Tensor, " row"], episodes: Sequence[Episode], length: int) -> Tensor:
    """Return advantages as they are or, where an episode has credit, of each token, (row, `length`)."""
    if not any(episode.credit for episode in episodes):
        return advantages
    rows = [list(episode.credit or (1.0,) * len(episode.ids)) for episode in episodes]
    rows = [row + [0.0] * (length - len(row)) for row in rows]
    return advantages[:, None] * torch.tensor(rows, dtype=advantages.dtype, device=advantages.device)


def live_groups(advantages: Tensor, answers_per_prompt: int) -> Tensor:
    """Return which groups have advantages, of rows or of their tokens."""
    return advantages.reshape(len(advantages) // answers_per_prompt, -1).ne(0).any(1)


def without_dead_groups(batch: dict[str, Any], answers_per_prompt: int, fewest: int = 1) -> dict[str, Any]:
    """Leave out groups without advantages; the gradient of the mean over rows stays the same.

    Holds without a KL penalty or entropy bonus, for a loss that is a mean over rows and linear in advantages.

    At least `fewest` groups are left, dead ones too if need be: a step needs something to compute, and trl
    gathers from all processes as many rows of each.
    """
    total = len(batch["advantages"])
    live = live_groups(batch["advantages"], answers_per_prompt)
    dead = (~live).nonzero().flatten()
    live[dead[: max(fewest - int(live.sum()), 0)]] = True
    if bool(live.all()):
        return batch
    rows = live.repeat_interleave(answers_per_prompt).nonzero().flatten().tolist()
    result = dict(batch)
    for name, value in batch.items():
        is_per_row = isinstance(value, list) or (isinstance(value, Tensor) and value.dim() > 0)
        if is_per_row and len(value) == total:
            result[name] = [value[row] for row in rows] if isinstance(value, list) else value[rows]
    result["advantages"] *= len(rows) / total
    return result


def reference_of(model: VolumeVLM, args: GRPOConfig) -> VolumeVLM:
    """Copy the model as it is now, ready for trl to score with; frozen parts are shared, not copied."""
    parts = [model.model.encoder, model.model.bridge, model.model.language_model, model.lm_head]
    frozen = [part for part in parts if not any(weight.requires_grad for weight in part.parameters())]
    memo: dict[int, Any] = {id(part): part for part in frozen}
    forward = model.__dict__.pop("forward", None)  # trl's, bound to the model that is trained
    reference = copy.deepcopy(model, memo)
    if forward is not None:
        model.__dict__["forward"] = forward
    trained = {id(weight) for weight in model.parameters()}
    for weight in reference.parameters():
        if id(weight) not in trained:
            weight.requires_grad_(False)
    if args.disable_dropout:
        disable_dropout_in_model(reference)
    add_fused_lm_head(reference, temperature=args.temperature, cast_lm_head_to_fp32=args.cast_lm_head_to_fp32)
    reference.eval()
    return reference


DEAD_STEPS = 10  # on end, of which a warning tells
LAST, LEAST = 3, 5  # steps whose mean is compared with the median of at least so many before them
FAILED = "failed_calls/"  # trl's metrics of this name are kept in checkpoints
RENAMED = {name: name for name in ("kl", "entropy", "loss", "grad_norm", "learning_rate")} | {
    "clip_ratio/region_mean": "clipped",
    "sampling/sampling_logp_difference/mean": "sampling_difference",  # in nats a token
    "sampling/sampling_logp_difference/max": "sampling_difference_most",
    "sampling/importance_sampling_ratio/mean": "sampling_weight",
    "sampling/importance_sampling_ratio/min": "sampling_weight_least",
    "sampling/importance_sampling_ratio/max": "sampling_weight_most",
}


def collapsed(history: Sequence[Mapping[str, float]], formats: Sequence[str]) -> dict[str, str]:
    """Say what changed for the worse in the last steps, {what: sentence}: collapse, or a hacked reward.

    The mean of the last `LAST` steps is held against the median of those before: answers half or twice as
    long; a reward for format, of `formats`, that fell by three tenths; totals that differ a quarter as much,
    and are no higher.
    """

    def change(figure: str) -> tuple[float, float]:
        values = [line[figure] for line in history if figure in line]
        if len(values) < LAST + LEAST:
            return 1.0, 1.0  # too few to tell
        return statistics.fmean(values[-LAST:]), statistics.median(values[:-LAST])

    result = {}
    now, before = change("completion_tokens")
    if not before / 2 <= now <= 2 * before:
        result["length"] = f"answers have {now:.0f} tokens, and had {before:.0f}"
    for name in formats:
        now, before = change(f"rewards/{name}/mean")
        if now < before - 0.3:
            result[name] = f"reward {name!r} pays {now:.2f}, and paid {before:.2f}"
    now, before = change("reward_std")
    if now < before / 4 and operator.le(*change("reward")):
        result["spread"] = f"what answers earn differs by {now:.2g}, and did by {before:.2g}"
    return result


class GroupTrainer(stage.StageTrainer, GRPOTrainer):  # type: ignore[misc]
    """Trains on groups of answers to prompts of a stream."""

    settings: GrpoSettings
    step_part = "update"
    needs_start = False  # whether the model as it was at the start is asked for even where beta is 0
    _buffered_inputs: Any  # trl's: the answers in use, by micro-batch

    def __init__(
        self,
        model: VolumeVLM,
        processor: VolumeProcessor,
        args: GRPOConfig,
        source: PromptSource,
        judge: composer.RewardComposer,
        strategy: RolloutStrategy,
        *,
        sharing: PromptSharing,
        announce: EventSink,
        settings: GrpoSettings,
        engine: Engine | None = None,
    ) -> None:
        self.announce, self.settings = announce, settings
        self.source, self.judge, self.strategy = source, judge, strategy
        self.sharing, self.engine = sharing, engine
        self.episodes: list[Episode] = []  # of the answers in use, and what was made of them
        self.rollouts: list[Rollout] = []
        self.judgement = composer.Judgement({}, {})
        self.proof: Proof | None = None
        self.given = GivenImages()
        self._ended: list[bool] = []
        self._figures: dict[str, float] = {}
        self._dead_steps = 0  # on end, until now
        self._collapsed: set[str] = set()  # told
        beta, sync = args.beta, args.sync_ref_model
        peft_config = stage.lora_config(settings, model)
        if peft_config is None:  # with PEFT the reference is the model without its additions
            args.beta, args.sync_ref_model = 0.0, False  # or trl would read the reference from disk
        steps_rows = args.max_steps * args.generation_batch_size // args.num_generations
        super().__init__(
            model=model, reward_funcs=[stage.placeholder(item.name) for item in judge.rewards], args=args,
            train_dataset=datasets.Dataset.from_dict({"prompt": ["0"]}), processing_class=processor,
            peft_config=peft_config,
        )  # fmt: skip
        args.beta, args.sync_ref_model = beta, sync
        self.train_dataset = stage.IndexDataset(steps_rows)
        self.use_vllm = engine is not None and not engine.is_policy
        if (beta or self.needs_start) and peft_config is None:
            self.beta = beta
            reference = reference_of(model, args)
            self.ref_model = self.accelerator.prepare_model(reference, evaluation_mode=True)
            if sync:
                self.add_callback(SyncRefModelCallback(self.ref_model, self.accelerator))
        # trl then takes images as they stand in the token ids, which is how a strategy gives them
        self.tools = [stage.placeholder("tools")]

    @timed("other")
    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Sample and judge when a batch of answers is used up, and hand out whole groups."""
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        self.prove_pixels(prove_groups, self._step % self.args.gradient_accumulation_steps)
        every = self.args.steps_per_generation * self.num_iterations
        if self._step % every == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            parts = self.parts_of(batch, self.args.steps_per_generation)
            if not self.beta and self.loss_type == "grpo" and not self._entropy_bonus_enabled:
                answers = self.num_generations
                live = [int(live_groups(part["advantages"], answers).sum()) for part in parts]
                counts = self.accelerator.gather(torch.tensor([live], device=self.accelerator.device))
                most = counts.amax(0).clamp(min=1).tolist()  # in every process as many
                parts = [without_dead_groups(one, answers, few) for one, few in zip(parts, most, strict=True)]
            self._buffered_inputs = [self.whole(part) for part in parts]
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    @staticmethod
    def parts_of(batch: Any, count: int) -> Any:
        """Deal answers to passes, images row by row; `whole` puts those of a pass together."""
        return split_tensor_dict(split_pixel_values_by_grid(batch), count)

    whole = staticmethod(unsplit_pixel_values_by_grid)

    def _generate_and_score_completions(self, inputs: Sequence[Mapping[str, str]]) -> Any:
        """Let trl do its part, then tell what was judged."""
        batch = super()._generate_and_score_completions(inputs)
        if self.multi_objective_aggregation == "sum_then_normalize":
            totals = self.judgement.totals(self.judge.rewards)
            batch["advantages"] = without_rounding(batch["advantages"], totals, self.num_generations)
        if self.proof is None:
            self._tell(batch["advantages"])  # the record has what an answer earned, before credit
        batch["advantages"] = add_credit(batch["advantages"], self.episodes, batch["completion_ids"].shape[1])
        return batch

    @timed("generate")
    def _generate(self, prompts: Sequence[str]) -> Any:
        """Run the strategy; return what trl's method does."""
        answers = self.num_generations
        positions = [int(position) for position in prompts[::answers]]
        with self.clock.part("data"):
            rows = [self.source[position] for position in positions]
        visible = [row.prompt for row in rows]
        if self.proof is not None:
            visible = [self.proof.shown[position] for position in positions]
        with self._unwrapped() as unwrapped:
            vlm = stage.vlm_of(unwrapped)
            was_training = unwrapped.training
            unwrapped.eval()
            with torch.no_grad(), self.accelerator.autocast():
                sampler = self.make_sampler(vlm, visible, positions)
                with self.clock.part("data"):
                    for prompt in visible:
                        sampler.asked(prompt)  # which keeps it
                    if self.proof is None:
                        step = self.args.generation_batch_size // answers  # prompts, of all processes
                        images = self.processing_class.image_processor
                        for position in (item + step for item in positions):  # while these are answered
                            if position < len(self.train_dataset):
                                crops = self.source[position].prompt.crops()
                                images.prefetch(images.handle(crop) for crop in crops)
                if self.proof is None or not self.proof.answers:
                    self.episodes = run_strategy(self.strategy, sampler, visible, answers)
                if self.proof is not None:
                    self.episodes = self.proof.episodes(positions, self.episodes)
                    self.proof.rollout = sampler.score(self.episodes)
            unwrapped.train(was_training)
        with self.clock.part("data"):
            self.rollouts = read_answers(sampler, self.episodes, rows, answers)
        # nothing is learned from the proof's answers
        self.judgement = (
            self.judge.nothing(self.rollouts) if self.proof else self.judge(self.rollouts, self.clock)
        )
        self._ended = [episode.ids[-1] in sampler.sampling.end_ids for episode in self.episodes]
        handles = [list(sampler.prefix(episode).handles) for episode in self.episodes]
        images = handles if any(handles) else None
        if self.proof is None:
            for episode, images_of in zip(self.episodes, handles, strict=True):
                asked = sampler.asked(episode.prompt).ids
                self.given.add(asked, images_of)  # trl masks answers that were cut
                self.given.add((*asked, *episode.ids), images_of)
        self.state.num_input_tokens_seen += sum(len(sampler.prefix(episode).ids) for episode in self.episodes)
        return (
            [list(sampler.asked(episode.prompt).ids) for episode in self.episodes],
            [list(episode.ids) for episode in self.episodes],
            [list(episode.loss_mask) for episode in self.episodes],
            [rollout.text for rollout in self.rollouts],
            [list(episode.log_probs) for episode in self.episodes] if self.use_vllm else None,
            {},
            images,
            handles,
        )

    @contextlib.contextmanager
    def _unwrapped(self) -> Iterator[Any]:
        """Give the model itself, its weights whole."""
        if self.is_deepspeed_enabled:
            gather = self.args.ds3_gather_for_generation
            with unwrap_model_for_generation(self.model_wrapped, self.accelerator, gather) as unwrapped:
                yield unwrapped
        else:
            wrapped = self.model_wrapped
            with self._dist.summon_full_params(wrapped, recurse=False), stage.full_weights(self.vlm):
                yield self.accelerator.unwrap_model(wrapped)  # gathered once: answers end at different steps

    def make_sampler(
        self, vlm: VolumeVLM, prompts: Sequence[Prompt], positions: Sequence[int]
    ) -> PolicySampler:
        """Return the sampler of one step."""
        most = self.max_completion_length
        sampling = sampling_of(
            vlm, self.processing_class, max_new_tokens=min(most, ANSWER_TOKENS) if self.proof else most,
            temperature=self.temperature, top_k=self.top_k or 0, top_p=self.top_p, min_p=self.min_p or 0.0,
            strategy=self.strategy,
        )  # fmt: skip
        return PolicySampler(
            vlm, self.processing_class, sampling,
            {id(prompt): position for prompt, position in zip(prompts, positions, strict=True)},
            seed=self.args.seed, strategy=self.strategy, engine=None if self.proof else self.engine,
        )  # fmt: skip

    def _calculate_rewards(self, *answers: Any) -> Any:
        """Return what each reward counts for each row, of all processes; trl weighs and sums."""
        columns = [self.judgement.counted[item.name] for item in self.judge.rewards]
        counted = torch.tensor(columns, dtype=torch.float32, device=self.accelerator.device).T.contiguous()
        return self.accelerator.gather(counted)

    @timed("record")
    def _tell(self, advantages: torch.Tensor) -> None:
        """Tell the judged groups of all processes, and work out the figures of the step."""
        lines = composer.record(self.judgement, self.judge.rewards, self.rollouts, self.num_generations)
        places = iter(zip(self.episodes, advantages.tolist(), self._ended, strict=True))
        for answer in (item for line in lines for item in line["rollouts"]):
            episode, answer["advantage"], answer["ended"] = next(places)
            answer["tokens"] = episode.written
            answer["length"] = len(episode.ids)  # with what tools gave
        failed = list(self.judgement.failed.items())
        if self.accelerator.num_processes > 1:
            lines, failed = gather_object(lines), gather_object(failed)
        self._figures = composer.figures(lines)
        self._metrics["train"]["completion_tokens"].append(self._figures["completion_tokens"])
        if self.is_world_process_zero():
            if not failed:
                self._warn_of_equal_totals(lines)
            self.announce.rollouts_judged(self.state.global_step + 1, lines)
        counts = self.failed_calls()
        for name, before in counts.items():
            now = float(sum(reward == name for reward, _ in failed))
            before.append(now)
            self._metrics["train"][f"{FAILED}{name}"].append(now)
        self.judge.check_failed(counts, self.accelerator.num_processes, dict(failed))

    def _warn_of_equal_totals(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Warn where nothing can be learnt: at the first step, and after some such steps on end."""
        self._dead_steps = self._dead_steps + 1 if self._figures["dead_groups"] >= composer.MOST_DEAD else 0
        differ = composer.cancelling(self._figures)
        if self.state.global_step == 0:
            totals = [[answer["total"] for answer in line["rollouts"]] for line in lines]
            start = composer.check_start(totals, composer.most_of(self.judge.rewards))
            if start.outcome == "alarm":
                log.warning("grpo: %s%s", start.says, differ)
        elif self._dead_steps == DEAD_STEPS:
            says = "steps on end in which nearly all answers to a prompt earn the same: nothing is learnt"
            log.warning("grpo: %d %s%s", DEAD_STEPS, says, differ)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Tell what has collapsed too, once, and end the stage where the recipe says so."""
        super().log(logs, start_time)
        formats = [item.name for item in self.judge.rewards if "format" in (item.reward.judges or ())]
        for figure, says in collapsed(self.state.log_history, formats).items():
            if figure not in self._collapsed and self.is_world_process_zero():
                log.warning("grpo: step %d: %s on the mean of %d steps", self.state.global_step, says, LAST)
            self._collapsed.add(figure)
            self.control.should_training_stop |= self.settings.collapse == "stop"

    def failed_calls(self) -> dict[str, list[float]]:
        """Return for each reward the calls that failed, by step, those before a resume too."""
        return {
            item.name: [line[key] for line in self.state.log_history if key in line]
            for item in self.judge.rewards
            for key in (f"{FAILED}{item.name}",)
        }

    def step_figures(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Return trl's figures under our names, and the judge's."""
        figures = {ours: logs[theirs] for theirs, ours in RENAMED.items() if logs.get(theirs) is not None}
        failed = {key: value for key, value in logs.items() if key.startswith(FAILED)}
        return {**figures, **self._figures, **failed}

    @timed("score")
    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        pixel_values: torch.Tensor | None = None,
        num_images: list[int] | None = None,
        **fields: Any,
    ) -> Any:
        """Score answers, each prompt once per group where that is exact and pays."""
        vlm = stage.vlm_of(self.accelerator.unwrap_model(model))
        if self.proof is None:
            rows = {"input_ids": input_ids, "attention_mask": attention_mask, "pixel_values": pixel_values}
            self.prove_images(rows, self.given)
        groups = Groups(
            input_ids=input_ids, attention_mask=attention_mask, after=logits_to_keep,
            answers=self.num_generations, pixel_values=pixel_values, num_images=num_images,
        )  # fmt: skip
        if compute_aux_loss or not self.sharing.applies(vlm, groups):
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy,
                compute_aux_loss, pixel_values=pixel_values, num_images=num_images, **fields,
            )  # fmt: skip
        return shared_scores(
            self.accelerator, model, vlm, groups, rows_per_pass=batch_size, compute_entropy=compute_entropy
        )

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        """Let trl compute it; the pixel-flow proof looks at the log-probabilities inside."""
        with self.proof.watching(self) if self.proof else contextlib.nullcontext():
            return super()._compute_loss(model, inputs)
