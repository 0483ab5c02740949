"""Draw one GRPO step's order of calls as grpo_step.svg: `make docs`.

`tests/train/test_call_order.py` traces a step and holds the picture to it.
"""

import dataclasses
from html import escape
from pathlib import Path

TARGET = Path(__file__).with_suffix(".svg")
LANES = {"transformers": "#6b7280", "TRL": "#b45309", "evidcore": "#1d4ed8"}
LANE_WIDTH, LEFT, TOP, ROW, BOX = 350, 150, 64, 50, 40


@dataclasses.dataclass(frozen=True)
class Call:
    """A function that a step enters; `is_traced` is False where it is entered only under some settings."""

    lane: str
    name: str  # as in the code
    note: str
    span: str  # how often: once a batch of answers, once a forward pass, once a step
    is_traced: bool = True


ANSWERS, PASS, STEP = "once for a batch of answers", "for each forward pass", "once a step"
CALLS = (
    Call("evidcore", "StageTrainer.get_batch_samples", "positions in the stream of prompts", STEP),
    Call("TRL", "GRPOTrainer.training_step", "each pass of gradient accumulation", PASS),
    Call("evidcore", "GroupTrainer._prepare_inputs", "first, and every 100 steps: pixel-flow proof", PASS),
    Call("evidcore", "GroupTrainer._generate_and_score_completions", "calls TRL, then records", ANSWERS),
    Call("TRL", "GRPOTrainer._generate_and_score_completions", "order of sampling and scoring", ANSWERS),
    Call("evidcore", "GroupTrainer._generate", "cases, tasks, view: prompts", ANSWERS),
    Call("evidcore", "run_strategy", "component rollout; PolicySampler samples", ANSWERS),
    Call("evidcore", "read_answers", "component task reads each answer", ANSWERS),
    Call("evidcore", "RewardComposer.__call__", "components reward, each over whole groups", ANSWERS),
    Call("evidcore", "GroupTrainer._get_per_token_logps_and_entropies", "old policy, reference", ANSWERS),
    Call("evidcore", "GroupTrainer._calculate_rewards", "hands over what was judged", ANSWERS),
    Call("TRL", "nanstd", "weigh, sum, minus the group's mean, over its spread", ANSWERS),
    Call("evidcore", "without_rounding", "equal totals: advantage exactly 0", ANSWERS),
    Call("evidcore", "GroupTrainer._tell", "rollouts/<stage>.jsonl, figures of the step", ANSWERS),
    Call("evidcore", "without_dead_groups", "if beta = 0 and loss_type = grpo", ANSWERS),
    Call("TRL", "GRPOTrainer.compute_loss", "", PASS),
    Call("evidcore", "GroupTrainer._compute_loss", "proof looks on; ReplayTrainer adds its term", PASS),
    Call("TRL", "GRPOTrainer._compute_loss", "ratio, clip, advantages, KL", PASS),
    Call("evidcore", "GroupTrainer._get_per_token_logps_and_entropies", "policy; each prompt once", PASS),
    Call("evidcore", "VolumeVLMModel.forward", "components encoder and bridge, language model", PASS),
    Call("transformers", "Accelerator.backward", "gradient of this pass", PASS),
    Call("transformers", "Accelerator.clip_grad_norm_", "", STEP),
    Call("transformers", "AcceleratedOptimizer.step", "parameter groups of create_optimizer", STEP),
    Call("evidcore", "StageTrainer.log", "metrics.jsonl, observers: step_finished", STEP),
    Call("evidcore", "StageTrainer._save_checkpoint", "every save_every_steps", STEP, is_traced=False),
)


def svg() -> str:
    """Return the picture."""
    width, height = LEFT + LANE_WIDTH * len(LANES) + 20, TOP + ROW * len(CALLS) + 20
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" role="img">',
        "<title>One GRPO step: functions of transformers, TRL and evidcore in the order of calls</title>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 8 4 0 8Z" fill="#374151"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for column, (lane, colour) in enumerate(LANES.items()):
        middle = LEFT + LANE_WIDTH * column + LANE_WIDTH // 2
        out.append(
            f'<text x="{middle}" y="32" text-anchor="middle" font-size="17" font-weight="bold" '
            f'fill="{colour}">{lane}</text>'
            f'<line x1="{middle}" y1="44" x2="{middle}" y2="{height - 10}" stroke="#e5e7eb" '
            'stroke-width="2"/>'
        )
    out += _spans()
    for row, call in enumerate(CALLS):
        out += _box(row, call)
        if row:
            out.append(_arrow(row))
    return "\n".join([*out, "</svg>"]) + "\n"


def _middle(row: int) -> int:
    return LEFT + LANE_WIDTH * list(LANES).index(CALLS[row].lane) + LANE_WIDTH // 2


def _box(row: int, call: Call) -> list[str]:
    x, y, colour = _middle(row) - LANE_WIDTH // 2 + 8, TOP + ROW * row, LANES[call.lane]
    lines = [call.name, call.note] if call.note else [call.name]
    dash = "" if call.is_traced else ' stroke-dasharray="5 3"'
    out = [
        f'<rect x="{x}" y="{y}" width="{LANE_WIDTH - 16}" height="{BOX}" rx="5" fill="#ffffff" '
        f'stroke="{colour}" stroke-width="1.5"{dash}/>'
    ]
    for number, text in enumerate(lines):
        family = 'font-family="monospace" font-size="10.5"' if number == 0 else 'font-size="11.5"'
        shown = f"{row + 1}. {text}" if number == 0 else text
        down = 16 + 16 * number if len(lines) > 1 else 24
        out.append(f'<text x="{x + 8}" y="{y + down}" {family} fill="#111827">{escape(shown)}</text>')
    return out


def _arrow(row: int) -> str:
    start, end, y = _middle(row - 1), _middle(row), TOP + ROW * row
    return (
        f'<line x1="{start}" y1="{y - ROW + BOX}" x2="{end}" y2="{y}" stroke="#374151" '
        'marker-end="url(#arrow)"/>'
    )


def _spans() -> list[str]:
    """Return a bar at the left of each run of calls that are entered equally often."""
    out, first = [], 0
    for row in range(1, len(CALLS) + 1):
        if row == len(CALLS) or CALLS[row].span != CALLS[first].span:
            top, bottom = TOP + ROW * first, TOP + ROW * (row - 1) + BOX
            out.append(
                f'<line x1="{LEFT - 8}" y1="{top}" x2="{LEFT - 8}" y2="{bottom}" stroke="#9ca3af" '
                'stroke-width="3"/>'
            )
            words = CALLS[first].span.split()
            half = (len(words) + 1) // 2
            for number, text in enumerate((" ".join(words[:half]), " ".join(words[half:]))):
                y = (top + bottom) // 2 + 14 * number
                out.append(
                    f'<text x="{LEFT - 18}" y="{y}" text-anchor="end" font-size="11.5" '
                    f'fill="#374151">{text}</text>'
                )
            first = row
    return out


if __name__ == "__main__":
    TARGET.write_text(svg(), encoding="utf-8")
