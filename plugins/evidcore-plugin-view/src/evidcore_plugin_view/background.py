"""What needs torch is asked of processes beside the viewer, so that it starts at once and stays quick.

One process looks cases up, one reads sentences and one follows boxes: `run_worker` is what runs in them.
Threads wait for their answers, so that a question is answered at once with what is known so far.
"""

import base64
import dataclasses
import json
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from evidcore_plugin_hub.worker import Broken, Raised, Worker
from pydantic import TypeAdapter

from evidcore.api import Box, MaskRef
from evidcore.data import Mask
from evidcore.errors import RunError
from evidcore.registry import offers

Made = TypeVar("Made")
_MOST_BYTES = 1 << 30  # of the cases of a whole data set
_MOST_WAITING = 4  # older requests are made when they are asked for again
Sentences = list[dict[str, Any]]  # start and end, in characters, and the findings that are present


class RunProcess:
    """A process that answers for a run, and a thread that waits for it.

    The process is started when it is first asked, and again where it ended.
    """

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._thread = ThreadPoolExecutor(1)
        self._lock = threading.Lock()

    def __call__(self, doing: str, *given: Any, form: Any = None) -> Any:
        """Return what a method of `RunWorker` gives, in a type if one is named.

        Raises:
            Broken, Raised: as of `Worker`.
        """
        with self._lock:
            if self._worker is None or not self._worker.is_running:
                serves = "evidcore_plugin_view.run_worker:RunWorker"
                self._worker = Worker(serves, most_bytes=_MOST_BYTES)
            worker = self._worker
        return worker.ask(doing, *given, form=None if form is None else TypeAdapter(form))

    def sentences(self, text: str, names: Sequence[str]) -> Sentences:
        """Return the sentences of a text that affirm one of some findings, by the labeler `negation-rules`.

        Raises:
            RunError: if the process ended.
        """
        try:
            return list(self("affirming", text, list(names)))
        except (Broken, Raised) as cause:
            ended = "The sentences could not be read: their process ended. Choose the question again."
            raise RunError(ended) from cause

    def submit(self, function: Callable[..., Made], *given: Any) -> Future[Made]:
        """Have the thread do something, behind all that it has to do."""
        try:
            return self._thread.submit(function, *given)
        except RuntimeError:  # the viewer ends
            return Future()

    def close(self) -> None:
        """End the process, whatever it does."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            if self._worker is not None:
                self._worker.end()
        self._thread.shutdown()


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaseEntry:
    """What a data set tells of a case; a real patient's report only where it may be shown."""

    phantom: bool
    paths: tuple[str, ...]  # of its volumes
    masks: dict[str, MaskRef]
    present: tuple[str, ...]  # findings
    report: dict[str, Any] | None
    report_withheld: bool


class CaseIndex:
    """Looks cases up in the background, in the order in which they are asked for.

    Reports of real patients are told where `show_reports` says so.
    """

    def __init__(self, folder: Path, *, show_reports: bool) -> None:
        self._folder, self._show_reports = folder, show_reports
        self._lookups: dict[str, Future[dict[str, CaseEntry]]] = {}  # by `key_of`; they give cases by id
        self._faults: list[str] = []
        self._process, self._lock = RunProcess(), threading.Lock()
        self.close = self._process.close

    def ask(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Have the cases of some lines (stage, task, case_id, images) looked up, each once."""
        by_task: dict[str, dict[str, Mapping[str, Any]]] = {}
        with self._lock:
            for line in lines:
                if key_of(line) not in self._lookups:
                    by_task.setdefault(str(line["task"]), {}).setdefault(key_of(line), line)
            for wanted in by_task.values():
                lookup = self._process.submit(self._look_up, list(wanted.values()))
                self._lookups |= dict.fromkeys(wanted, lookup)

    def case(self, line: Mapping[str, Any]) -> CaseEntry | None:
        """Return the case of a line; None while it is looked for, and where no data set has it."""
        lookup = self._lookups.get(key_of(line))
        return lookup.result().get(line["case_id"]) if lookup is not None and lookup.done() else None

    def is_waiting(self, line: Mapping[str, Any]) -> bool:
        """Tell whether the case of a line is still looked for."""
        lookup = self._lookups.get(key_of(line))
        return lookup is not None and not lookup.done() and not self._faults

    def faults(self) -> list[str]:
        """Return a sentence for each data set that could not be read."""
        return list(dict.fromkeys(self._faults))

    def _look_up(self, lines: list[Mapping[str, Any]]) -> dict[str, CaseEntry]:
        """Ask about the lines of one task."""
        form = tuple[dict[str, CaseEntry], list[str]]
        found: dict[str, CaseEntry] = {}
        try:
            found, faults = self._process("cases", self._folder, lines, self._show_reports, form=form)
        except (Broken, Raised) as cause:
            faults = [f"The data sets could not be read: {cause}"]
        self._faults += faults
        return found


def key_of(line: Mapping[str, Any]) -> str:
    """Return the key of a line's case; data sets of other tasks may have a case of the same id."""
    return f"{line['task']}/{line['case_id']}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FollowRequest:
    """The boxes of one answer or rollout, and whose they are."""

    run: str  # by the name that references use
    kind: str  # "answers" or "rollouts"
    stage: str  # that wrote the line
    task: str
    case: str
    prompt: str
    image: str  # URI of the volume
    slice: int | None  # that the answer names
    boxes: tuple[Box, ...]  # in voxels of the volume


@dataclasses.dataclass(frozen=True, kw_only=True)
class FollowedMask:
    """What became of some boxes: a mask, or a sentence that says why there is none."""

    by: str = ""  # the segmenter, and whom it serves in the run
    fault: str = ""  # empty where there is a mask
    shape_zyx: tuple[int, ...] = ()
    bits: str = ""  # the mask, packed; a scan's mask takes a thousandth of it

    @classmethod
    def of(cls, mask: Mask, by: str) -> Self:
        """Keep a mask, shape (z, y, x)."""
        bits = base64.b64encode(zlib.compress(np.packbits(mask).tobytes(), 1)).decode()
        return cls(by=by, shape_zyx=mask.shape, bits=bits)

    def mask(self) -> Mask | None:
        """Return the mask on the volume's grid, shape (z, y, x); None where there is none."""
        if self.fault:
            return None
        packed = np.frombuffer(zlib.decompress(base64.b64decode(self.bits)), dtype=np.uint8)
        voxels = np.unpackbits(packed, count=int(np.prod(self.shape_zyx)))
        return voxels.astype(np.bool_).reshape(self.shape_zyx)


class FollowedMasks:
    """Has the run's segmenters follow boxes, one request at a time and the newest first.

    What was made is kept as long as the viewer runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder  # of the run
        self._made: dict[FollowRequest, FollowedMask] = {}
        self._waiting: list[FollowRequest] = []  # the newest last
        self._current: FollowRequest | None = None
        self._process, self._lock = RunProcess(), threading.Lock()
        self.close = self._process.close

    def get(self, wanted: FollowRequest) -> FollowedMask | None:
        """Return what became of some boxes; None while they are followed, which begins if it has not."""
        with self._lock:
            if wanted not in self._made and wanted != self._current:
                others = [request for request in self._waiting if request != wanted]
                self._waiting = [*others, wanted][-_MOST_WAITING:]
                self._process.submit(self._follow)
            return self._made.get(wanted)

    def _follow(self) -> None:
        """Have the process follow the newest boxes; one that ends meanwhile makes nothing of them."""
        with self._lock:
            if not self._waiting:
                return
            self._current = wanted = self._waiting.pop()
        try:
            made = self._process("follow", self._folder, wanted, form=FollowedMask)
        except (Broken, Raised) as cause:
            status = cause.status if isinstance(cause, Broken) else 1
            made = FollowedMask(
                fault=f"The process of the segmenter ended with status {status}, before it had followed the "
                "boxes. Start `evid view` again to try again."
            )
        with self._lock:
            self._made[wanted], self._current = made, None


def names_segmenter(recipe: Mapping[str, Any]) -> bool:
    """Tell whether a resolved recipe has a segmenter: as a service, or in the table of a stage."""
    tables = json.dumps([recipe.get("service"), recipe.get("stage")], default=str)
    used = [f'"use": "{offer.name}"' for offer in offers("segmenter")]  # some may be missing here
    return any(item in tables for item in ('"kind": "segmenter"', '"segmenter": {', *used))
