"""A run folder as a real run leaves it, in small: every file by hand, volumes and masks on disk."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evidcore.case import Case, Crop
from evidcore.testing.data import FINDINGS, volume_case

RESOLVED = """
schema = 1
name = "med3d_r1"
seed = 17

[dataset.chest]
use = "phantom-chest"

[model.encoder]
use = "vit3d"

[[stage]]
kind = "fit"
[[stage]]
kind = "fit"
[[stage]]
kind = "sft"
[[stage]]
kind = "evaluate"
[[stage]]
kind = "grpo"
[[stage]]
kind = "evaluate"
[[stage]]
kind = "audit"
"""
LOCK = """
[packages]
evidcore = "0.1.0"
evidcore-plugin-med3d-r1 = "0.1.0"
torch = "2.15.0"
[data.chest]
fingerprint = "9f31c2aa70d14be2"
[machine]
processors = 2
python = "3.11.9"
"""
LINES = {"uniform_chance": 0.25, "prior_only": 0.2875, "perfect_perception": 1.0}


@dataclasses.dataclass(frozen=True)
class FakeRun:
    folder: Path
    cases: list[Case]

    def line(self, name: str, entry: dict[str, Any]) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def result(self, stage: str, kind: str, rows: list[dict[str, Any]], **more: Any) -> None:
        path = self.folder / "results" / f"{stage}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"stage": stage, "kind": kind, "rows": rows, **more}))


def row(name: str, metric: str, value: float, half: float, **more: Any) -> dict[str, Any]:
    spread = {"low": round(value - half, 4), "high": round(value + half, 4)}
    return {
        "name": name,
        "metric": metric,
        "value": value,
        **spread,
        "questions": 812,
        "patients": 203,
        **more,
    }


@pytest.fixture
def bare_run(tmp_path: Path) -> FakeRun:
    """A run that has only just started."""
    folder = tmp_path / "runs" / "med3d_r1" / "20261120-221504-3fa9c1"
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(RESOLVED)
    (folder / "resolved.toml").write_text(RESOLVED)
    (folder / "STATUS").write_text(
        json.dumps({"state": "running", "stage": "01-fit", "step": 0, "message": ""})
    )
    return FakeRun(folder, [])


@pytest.fixture
def fake_run(bare_run: FakeRun, tmp_path: Path) -> FakeRun:
    """A finished run of the walking recipe."""
    return fill(bare_run, [volume_case(tmp_path / "volumes", seed) for seed in range(4)])


def fill(run: FakeRun, cases: list[Case]) -> FakeRun:
    run = dataclasses.replace(run, cases=cases)
    (run.folder / "lock.toml").write_text(LOCK)
    (run.folder / "STATUS").write_text(
        json.dumps({"state": "finished", "stage": "07-audit", "step": 0, "message": ""})
    )
    _metrics(run)
    _results(run)
    _rollouts(run)
    _answers(run)
    return run


def _metrics(run: FakeRun) -> None:
    dice = random.Random(3)
    for step in range(1, 121):
        loss = 1.9 * math.exp(-step / 30) + 0.21 + dice.gauss(0, 0.03)
        run.line(
            "metrics.jsonl", {"stage": "03-sft", "step": step, "time_s": step * 0.4, "loss": round(loss, 4)}
        )
    for step in range(1, 161):
        done = 1 - math.exp(-step / 60)
        noise: Callable[[float], float] = lambda spread: dice.gauss(0, spread)  # noqa: E731
        entry = {
            "stage": "05-grpo", "step": step, "time_s": step * 1.1,
            "loss": round(0.01 + noise(0.02), 4), "reward": round(0.35 + 0.9 * done + noise(0.06), 4),
            "rewards/format/mean": round(min(1.0, 0.52 + 0.6 * done + noise(0.03)), 4),
            "rewards/choice-accuracy/mean": round(0.2 + 0.6 * done + noise(0.05), 4),
            "rewards/report-consistency/mean": round(0.15 + 0.4 * done + noise(0.05), 4),
            "format_rate": round(min(1.0, 0.52 + 0.6 * done + noise(0.03)), 4),
            "kl": round(0.12 * done + abs(noise(0.006)), 5),
            "dead_groups": round(min(1.0, max(0.0, 0.1 + 0.5 * done + noise(0.08))), 4),
            "entropy": round(0.7 - 0.4 * done + noise(0.03), 4), "grad_norm": round(abs(0.4 + noise(0.1)), 4),
            "learning_rate": 1e-4 * (1 - step / 161),
            "time/generate_s": round(0.61 + abs(noise(0.03)), 4), "time/train_s": round(0.29 + abs(noise(0.02)), 4),
            "time/reward/format_s": 0.002, "time/reward/report-consistency_s": round(0.06 + abs(noise(0.004)), 4),
        }  # fmt: skip
        run.line("metrics.jsonl", entry)


def _results(run: FakeRun) -> None:
    run.result("01-fit", "fit", [row("linear probe", "lowest AUC", 0.9612, 0.012)])
    for stage, figures in {
        "04-evaluate": (0.163, 0.524, 0.291, 0.302, 0.288, 0.541),
        "06-evaluate": (0.7623, 0.9951, 0.766, 0.7623, 0.731, 0.528),
    }.items():
        strict, well_formed, lenient, rescue, likely, f1 = figures
        run.result(
            stage,
            "evaluate",
            [
                row("choice", "accuracy (strict)", strict, 0.034, reference_lines=LINES),
                row("choice", "accuracy (lenient)", lenient, 0.033, reference_lines=LINES),
                row("choice", "accuracy (rescue)", rescue, 0.033, reference_lines=LINES),
                row("choice", "accuracy (option log-likelihood)", likely, 0.033, reference_lines=LINES),
                row("choice", "format rate", well_formed, 0.004),
                row("choice-direct", "accuracy (strict)", strict - 0.02, 0.034, reference_lines=LINES),
                row("choice-direct", "format rate", well_formed, 0.004),
                row("report", "findings F1", f1, 0.021, questions=203, note="micro-average over 18 findings"),
            ],
        )
    run.result(
        "07-audit",
        "audit",
        [
            row("own", "accuracy (strict)", 0.7623, 0.034, reference_lines=LINES),
            row("other-patient", "accuracy (strict)", 0.2451, 0.031, reference_lines=LINES),
            row("blank", "accuracy (strict)", 0.2611, 0.03, reference_lines=LINES),
            row("other-patient", "grounding margin", 0.5172, 0.045),
            row("blank", "grounding margin", 0.5012, 0.043),
        ],
    )
    run.result(
        "controls",
        "controls",
        [
            row("random reward", "accuracy (option log-likelihood)", 0.2771, 0.03, reference_lines=LINES),
            row(
                "format-only reward", "accuracy (option log-likelihood)", 0.3011, 0.031, reference_lines=LINES
            ),
            row(
                "wrong-patient volumes",
                "accuracy (option log-likelihood)",
                0.2694,
                0.03,
                reference_lines=LINES,
            ),
        ],
    )


def _prompt(names: tuple[str, ...]) -> str:
    options = "\n".join(f"{letter}) {name}" for letter, name in zip("ABCD", names, strict=True))
    return f"<|image_pad|>\nWhich finding is present?\n{options}\nThink, then answer."


def _think(names: tuple[str, ...], said: int, letter: str) -> str:
    verdicts = " ".join(
        f"{mark} {name} {'present' if place == said else 'absent'}."
        for place, (mark, name) in enumerate(zip("ABCD", names, strict=True))
    )
    return f"<think>{verdicts}</think><answer>{letter}</answer>"


def _rollouts(run: FakeRun) -> None:
    dice = random.Random(5)
    for step in (1, 60, 120, 160):
        for case in run.cases:
            right = FINDINGS.index(case.present()[0])
            rollouts = []
            for number in range(8):
                chance = 0.25 + 0.6 * step / 160
                said = right if dice.random() < chance else dice.randrange(4)
                letter = "ABCD"[said]
                broken = dice.random() < 0.5 * (1 - step / 160)
                text = _think(FINDINGS, said, letter)
                if broken:
                    text = text.removesuffix("</answer>")
                correct = float(not broken and said == right)
                consistency = round(dice.random(), 3)
                total = 0.3 * (not broken) + correct + 0.5 * consistency * correct
                gate = (
                    {"value": consistency, "parts": {"precision": 0.5, "recall": consistency},
                     "reason": f"said {FINDINGS[said]}; the report holds {FINDINGS[right]}", "unscored": None}
                    if number != 3
                    else {"value": None, "parts": {}, "reason": "nothing to compare", "unscored": "not-applicable"}
                )  # fmt: skip
                rollouts.append({
                    "text": text, "total": round(total, 4), "advantage": 0.0,
                    "malformed": "no </answer>" if broken else None,
                    "rewards": {
                        "format": {"value": float(not broken), "parts": {}, "reason": "no </answer>" if broken else "",
                                   "unscored": None},
                        "choice-accuracy": {"value": correct, "parts": {}, "unscored": None,
                                            "reason": f"answered {letter}, right is {'ABCD'[right]}"},
                        "report-consistency": gate,
                    },
                })  # fmt: skip
            mean = sum(item["total"] for item in rollouts) / 8
            spread = math.sqrt(sum((item["total"] - mean) ** 2 for item in rollouts) / 7) or 1.0
            for item in rollouts:
                item["advantage"] = round((item["total"] - mean) / spread, 4)
            run.line("rollouts/05-grpo.jsonl", {
                "stage": "05-grpo", "step": step, "prompt_id": f"{case.id}:{step}-0", "case_id": case.id,
                "task": "choice", "prompt": _prompt(FINDINGS), "images": [Crop(volume=case.volumes[0]).uri()],
                "reference": {"letter": "ABCD"[right], "options": list(FINDINGS), "true_options": [right],
                              "finding": FINDINGS[right]},
                "rollouts": rollouts,
            })  # fmt: skip


def _answers(run: FakeRun) -> None:
    for stage in ("04-evaluate", "06-evaluate", "07-audit"):
        for place, case in enumerate(run.cases):
            right = FINDINGS.index(case.present()[0])
            other = run.cases[(place + 1) % len(run.cases)]
            for condition in ("own", "other-patient", "blank") if stage == "07-audit" else ("own",):
                crop = Crop(volume=case.volumes[0])
                said = right if place != 1 else (right + 1) % 4
                if condition == "other-patient":
                    crop = Crop(volume=other.volumes[0])
                    said = (right + 2) % 4 if place != 2 else right
                if condition == "blank":
                    crop = dataclasses.replace(crop, blank=True)
                    said = 0
                letter = "ABCD"[said]
                run.line(f"answers/{stage}.jsonl", {
                    "prompt_id": f"{case.id}:question-0", "case_id": case.id, "patient": case.patient,
                    "task": "choice", "condition": condition, "text": _think(FINDINGS, said, letter),
                    "malformed": None, "choice": letter, "lenient_choice": letter, "rescue_choice": letter,
                    "log_likelihood_choice": letter, "answer": "ABCD"[right], "correct": said == right,
                    "prompt": _prompt(FINDINGS), "images": [crop.uri()],
                })  # fmt: skip
