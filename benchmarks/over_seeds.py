"""A recipe over seeds, each with its own patients: run it, keep what may be committed, make the tables.

A seed is kept as `seed-N.json`: its results, its lock, and as lines of CSV what each question added to a
figure, from which the figures over all seeds are computed anew. Run again on other threads or processes, it
is kept as `seed-N-threads-M.json` without its questions.
"""

import argparse
import csv
import dataclasses
import hashlib
import io
import json
import math
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evidcore_plugin_lab.ablation.contrasts import Arms, Contrast, Item
from evidcore_plugin_lab.ablation.items import row_items
from evidcore_plugin_lab.ablation.tables import NO_ANSWERS, without_places
from scipy import stats

from evidcore.contracts import Totals
from evidcore.evaluate.pooling import pooled
from evidcore.runs.folder import read_lines

ROOT = Path(__file__).parents[1]
FEWEST_RUNS = 3  # of one seed, to tell how far apart they end


class Line(NamedTuple):
    """A line of the tables: what it is, and where a kept result says it."""

    label: str
    file: str
    name: str  # or task
    metric: str
    is_main: bool = False  # also in the summary


class Column(NamedTuple):
    """What is kept of each question: the figure that its answer in a stage adds to a metric."""

    file: str  # the stage's answers
    condition: str = ""  # of an audit
    metric: str = ""  # the study's where empty


class Claim(NamedTuple):
    """A figure over all seeds: a weighted sum of columns, paired by question."""

    label: str
    weights: Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A recipe, and what is told of its runs."""

    script: str  # beside this one, that holds it
    recipe: Path
    dataset: str  # whose seed is the run's
    last: str  # the recipe's last stage
    title: str
    head: str  # of the tables
    lines: tuple[Line, ...]
    task: str  # whose questions are kept one by one
    metric: str  # of theirs
    group: str  # key of a line of answers: what a question is about
    columns: Mapping[str, Column]
    claims: tuple[Claim, ...]
    by_group: Callable[[Sequence[Path]], Sequence[str]]  # files of questions -> lines
    more: Callable[[Path], dict[str, Any]]  # run folder -> what is kept as its result `learned`
    below: Callable[[Path], Sequence[str]] = lambda place: ()  # kept run -> lines below the tables
    percent: bool = True
    least: Mapping[str, float]  # label of a line -> lower end, any seed

    def run(self, seed: int, root: Path, *, threads: int = 0) -> Path:
        """Run the pipeline of a seed, on the recipe's threads or on `threads`, and return its run folder."""
        command = [
            sys.executable, "-m", "evidcore", "run", str(self.recipe), "--out", str(root / f"seed-{seed}"),
            "--set", f"seed={seed}", "--set", f"dataset.{self.dataset}.seed={seed}",
            *(["--set", f"threads={threads}"] if threads else []),
        ]  # fmt: skip
        subprocess.run(command, check=True)
        return self.newest(root / f"seed-{seed}")

    def is_kept(self, place: Path) -> bool:
        """Tell whether a file holds a run of the recipe as it is now, a seed's first with its questions."""
        if not place.exists() or kept(place).get("recipe") != self.recipe_hash():
            return False
        return not _seeds([place]) or "questions" in kept(place)

    def recipe_hash(self) -> str:
        """Return the hash of what the recipe says, whatever finished stages it names and comments it has."""
        said = tomllib.loads(self.recipe.read_text(encoding="utf-8"))
        said.pop("fitted", None)
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def newest(self, folder: Path) -> Path:
        """Return the newest finished run below a folder."""
        runs = sorted(folder.glob(f"*/2*/results/{self.last}.json"))
        if not runs:
            sys.exit(f"{folder}: holds no finished run of {self.recipe.name}.")
        return runs[-1].parents[1]

    def keep(self, run_folder: Path, place: Path) -> None:
        """Write results and lock of a run, of a seed's first its questions too. No answer, report or path."""
        results = {
            file.stem: json.loads(file.read_text(encoding="utf-8"))
            for file in sorted((run_folder / "results").glob("*.json"))
        }
        lock = tomllib.loads((run_folder / "lock.toml").read_text(encoding="utf-8"))
        made = {
            "results": {**results, "learned": self.more(run_folder)},
            "lock": lock,
            "commit": commit(),
            "recipe": self.recipe_hash(),
        }
        if _seeds([place]):
            made["questions"] = as_lines(self.questions(run_folder))
        place.parent.mkdir(parents=True, exist_ok=True)
        text = without_places(json.dumps(made, indent=1, ensure_ascii=False), ROOT)
        place.write_text(text + "\n", encoding="utf-8")

    def questions(self, run_folder: Path) -> list[tuple[str, ...]]:
        """Return a row for each question of the test split: patient, question, what it is about, columns."""
        items = {
            name: row_items(
                answers(run_folder, column.file, self.task),
                {"name": self.task, "metric": column.metric or self.metric, "condition": column.condition},
            )
            for name, column in self.columns.items()
        }
        file = next(iter(self.columns.values())).file
        asked = {line["prompt_id"]: line for line in answers(run_folder, file, self.task)}
        rows = [
            (
                line["patient"],
                prompt,
                str(line[self.group]),
                *(_held(own.get(prompt)) for own in items.values()),
            )
            for prompt, line in asked.items()
        ]
        return [("patient", "question", self.group, *self.columns), *rows]

    def contrast(self, places: Sequence[Path], weights: Mapping[str, float]) -> Contrast:
        """Estimate a weighted sum of columns over the kept questions of seeds that hold them all."""
        arms: dict[str, dict[int, dict[str, Item]]] = {name: {} for name in weights}
        for seed, place in enumerate(places):
            rows = [row for row in questions(place) if all(row[name] for name in weights)]
            for name, items in arms.items():
                items[seed] = {
                    row["question"]: Item(row["patient"], Totals("ratio", (float(row[name]), 1.0)))
                    for row in rows
                }
        return Arms(arms, patients_shared=False).contrast(weights)

    def over_all(self, places: Sequence[Path]) -> str:
        """Return the claims over the seeds whose questions are kept, as plain text; empty where none are."""
        if not (places := _asked(places)):
            return ""
        seeds = ", ".join(place.stem.removeprefix("seed-") for place in places)
        told = [f"phantom numbers, {self.head}, seeds {seeds}: mean, 95 % by a t over the seeds, each seed"]
        width = max(len(claim.label) for claim in self.claims)
        for claim in self.claims:
            result = self.contrast(places, claim.weights)
            if result.value is None:
                told.append(f"{claim.label:{width}}  -  {result.note}")
                continue
            each = "  ".join(map(self._figure, result.by_seed.values()))
            told.append(
                f"{claim.label:{width}}  {self.said(vars(result))}  each {each}  {result.note}".rstrip()
            )
        return "\n".join(told) + "\n"

    def groups(self, places: Sequence[Path]) -> str:
        """Return what is told of groups of questions over the same seeds."""
        asked = _asked(places)
        return "\n".join([*self.by_group(asked), ""]) if asked else ""

    def tables(self, places: Sequence[Path]) -> str:
        """Return the tables as Markdown: seeds, their mean, and seeds again on other numbers of threads."""
        again = sorted(set(places) - set(_seeds(places)))
        places = _seeds(places)
        heads = [*(place.stem for place in places), "mean", *(place.stem for place in again)]
        lines = [f"| {self.head} | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
        for line in self.lines:
            values = _values(places, line)
            mean = self._figure(sum(values) / len(values)) if values else "-"
            told = [self.said(value(place, line)) for place in places]
            told += [mean, *(self.said(value(place, line)) for place in again)]
            lines.append(f"| {line.label} | " + " | ".join(told) + " |")
        for place in places:
            lines += self.below(place)
        return "\n".join(lines)

    def summary(self, places: Sequence[Path]) -> str:
        """Return the main figures as plain text: mean, lowest and highest; of one seed with its interval."""
        places = _seeds(places)
        seeds = ", ".join(place.stem for place in places)
        shown = "mean (range)" if len(places) > 1 else "one seed, 95 % interval by patient"
        told = [f"phantom numbers, {self.head}, {seeds}: {shown}"]
        to = "-" if self.percent else " to "  # 0.1 to 0.2, or -0.1 to 0.2
        width = max(48, *(len(line.label.strip()) for line in self.lines if line.is_main))
        for line in self.lines:
            if not line.is_main or not (values := _values(places, line)):
                continue
            if len(places) == 1:
                told.append(f"{line.label.strip():{width}} {self.said(value(places[0], line))}")
            else:
                mean, low, high = map(self._figure, (sum(values) / len(values), min(values), max(values)))
                told.append(f"{line.label.strip():{width}} {mean:>5} ({low}{to}{high})")
        return "\n".join(told) + "\n"

    def again(self, places: Sequence[Path]) -> str:
        """Return where one more run of a seed ends, after its runs on other threads; empty for too few."""
        told = []
        for first in _seeds(places):
            runs = [first, *sorted(item for item in places if item.stem.startswith(f"{first.stem}-"))]
            if len(runs) < FEWEST_RUNS:
                continue
            names = ", ".join(item.stem for item in runs)
            told.append(
                f"phantom numbers, {self.head}, one seed run {len(runs)} times ({names}): "
                "mean [where one more run ends in 95 of 100 cases], each run"
            )
            mains = [line for line in self.lines if line.is_main]
            width = max(len(line.label.strip()) for line in mains)
            for line in mains:
                if not (values := _values(runs, line)):
                    continue
                each = "  ".join(map(self._figure, values))
                told.append(f"{line.label.strip():{width}}  {self.said(next_run(values))}  each {each}")
        return "".join(f"{line}\n" for line in told)

    def leaves(self, fresh: Path, places: Sequence[Path]) -> list[str]:
        """Return which main figures of a fresh run lie outside of kept intervals, or under their bound."""
        result = []
        for line in self.lines:
            item, known = value(fresh, line), [value(place, line) for place in places]
            ends = [_ends(entry) for entry in known if entry is not None]
            if item is None or item["value"] is None or not (line.is_main and ends):
                continue
            low, high = min(low for low, _ in ends), max(high for _, high in ends)
            if not low <= item["value"] <= high:
                kept_range = f"{self._figure(low)} to {self._figure(high)}"
                result.append(f"{line.label.strip()}: {self.said(item)}, kept runs {kept_range}")
            least = self.least.get(line.label)
            if least is not None and (item["low"] is None or item["low"] < least):
                result.append(
                    f"{line.label.strip()}: {self.said(item)}, at least {self._figure(least)} is wanted"
                )
        return result

    def said(self, item: Mapping[str, Any] | None) -> str:
        """Return a value with its interval."""
        if item is None or item["value"] is None:
            return "-"
        if item["low"] is None:
            return self._figure(item["value"])
        low, high = self._figure(item["low"]), self._figure(item["high"])
        return f"{self._figure(item['value'])} [{low}, {high}]"

    def _figure(self, number: float) -> str:
        return f"{100 * number:.1f}" if self.percent else f"{number:.3f}"

    def page(self, place: Path) -> str:
        """Return the page of a folder of kept results, which names the commands that make it."""
        places = sorted(place.glob("seed-*.json"))
        folder = place.resolve().relative_to(ROOT) if place.resolve().is_relative_to(ROOT) else place
        seeds = " ".join(item.stem.removeprefix("seed-") for item in _seeds(places))
        made = f"Written by `python benchmarks/{self.script}.py --seeds {seeds} --keep {folder}`,\n"
        made += f"printed again by `python benchmarks/{self.script}.py --read {folder}`."
        how = sorted({_how(item) for item in places if "commit" in kept(item)})
        made += "".join(f"\nMade {item}." for item in how)
        note = NO_ANSWERS
        if _asked(places):
            columns = ", ".join(self.columns)
            note = f"What each question added lies in `seed-*.json` ({columns}); `over_seeds.txt`\n"
            note += "is computed from it. The intervals of the tables are those of the runs."
        return f"{self.title}{made}\n\n{note}\n\n{self.tables(places)}\n"

    def write_up(self, place: Path) -> None:
        """Write the tables, the summary and the figures over all seeds beside the kept results."""
        places = sorted(place.glob("seed-*.json"))
        (place / "README.md").write_text(self.page(place), encoding="utf-8")
        (place / "summary.txt").write_text(self.summary(places), encoding="utf-8")
        if over_all := self.over_all(places):
            (place / "over_seeds.txt").write_text(over_all, encoding="utf-8")
            (place / "by_group.txt").write_text(self.groups(places), encoding="utf-8")
        if again := self.again(places):
            (place / "again.txt").write_text(again, encoding="utf-8")

    def main(self, about: str, out: str) -> None:
        """Run what is asked and print the tables."""
        parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
        parser.add_argument("--seeds", type=int, nargs="+", default=[17, 18, 19])
        parser.add_argument(
            "--threads", type=int, nargs="+", default=[], help="also run the first seed on so many"
        )
        parser.add_argument(
            "--check",
            type=Path,
            metavar="DIR",
            help="run the seeds anew; exit 1 where one leaves what is kept",
        )
        parser.add_argument("--out", type=Path, default=Path(out))
        parser.add_argument("--keep", type=Path)
        parser.add_argument("--read", type=Path)
        given = parser.parse_args()
        if given.read is not None:
            self.print_out(given.read)
            return
        if given.check is not None:
            self.check(given.check, given.seeds, given.out)
            return
        place = given.keep or given.out / "kept"
        for seed, threads in [
            *((seed, 0) for seed in given.seeds),
            *((given.seeds[0], n) for n in given.threads),
        ]:
            file = place / (f"seed-{seed}-threads-{threads}.json" if threads else f"seed-{seed}.json")
            if self.is_kept(file):
                print(f"{file}: kept, and the recipe is as it was")
                continue
            run = self.run(seed, given.out, threads=threads)
            self.keep(run, file)
            self.write_up(place)
        self.print_out(place)

    def print_out(self, place: Path) -> None:
        """Print the tables and the figures over all seeds."""
        places = sorted(place.glob("seed-*.json"))
        sys.stdout.write(f"{self.tables(places)}\n\n{self.over_all(places)}\n{self.groups(places)}")
        if again := self.again(places):
            sys.stdout.write(f"\n{again}")

    def check(self, places: Path, seeds: Sequence[int], root: Path) -> None:
        """Run seeds anew and leave with 1 where a figure left what is kept, or a bound is missed."""
        wrong = []
        for seed in seeds:
            file = root / "checked" / f"seed-{seed}.json"
            self.keep(self.run(seed, root / "checked"), file)
            wrong += [
                f"seed {seed}: {text}" for text in self.leaves(file, sorted(places.glob("seed-*.json")))
            ]
        print("\n".join(wrong) or f"seeds {', '.join(map(str, seeds))}: as kept in {places}")
        sys.exit(bool(wrong))


def _seeds(places: Sequence[Path]) -> list[Path]:
    """Return the kept runs but those of a seed again, which more follows in the name of."""
    return [place for place in places if place.stem.count("-") == 1]


def _asked(places: Sequence[Path]) -> list[Path]:
    """Return the kept questions of kept runs, where they have some."""
    return [place for place in _seeds(places) if place.exists() and "questions" in kept(place)]


def next_run(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean of equal runs, and the 95 % prediction interval of one more (normal errors)."""
    mean = statistics.fmean(values)
    if len(values) < FEWEST_RUNS:
        return {"value": mean, "low": None, "high": None}
    far = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values)
    far *= math.sqrt(1 + 1 / len(values))
    return {"value": mean, "low": mean - far, "high": mean + far}


def commit() -> str:
    """Return the commit that the code is at, "-dirty" behind it where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _how(place: Path) -> str:
    made = kept(place)
    hardware = made["lock"]["hardware"]
    many = "s" if hardware["torch_threads"] > 1 else ""
    processes = f" in each of {hardware['processes']} processes" if hardware.get("processes", 1) > 1 else ""
    return f"at commit {made['commit']}, {hardware['torch_threads']} thread{many}{processes}"


def value(place: Path, line: Line) -> Mapping[str, Any] | None:
    """Return a row of a kept run."""
    rows = kept(place)["results"][line.file]["rows"]
    return next((item for item in rows if (item["name"], item["metric"]) == (line.name, line.metric)), None)


def questions(place: Path) -> list[dict[str, str]]:
    """Return a kept seed's rows; a column is empty where the question was not asked that way."""
    return list(csv.DictReader(kept(place)["questions"]))


def as_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines of CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().splitlines()


def _held(item: Item | None) -> str:
    if item is None or item.sums is None:
        return ""
    value = pooled([item.sums])
    return "" if value is None else f"{value:.4g}"


def _ends(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the ends of a row's interval, its value where it has none."""
    low, high = row["low"], row["high"]
    return row["value"] if low is None else low, row["value"] if high is None else high


def kept(place: Path) -> Any:
    """Return what `Study.keep` wrote: `results` by stage, and `lock`."""
    return json.loads(place.read_text(encoding="utf-8"))


def answers(run_folder: Path, stage: str, task: str) -> list[dict[str, Any]]:
    """Return what a stage kept of each answer to a task."""
    return [line for line in read_lines(run_folder / "answers" / f"{stage}.jsonl") if line["task"] == task]


def _values(places: Sequence[Path], line: Line) -> list[float]:
    """Return a line's figures, of the seeds that have it."""
    result = (value(place, line) for place in places)
    return [item["value"] for item in result if item is not None and item["value"] is not None]
