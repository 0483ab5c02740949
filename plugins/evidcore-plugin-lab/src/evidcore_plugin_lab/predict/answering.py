"""One answer and all that is known about it: as written, as read, beside the answer to a volume of air.

Likelihoods of options with and without the scan tell how sure the model is, and whether the scan matters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from evidcore.case import Answer, Finding, Prompt
from evidcore.contracts import Labeler, Policy, Task
from evidcore.evaluate.choice import option_log_likelihoods
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore.runs.assembly import Assembly
from evidcore.text.tags import LETTERS


def answered(
    policy: Policy, prompt: Prompt, assembly: Assembly, max_new_tokens: int
) -> tuple[dict[str, Any], Answer]:
    """Answer greedily; return the record of the answer, and the answer as its task reads it.

    Args:
        policy: the model.
        prompt: what is asked; of one of the recipe's tasks.
        assembly: of the run; its labelers read a report.
        max_new_tokens: most tokens of an answer.
    """
    task = assembly.tasks[prompt.task]
    crops = [dataclasses.replace(crop, blank=True) for crop in prompt.crops()]
    blank = dataclasses.replace(prompt.showing(crops), id=f"{prompt.id}:blank")
    texts = policy.generate([prompt, blank], max_new_tokens=max_new_tokens)
    with blame(offer_of(task), f"reading an answer to prompt {prompt.id!r}"):
        answer, aside = (task.parse(one, text) for one, text in zip((prompt, blank), texts, strict=True))
    options = prompt.reference.get("options")
    rows = _option_rows(policy, prompt, blank, task) if options else None
    known = assembly.phrases
    return {
        "task": prompt.task,
        "prompt": prompt.written(),
        **_as_read(answer, assembly),
        "options": rows,
        "options_not_trained": [one for one in options or () if known and one not in known],
        "blank": {
            **_as_read(aside, assembly),
            "same_completion": aside.text == answer.text,
            "same_likeliest_option": _likeliest(rows) == _likeliest(rows, blank=True) if rows else None,
        },
        "evidence": None,
    }, answer  # fmt: skip


def _as_read(answer: Answer, assembly: Assembly) -> dict[str, Any]:
    """Return an answer as JSON holds it; None where the task has no such part, or did not find it."""
    return {
        "completion": answer.text,
        "malformed": answer.malformed,
        "think": answer.think,
        "choice": answer.choice,
        "lenient_choice": answer.lenient_choice,
        "report": answer.report,
        "findings": None if answer.report is None else _findings(answer.report, assembly),
    }


def _findings(report: str, assembly: Assembly) -> dict[str, list[dict[str, Any]]] | None:
    """Return what each labeler of the recipe reads in a report, by service; None where it has none."""
    labelers = {name: one for name, one in assembly.services.items() if isinstance(one, Labeler)}
    found = {}
    for name, labeler in labelers.items():
        with blame(offer_of(labeler), "reading the report"):
            found[name] = [_as_json(finding) for finding in labeler(report)]
    return found or None


def _as_json(finding: Finding) -> dict[str, Any]:
    names = ("name", "state", "side", "size_mm")
    return {name: getattr(finding, name) for name in names}


def _option_rows(policy: Policy, prompt: Prompt, blank: Prompt, task: Task) -> list[dict[str, Any]]:
    """Return how likely each option is, on the scan and on a blank volume: log-likelihood in nats, and share.

    The shares sum to 1 over the options. They compare the options and are no probabilities of disease. Where
    the task asks for reasoning, they are of whole answers (`verdict_log_likelihood`), else of the letter.
    """
    pair = [prompt, blank]
    with blame(offer_of(task), f"writing the answers to prompt {prompt.id!r}"):
        letters, wholes = option_log_likelihoods(policy, pair, task)
    told = letters if wholes is None else wholes
    powers = [np.exp(np.asarray(row, dtype=np.float64) - max(row)) for row in told]
    shares = [(row / row.sum()).tolist() for row in powers]
    rows: list[dict[str, Any]] = []
    for index, option in enumerate(prompt.reference["options"]):
        scan, air = (
            {
                "log_likelihood": letters[side][index],
                "verdict_log_likelihood": None if wholes is None else wholes[side][index],
                "share": shares[side][index],
            }
            for side in (0, 1)
        )
        rows.append({"letter": LETTERS[index], "option": option, **scan, "blank": air})
    return rows


def _likeliest(rows: Sequence[dict[str, Any]], *, blank: bool = False) -> str:
    """Return the letter with the largest share."""
    return str(max(rows, key=lambda row: (row["blank"] if blank else row)["share"])["letter"])
