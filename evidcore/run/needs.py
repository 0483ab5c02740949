"""What a stage holds in memory, from its keys in the recipe and the model's shapes."""

from __future__ import annotations

import functools

import torch

from evidcore.contracts import Encoder, Patches
from evidcore.model.break_even import pays
from evidcore.recipe import Audit, Evaluate, Fit, Grpo, Sft, Stage
from evidcore.run.fake_pass import Held, held
from evidcore.run.lengths import Lengths
from evidcore.run.memory import Batch, Memory, Precision, Trained, answering, encoding_volumes, training
from evidcore.run.shapes import Shapes, adapter_parameters
from evidcore.train.trl.optimizers import matrices_of


def memory(made: Shapes, stage: Stage, rows: Lengths) -> dict[Precision, Memory] | None:
    """Return what a stage that trains or asks needs, in each precision that it may run in.

    Args:
        made: the model's shapes, the language model's among them.
        stage: not a fit, whose memory is its component's own.
        rows: how long its rows are.
    """
    whole, text = made.whole(), made.text
    if whole is None or text is None or isinstance(stage, Fit):
        return None
    batch = _batch(stage, rows)
    if isinstance(stage, Evaluate | Audit):
        encoding = _seen(made, batch.prompts * rows.volumes, "float32", ())[1]
        return {"float32": answering(text, whole, batch, encoding_bytes=encoding)}
    trained = _trained(made, stage)
    replayed = _replayed(stage, batch, rows)
    shown = batch.prompts * rows.volumes
    if replayed is not None and rows.replayed is not None:
        shown += replayed.prompts * rows.replayed.volumes
    found: dict[Precision, Memory] = {}
    for precision in ("float32", "bfloat16"):
        kept, encoding = _seen(made, shown, precision, stage.train)
        found[precision] = training(
            text, whole, trained, batch, precision,
            seen_bytes=kept, encoding_bytes=encoding, samples=isinstance(stage, Grpo),
            replayed=replayed,
            is_checkpointed=bool(
                stage.trl.get("activation_checkpointing") or stage.trl.get("gradient_checkpointing")
            ),
        )  # fmt: skip
    return found


def _batch(stage: Sft | Grpo | Evaluate | Audit, rows: Lengths) -> Batch:
    """Return one forward pass of a stage, in one process."""
    if isinstance(stage, Sft):
        together, step = stage.rows_per_forward or stage.rows_per_step, stage.rows_per_step
        answers, shares = 1, False
    elif isinstance(stage, Grpo):
        together, step = stage.prompts_per_forward or stage.prompts_per_step, stage.prompts_per_step
        answers = stage.answers_per_prompt
        does_pay = pays(rows.prompt_tokens, rows.answer_tokens, answers)
        shares = stage.share_prompts == "always" or (stage.share_prompts == "auto" and does_pay)
    else:
        together = step = stage.prompts_per_batch
        answers, shares = 1, False
    return Batch(
        prompts=together, answers=answers, prompt_tokens=rows.prompt_tokens,
        answer_tokens=rows.answer_tokens, shares_prompts=shares, passes=step // together,
    )  # fmt: skip


def _replayed(stage: Sft | Grpo, batch: Batch, rows: Lengths) -> Batch | None:
    """Return the rows that one pass replays."""
    if not isinstance(stage, Grpo) or stage.replay is None or rows.replayed is None:
        return None
    return Batch(
        prompts=stage.replay.rows_per_step // batch.passes, answers=1,
        prompt_tokens=rows.replayed.prompt_tokens, answer_tokens=rows.replayed.answer_tokens,
    )  # fmt: skip


def _trained(made: Shapes, stage: Sft | Grpo) -> Trained:
    parts = {"encoder": made.encoder, "bridge": made.bridge}
    matrices = 0
    if stage.optimizer == "muon":
        matrices = sum(
            weight.numel() for part in stage.train if part in parts for weight in matrices_of(parts[part])
        )
        if "language" in stage.train and made.text is not None:
            text = made.text
            matrices += (
                text.layers * sum(before * after for before, after in text.matrices())
                if stage.lora is None
                else adapter_parameters(text, stage.lora.rank)
            )
    has_reference = (
        isinstance(stage, Grpo)
        and (bool(stage.trl.get("beta")) or stage.replay is not None)
        and stage.lora is None
    )
    copied = sum(made.parameters[part] or 0 for part in stage.train) if has_reference else 0
    return Trained(
        parameters=made.trained(stage) or 0,
        matrices=matrices,
        is_language="language" in stage.train,
        copied=copied,
    )


def _seen(made: Shapes, count: int, precision: Precision, train: tuple[str, ...]) -> tuple[int, int]:
    """Return the bytes that encoder and bridge keep for a backward pass, and those held while encoding."""
    encoder, bridge = made.encoder, made.bridge
    shape = (encoder.input.channels, *encoder.input.size_zyx)
    is_half = precision == "bfloat16"
    is_live = "encoder" in train
    encoder.requires_grad_(is_live)
    bridge.requires_grad_("bridge" in train)
    together = count if is_live else encoding_volumes(count)
    encoding = _encoding(encoder, together, is_live=is_live, is_half=is_half)
    grid = encoder.grid(encoder.input.size_zyx)
    patches = grid[0] * grid[1] * grid[2]
    bridging = held(
        bridge,
        lambda: Patches(
            torch.zeros(count, patches, encoder.width, requires_grad=is_live), grid, torch.zeros(patches, 3)
        ),
        has_gradients=bool(train), is_half=is_half,
    )  # fmt: skip
    pixels = together * shape[0] * shape[1] * shape[2] * shape[3] * 4
    kept = bridging.kept_bytes + (pixels + encoding.kept_bytes if is_live else 0)
    return kept, 0 if is_live else pixels + encoding.peak_bytes


@functools.lru_cache(maxsize=32)
def _encoding(encoder: Encoder, volumes: int, *, is_live: bool, is_half: bool) -> Held:
    """Return what an encoder on the meta device holds for a pass; stages ask for the same again."""
    shape = (volumes, encoder.input.channels, *encoder.input.size_zyx)
    return held(encoder, lambda: torch.zeros(shape), has_gradients=is_live, is_half=is_half)


def state_bytes(made: Shapes, stage: Stage) -> int | None:
    """Return the bytes of weights, of gradients and of AdamW's two moments."""
    trained = made.trained(stage)
    whole = trained if isinstance(stage, Fit) else made.whole()
    return None if trained is None or whole is None else 4 * (whole + 3 * trained)
