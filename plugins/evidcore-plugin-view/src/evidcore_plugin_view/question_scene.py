"""What is seen of one question: the scan that its prompt showed, and every overlay that it has."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from evidcore_plugin_pages.gallery import WORDS

from evidcore.api import Box, Crop, MaskRef, VolumeRef
from evidcore.errors import RunError
from evidcore.runs.read import findings_of
from evidcore_plugin_view import overlay
from evidcore_plugin_view.background import CaseEntry, FollowRequest
from evidcore_plugin_view.line_index import Line
from evidcore_plugin_view.opened_run import OpenedRun
from evidcore_plugin_view.overlay import Overlay

_REFERENCE = re.compile(r"(\w+):(answers|rollouts):([^:]+):(\d+)(?::(\d+))?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference:
    """A line of a run: `a:answers:05-evaluate:12`, or one rollout of it, `a:rollouts:08-grpo:3:5`."""

    run: str
    kind: str
    stage: str
    number: int
    rollout: int | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read a reference.

        Raises:
            RunError: if the text is none.
        """
        result = _REFERENCE.fullmatch(text)
        if result is None:
            raise RunError(f"not a line of a run: {text!r}. Write run:answers:stage:number, counted from 0.")
        run, kind, stage, number, chosen = result.groups()
        rollout = None if chosen is None else int(chosen)
        return cls(run=run, kind=kind, stage=stage, number=int(number), rollout=rollout)

    def rollout_of(self, line: Line) -> Line:
        """Return the rollout that is meant, of the line of its group.

        Raises:
            RunError: if the group has no such rollout.
        """
        rollouts: Sequence[Line] = line.get("rollouts") or ()
        if self.rollout is None or self.rollout >= len(rollouts):
            raise RunError(
                f"group {self.number} of {self.stage} has {len(rollouts)} rollouts, "
                f"so no rollout {self.rollout} (counted from 0). Choose one from the list again."
            )
        return rollouts[self.rollout]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    """One scan and what is drawn over it."""

    volume: VolumeRef | None  # None: there is nothing to show, and `notes` say why
    overlays: tuple[Overlay, ...]
    notes: tuple[str, ...]
    sides: tuple[str, ...]  # those that were shown this scan
    target: Mapping[str, MaskRef]  # the masks that are asked about; empty where not all of them are known
    waiting: bool  # whether the case's masks are still looked for

    def overlay(self, name: str) -> Overlay:
        """Return the overlay of an id.

        Raises:
            RunError: if there is none.
        """
        for item in self.overlays:
            if item.id == name:
                return item
        known = ", ".join(item.id for item in self.overlays)
        raise RunError(f"nothing to draw is called {name!r}. There are: {known or 'none'}.")


def compose(runs: Mapping[str, OpenedRun], references: Sequence[Reference]) -> Scene:
    """Return what is seen of a question, as one or two sides answered it.

    The scan is the first that a prompt showed; evidence of a side that saw another scan is not drawn over it.
    Overlays come in the order in which they are listed: what is right and asked about, then what was
    predicted, then the case's other masks. Occlusion maps are drawn at first where there is nothing else.

    Args:
        runs: by the name that references use.
        references: at most two, sides "a" and "b".

    Raises:
        RunError: if a line is not there, or its image reference cannot be read.
    """
    lines = [runs[item.run].line(item.kind, item.stage, item.number) for item in references]
    shown = [_crops(line) for line in lines]
    first = next((crops[0] for crops in shown if crops and not crops[0].blank), None)
    if first is None:
        note = "Every voxel that the prompt showed is air." if any(shown) else "No image was recorded."
        return Scene(volume=None, overlays=(), notes=(note,), sides=(), target={}, waiting=False)
    path = first.volume.path
    cases = runs[references[0].run].cases
    case = cases.case(lines[0])
    is_own = case is not None and path == case.paths[0]  # boxes are followed through the case's own volume
    notes: list[str] = []
    truth: list[Overlay] = []
    target: Mapping[str, MaskRef] = {}
    if case is not None and path in case.paths:
        asked = _asked(lines[0], case)
        truth = overlay.of_masks(case.masks, asked)
        if set(asked) <= case.masks.keys():
            target = {name: case.masks[name] for name in asked}
    sides: list[str] = []
    pointed: list[Overlay] = []
    followed: list[Overlay] = []
    maps: list[Overlay] = []
    for side, reference, line, crops in zip("ab", references, lines, shown, strict=False):
        if crops and crops[0].volume.path != path:
            notes.append(f"Side {side.upper()} was shown another scan: its evidence is not drawn here.")
            continue
        sides.append(side)
        notes += _about(crops, side if len(references) > 1 else "")
        said: Line = line
        if reference.kind == "answers":
            pointed += overlay.of_answer(line, side, path)
            if (drops := runs[reference.run].occlusion(line)) is not None:
                maps += overlay.of_drops(drops, side, path)
        else:
            pointed += overlay.of_group(line, path)
            rollout = {} if reference.rollout is None else reference.rollout_of(line)
            pointed += overlay.of_rollout(rollout, side, path)
            said = rollout.get("evidence") or {}
        if is_own and runs[reference.run].has_segmenter and said.get("boxes"):
            request = _request(reference, line, said, first)
            followed.append(Overlay(name="mask", role="followed", source=side, follow=request))
    if case is not None and path not in case.paths:
        notes.append("This is not the scan of the case that is asked about, so its masks are not drawn.")
    if any(item.asked for item in (*truth, *pointed, *followed)):  # maps cover the whole scan
        maps = [dataclasses.replace(item, asked=False) for item in maps]
    order = {"truth": 0, "predicted": 1, "followed": 2, "looked-at": 3, "shown": 4, "occlusion": 5}
    distinct: dict[str, Overlay] = {}
    for item in (*truth, *pointed, *followed, *maps):
        is_shared = item.role in ("truth", "shown")  # alike on both sides
        whole = dataclasses.replace(item, source="") if is_shared else item
        distinct.setdefault(whole.id, whole)
    return Scene(
        volume=first.volume,
        overlays=tuple(sorted(distinct.values(), key=lambda item: (not item.asked, order[item.role]))),
        notes=(*dict.fromkeys(notes), *cases.faults()),
        sides=tuple(sides),
        target=target,
        waiting=case is None and cases.is_waiting(lines[0]),
    )


def _request(one: Reference, line: Line, said: Line, shown: Crop) -> FollowRequest:
    """Return what a segmenter is asked about the boxes of an answer or a rollout."""
    return FollowRequest(
        run=one.run,
        kind=one.kind,
        stage=one.stage,
        task=str(line["task"]),
        case=str(line["case_id"]),
        prompt=str(line["prompt_id"]),
        image=Crop(volume=shown.volume).uri(),
        slice=said.get("slice"),
        boxes=tuple(Box(**box) for box in said["boxes"]),
    )


def _asked(line: Line, case: CaseEntry) -> list[str]:
    """Return the names of the masks that a question is about."""
    reference = line.get("reference") or {}
    named = line.get("masks") or reference.get("masks")
    if named:
        return [str(name) for name in named]
    return (
        findings_of(line)
        or findings_of(reference)
        or [str(item["name"]) for item in case.findings if item["state"] == "present"]
    )


def _crops(line: Line) -> list[Crop]:
    try:
        return [Crop.parse_uri(uri) for uri in line.get("images") or ()]
    except ValueError as cause:
        raise RunError(f"{line['stage']}, {line.get('prompt_id')!r}: {cause}.") from cause


def _about(crops: Sequence[Crop], side: str) -> list[str]:
    """Say how a prompt's showing differs from the scan itself."""
    who = f"Side {side.upper()}: " if side else ""
    result = []
    if crops and crops[0].blank:
        result.append(f"{who}every voxel that the prompt showed was air.")
    if crops and crops[0].change:
        result.append(f"{who}the prompt showed this scan {crops[0].change}.")
    if crops and crops[0].drawing is not None:
        result.append(f"{who}{WORDS[crops[0].drawing.kind]} Here is the scan that it was made of.")
    return result
