"""What is seen of one question: the scan that its prompt showed, and every overlay that it has."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from evidcore_plugin_pages.gallery import WORDS

from evidcore.case import Box, Crop, MaskRef, VolumeRef
from evidcore.errors import RunError
from evidcore.runs.read import findings_of
from evidcore_plugin_view import overlay
from evidcore_plugin_view.case_book import BookedCase
from evidcore_plugin_view.followed_masks import FollowRequest
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
        found = _REFERENCE.fullmatch(text)
        if found is None:
            raise RunError(f"not a line of a run: {text!r}. Write run:answers:stage:number, counted from 0.")
        run, kind, stage, number, rollout = found.groups()
        return cls(
            run=run,
            kind=kind,
            stage=stage,
            number=int(number),
            rollout=None if rollout is None else int(rollout),
        )

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
        for one in self.overlays:
            if one.id == name:
                return one
        known = ", ".join(one.id for one in self.overlays)
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
    lines = [runs[one.run].line(one.kind, one.stage, one.number) for one in references]
    shown = [_crops(line) for line in lines]
    first = next((crops[0] for crops in shown if crops and not crops[0].blank), None)
    if first is None:
        recorded = any(shown)
        note = "Every voxel that the prompt showed is air." if recorded else "No image was recorded."
        return Scene(volume=None, overlays=(), notes=(note,), sides=(), target={}, waiting=False)
    path = first.volume.path
    said: list[Overlay] = []
    drops: list[Overlay] = []
    sides: list[str] = []
    notes: list[str] = []
    for side, one, line, crops in zip("ab", references, lines, shown, strict=False):
        if crops and crops[0].volume.path != path:
            notes.append(f"Side {side.upper()} was shown another scan: its evidence is not drawn here.")
            continue
        sides.append(side)
        notes += _about(crops, side if len(references) > 1 else "")
        said += _evidence(one, line, side, path)
        if one.kind == "answers" and (found := runs[one.run].drops.get(line)) is not None:
            drops += overlay.of_drops(found, side, path)
    book = runs[references[0].run].book
    booked = book.case(lines[0])
    truth: list[Overlay] = []
    target: Mapping[str, MaskRef] = {}
    if booked is not None and path in booked.paths:
        asked = _asked(lines[0], booked)
        truth = overlay.of_masks(booked.masks, asked)
        if set(asked) <= booked.masks.keys():
            target = {name: booked.masks[name] for name in asked}
    elif booked is not None:
        notes.append("This is not the scan of the case that is asked about, so its masks are not drawn.")
    if booked is not None and path == booked.paths[0]:  # boxes are followed through the case's own volume
        sided = zip("ab", references, lines, strict=False)
        said += [
            found
            for side, one, line in sided
            if side in sides and runs[one.run].has_segmenter
            for found in _followed(one, line, side, first)
        ]
    order = {"truth": 0, "predicted": 1, "followed": 2, "looked-at": 3, "shown": 4, "occlusion": 5}
    if any(one.asked for one in (*truth, *said)):  # maps cover the whole scan
        drops = [dataclasses.replace(one, asked=False) for one in drops]
    overlays = sorted(_once([*truth, *said, *drops]), key=lambda one: (not one.asked, order[one.role]))
    return Scene(
        volume=first.volume,
        overlays=tuple(overlays),
        notes=(*dict.fromkeys(notes), *book.faults()),
        sides=tuple(sides),
        target=target,
        waiting=booked is None and book.is_waiting(lines[0]),
    )


def _evidence(one: Reference, line: Line, side: str, path: str) -> list[Overlay]:
    if one.kind == "answers":
        return overlay.of_answer(line, side, path)
    found = overlay.of_group(line, path)
    if one.rollout is not None:
        found += overlay.of_rollout(one.rollout_of(line), side, path)
    return found


def _followed(one: Reference, line: Line, side: str, shown: Crop) -> list[Overlay]:
    """Return the mask that a segmenter makes of the boxes of an answer or a rollout, if it has any."""
    said = line
    if one.kind == "rollouts":
        said = {} if one.rollout is None else one.rollout_of(line).get("evidence") or {}
    boxes = tuple(Box(**box) for box in said.get("boxes") or ())
    if not boxes:
        return []
    wanted = FollowRequest(
        run=one.run,
        kind=one.kind,
        stage=one.stage,
        task=str(line["task"]),
        case=str(line["case_id"]),
        prompt=str(line["prompt_id"]),
        image=Crop(volume=shown.volume).uri(),
        slice=said.get("slice"),
        boxes=boxes,
    )
    return [Overlay(name="mask", role="followed", source=side, follow=wanted)]


def _asked(line: Line, booked: BookedCase) -> list[str]:
    """Return the names of the masks that a question is about."""
    reference = line.get("reference") or {}
    named = line.get("masks") or reference.get("masks")
    if named:
        return [str(name) for name in named]
    about = findings_of(line) or findings_of(reference)
    if about:
        return about
    return [str(one["name"]) for one in booked.findings if one["state"] == "present"]


def _once(overlays: Iterable[Overlay]) -> list[Overlay]:
    """Return overlays without those that both sides gave alike: what is right, what was shown."""
    kept: dict[str, Overlay] = {}
    for one in overlays:
        shared = one.role in ("truth", "shown")
        whole = dataclasses.replace(one, source="") if shared else one
        kept.setdefault(whole.id, whole)
    return list(kept.values())


def _crops(line: Line) -> list[Crop]:
    try:
        return [Crop.parse_uri(uri) for uri in line.get("images") or ()]
    except ValueError as cause:
        raise RunError(f"{line['stage']}, {line.get('prompt_id')!r}: {cause}.") from cause


def _about(crops: Sequence[Crop], side: str) -> list[str]:
    """Say how a prompt's showing differs from the scan itself."""
    who = f"Side {side.upper()}: " if side else ""
    found = []
    if crops and crops[0].blank:
        found.append(f"{who}every voxel that the prompt showed was air.")
    if crops and crops[0].change:
        found.append(f"{who}the prompt showed this scan {crops[0].change}.")
    if crops and crops[0].drawing is not None:
        found.append(f"{who}{WORDS[crops[0].drawing.kind]} Here is the scan that it was made of.")
    return found
