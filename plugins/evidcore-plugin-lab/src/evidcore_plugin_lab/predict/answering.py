"""One answer and all that is known about it: as written, as read, beside the answer to a volume of air."""

from __future__ import annotations

from typing import Any

from evidcore.case import Answer, Finding, Prompt
from evidcore.contracts import Labeler, Policy
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore.runs.assembly import Assembly
from evidcore_plugin_lab.predict.confidence import likeliest, on_blank, option_rows


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
    blank = on_blank(prompt)
    texts = policy.generate([prompt, blank], max_new_tokens=max_new_tokens)
    with blame(offer_of(task), f"reading an answer to prompt {prompt.id!r}"):
        answer, aside = (task.parse(one, text) for one, text in zip((prompt, blank), texts, strict=True))
    options = prompt.reference.get("options")
    rows = option_rows(policy, prompt, task) if options else None
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
            "same_likeliest_option": likeliest(rows) == likeliest(rows, blank=True) if rows else None,
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
