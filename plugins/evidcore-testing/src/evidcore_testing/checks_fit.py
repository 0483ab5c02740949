"""The check of components that a `fit` stage can train."""

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
from evidcore_testing.clauses import Clauses


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
    fitted, weights = [], []
    for number, seed in enumerate((1, 1, 2)):
        place = folder / str(number)
        place.mkdir(parents=True)
        torch.manual_seed(0)  # the core seeds every stage, so the first weights are the same
        component = build()
        check = Clauses(component)
        torch.manual_seed(number)  # what was drawn since must not matter
        state = torch.random.get_rng_state()
        with check.raises_nothing("cases are fitted", f"{len(train)} cases"):
            own = arguments(component.fit, options or {}, "fit")
            component.fit(train, validation, place, seed, logged.append, **own)
        same = torch.equal(state, torch.random.get_rng_state())
        check(same, "the random state is left as it was", "torch's has moved")
        try:
            figures = json.loads((place / "fit.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            check.fail("`fit.json` holds a table", f"{type(error).__name__}: {error}")
        check(isinstance(figures, dict), "`fit.json` holds a table", f"got {figures!r}")
        written = {str(path.relative_to(place)): path for path in place.rglob("*") if path.is_file()}
        del written["fit.json"]  # which may tell seconds
        check(written, "weights are written", "got ['fit.json']")
        fitted.append(component)
        weights.append({name: path.read_bytes() for name, path in written.items()})
    check(logged, "the log hears of steps", "it heard nothing")
    for numbers in logged:
        finite = all(map(math.isfinite, numbers.values()))
        check(finite, "logged numbers are finite", f"got {dict(numbers)}")
    first, again, other = weights
    moved = [name for name in first if first[name] != again.get(name)]
    check(not moved, "equal seeds write equal weights", f"different: {moved}")
    check(first != other, "another seed writes other weights", "seeds 1 and 2 wrote the same")

    fresh, clause = build(), "`load` gives what `fit` made"
    with check.raises_nothing(clause, str(folder / "0")):
        fresh.load(folder / "0")
    if isinstance(fresh, nn.Module) and isinstance(fitted[0], nn.Module):
        made, read = fitted[0].state_dict(), fresh.state_dict()
        apart = [name for name in made if name not in read or not torch.equal(made[name], read[name])]
        check(not apart, clause, f"different: {apart[:5]}")
