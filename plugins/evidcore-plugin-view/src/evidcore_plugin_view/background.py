"""What needs torch is asked of processes beside the viewer, so that it starts at once and stays quick.

One process looks cases up, one reads sentences and one follows boxes: `run_worker` is what runs in them.
Threads wait for their answers, so that a question is answered at once with what is known so far.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
from evidcore_plugin_hub.worker import Broken, Raised, Worker

from evidcore.api import Box, MaskRef
from evidcore.data.boxes import Mask
from evidcore.errors import RunError
from evidcore.registry import offers

_MOST_BYTES = 1 << 30  # of the cases of a whole data set
_MOST_WAITING = 4  # older requests are made when they are asked for again
Sentences = list[dict[str, Any]]  # start and end, in characters, and the findings that are present


class RunProcess:
    """A process that answers for a run: started when it is first asked, and again where it ended."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._lock = threading.Lock()

    def __call__(self, doing: str, *given: Any) -> Any:
        """Return what a method of `RunWorker` gives.

        Raises:
            Broken, Raised: as of `Worker`.
        """
        with self._lock:
            if self._worker is None or not self._worker.is_running:
                serves = "evidcore_plugin_view.run_worker:RunWorker"
                self._worker = Worker(serves, most_bytes=_MOST_BYTES)
            worker = self._worker
        return worker.ask(doing, *given)

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

    def close(self) -> None:
        """End the process, whatever it does."""
        with self._lock:
            if self._worker is not None:
                self._worker.end()


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaseEntry:
    """What a data set tells of a case; a real patient's report only where it may be shown."""

    phantom: bool
    paths: Sequence[str]  # of its volumes
    masks: Mapping[str, MaskRef]
    findings: Sequence[Mapping[str, Any]]
    report: Mapping[str, Any] | None
    report_withheld: bool


class CaseIndex:
    """Looks cases up in the background, in the order in which they are asked for.

    Args:
        folder: of the run.
        show_reports: whether reports of real patients may be shown.
    """

    def __init__(self, folder: Path, *, show_reports: bool) -> None:
        self._folder, self._show_reports = folder, show_reports
        self._cases: dict[str, CaseEntry] = {}
        self._asked: set[str] = set()
        self._answered: set[str] = set()
        self._faults: list[str] = []
        self._process, self._thread = RunProcess(), ThreadPoolExecutor(1)
        self._lock = threading.Lock()

    def ask(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Have the cases of some lines looked up; those that were asked about before are left out.

        Args:
            lines: of answers or groups: stage, task, case_id, images.
        """
        by_task: dict[str, dict[str, Mapping[str, Any]]] = {}
        with self._lock:
            for line in lines:
                if key_of(line) not in self._asked:
                    by_task.setdefault(str(line["task"]), {}).setdefault(key_of(line), line)
            self._asked.update(*by_task.values())
        for wanted in by_task.values():
            with contextlib.suppress(RuntimeError):  # the viewer ends
                self._thread.submit(self._look_up, wanted)

    def case(self, line: Mapping[str, Any]) -> CaseEntry | None:
        """Return the case of a line; None while it is looked for, and where no data set has it."""
        return self._cases.get(key_of(line))

    def is_waiting(self, line: Mapping[str, Any]) -> bool:
        """Tell whether the case of a line is still looked for."""
        with self._lock:
            return key_of(line) in self._asked - self._answered and not self._faults

    def faults(self) -> list[str]:
        """Return a sentence for each data set that could not be read."""
        return list(self._faults)

    def close(self) -> None:
        """End what was started for it."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._process.close()
        self._thread.shutdown()

    def _look_up(self, wanted: Mapping[str, Mapping[str, Any]]) -> None:
        """Ask about the lines of one task, by the keys of their cases."""
        try:
            answer = self._process("cases", self._folder, list(wanted.values()), self._show_reports)
        except (Broken, Raised) as cause:
            answer = {"cases": {}, "faults": [f"The data sets could not be read: {cause}"]}
        with self._lock:
            for key, line in wanted.items():
                if (fields := answer["cases"].get(line["case_id"])) is not None:
                    masks = {name: MaskRef(**ref) for name, ref in fields["masks"].items()}
                    self._cases[key] = CaseEntry(**{**fields, "masks": masks})
            self._faults += [fault for fault in answer["faults"] if fault not in self._faults]
            self._answered |= wanted.keys()


def key_of(line: Mapping[str, Any]) -> str:
    """Return the key of a line's case; data sets of other tasks may have a case of the same id."""
    return f"{line['task']}/{line['case_id']}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FollowRequest:
    """The boxes of one answer or rollout, and whose they are.

    Args:
        run: by the name that references use.
        kind: "answers" or "rollouts".
        stage: that wrote the line.
        task: of the question.
        case: its id.
        prompt: its id.
        image: URI of the volume.
        slice: that the answer names.
        boxes: in voxels of the volume.
    """

    run: str
    kind: str
    stage: str
    task: str
    case: str
    prompt: str
    image: str
    slice: int | None
    boxes: tuple[Box, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FollowedMask:
    """What became of some boxes: a mask, or a sentence that says why there is none.

    Args:
        by: the segmenter, and whom it serves in the run.
        fault: why there is no mask; empty where there is one.
        shape_zyx: of the volume.
        bits: the mask, packed; a scan's mask takes a thousandth of it.
    """

    by: str = ""
    fault: str = ""
    shape_zyx: Sequence[int] = (0, 0, 0)
    bits: str = ""

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
        """Take the folder of a run; nothing is started before boxes are to be followed."""
        self._folder = folder
        self._made: dict[FollowRequest, FollowedMask] = {}
        self._waiting: list[FollowRequest] = []  # the newest last
        self._current: FollowRequest | None = None
        self._process, self._thread = RunProcess(), ThreadPoolExecutor(1)
        self._lock = threading.Lock()

    def get(self, wanted: FollowRequest) -> FollowedMask | None:
        """Return what became of some boxes; None while they are followed, which begins if it has not."""
        with self._lock:
            if wanted not in self._made and wanted != self._current:
                others = [request for request in self._waiting if request != wanted]
                self._waiting = [*others, wanted][-_MOST_WAITING:]
                with contextlib.suppress(RuntimeError):  # the viewer ends
                    self._thread.submit(self._follow)
            return self._made.get(wanted)

    def close(self) -> None:
        """End the process, whatever it does."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._process.close()
        self._thread.shutdown()

    def _follow(self) -> None:
        """Have the process follow the newest boxes; one that ends meanwhile makes nothing of them."""
        with self._lock:
            if not self._waiting:
                return
            self._current = wanted = self._waiting.pop()
        try:
            made = FollowedMask(**self._process("follow", self._folder, wanted))
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
    if any(table.get("kind") == "segmenter" for table in recipe.get("service", {}).values()):
        return True
    return _has_segmenter(recipe.get("stage", ()), {offer.name for offer in offers("segmenter")})


def _has_segmenter(value: Any, installed: set[str]) -> bool:
    """Tell whether nested tables hold one of a segmenter, which may be missing here."""
    if isinstance(value, list | tuple):
        return any(_has_segmenter(inner, installed) for inner in value)
    if not isinstance(value, Mapping):
        return False
    return (
        value.get("use") in installed
        or isinstance(value.get("segmenter"), Mapping)
        or any(_has_segmenter(inner, installed) for inner in value.values())
    )
