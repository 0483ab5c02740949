"""The tables of an ablation: rows of text, which the templates beside set as a page, a summary and LaTeX.

They are written beside its cells, archived as a small copy to commit, and read back from both.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from evidcore.cache import plain_file
from evidcore.cli.summary import is_fraction
from evidcore.errors import RunError
from evidcore.runs.folder import write
from evidcore_plugin_lab.ablation.cells import Cell
from evidcore_plugin_lab.ablation.contrasts import FEWEST_SEEDS
from evidcore_plugin_lab.ablation.outcome import SIGNIFICANT

Found = Mapping[str, Any]  # what `outcome` returns, with `command`
RESULT = "ablation.json"
PAGE, SUMMARY, LATEX = "README.md", "summary.txt", "table.tex"
_LINES = {
    "uniform_chance": "one option at random",
    "prior_only": "best blind rule",
    "perfect_perception": "perfect perception",
}
_ESCAPED = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip
_STRANGE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
RESAMPLED = "95 % percentile intervals over resampled seeds and patients, too narrow where seeds differ much"
NO_ANSWERS = "Tables without answers: intervals cannot be recomputed from this folder."


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of texts; `rule` counts the rows above a second rule, 0 where there is none."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    rule: int = 0


def write_up(place: Path, found: Found, names: Sequence[str] = (PAGE, SUMMARY, LATEX)) -> None:
    """Write `ablation.json` and the pages of these names into a folder."""
    place.mkdir(parents=True, exist_ok=True)
    write(place / RESULT, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    for name in names:
        write(place / name, written(found, name))


def archive(place: Path, found: Found, text: str, cells: Sequence[Cell]) -> None:
    """Archive the tables, with the ablation's file and what pins each cell: three small files, no answers.

    An ablation that was archived in the folder before is replaced. To what was found are added `definition`,
    the `text` of the ablation's file, and `locks`: for each cell the hashes of the recipe, of the packages'
    code and of the data. README.md then says that answers are missing.
    """
    if place.exists() and not (place / RESULT).is_file() and (not place.is_dir() or any(place.iterdir())):
        raise RunError(f"{place}: holds no ablation, and nothing is overwritten. Name another folder.")
    root, pins = Path.cwd(), {}
    for name, lock in ((cell.name, cell.ran.lock()) for cell in cells):
        pins[name] = {
            "recipe": lock["recipe"]["hash"],
            "code": {package: table["code"] for package, table in lock["package"].items()},
            "data": {dataset: table["fingerprint"] for dataset, table in lock["dataset"].items()},
        }
    archived = json.dumps({**found, "definition": without_places(text, root), "locks": pins})
    write_up(place, json.loads(without_places(archived, root)), (PAGE, SUMMARY))


def without_places(text: str, root: Path) -> str:
    """Return a text in which no path says where on this machine `root` and the home folder lie."""
    for folder, short in ((root.resolve(), ""), (Path.home(), "~/")):
        text = text.replace(f"{folder}/", short).replace(f'"{folder}"', f'"{short.rstrip("/") or "."}"')
    return text


def read(place: Path) -> dict[str, Any]:
    """Return what an ablation found, from its folder or an archived copy; of it a page can be written."""
    hint = "Give the folder that `evid ablate FILE` or its --keep wrote."
    file = plain_file(place / RESULT)
    if not file.is_file():
        raise RunError(f"{place}: holds no {RESULT}. {hint}")
    try:
        result = dict(json.loads(file.read_text(encoding="utf-8")))
        _ = written(result)
    except (*_STRANGE, jinja2.TemplateError) as cause:
        raise RunError(f"{file}: is not as evidcore writes it ({cause!r:.200}). {hint}") from cause
    return result


def written(found: Found, name: str = PAGE) -> str:
    """Return a page of an ablation: for people, plain text to quote, or tables for a paper with booktabs."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters |= {
        "title_of": _title, "compared": _compared, "claim": _claim,
        "escaped": lambda text: "".join(_ESCAPED.get(letter, letter) for letter in text),
        "code": lambda items: ", ".join(f"`{item}`" for item in items),
        "pipes": lambda cells: "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |",
    }  # fmt: skip
    text = Path(__file__).with_name(f"{name}.jinja").read_text(encoding="utf-8")
    effects = list(dict.fromkeys(row["effect"] for row in found["effects"]))
    few = f"{_no_test(len(found['seeds']))}, so no star (at least {FEWEST_SEEDS})"
    return environment.from_string(text).render(
        found=found, tables=list(tables(found)), intervals=found.get("intervals", RESAMPLED),
        stars=few if len(found["seeds"]) < FEWEST_SEEDS else "* where p after Holm is below 0.05",
        no_answers=NO_ANSWERS, effects=effects, row=_row, heading=_heading, figure=_figure,
        measured=[(one, [row for row in found["rows"] if _row([row], one)]) for one in found["metrics"]],
        width=max(map(len, [*found["arms"], *effects])),
    )  # fmt: skip


def _compared(row: Found | None) -> str:
    """Return a difference with its interval and what could have been seen, nothing for the reference."""
    if row is None or row["value"] is None:
        return ""
    value, low, high = (_figure(row, row[key], "+") for key in ("value", "low", "high"))
    if row["low"] is None:
        return f"  {value} ({row['note']})"
    star = "*" if _is_tested(row) and row["p_holm"] < SIGNIFICANT else " "
    seen = row.get("detectable")
    reach = "" if seen is None else f", below {_figure(row, seen)} would be missed"
    return f"  {value}{star} ({low} to {high}){reach}"


def tables(found: Found) -> Iterator[Table]:
    """Yield the headline table, the claims, the differences, the effects of factors, and the seeds."""
    metrics, arms = found["metrics"], []
    for arm in found["arms"]:
        own = [_row(found["rows"], metric, arm=arm) for metric in metrics]
        arms.append([f"{arm} (reference)" if arm == found["reference"] else arm, *map(_with_interval, own)])
    for line in dict.fromkeys(row["line"] for row in found["reference_lines"]):
        beside = [_row(found["reference_lines"], metric, line=line) for metric in metrics]
        figures = ["" if row is None else _figure(row, row["value"]) for row in beside]
        arms.append([_LINES.get(line, line.replace("_", " ")), *figures])
    yield Table("Arms", ["arm", *map(_title, metrics)], arms, rule=len(found["arms"]))
    for kind, title, name, last in (
        ("claims", "Claims", "claim", "verdict"),
        ("differences", f"Differences from {found['reference']}", "arm", "detectable"),
        ("effects", "Effects of the factors", "effect", "detectable"),
    ):
        if some := found.get(kind):
            heads = [name, "metric", "difference", "95 % interval", "seeds", "p (Holm)", last]
            rows = [[row.get(name) or _claim(row), _heading(found, row), *_tested(row, last)] for row in some]
            yield Table(title, heads, rows)
    seeds = [str(seed) for seed in found["seeds"]]
    rows = [
        [row["arm"], _heading(found, row), *(_figure(row, row["by_seed"].get(seed)) for seed in seeds)]
        for row in found["rows"]
    ]
    yield Table("Seeds", ["arm", "metric", *seeds], rows)


def _tested(row: Found, last: str) -> list[str]:
    """Return difference, interval, seeds, adjusted p, and detectable difference or verdict of a row."""

    def ends(low: float, high: float) -> str:
        return f"{_figure(row, low, '+')} to {_figure(row, high, '+')}"

    values = [value for value in row["by_seed"].values() if value is not None]
    interval = row["note"] if row["low"] is None else ends(row["low"], row["high"])
    p = ""
    if _is_tested(row):
        p = "*" if row["p_holm"] < SIGNIFICANT else ""
        p += "< 0.001" if row["p_holm"] < 0.001 else f"{row['p_holm']:.3f}"
    elif row["low"] is not None and len(row["by_seed"]) < FEWEST_SEEDS:
        p = _no_test(len(row["by_seed"]))
    ending = row.get(last)
    if not isinstance(ending, str):
        ending = "" if ending is None else _figure(row, ending)
    seeds = ends(min(values), max(values)) if values else ""
    return [_figure(row, row["value"], "+"), interval, seeds, p, ending]


def _claim(row: Found) -> str:
    """Return what was claimed before the runs."""
    more = f" by more than {_figure(row, row['by'])}" if row["by"] else ""
    return f"{row['arm']} beats {row['beats']}{more}"


def _is_tested(row: Found) -> bool:
    """Tell whether a p value counts: too few seeds are not tested, whatever a file holds."""
    return row.get("p_holm") is not None and len(row["by_seed"]) >= FEWEST_SEEDS


def _no_test(seeds: int) -> str:
    return f"{seeds} seed{'s' if seeds != 1 else ''}: no test"


def _row(rows: Sequence[Found], metric: Found, **own: str) -> Found | None:
    wanted = {"stage": metric["stage"], "name": metric["name"], "metric": metric["metric"], **own}
    return next((row for row in rows if wanted.items() <= row.items()), None)


def _title(metric: Found) -> str:
    """Return a metric's heading with its unit."""
    heading: str = metric["label"] or f"{metric['name']}, {metric['metric'].replace('_', ' ')}"
    return heading if is_fraction(metric["metric"], metric["unit"]) else f"{heading}, %"


def _heading(found: Found, row: Found) -> str:
    return next(_title(one) for one in found["metrics"] if _row([row], one))


def _with_interval(row: Found | None) -> str:
    if row is None or row["value"] is None:
        return "-"
    spread = "" if row["low"] is None else f" [{_figure(row, row['low'])}, {_figure(row, row['high'])}]"
    return f"{_figure(row, row['value'])}{spread}"


def _figure(row: Found, value: float | None, sign: str = "") -> str:
    """Return a value in the unit of its metric; `sign` "+" shows that of differences."""
    if value is None:
        return "-"
    is_one = is_fraction(row["metric"], row["unit"])
    return f"{value:{sign}.3f}" if is_one else f"{100 * value:{sign}.1f}"
