"""How sure the model is, and whether the scan has a part in it: option likelihoods with and without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from evidcore.case import Prompt
from evidcore.contracts import Policy, Task
from evidcore.evaluate.choice import option_log_likelihoods
from evidcore.registry import blame
from evidcore.registry.factory import offer_of
from evidcore.text.tags import LETTERS


def on_blank(prompt: Prompt) -> Prompt:
    """Return the same question over a volume of air."""
    crops = [dataclasses.replace(crop, blank=True) for crop in prompt.crops()]
    return dataclasses.replace(prompt.showing(crops), id=f"{prompt.id}:blank")


def option_rows(policy: Policy, prompt: Prompt, task: Task) -> list[dict[str, Any]]:
    """Return how likely each option is, on the scan and on a blank volume: log-likelihood in nats, and share.

    The shares sum to 1 over the options. They compare the options and are no probabilities of disease. Where
    the task asks for reasoning, they are of whole answers (`verdict_log_likelihood`), else of the letter.
    """
    pair = [prompt, on_blank(prompt)]
    with blame(offer_of(task), f"writing the answers to prompt {prompt.id!r}"):
        letters, wholes = option_log_likelihoods(policy, pair, task)
    told = letters if wholes is None else wholes
    shares = [_shares(row) for row in told]
    rows: list[dict[str, Any]] = []
    for index, option in enumerate(prompt.reference["options"]):
        scan, blank = (
            {
                "log_likelihood": letters[side][index],
                "verdict_log_likelihood": None if wholes is None else wholes[side][index],
                "share": shares[side][index],
            }
            for side in (0, 1)
        )
        rows.append({"letter": LETTERS[index], "option": option, **scan, "blank": blank})
    return rows


def likeliest(rows: Sequence[dict[str, Any]], *, blank: bool = False) -> str:
    """Return the letter with the largest share."""
    return str(max(rows, key=lambda row: (row["blank"] if blank else row)["share"])["letter"])


def _shares(log_likelihoods: Sequence[float]) -> list[float]:
    """Return the softmax."""
    values = np.asarray(log_likelihoods, dtype=np.float64)
    powers = np.exp(values - values.max())
    return [float(share) for share in powers / powers.sum()]
