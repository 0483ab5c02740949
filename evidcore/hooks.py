"""What happens during a run, told to observers, and the pages that installed packages write of a run.

An observer is an object whose methods are marked `@observe` and named like the functions of `Events`; it
takes the arguments it wants, by name. A recipe names observers (`observers = ["…"]`); they look, nothing they
do changes a number, and one that fails is switched off and named.

A page is an entry point of the group `evidcore.page`: a function that takes a run folder, writes into it what
a reader looks at, and returns where. Every installed one is called at the end of a run.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pluggy

from evidcore.errors import PluginError
from evidcore.registry import blame, find, known_elsewhere, offers

_event = pluggy.HookspecMarker("evidcore")
observe = pluggy.HookimplMarker("evidcore")


class Events:
    """The events, in the order of a run. `stage` is its folder name, e.g. `04-grpo`."""

    @_event
    def stage_started(self, stage: str, folder: Path, steps: int, stages: int) -> None:
        """See a stage start; it writes into `folder`, has `steps`, and is one of so many `stages`."""

    @_event
    def step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """See a line of metrics.jsonl; steps count from 1."""

    @_event
    def rollouts_judged(self, stage: str, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        """See the lines of the rollout file that a step wrote, one for each group."""

    @_event
    def stage_finished(self, stage: str, folder: Path, figures: Mapping[str, Any]) -> None:
        """See a stage's result."""

    @_event
    def report_sections(self, run_folder: Path) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Return sections for the page of a run: HTML by title."""


def write_pages(run_folder: Path) -> list[Path]:
    """Have each installed package that writes pages of runs write its own; return where they are.

    Raises:
        PluginError: if one cannot be imported, or fails.
    """
    written = []
    for offer in offers("page"):
        write = offer.load()
        with blame(offer, f"writing the page of {run_folder}", PluginError):
            written.append(Path(write(run_folder)))
    return written


def page_lines(pages: Sequence[Path]) -> list[str]:
    """Return a line for each page that was written; where there is none, what to install for one."""
    packages = " ".join(dict.fromkeys(known_elsewhere("page").values())) or '"evidcore[all]"'
    return [f"page:    {page}" for page in pages] or [f"page:    none; `pip install {packages}` writes one"]


class Announcer:
    """Tell the run's own recorders, then every observer, what happened.

    A recorder that fails stops the run: what it writes is the result. An observer that fails is switched off;
    `failed` holds its name and why.
    """

    def __init__(
        self, recorders: Sequence[object] = (), observers: Mapping[str, object] | None = None
    ) -> None:
        """Keep both in the order given."""
        self.failed: dict[str, str] = {}
        self._recorders = _manager({str(index): item for index, item in enumerate(recorders)})
        self._observers = _manager(observers or {})

    @classmethod
    def from_names(cls, recorders: Sequence[object], names: Sequence[str]) -> Announcer:
        """Build the observers that a recipe names."""
        built = {}
        for name in names:
            offer = find("observer", name)
            factory = offer.load()
            with blame(offer, "being built", PluginError):
                built[name] = factory()
        return cls(recorders, built)

    def stage_started(self, stage: str, folder: Path, steps: int = 0, stages: int = 0) -> None:
        """Announce it."""
        self._tell("stage_started", stage=stage, folder=folder, steps=steps, stages=stages)

    def step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Announce it."""
        self._tell("step_finished", stage=stage, step=step, metrics=metrics)

    def rollouts_judged(self, stage: str, step: int, groups: Sequence[Mapping[str, Any]]) -> None:
        """Announce it."""
        self._tell("rollouts_judged", stage=stage, step=step, groups=groups)

    def stage_finished(self, stage: str, folder: Path, figures: Mapping[str, Any]) -> None:
        """Announce it."""
        self._tell("stage_finished", stage=stage, folder=folder, figures=figures)

    def report_sections(self, run_folder: Path) -> list[tuple[str, str]]:
        """Return title and HTML of the observers' sections, in the order of the recipe."""
        answers = self._tell("report_sections", run_folder=run_folder)
        return [section for answer in answers for section in answer.items()]

    def _tell(self, event: str, **facts: Any) -> list[Any]:
        """Call the recorders, then the observers one by one."""
        answers: list[Any] = list(getattr(self._recorders.hook, event)(**facts))
        for name in [name for name, _ in self._observers.list_name_plugin()][::-1]:
            others = [item for other, item in self._observers.list_name_plugin() if other != name]
            try:
                answers += self._observers.subset_hook_caller(event, others)(**facts)
            except Exception as cause:  # an observer may never stop a run
                self._observers.unregister(name=name)
                self.failed[name] = f"{type(cause).__name__}: {cause}"
                text = f"observer {name!r} failed at {event} and is off for the rest of this run: "
                warnings.warn(text + self.failed[name], RuntimeWarning, stacklevel=3)
        return answers


def _manager(listeners: Mapping[str, object]) -> pluggy.PluginManager:
    """Register listeners so that the first is called first."""
    manager = pluggy.PluginManager("evidcore")
    manager.add_hookspecs(Events)
    for name, listener in reversed(list(listeners.items())):
        try:
            manager.register(listener, name=name)
            manager.check_pending()
        except pluggy.PluginValidationError as cause:
            known = ", ".join(event for event in vars(Events) if not event.startswith("_"))
            raise PluginError(f"observer {name!r}: {cause}. Events: {known}.") from cause
    return manager
