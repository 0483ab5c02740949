"""The check of components that a `fit` stage can train."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evidcore.api import Case
from evidcore.contracts.model import Fittable
from evidcore.registry.factory import arguments
from evidcore_testing.clauses import broken, raises_nothing, require


def check_fit(
    build: Callable[[], Fittable],
    train: Sequence[Case],
    validation: Sequence[Case],
    folder: Path,
    *,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Assert the contract of a component that can be fitted.

    - `fit` writes weights and a `fit.json` that holds a table, and logs finite numbers;
    - from equal starts equal seeds write equal weights, whatever was drawn since; another seed writes others;
    - the random state of the process is left as it was;
    - `load` gives a new component what `fit` made, and fitting leaves that in the one that was fitted.

    Args:
        build: gives a new component each time, as a recipe would build it.
        train: cases to train on.
        validation: cases to choose on.
        folder: an empty one.
        options: of `fit`, as a recipe gives them.
    """
    logged: list[Mapping[str, float]] = []
    fitted = []
    for number, seed in enumerate((1, 1, 2)):
        place = folder / str(number)
        place.mkdir(parents=True)
        torch.manual_seed(0)  # the core seeds every stage, so the first weights are the same
        component = build()
        fitted.append(component)
        torch.manual_seed(number)  # what was drawn since must not matter
        state = torch.random.get_rng_state()
        with raises_nothing(component, "cases are fitted", f"{len(train)} cases"):
            own = arguments(component.fit, options or {}, "fit")
            component.fit(train, validation, place, seed, logged.append, **own)
        same = torch.equal(state, torch.random.get_rng_state())
        require(same, component, "the random state is left as it was", "torch's has moved")
        clause = "`fit.json` holds a table"
        try:
            figures = json.loads((place / "fit.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            broken(component, clause, f"{type(error).__name__}: {error}")
        require(isinstance(figures, dict), component, clause, f"got {figures!r}")
    component = fitted[0]
    require(bool(logged), component, "the log hears of steps", "it heard nothing")
    for numbers in logged:
        finite = all(map(math.isfinite, numbers.values()))
        require(finite, component, "logged numbers are finite", f"got {dict(numbers)}")
    weights = [_weights(folder / str(number)) for number in range(3)]
    require(bool(weights[0]), component, "weights are written", f"got {sorted(_names(folder / '0'))}")
    moved = [name for name in weights[0] if weights[0][name] != weights[1].get(name)]
    require(not moved, component, "equal seeds write equal weights", f"different: {moved}")
    other = weights[0] != weights[2]
    require(other, component, "another seed writes other weights", "seeds 1 and 2 wrote the same")

    fresh = build()
    clause = "`load` gives what `fit` made"
    with raises_nothing(fresh, clause, str(folder / "0")):
        fresh.load(folder / "0")
    if isinstance(fresh, nn.Module) and isinstance(component, nn.Module):
        made, read = component.state_dict(), fresh.state_dict()
        apart = [name for name in made if name not in read or not torch.equal(made[name], read[name])]
        require(not apart, component, clause, f"different: {apart[:5]}")


def _names(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


def _weights(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file but `fit.json`, which may tell seconds."""
    return {name: (folder / name).read_bytes() for name in _names(folder) if name != "fit.json"}
