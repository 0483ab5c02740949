"""Prompts that rewards are linted on where no recipe is given: findings without scans."""

from __future__ import annotations

import random
from collections.abc import Sequence

from evidcore.case import Case, Finding, Report, VolumeRef
from evidcore.contracts import Task
from evidcore.prompts.rows import PromptSet, PromptSource, Row
from evidcore.registry import find

FINDINGS = ("emphysema", "lung nodule", "pleural effusion", "cardiomegaly", "atelectasis", "consolidation")
CASES = 8
TASKS = ("choice", "report")
NOWHERE = "/nowhere/scan-{}.nii.gz"  # no such file: a reward that reads scans needs a recipe


def made_case(number: int) -> Case:
    """Return a case of two findings that are present, each on a side, and a report that says so."""
    rng = random.Random(f"lint/{number}")
    present = {name: rng.choice(("left", "right")) for name in rng.sample(FINDINGS, 2)}
    said = [
        f"There is {name} on the {present[name]} side." if name in present else f"There is no {name}."
        for name in FINDINGS
    ]
    findings = [
        Finding(name=name, state="present" if name in present else "absent", side=present.get(name))  # type: ignore[arg-type]
        for name in FINDINGS
    ]
    return Case(
        id=f"case-{number}",
        patient=f"patient-{number}",
        volumes=(VolumeRef(path=NOWHERE.format(number)),),
        report=Report(text=" ".join(said)),
        findings=tuple(findings),
    )


def made_tasks() -> dict[str, Task]:
    """Return the core's tasks, by name."""
    return {name: find("task", name).load()() for name in TASKS}


def made_rows(tasks: dict[str, Task]) -> Sequence[Row]:
    """Return a prompt of each made case for each task."""
    view, cases = find("view", "volume").load()(), [made_case(number) for number in range(CASES)]
    rows = []
    for name, task in tasks.items():
        source = PromptSource([PromptSet(name=name, task=task, view=view, cases=cases)], seed=3)
        rows += [source[position] for position in range(CASES)]
    return rows
