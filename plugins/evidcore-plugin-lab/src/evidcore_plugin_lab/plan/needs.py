"""What a stage holds in memory, from its keys in the recipe and the model's shapes."""

import functools
import math
from collections.abc import Mapping, Sequence

import torch
from evidcore_plugin_audit.stage_order import stages_before

from evidcore.api import Encoder, Patches, Workload
from evidcore.contracts import Grid
from evidcore.model.bank import VOLUMES_PER_PASS
from evidcore.model.packed_attention import packing_pays
from evidcore.model.parts import matrices_of
from evidcore.recipe import Recipe
from evidcore_plugin_lab.plan import memory as formula
from evidcore_plugin_lab.plan.fake_pass import Held, held
from evidcore_plugin_lab.plan.lengths import Lengths
from evidcore_plugin_lab.plan.memory import PRECISIONS, Batch, Memory, Precision, Trained, Weights
from evidcore_plugin_lab.plan.shapes import Shapes


def memory(
    made: Shapes,
    load: Workload,
    rows: Lengths,
    *,
    earlier: Sequence[Workload] = (),
    processes: int = 1,
    is_sharded: bool = False,
) -> dict[Precision, Memory] | None:
    """Return what a stage that trains or asks needs in a process, in each precision that it may run in.

    Not for a fit, whose memory is its component's own. `earlier` are stages that left adapters.
    """
    parameters, text = made.whole(), made.text
    if parameters is None or text is None:
        return None
    whole = Weights(
        parameters=parameters, in_bfloat16=sum(made.in_bfloat16.values()),
        in_4bit=made.in_4bit, adapters=sum(made.adapters(work.lora) or 0 for work in earlier),
        is_language_rounded="language" in made.in_bfloat16,
    )  # fmt: skip
    precisions = PRECISIONS[1:] if made.in_bfloat16 else PRECISIONS  # multiplied as they lie
    does_pay = packing_pays(rows.prompt_tokens, rows.answer_tokens, load.answers_per_prompt)
    shares_volume = load.answers_per_prompt > 1 and not load.samples  # and each row asks for itself
    question = rows.text_tokens if shares_volume else 0
    batch = Batch(
        prompts=load.prompts_per_forward, answers=load.answers_per_prompt, prompt_tokens=rows.prompt_tokens,
        answer_tokens=rows.answer_tokens + question, question_tokens=question,
        shares_prompts=load.share_prompts == "always" or (load.share_prompts == "auto" and does_pay),
        passes=max(load.prompts_per_step // (load.prompts_per_forward * processes), 1),
    )  # fmt: skip
    trained, replayed = _trained(made, load), None
    count, size = batch.prompts * rows.volumes, rows.size_zyx
    if load.replayed_rows and rows.replayed is not None:
        again = rows.replayed
        replayed = Batch(
            prompts=load.replayed_rows // (batch.passes * processes), answers=1,
            prompt_tokens=again.prompt_tokens, answer_tokens=again.answer_tokens,
        )  # fmt: skip
        count, size = count + replayed.prompts * again.volumes, max(size, again.size_zyx, key=math.prod)
    result: dict[Precision, Memory] = {}
    for precision in precisions:
        seen, encoding = _seen(made, count, size, precision, load.train)
        if not load.trains_whole_model:
            result[precision] = formula.answering(
                text, whole, batch, precision, shown_bytes=seen, encoding_bytes=encoding
            )
            continue
        sampled = 0
        if load.samples:
            volumes = batch.sampled_prompts * rows.volumes
            sampled, _ = _seen(made, volumes, rows.size_zyx, precision, ())
        result[precision] = formula.training(
            text, whole, trained, batch, precision,
            seen_bytes=seen, shown_bytes=sampled, encoding_bytes=encoding, samples=load.samples,
            replayed=replayed,
            is_checkpointed=load.is_checkpointed, processes=processes, is_sharded=is_sharded,
        )  # fmt: skip
    return result


def _trained(made: Shapes, load: Workload) -> Trained:
    parts = {"encoder": made.encoder, "bridge": made.bridge}
    matrices, text = 0, made.text
    if load.optimizer == "muon":
        own = (weight for part in load.train if part in parts for weight in matrices_of(parts[part]))
        matrices = sum(weight.numel() for weight in own)
        if "language" in load.train and text is not None:
            matrices += made.adapters(load.lora) or text.layers * text.layer_matrices
    return Trained(
        parameters=made.trained(load) or 0, matrices=matrices, is_language="language" in load.train,
        is_adapted=load.lora is not None,
        copied=sum(made.parameters[part] or 0 for part in load.train) if load.keeps_reference else 0,
    )  # fmt: skip


def _seen(
    made: Shapes, count: int, size_zyx: Grid, precision: Precision, train: tuple[str, ...]
) -> tuple[int, int]:
    """Return the bytes that encoder and bridge keep for a backward pass, and those held while encoding."""
    encoder, bridge = made.encoder, made.bridge
    is_half = precision == "bfloat16"
    is_live = "encoder" in train
    encoder.requires_grad_(is_live)
    bridge.requires_grad_("bridge" in train)
    together = count if is_live else max(2, min(count, VOLUMES_PER_PASS))  # a frozen one is given two or more
    shape = (together, encoder.input.channels, *size_zyx)
    encoding = _encoding(encoder, shape, is_live=is_live, is_half=is_half)
    grid = encoder.grid(size_zyx)
    patches = grid[0] * grid[1] * grid[2]
    bridging = held(
        bridge,
        lambda: Patches(
            torch.zeros(count, patches, encoder.width, requires_grad=is_live), grid, torch.zeros(patches, 3)
        ),
        has_gradients=bool(train), is_half=is_half,
    )  # fmt: skip
    pixels = math.prod(shape) * 4
    kept = bridging.kept_bytes + (pixels + encoding.kept_bytes if is_live else 0)
    return kept, 0 if is_live else pixels + encoding.peak_bytes


@functools.lru_cache(maxsize=32)
def _encoding(encoder: Encoder, shape: tuple[int, ...], *, is_live: bool, is_half: bool) -> Held:
    """Return what an encoder on the meta device holds for a pass; stages ask for the same again."""
    return held(encoder, lambda: torch.zeros(shape), has_gradients=is_live, is_half=is_half)


def encoding_operations(made: Shapes, size_zyx: Grid) -> Mapping[torch.dtype, int]:
    """Return what encoding a volume takes: additions and multiplications, by the type of numbers."""
    shape = (1, made.encoder.input.channels, *size_zyx)
    return _encoding(made.encoder, shape, is_live=False, is_half="encoder" in made.in_bfloat16).operations


def uses_whole_model(load: Workload) -> bool:
    """Tell whether volumes pass through the whole model: it is trained or asked, and no component alone."""
    return load.trains_whole_model or (not load.train and load.prompts_per_forward > 0)


def state_bytes(made: Shapes, load: Workload) -> int | None:
    """Return the bytes of weights, of gradients and of AdamW's two moments."""
    trained = made.trained(load)
    whole = made.whole() if uses_whole_model(load) else trained
    if trained is None or whole is None:
        return None
    rounded = sum(made.in_bfloat16.values()) if uses_whole_model(load) else 0
    weights = formula.Weights(parameters=whole, in_bfloat16=rounded, in_4bit=made.in_4bit if rounded else 0)
    return weights.size_bytes + 4 * 3 * trained


def earlier_adapters(recipe: Recipe) -> list[list[Workload]]:
    """Return for each stage those before it that left adapters beside weights in bfloat16."""
    rounded = set(recipe.model.bfloat16)
    result = []
    for place in range(len(recipe.stages)):
        before = [stage.workload() for stage in stages_before(recipe, place).values()]
        result.append([work for work in before if work.lora and rounded & {*work.lora.parts}])
    return result
