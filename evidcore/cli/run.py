"""`evid run` and `resume`: train, measure, audit, and have the page written."""

import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import click

from evidcore.cli import live, printer
from evidcore.errors import Stopped
from evidcore.hooks import observe, page_lines, write_pages

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--accept-changes", is_flag=True, help="Go on although code, data or versions have changed.")
@_json
def resume(folder: Path, accept_changes: bool, as_json: bool) -> None:
    """Go on with a run that was interrupted or failed. Needs only its folder."""
    from evidcore.runs.folder import open_run
    from evidcore.runs.read import read_status

    run = open_run(folder)
    read_status(run.path)
    go(run, as_json, accept_changes=accept_changes)


_log = logging.getLogger("evidcore")
_EVERY_S = 10.0  # plain lines come at most this often
_FIRST = ("cases_", "eval/", "loss", "reward", "accuracy", "entropy", "kl", "learning_rate")


class Progress:
    """A recorder of the run that prints."""

    def __init__(self, *, to_stderr: bool = False, label: str = "") -> None:
        """Print to the terminal; `label` goes before every line, where several runs follow each other."""
        self._console, self._around = printer(to_stderr=to_stderr), ExitStack()
        self._console.on_broken_pipe = self._stop
        self._live: Any = None
        self._label = f"{label} " if label else ""
        self._stage_start_s = self._last_line_s = self._run_start_s = time.monotonic()
        self._seconds: dict[str, float] = {}
        self._started: set[str] = set()
        self._steps = self._first_step = 0

    def __enter__(self) -> Self:
        """Start the live block where there is a terminal, and show what the run's parts say of themselves."""
        if self._console.is_terminal:
            from rich.live import Live

            block = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live = self._around.enter_context(live(block))
        self._said = logging.StreamHandler()  # stderr, from which a live block takes lines
        self._said.setFormatter(logging.Formatter("%(message)s"))
        _log.addHandler(self._said)
        _log.setLevel(logging.INFO)  # which form of a pass was chosen is no warning
        return self

    def __exit__(self, *error: Any) -> None:
        _log.removeHandler(self._said)
        _log.setLevel(logging.NOTSET)
        self._around.__exit__(*error)

    def _stop(self) -> None:  # what read it has ended, as where an ablation is killed
        raise Stopped(signal.SIGPIPE)

    @observe
    def stage_started(self, stage: str, folder: Path, steps: int, stages: int) -> None:
        """Say that a stage starts."""
        self._stage_start_s, self._last_line_s = time.monotonic(), 0.0
        self._seconds, self._steps, self._first_step = {}, steps, 0
        self._started.add(stage)
        place = stage.partition("-")[0]
        which = f", stage {int(place)} of {stages}" if place.isdecimal() else ""
        self._print(f"{stage}: started{which}")

    @observe
    def step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Show a step's figures."""
        for name, value in metrics.items():
            kind, _, part = name.partition("/")
            if kind.endswith("_s"):
                label = f"{kind.removesuffix('_s').replace('_', ' ')} {part}".strip()
                self._seconds[label] = self._seconds.get(label, 0.0) + value
        now = time.monotonic()
        names = [name for start in _FIRST for name in metrics if name.startswith(start)]
        figures = "  ".join(f"{name} {metrics[name]:.4g}" for name in list(dict.fromkeys(names))[:5])
        how_far = f"step {step}{self._left(step, now)}"
        line = f"{stage}: {how_far}  {figures}  {now - self._stage_start_s:.0f} s"
        if self._live is not None:
            self._live.update("\n".join([self._label + line, self._split()]))
        elif now - self._last_line_s >= _EVERY_S:
            self._last_line_s = now
            self._print(line)
            sys.stdout.flush()

    @observe
    def stage_finished(self, stage: str, folder: Path, figures: Mapping[str, Any]) -> None:
        """Say that a stage is done."""
        if stage not in self._started:
            note = figures.get("fitted_before") or f"unchanged, used again from {folder}"
            self._print(f"{stage}: {note}")
            return
        took = time.monotonic() - self._stage_start_s
        self._print(f"{stage}: done in {took:.0f} s  {self._split()}".rstrip())
        from evidcore.cli.summary import ending

        for measured in ending([figures])[:3] if "rows" in figures else ():
            self._print(f"{stage}: {measured.strip()}")

    def _print(self, line: str) -> None:
        self._console.print(f"{self._label}{line}")

    def _left(self, step: int, now: float) -> str:
        """Return how many steps there are, and how long the others take if they go like those of this run."""
        if self._steps < step:
            return ""
        if not self._first_step:  # of this process: a stage may go on where another one ended
            self._first_step, self._first_step_s = step, now
        if step == self._first_step:
            return f" of {self._steps}"
        left_s = (self._steps - step) * (now - self._first_step_s) / (step - self._first_step)
        left = f"{left_s / 60:.0f} min" if left_s >= 90 else f"{left_s:.0f} s"
        return f" of {self._steps}, {left} left"

    def _split(self) -> str:
        """Return where the stage's time went: what is named, and the rest of the steps."""
        named = {label: value for label, value in self._seconds.items() if label != "step"}
        total = self._seconds.get("step", sum(named.values()))
        named["other"] = named.get("other", 0.0) + total - sum(named.values())
        parts = sorted(named.items(), key=lambda item: -item[1])
        return ", ".join(
            f"{label} {value:.0f} s ({100 * value / total:.0f} %)" for label, value in parts if value >= 0.5
        )


@contextmanager
def follow(name: str, of: str = "cases") -> Iterator[Callable[[int, int], None]]:
    """Show how far a walk is, `of` what it counts: a bar in a terminal, now and then a line otherwise."""
    console = printer(to_stderr=True)
    if console.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with live(Progress(*columns, console=console, transient=True)) as bar:
            task = bar.add_task(name, total=None)
            yield lambda count, total: bar.update(task, completed=count, total=total)
        return
    last_s = time.monotonic() - _EVERY_S + 1.0  # the first line comes after a second

    def say(count: int, total: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= _EVERY_S:
            last_s = time.monotonic()
            print(f"{name}: {count} of {total} {of}", file=sys.stderr, flush=True)  # noqa: T201

    yield say


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option(
    "--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a key: stage.grpo.steps=3"
)
@click.option("--fresh", is_flag=True, help="Run every stage anew, even where an earlier run has its result.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs lie."
)
@click.option(
    "--locked", type=click.Path(path_type=Path), metavar="LOCK",
    help="Refuse whatever differs from a run's lock.toml, or from an evid.lock.",
)  # fmt: skip
@_json
def run(
    recipe: Path, overrides: tuple[str, ...], fresh: bool, out: Path, locked: Path | None, as_json: bool
) -> None:
    """Run a recipe: train, measure, audit, and write the evidence page."""
    if not as_json:
        click.echo(f"{recipe}: reading it and importing its components", err=True)  # which takes seconds
    from evidcore.recipe import load

    if locked is not None:
        from evidcore.registry import watch

        watch("pins", "--locked").hold_to(locked)  # before the recipe imports what it names
    loaded = load(recipe, overrides)  # a mistake is told before all else is imported

    from evidcore.runs.assembly import Assembly
    from evidcore.runs.begin import start

    assembly = Assembly(loaded)
    folder = start(assembly.recipe, out, fresh=fresh, assembly=assembly, locked=locked)
    go(folder, as_json, accept_changes=False, assembly=assembly)


def go(folder: Any, as_json: bool, *, accept_changes: bool, assembly: Any = None) -> None:
    """Run a run folder to its end, show its progress, write its page and print its results."""
    from evidcore.cli.summary import ending, summary
    from evidcore.compute.processes import processes
    from evidcore.runs.begin import run as run_folder

    if not processes().is_first:
        run_folder(folder, accept_changes=accept_changes, assembly=assembly)
        return
    click.echo(f"run: {folder.path}", err=as_json)
    try:
        with Progress(to_stderr=as_json) as progress:
            run_folder(folder, [progress], accept_changes=accept_changes, assembly=assembly)
    except Stopped as stop:
        last = f"Last checkpoint: {folder.last_checkpoint() or 'none yet'}"
        click.echo(f"\ninterrupted, {stop}. {last}\nGo on with: evid resume {folder.path}", err=True)
        click.get_current_context().exit(stop.exit_status)
    pages = write_pages(folder.path)
    result = summary(folder)
    if as_json:
        whole = {"run": str(folder.path), "pages": [str(page) for page in pages], **result}
        click.echo(json.dumps(whole, indent=1))
        return
    click.echo("\n".join(["", *ending(result["results"]), "", *page_lines(pages), f"folder:  {folder.path}"]))
