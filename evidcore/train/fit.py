"""Stage `fit`: train one component on its own, where it offers that."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evidcore.case import Case
from evidcore.contracts import Fittable
from evidcore.errors import RecipeError
from evidcore.train.settings import Announce


def fit(
    component: object,
    train: Sequence[Case],
    validation: Sequence[Case],
    folder: Path,
    *,
    seed: int,
    announce: Announce,
    options: Mapping[str, Any] | None = None,
    where: str = "component",
) -> dict[str, Any]:
    """Train `component` and write its weights and figures to `folder`.

    Args:
        component: what is trained, in place.
        train: cases to train on.
        validation: cases to choose on.
        folder: where the weights and `fit.json` go.
        seed: of everything random in the stage.
        announce: told the figures of each step that the component logs.
        options: keyword arguments of the component's `fit`.
        where: what messages call the component.

    Returns:
        What the component wrote to `fit.json`.

    Raises:
        RecipeError: if the component cannot be fitted.
    """
    if not isinstance(component, Fittable):
        name = type(component).__name__
        raise RecipeError(
            f"{where}: {name} offers no `fit` and `load`, so no stage can train it; take this stage out, or "
            "name a component that offers them."
        )
    folder.mkdir(parents=True, exist_ok=True)
    steps = 0

    def log(figures: Mapping[str, float]) -> None:
        nonlocal steps
        steps += 1
        announce.step_finished(int(figures.get("step", steps)), figures)

    component.fit(train, validation, folder, seed, log, **(options or {}))
    figures: dict[str, Any] = json.loads((folder / "fit.json").read_text(encoding="utf-8"))
    return figures
