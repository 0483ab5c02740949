"""The tables of an ablation: rows of text, which the templates beside set as a page, a summary and LaTeX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from evidcore.cli.summary import is_fraction
from evidcore_plugin_lab.ablation.contrasts import FEWEST_SEEDS
from evidcore_plugin_lab.ablation.outcome import SIGNIFICANT

Found = Mapping[str, Any]  # what `outcome` returns, with `command`
_LINES = {
    "uniform_chance": "one option at random",
    "prior_only": "best blind rule",
    "perfect_perception": "perfect perception",
}
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip
DETECTABLE = (
    "Detectable is the smallest true difference that these seeds and patients would have shown with 80 % "
    "power, two-sided at 5 % shared among all rows tested in its table: smaller ones would be missed."
)
RESAMPLED = "95 % percentile intervals over resampled seeds and patients, too narrow where seeds differ much"
NO_ANSWERS = "Tables without answers: intervals cannot be recomputed from this folder."


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of texts; `rule` counts the rows above a second rule, 0 where there is none."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    rule: int = 0


def markdown(found: Found) -> str:
    """Return the page of an ablation."""
    return _filled("README.md.jinja", found)


def latex(found: Found) -> str:
    """Return the tables for a paper that loads booktabs."""
    return _filled("table.tex.jinja", found)


def summary(found: Found) -> str:
    """Return each metric's figures by arm and what differs, as plain text to quote."""
    return _filled("summary.txt.jinja", found)


def _filled(template: str, found: Found) -> str:
    """Fill a template in."""

    def value(metric: Found, arm: str) -> str:
        own = _row(found["rows"], metric, arm=arm)
        return "-" if own is None else _figure(own, own["value"])

    def caption(table: Table) -> str:
        phantom = "Phantom numbers. " if found["phantoms"] else ""
        title = f"{found['about'] or found['ablation']}: {table.title.lower()}. {phantom}"
        return f"{title}Means over {len(found['seeds'])} seeds, {_intervals(found)}; {_stars(found)}."

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters |= {
        "title_of": _title, "escaped": escape, "compared": _compared, "claim": _claim,
        "code": lambda items: ", ".join(f"`{item}`" for item in items),
        "pipes": lambda cells: "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |",
    }  # fmt: skip
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    effects = list(dict.fromkeys(row["effect"] for row in found["effects"]))
    return environment.from_string(text).render(
        found=found, tables=list(tables(found)), intervals=_intervals(found), stars=_stars(found),
        no_answers=NO_ANSWERS, detectable=DETECTABLE, made_with=_made_with(found), caption=caption,
        measured=[(one, [row for row in found["rows"] if _row([row], one)]) for one in found["metrics"]],
        width=max(map(len, [*found["arms"], *effects])), effects=effects, value=value, row=_row,
        heading=_heading,
    )  # fmt: skip


def _compared(row: Found | None) -> str:
    """Return a difference with its interval and what could have been seen, nothing for the reference."""
    if row is None or row["value"] is None:
        return ""
    if row["low"] is None:
        return f"  {_signed(row, row['value'])} ({row['note']})"
    star = "*" if _is_tested(row) and row["p_holm"] < SIGNIFICANT else " "
    reach = (
        "" if row.get("detectable") is None else f", below {_figure(row, row['detectable'])} would be missed"
    )
    value, low, high = (_signed(row, row[key]) for key in ("value", "low", "high"))
    return f"  {value}{star} ({low} to {high}){reach}"


def escape(text: str) -> str:
    """Return a text that LaTeX sets as it stands."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def tables(found: Found) -> Iterator[Table]:
    """Yield the headline table, the claims, the differences, the effects of factors, and the seeds."""
    yield _headline(found)
    if found.get("claims"):
        heads = ["claim", "metric", "difference", "95 % interval", "seeds", "p (Holm)", "verdict"]
        rows = [
            [_claim(row), _heading(found, row), *_tested(row)[:-1], row["verdict"]] for row in found["claims"]
        ]
        yield Table("Claims", heads, rows)
    if found["differences"]:
        heads = ["arm", "metric", "difference", "95 % interval", "seeds", "p (Holm)", "detectable"]
        rows = [[row["arm"], _heading(found, row), *_tested(row)] for row in found["differences"]]
        yield Table(f"Differences from {found['reference']}", heads, rows)
    if found["effects"]:
        heads = ["effect", "metric", "difference", "95 % interval", "seeds", "p (Holm)", "detectable"]
        rows = [[row["effect"], _heading(found, row), *_tested(row)] for row in found["effects"]]
        yield Table("Effects of the factors", heads, rows)
    seeds = [str(seed) for seed in found["seeds"]]
    rows = [
        [row["arm"], _heading(found, row), *(_figure(row, row["by_seed"].get(seed)) for seed in seeds)]
        for row in found["rows"]
    ]
    yield Table("Seeds", ["arm", "metric", *seeds], rows)


def _headline(found: Found) -> Table:
    """Return arms by metrics, then the reference lines that accuracies need beside them."""
    metrics = found["metrics"]
    rows = []
    for arm in found["arms"]:
        name = f"{arm} (reference)" if arm == found["reference"] else arm
        own = [_row(found["rows"], metric, arm=arm) for metric in metrics]
        rows.append([name, *(_with_interval(row) for row in own)])
    count = len(rows)
    for line in dict.fromkeys(row["line"] for row in found["reference_lines"]):
        own = [_row(found["reference_lines"], metric, line=line) for metric in metrics]
        figures = ["" if row is None else _figure(row, row["value"]) for row in own]
        rows.append([_LINES.get(line, line.replace("_", " ")), *figures])
    return Table("Arms", ["arm", *(_title(metric) for metric in metrics)], rows, rule=count)


def _tested(row: Found) -> list[str]:
    """Return difference, interval, seeds, adjusted p and detectable difference of a comparison."""
    values = [value for value in row["by_seed"].values() if value is not None]
    seeds = f"{_signed(row, min(values))} to {_signed(row, max(values))}" if values else ""
    interval = "" if row["low"] is None else f"{_signed(row, row['low'])} to {_signed(row, row['high'])}"
    told = _p(row)
    reach = "" if row.get("detectable") is None else _figure(row, row["detectable"])
    return [_signed(row, row["value"]), interval or row["note"], seeds, told, reach]


def _claim(row: Found) -> str:
    """Return what was claimed before the runs."""
    more = f" by more than {_figure(row, row['by'])}" if row["by"] else ""
    return f"{row['arm']} beats {row['beats']}{more}"


def _is_tested(row: Found) -> bool:
    return row.get("p_holm") is not None and len(row["by_seed"]) >= FEWEST_SEEDS


def _p(row: Found) -> str:
    """Return the p value after Holm; too few seeds are not tested, whatever a file holds."""
    if _is_tested(row):
        p: float = row["p_holm"]
        return f"{'*' if p < SIGNIFICANT else ''}{'< 0.001' if p < 0.001 else f'{p:.3f}'}"
    seeds = len(row["by_seed"])
    few = row["low"] is not None and seeds < FEWEST_SEEDS
    return f"{seeds} seed{'s' if seeds != 1 else ''}: no test" if few else ""


def _intervals(found: Found) -> str:
    return str(found.get("intervals", RESAMPLED))


def _stars(found: Found) -> str:
    if len(found["seeds"]) < FEWEST_SEEDS:
        seeds = len(found["seeds"])
        return f"{seeds} seed{'s' if seeds != 1 else ''}: no test, so no star (at least {FEWEST_SEEDS})"
    return "* where p after Holm is below 0.05"


def _row(rows: Sequence[Found], metric: Found, **own: str) -> Found | None:
    wanted = {"stage": metric["stage"], "name": metric["name"], "metric": metric["metric"], **own}
    return next((row for row in rows if wanted.items() <= row.items()), None)


def _title(metric: Found) -> str:
    """Return a metric's heading with its unit."""
    heading = metric["label"] or f"{metric['name']}, {metric['metric'].replace('_', ' ')}"
    return heading if is_fraction(metric["metric"], metric["unit"]) else f"{heading}, %"


def _heading(found: Found, row: Found) -> str:
    keys = ("stage", "name", "metric")
    return next(_title(one) for one in found["metrics"] if all(one[key] == row[key] for key in keys))


def _with_interval(row: Found | None) -> str:
    if row is None or row["value"] is None:
        return "-"
    spread = "" if row["low"] is None else f" [{_figure(row, row['low'])}, {_figure(row, row['high'])}]"
    return f"{_figure(row, row['value'])}{spread}"


def _figure(row: Found, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if is_fraction(row["metric"], row["unit"]) else f"{100 * value:.1f}"


def _signed(row: Found, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:+.3f}" if is_fraction(row["metric"], row["unit"]) else f"{100 * value:+.1f}"


def _made_with(found: Found) -> str:
    made = found["made_with"]
    if not made:
        return "nothing yet"
    seconds = sum(cell["seconds"] for cell in found["cells"])
    packages = ", ".join(f"{name} {version}" for name, version in made["packages"].items())
    machine = made["hardware"]
    on = ", ".join(machine.get("gpus", ())) or f"{machine['cores']} CPU cores"
    count = len(found["cells"])
    took = f"{count} cell{'s' if count > 1 else ''} in {seconds / 60:.0f} minutes"
    return f"{packages}, torch {made['versions']['torch']}, on {on}; {took}"
