"""A run folder as a real run leaves it, in small: every file by hand, volumes and masks on disk."""

import dataclasses
import itertools
import json
import math
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
from evidcore_plugin_pages.document import write_page
from evidcore_plugin_reports.findings import CT_RATE_FINDINGS
from evidcore_testing.fixtures import evid as evid
from evidcore_testing.recipes import phantoms, recipe_text

from evidcore.builtin.choice import Choice
from evidcore.builtin.views import Volume
from evidcore.cache import cache_folder
from evidcore.case import Case, Crop, Prompt, Split, TextPart
from evidcore.evaluate.choice import as_if
from evidcore.registry.factory import build

REPORTS, CHOICES = ([{"dataset": "chest", "task": task}] for task in ("report", "choice"))
TEST = [{**CHOICES[0], "split": "test"}]
RESOLVED = recipe_text(
    {"kind": "fit", "component": "model.encoder", "data": [{"dataset": "chest"}]},
    {"kind": "fit", "component": "model.language", "data": [{"dataset": "chest"}]},
    {"kind": "sft", "data": REPORTS}, {"kind": "evaluate", "data": TEST}, {"kind": "grpo", "data": CHOICES},
    {"kind": "evaluate", "data": TEST}, {"kind": "audit", "data": TEST}, name="med3d_r1",
    dataset={"chest": phantoms(3, 0, 6, questions_per_finding=1)},
)  # fmt: skip
LOCK = """
recipe.hash = "9f31c2aa70d14be2"
package.evidcore = { version = "0.1.0", code = "5b1e0c" }
package.evidcore-plugin-med3d-r1.version = "0.1.0"
dataset.chest.fingerprint = "9f31c2aa70d14be2"
versions.torch = "2.15.0"
hardware = { cores = 2, memory_gb = 8.2 }
"""
HEADLINES = ("strict_accuracy", "log_likelihood_accuracy", "format_rate", "accuracy_given_valid_format")
LINES = {"uniform_chance": 0.25, "prior_only": 0.2875, "perfect_perception": 1.0}


@dataclasses.dataclass(frozen=True)
class FakeRun:
    folder: Path
    cases: dict[Split, list[Case]]

    def line(self, name: str, **entry: Any) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def result(self, stage: str, kind: str, rows: list[dict[str, Any]], **more: Any) -> None:
        path = self.folder / "results" / f"{stage}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"stage": stage, "kind": kind, "rows": rows, **more}))

    def status(self, state: str, stage: str) -> None:
        (self.folder / "STATUS").write_text(json.dumps({"state": state, "stage": stage, "step": 0}))


def row(name: str, metric: str, value: float, half: float, **more: Any) -> dict[str, Any]:
    marked = {"headline": True} if metric in HEADLINES else {}
    spread = {"low": round(value - half, 4), "high": round(value + half, 4)}
    counts = {"questions": 812, "patients": 203}
    return {"name": name, "metric": metric, "value": value, **marked, **spread, **counts, **more}


def started(root: Path) -> FakeRun:
    run = FakeRun(root / "runs" / "med3d_r1" / "20261120-221504-3fa9c1", {})
    run.folder.mkdir(parents=True)
    for name in ("recipe.toml", "resolved.toml"):
        (run.folder / name).write_text(RESOLVED)
    run.status("running", "01-fit-encoder")
    return run


def finished(root: Path, cases: dict[Split, list[Case]]) -> FakeRun:
    run = dataclasses.replace(started(root), cases=cases)
    (run.folder / "lock.toml").write_text(LOCK)
    run.status("finished", "07-audit")
    _metrics(run)
    _results(run)
    _rollouts(run)
    _answers(run)
    return run


@pytest.fixture
def bare_run(tmp_path: Path) -> FakeRun:
    """A run that has only just started."""
    return started(tmp_path)


@pytest.fixture(scope="session")
def phantoms() -> dict[Split, list[Case]]:
    """The cases of the fake run's data set."""
    table = tomllib.loads(RESOLVED)["dataset"]["chest"]
    dataset = build("dataset", table, given={"cache_folder": cache_folder()}, where="dataset.chest")
    return {split: list(dataset.cases(split)) for split in ("train", "test")}


@pytest.fixture
def fake_run(tmp_path: Path, phantoms: dict[Split, list[Case]]) -> FakeRun:
    """A finished run of the walking recipe."""
    return finished(tmp_path, phantoms)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, phantoms: dict[Split, list[Case]]) -> FakeRun:
    """The same, once for all tests that only read it."""
    return finished(tmp_path_factory.mktemp("finished"), phantoms)


@pytest.fixture(scope="session")
def page(finished_run: FakeRun) -> str:
    """The page of the finished run."""
    return write_page(finished_run.folder).read_text(encoding="utf-8")


LAST_STEP = {  # of GRPO; its figures rise to these
    "loss": 0.01, "reward": 1.2, "reward/format": 0.97, "reward/report-consistency": 0.55, "kl": 0.12,
    "dead_groups": 0.6, "dead_groups/format": 0.9, "unscored/report-consistency": 2.0, "entropy": 0.7,
    "completion_tokens": 21.0, "learning_rate": 1e-4, "generate_s": 0.61, "reward_s/format": 0.002,
    "reward_s/report-consistency": 0.06, "step_s": 1.05,
}  # fmt: skip


def _metrics(run: FakeRun) -> None:
    for step in range(1, 121):
        run.line("metrics.jsonl", stage="03-sft", step=step, time_s=step * 0.4, loss=2 * math.exp(-step / 30))
    for step in range(1, 161):
        figures = {name: value * (1 - math.exp(-step / 60)) for name, value in LAST_STEP.items()}
        run.line("metrics.jsonl", stage="05-grpo", step=step, time_s=step * 1.1, **figures)


def choice_rows(name: str, strict: float, likely: float, formed: float) -> list[dict[str, Any]]:
    return [
        row(name, "strict_accuracy", strict, 0.034),
        row(name, "lenient_accuracy", strict + 0.02, 0.033),
        row(name, "log_likelihood_accuracy", likely, 0.033),
        row(name, "format_rate", formed, 0.004),
        row(name, "accuracy_given_valid_format", round(strict / formed, 4), 0.034),
        *(row(name, f"strict_accuracy/{item}", strict, 0.08, questions=45) for item in CT_RATE_FINDINGS),
        *(row(name, metric, value, 0.01, note="a rule") for metric, value in LINES.items()),
    ]


def _results(run: FakeRun) -> None:
    figures = {"steps": 1900, "auc_min": 0.9612, "auc": {"emphysema": 0.9991, "lung nodule": 0.9612}}
    run.result("01-fit-encoder", "fit", [], figures=figures)
    both = {"choice": LINES, "choice-direct": LINES}
    for stage, (strict, formed, likely, f1) in {
        "04-evaluate": (0.163, 0.524, 0.288, 0.541),
        "06-evaluate": (0.7623, 0.9951, 0.731, 0.528),
    }.items():
        rows = [
            *choice_rows("choice", strict, likely, formed),
            *choice_rows("choice-direct", round(strict - 0.02, 4), likely, formed),
            row("report", "format_rate", 1.0, 0.0, questions=203),
            row("report", "findings_f1_micro", f1, 0.021, questions=203),
        ]
        run.result(stage, "evaluate", rows, reference_lines=both)
    rows = [
        row("own volumes", "strict_accuracy", 0.7623, 0.034, condition="own"),
        row("own volumes", "format_rate", 0.9951, 0.003, condition="own", headline=False),
        row("another patient's volumes", "strict_accuracy", 0.2451, 0.031, condition="other-patient"),
        row("blank volumes", "strict_accuracy", 0.2611, 0.03, condition="blank"),
        row("choice", "grounding_margin", 0.5172, 0.045, note="own minus another patient's"),
        row("choice", "other_patient_minus_prior_only", -0.0424, 0.036, note="minus the best blind rule"),
    ]
    verdict = {"choice": "The volume is used: margin +51.7 points, 95 % interval +47.2 to +56.2."}
    run.result("07-audit", "audit", rows, reference_lines={"choice": LINES}, verdict=verdict)
    lift = row("choice", "strict_accuracy_change", 0.5993, 0.041, note="06-evaluate minus 04-evaluate")
    run.result("changes", "changes", [lift])


def asked(case: Case) -> Prompt:
    """One question on a case as the task asks it."""
    return Choice().prompts(case, Volume(), seed=0 if case.questions else 1)[0]


def completion(prompt: Prompt, place: int) -> str:
    return Choice().gold(as_if(prompt, place))[0]


def verdict(value: float | None, reason: str, unscored: str | None = None, **parts: float) -> dict[str, Any]:
    return {"value": value, "parts": parts, "reason": reason, "unscored": unscored}


def _rollouts(run: FakeRun) -> None:
    rng = random.Random(5)
    cases = [case for case in run.cases["train"] if case.present()]
    for step, case in ((step, case) for step in (1, 60, 120, 160) for case in cases):
        prompt = asked(case)
        letter, options = prompt.reference["letter"], prompt.reference["options"]
        right, rollouts = "ABCD".index(letter), list[dict[str, Any]]()
        for number in range(8):
            place = right if rng.random() < 0.25 + 0.6 * step / 160 else rng.randrange(4)
            text, fault = completion(prompt, place), None
            if rng.random() < 0.5 * (1 - step / 160):
                text, fault = text.removesuffix("</answer>"), "no </answer>"
            hit, agreement = float(fault is None and place == right), round(rng.random(), 3)
            consistency = verdict(agreement, f"said {options[place]}", precision=0.5, recall=agreement)
            if number == 3:
                consistency = verdict(None, "the report names no finding", "not-applicable")
            rewards = {
                "format": verdict(float(fault is None), fault or ""),
                "choice-accuracy": verdict(hit, f"answered {'ABCD'[place]}, right is {letter}"),
                "report-consistency": consistency,
            }
            total = round(0.3 * (fault is None) + hit + 0.5 * agreement * hit, 4)
            drawn = {"text": text, "total": total, "malformed": fault, "rewards": rewards}
            rollouts.append({**drawn, "advantage": total - 0.5, "turns": [], "parent": None, "length": 40})
        words = "".join(part.text if isinstance(part, TextPart) else "<|image_pad|>" for part in prompt.parts)
        about = {"step": step, "prompt_id": prompt.id, "case_id": case.id, "task": "choice"}
        shown = {"prompt": words, "images": [crop.uri() for crop in prompt.crops()]}
        about |= {"stage": "05-grpo", "reference": dict(prompt.reference), "rollouts": rollouts}
        run.line("rollouts/05-grpo.jsonl", **about, **shown)


def _answers(run: FakeRun) -> None:
    cases = [case for case in run.cases["test"] if case.present()]
    stages = ("04-evaluate", "06-evaluate", "07-audit")
    for stage, (number, case) in itertools.product(stages, enumerate(cases)):
        prompt = asked(case)
        right = "ABCD".index(prompt.reference["letter"])
        other = Crop(volume=cases[(number + 1) % len(cases)].volumes[0])
        own = Crop(volume=case.volumes[0])
        answers = {
            "own": (own, right if number != 1 else (right + 1) % 4),
            "other-patient": (other, right if number == 2 else (right + 2) % 4),
            "blank": (dataclasses.replace(own, blank=True), 0),
        }
        for condition in answers if stage == "07-audit" else ("own",):
            crop, place = answers[condition]
            letter = "ABCD"[place]
            readings = dict.fromkeys(("choice", "lenient_choice", "rescue_choice"), letter)
            readings["log_likelihood_choice"] = letter if condition == "own" else None
            about = {"prompt_id": prompt.id, "case_id": case.id, "patient": case.patient, "task": "choice"}
            answer = {"text": completion(prompt, place), "malformed": None, "answer": "ABCD"[right]}
            answer |= {"finding": prompt.reference["finding"], "correct": place == right}
            answer |= {"condition": condition, "images": [crop.uri()]}
            run.line(f"answers/{stage}.jsonl", **about, **answer, **readings)
    for case in cases:
        absent = [item.name for item in case.findings if item.state == "absent"]
        about = {"prompt_id": f"{case.id}:report", "case_id": case.id, "patient": case.patient}
        said = [*case.present()[1:], "emphysema"]
        findings = {"affirmed": said, "present": case.present(), "absent": absent, "task": "report"}
        text, images = case.report.text if case.report else "", [Crop(volume=case.volumes[0]).uri()]
        shown = {"condition": "own", "text": text, "malformed": None, "images": images}
        run.line("answers/06-evaluate.jsonl", **about, **shown, **findings)
