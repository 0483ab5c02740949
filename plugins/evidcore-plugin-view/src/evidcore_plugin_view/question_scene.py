"""What is seen of one question: the scan that its prompt showed, and every overlay that it has."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import get_args

from evidcore_plugin_pages.gallery import WORDS
from evidcore_plugin_pages.record import Line, findings_of

from evidcore.api import Box, Crop, MaskRef, VolumeRef
from evidcore.errors import RunError
from evidcore_plugin_view import overlay
from evidcore_plugin_view.background import FollowRequest
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
    """Return what is seen of a question, as sides "a" and "b", or "a" alone, answered it.

    The scan is the first that a prompt showed; evidence of a side that saw another scan is not drawn over it.
    Overlays come in the order in which they are listed: what is right and asked about, then what was
    predicted, then the case's other masks. Occlusion maps are drawn at first where there is nothing else.

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
    sides: list[str] = []
    overlays: list[Overlay] = []
    target: Mapping[str, MaskRef] = {}
    if case is not None and path in case.paths:
        reference = lines[0].get("reference") or {}
        named = map(str, lines[0].get("masks") or reference.get("masks") or ())
        asked = [*named] or findings_of(lines[0]) or findings_of(reference) or list(case.present)
        overlays += overlay.of_masks(case.masks, asked)
        if set(asked) <= case.masks.keys():
            target = {name: case.masks[name] for name in asked}
    elif case is not None:
        notes.append("This is not the scan of the case that is asked about, so its masks are not drawn.")
    for side, reference, line, crops in zip("ab", references, lines, shown, strict=False):
        if crops and crops[0].volume.path != path:
            notes.append(f"Side {side.upper()} was shown another scan: its evidence is not drawn here.")
            continue
        sides.append(side)
        notes += _about(crops[0], side if len(references) > 1 else "") if crops else []
        said: Line = line
        if reference.kind == "answers":
            overlays += overlay.of_answer(line, side, path)
            if (drops := runs[reference.run].occlusion(line)) is not None:
                overlays += overlay.of_drops(drops, side, path)
        else:
            rollout = {} if reference.rollout is None else reference.rollout_of(line)
            overlays += overlay.of_group(line, path)
            overlays += overlay.of_rollout(rollout, side, path)
            said = rollout.get("evidence") or {}
        if is_own and runs[reference.run].has_segmenter and said.get("boxes"):
            request = FollowRequest(
                run=reference.run, kind=reference.kind, stage=reference.stage, task=str(line["task"]),
                case=str(line["case_id"]), prompt=str(line["prompt_id"]), slice=said.get("slice"),
                image=Crop(volume=first.volume).uri(), boxes=tuple(Box(**box) for box in said["boxes"]),
            )  # fmt: skip
            overlays.append(Overlay(name="mask", role="followed", source=side, follow=request))
    is_any_drawn = any(item.asked for item in overlays if item.role != "occlusion")
    distinct: dict[str, Overlay] = {}
    for item in overlays:
        source = "" if item.role in ("truth", "shown") else item.source  # those are alike on both sides
        is_asked = item.asked and not (item.role == "occlusion" and is_any_drawn)  # maps cover the whole scan
        whole = dataclasses.replace(item, source=source, asked=is_asked)
        distinct.setdefault(whole.id, whole)
    order = get_args(overlay.Role)
    return Scene(
        volume=first.volume,
        overlays=tuple(sorted(distinct.values(), key=lambda item: (not item.asked, order.index(item.role)))),
        notes=(*dict.fromkeys(notes), *cases.faults()),
        sides=tuple(sides),
        target=target,
        waiting=case is None and cases.is_waiting(lines[0]),
    )


def _crops(line: Line) -> list[Crop]:
    try:
        return [Crop.parse_uri(uri) for uri in line.get("images") or ()]
    except ValueError as cause:
        raise RunError(f"{line['stage']}, {line.get('prompt_id')!r}: {cause}.") from cause


def _about(crop: Crop, side: str) -> list[str]:
    """Say how a prompt's showing differs from the scan itself."""
    says = {
        "every voxel that the prompt showed was air.": crop.blank,
        f"the prompt showed this scan {crop.change}.": crop.change,
    }
    if crop.drawing is not None:
        says[f"{WORDS[crop.drawing.kind]} Here is the scan that it was made of."] = True
    return [f"Side {side.upper()}: {text}" if side else text for text, holds in says.items() if holds]
