"""Rules for a report and its slice that read words alone: what training reports said, and where it was seen.

A rule affirms findings as the best blind rule of reports does, chosen here by `grounded_accuracy`, and cites
the slice at their usual height: the median of the gold slices, as a share of those that are shown.

`usual_slices` is the harder rival of a slice: it is told the right report, and cites where training scans
with those findings most often show one.
"""

import functools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from evidcore_plugin_reports.blind import best_findings

from evidcore.api import Prompt
from evidcore.case import Evidence
from evidcore_plugin_emrl.evidence_figures import Seen, seen

_HEIGHTS = tuple((index + 0.5) / 64 for index in range(64))  # from the first slice shown to the last


def best_answers(
    prompts: Sequence[Prompt], training: Sequence[Prompt], cache_folder: Path
) -> tuple[str, list[tuple[frozenset[str], Evidence | None]]]:
    """Return the rule that is best about training patients it has not learnt from, and what it says.

    It says findings, with the slices that it cites. The cases of `prompts` are not looked at.

    Raises:
        ValueError: if there are no training questions about a case with known findings.
    """
    known = [(seen(prompt, cache_folder), _shown(prompt)) for prompt in training]
    gold: dict[str, list[float]] = {}
    for item, shown in known:
        for name, z in item.gold.items():
            gold.setdefault(name, []).append((shown.index(z) + 0.5) / len(shown))
    heights = {name: statistics.median(some) for name, some in gold.items()}
    cites_each = any(item.cites_each for item, _ in known)

    def cited(affirmed: Collection[str], shown: Sequence[int]) -> Evidence | None:
        usual = {name: heights[name] for name in sorted(affirmed) if name in heights}
        if cites_each or not usual:
            return Evidence(slices={name: _at(at, shown) for name, at in usual.items()}) if usual else None
        return Evidence(slice=_at(statistics.median(usual.values()), shown))

    def worth(item: Seen, shown: Sequence[int], affirmed: frozenset[str]) -> float:
        return item.grounded_accuracy({*affirmed}, cited(affirmed, shown))

    best = best_findings(prompts, training, [functools.partial(worth, *pair) for pair in known])
    if best is None:
        raise ValueError("blind rules learn from training questions about known findings, and there are none")
    rule, sets = best
    said = [(item, cited(item, _shown(prompt))) for item, prompt in zip(sets, prompts, strict=True)]
    return f"{rule}, with their usual slice", said


def usual_slices(
    prompts: Sequence[Prompt], training: Sequence[Prompt], cache_folder: Path
) -> list[Evidence | None]:
    """Return the slices that training scans most often show the findings of each case on.

    The volume of a prompt is not looked at, but which findings it has is told. Where one slice is cited for a
    report, it is the one on which any of them is likeliest seen, taken as independent of each other, and the
    first of slices alike. None for a healthy scan, and where training has none of its findings.
    """
    hits: dict[str, list[list[bool]]] = {}  # by finding and training scan, by height
    for item in training:
        known, shown = seen(item, cache_folder), _shown(item)
        for name, areas in known.areas.items():
            hits.setdefault(name, []).append([areas.get(_at(at, shown), 0) > 0 for at in _HEIGHTS])
    rates = {name: [*map(statistics.fmean, zip(*some, strict=True))] for name, some in hits.items()}
    return [_likeliest(seen(prompt, cache_folder), _shown(prompt), rates) for prompt in prompts]


def _likeliest(known: Seen, shown: Sequence[int], rates: Mapping[str, Sequence[float]]) -> Evidence | None:
    """Return the heights at which findings are likeliest seen, as slices of a scan."""

    def best(names: Sequence[str]) -> int:
        missed = [math.prod(1 - rates[name][index] for name in names) for index in range(len(_HEIGHTS))]
        return _at(_HEIGHTS[missed.index(min(missed))], shown)

    names = [name for name in known.present if name in rates]
    if not names:
        return None
    if known.cites_each:
        return Evidence(slices={name: best([name]) for name in names})
    return Evidence(slice=best(names))


def _at(height: float, shown: Sequence[int]) -> int:
    return shown[min(len(shown) - 1, int(height * len(shown)))]


def _shown(prompt: Prompt) -> tuple[int, ...]:
    return tuple(prompt.reference["shown"])
