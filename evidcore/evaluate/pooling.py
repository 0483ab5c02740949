"""One figure over many texts from what each text adds to it.

A number is averaged. `Totals` are added up, and a pool makes the figure of them: three pools that need no
knowledge of any metric are here, and every other one comes with the metric that it is named after.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evidcore.contracts import Metric, Totals
from evidcore.errors import PluginError
from evidcore.registry import find

Figure = float | Totals
Array = np.ndarray[Any, np.dtype[np.float64]]
Pool = Callable[[Array], Array]  # (row, number) -> (row,), not a number where it is 0 over 0


class Kind(NamedTuple):
    """What figures of one name share."""

    pooling: str
    width: int  # numbers of each


def to_json(figure: Figure) -> Any:
    """Return a figure of one text as a line of answers holds it: a number, or {"ratio": [2, 5]}."""
    return {figure.pooling: list(figure.numbers)} if isinstance(figure, Totals) else figure


def from_json(value: Any) -> Figure:
    """Read back what `to_json` wrote."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((pooling, numbers),) = value.items()
        if isinstance(pooling, str) and isinstance(numbers, Sequence) and all(map(_is_number, numbers)):
            return Totals(pooling, tuple(float(number) for number in numbers))
    if _is_number(value):
        return float(value)
    raise ValueError(f"no figure of a text: {value!r}")


def pooled(figures: Sequence[Figure]) -> float | None:
    """Return the figure over all texts; None where it is 0 over 0."""
    kind = kind_of(figures)
    if kind is None:
        return float(np.mean(np.asarray(figures, dtype=np.float64)))
    value = float(pool_of(kind.pooling)(columns_of(figures).sum(axis=0)[None])[0])
    return None if np.isnan(value) else value


def pool_of(pooling: str) -> Pool:
    """Return what makes figures of sums."""
    if pooling in _POOLS:
        return _POOLS[pooling]
    offer = find("metric", pooling)
    metric = offer.load()
    if isinstance(metric, type) and issubclass(metric, Metric) and metric.pool is not Metric.pool:
        return metric.pool
    raise PluginError(f"{offer}: pools no sums, and figures name it as their pooling. It lacks `pool`.")


def kind_of(figures: Sequence[Figure]) -> Kind | None:
    """Return the kind of `Totals` that all figures are; None for numbers."""
    kinds = {Kind(item.pooling, len(item.numbers)) if isinstance(item, Totals) else None for item in figures}
    if len(kinds) != 1:
        raise ValueError(f"figures of one name must be of one kind, got {sorted(map(str, kinds))}")
    (kind,) = kinds
    return kind


def columns_of(figures: Sequence[Figure]) -> Array:
    """Return the numbers of `Totals`: (figure, number)."""
    return np.array([item.numbers for item in figures if isinstance(item, Totals)], dtype=np.float64)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _divided(above: Array, below: Array, otherwise: float) -> Array:
    """Return quotients, and `otherwise` where what is divided by is not above 0."""
    result: Array = np.divide(above, below, out=np.full(above.shape, otherwise), where=below > 0)
    return result


def _ratio(sums: Array) -> Array:
    return _divided(sums[:, 0], sums[:, 1], np.nan)


def _mean_ratio(sums: Array) -> Array:
    ratios = _divided(sums[:, 0::2], sums[:, 1::2], 0.0)
    return _divided(ratios.sum(axis=1), (sums[:, 1::2] > 0).sum(axis=1), np.nan)


def _difference(sums: Array) -> Array:
    return _ratio(sums[:, :2]) - _ratio(sums[:, 2:])


_POOLS: Mapping[str, Pool] = {"ratio": _ratio, "mean_ratio": _mean_ratio, "difference": _difference}
