"""Task `reasoning-segmentation`: name the slice that shows something best, and box it there."""

import dataclasses
import functools
import json
import logging
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt

from evidcore.api import Answer, Box, Case, DataError, Prompt, Span, Task, TextPart, View, VisualPart
from evidcore.cache import plain_file
from evidcore.case import Evidence, Part, Query
from evidcore.errors import PluginError
from evidcore_plugin_medvol_r1.reading import BOXES, FULL, SLICE, Form, read
from evidcore_plugin_medvol_r1.target import (
    PARTS,
    SMALLEST_PART,
    Rule,
    gold_slice,
    measure,
    require_masks,
    require_one_volume,
    shown_slices,
)

log = logging.getLogger(__name__)

THINK_TEXT = "It is the {target}, seen best on slice {slice}."
UNKNOWN: Mapping[str, Any] = {"masks": [], "among": [], "finding": "", "kind": None, "target": None}
_EXAMPLE = '{"slice": 12, "bbox_2d_list": [[100, 250, 300, 400]]}'
_FORMS = {"object": f"<answer>{_EXAMPLE}</answer>", "array": f"<answer>[{_EXAMPLE}]</answer>"}
_SHORT = {False: "Name one slice and box it there.", True: "Think, then name one slice and box it there."}
_CHOOSE = (
    "Choose the one slice, of those shown, on which this is seen most clearly, and box every instance of it "
    "there; one box around many small fragments. Coordinates x0, y0, x1, y1 run from 0 to 1000 over it. "
)
_RULES = {
    False: f"{_CHOOSE}Answer exactly in this form, with no other key:\n",
    True: (
        f"{_CHOOSE}First think in one or two short sentences. Answer exactly in this form, with no other "
        f"key:\n<think>…</think>"
    ),
}


class ReasoningSegmentation(Task):
    """Ask for the object that a text means, often without naming it; the answer is a slice and boxes on it.

    The gold slice is the upper median of the ten shown slices on which the target is largest, the gold
    boxes are tight. Of a target that no shown slice shows, or that has no voxel, nothing is asked; the log
    says so of the first. Differences from the released code stand in the package's README: among them,
    areas and parts are counted on the volume's own grid, "200 pixels of 512 x 512" as that share of a slice;
    boxes are whole voxels, start included, stop excluded.

    Args:
        view: shows the case; it must tag slices.
        recipe_folder: where a relative `descriptions` starts.
        cache_folder: keeps what was measured of masks.
        think: ask for `<think>…</think>` before the answer. Without, answers alone are written and read, as
            in the paper's supervised stage.
        rules: spell the answer format out in the prompt, for models that were not trained on it.
        form: gold answers are one "object", or an "array" that holds one, as in paper and release, whose
            evaluator reads nothing else. The strict reader takes both for an "object", arrays for an "array".
        ask: "queries" asks those that came with the case; "masks" asks for each mask.
        names: with "masks", those that are asked about; all of a case if left out.
        descriptions: with "masks", a JSON file of mask names with texts, of which one is drawn; a mask that
            it lacks is asked for by its name.
        parts: most boxes on a slice for masks of several instances, by name; one for every other mask.
            Names of masks are matched in any case, here, in `names` and in `descriptions`.
        smallest_part: share of a slice's area that an instance needs for a box of its own.
        think_text: what gold answers think, about `{target}` and `{slice}`.
        margin_voxels: gold boxes are drawn so much wider on each side, as annotators do who box for reading
            and not for measuring (DeepLesion: 5 pixels). What is measured stays tight.

    Source:
        Wang et al. 2026, MedVol-R1, arXiv:2605.26621; github AdvancingEther/MedVol-R1 @051b20f.
    """

    evaluation = "segmentation"
    needs_slice_tags = True
    takes_free_questions = True

    def __init__(
        self,
        view: View,
        recipe_folder: Path,
        cache_folder: Path,
        *,
        think: bool = True,
        rules: bool = False,
        form: Form = "object",
        ask: Literal["queries", "masks"] = "queries",
        names: tuple[str, ...] = (),
        descriptions: str = "",
        parts: Mapping[str, Annotated[int, Ge(1)]] = PARTS,
        smallest_part: Annotated[float, Ge(0), Lt(1)] = SMALLEST_PART,
        think_text: str = THINK_TEXT,
        margin_voxels: Annotated[int, Ge(0)] = 0,
    ) -> None:
        try:
            written = think_text.format(target="liver", slice=1).strip()
        except (KeyError, IndexError, ValueError) as cause:
            why = f"think_text knows {{target}} and {{slice}} alone, got {think_text!r}"
            raise ValueError(why) from cause
        if not written or "<" in written:
            raise ValueError(f"think_text must be words without tags, got {think_text!r}")
        self.view, self.think, self.rules, self.think_text = view, think, rules, think_text
        self.form: Form = form
        self.asked, self.names, self.margin_voxels = ask, names, margin_voxels
        self._descriptions = recipe_folder / descriptions if descriptions else None
        self._rule = Rule(parts=tuple(sorted(parts.items())), smallest_part=smallest_part)
        self._cache_folder = cache_folder
        self._has_warned = False

    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        queries: Sequence[Query] = case.queries
        if self.asked == "masks":
            queries = by_mask(case, self.names, self._texts, seed)
        for query in queries:
            require_masks(case, query.masks, f"query {query.id!r}")
        if not queries:
            return ()
        shown = view.render(case)
        slices = list(_slices(shown, case))
        result = []
        for query in queries if slices else ():
            target = measure(case, query.masks, self._cache_folder, self._rule)
            z = gold_slice(target.areas, slices)
            if z is not None:
                names = dict.fromkeys(re.sub(r" \d+$", "", name) for name in query.masks)  # cyst for cyst 2
                seen = {at: some for at, some in target.boxes.items() if at in slices}
                boxes = {str(at): [dataclasses.asdict(box) for box in some] for at, some in seen.items()}
                areas = {str(at): area for at, area in target.areas.items()}
                facts = {
                    "masks": list(query.masks),
                    "among": list(query.among),
                    "finding": " + ".join(names),
                    "kind": query.kind,
                    "target": {"slice": z, "areas": areas, "boxes": boxes},
                }
                result.append(self._prompt(case, shown, slices, query.id, query.text, facts))
            elif target.areas and not self._has_warned:
                self._has_warned = True
                log.warning(
                    "reasoning-segmentation: case %s, query %s: none of the %d slices shown shows the "
                    "target, so it is not asked, nor is any other of which this holds. Show more slices.",
                    case.id, query.id, len(slices),
                )  # fmt: skip
        return result

    def ask(self, case: Case, view: View) -> Sequence[Prompt]:
        """Ask what someone put; which mask answers is not known."""
        shown = view.render(case)
        slices = list(_slices(shown, case))
        return [self._prompt(case, shown, slices, one.id, one.text, UNKNOWN) for one in case.questions]

    def gold(self, prompt: Prompt) -> tuple[str, tuple[Span, ...]]:
        """Return the gold slice and its boxes, after a sentence of thought where thinking is asked for."""
        target = prompt.reference["target"]
        z = target["slice"]
        part = self._part(prompt, z)
        boxes = [self._shown_box(part, self._drawn(part, Box(**box))) for box in target["boxes"][str(z)]]
        item = {SLICE: z, BOXES: boxes}
        answer = f"<answer>{json.dumps([item] if self.form == 'array' else item)}</answer>"
        if not self.think:
            return answer, ()
        thought = self.think_text.format(target=prompt.reference["finding"], slice=z)
        return f"<think>{thought}</think>{answer}", ()

    def parse(self, prompt: Prompt, completion: str) -> Answer:
        """Read slice and boxes as far as they can be read; `malformed` holds the strict reader's reason."""
        result = read(completion, prompt.reference["shown"], think=self.think, form=self.form)
        evidence = None
        if result.slice is not None:
            part = self._part(prompt, result.slice)
            placed = [self.view.to_source(part, box) for box in result.boxes]
            boxes = tuple(box for box in placed if box is not None)  # repeats too, which rewards count
            evidence = Evidence(slice=result.slice, boxes=boxes)
        return Answer(text=completion, malformed=result.fault, think=result.think, evidence=evidence)

    @functools.cached_property
    def _texts(self) -> Mapping[str, tuple[str, ...]]:
        return {} if self._descriptions is None else read_descriptions(self._descriptions)

    def _prompt(
        self,
        case: Case,
        shown: Sequence[Part],
        slices: list[int],
        identity: str,
        text: str,
        facts: Mapping[str, Any],
    ) -> Prompt:
        form = f"{_RULES[self.think]}{_FORMS[self.form]}" if self.rules else _SHORT[self.think]
        return Prompt(
            id=f"{case.id}:{identity}",
            case=case,
            task="reasoning-segmentation",
            parts=(*shown, TextPart(text=f"{text}\n{form}")),
            reference={"query": text, "think": self.think, "form": self.form, "shown": slices, **facts},
        )

    def _part(self, prompt: Prompt, z: int) -> VisualPart:
        """Return the part that shows slice `z` of the prompt's own case, whatever pixels the prompt shows."""
        case = prompt.case
        return (_slices(prompt.parts, case) or _slices(self.view.render(case), case))[z]

    def _drawn(self, part: VisualPart, box: Box) -> Box:
        """Return a tight box with its margin, inside what the part shows."""
        assert part.crop.box_zyx is not None  # a slice is a crop with a box
        _, _, y0, y1, x0, x1 = part.crop.box_zyx
        wider = self.margin_voxels
        first = {"y0": max(box.y0 - wider, y0), "x0": max(box.x0 - wider, x0)}
        stop = {"y1": min(box.y1 + wider, y1), "x1": min(box.x1 + wider, x1)}
        return Box(z=box.z, **first, **stop)

    def _shown_box(self, part: VisualPart, box: Box) -> list[int]:
        """Return a box in whole numbers of 0..1000, at least 1 wide and high."""
        given = self.view.from_source(part, box)
        if given is None:
            why = f"view {type(self.view).__name__} cannot say where voxels lie on a slice that it shows"
            remedy = "Use view = { use = 'slices' }, or give the view a `from_source`."
            raise PluginError(f"{why}, so no gold box can be written. {remedy}")
        x0, y0, x1, y1 = (round(edge) for edge in given)
        x0, y0 = min(x0, FULL - 1), min(y0, FULL - 1)
        return [x0, y0, max(x1, x0 + 1), max(y1, y0 + 1)]


def _slices(parts: Sequence[Part], case: Case) -> dict[int, VisualPart]:
    """Return the parts that show slices of the case's volume, by index."""
    require_one_volume(case)
    return {z: part for z, part in shown_slices(parts).items() if part.crop.volume in case.volumes}


def by_mask(
    case: Case, names: Sequence[str], descriptions: Mapping[str, Sequence[str]], seed: int
) -> list[Query]:
    """Ask for each mask of a case: by its name, or by one of its descriptions.

    Names are matched whether they are written in capitals or not, as sets differ in it; without names all
    masks are asked about. `descriptions` are texts, of which one is drawn, by mask name in small letters.
    """
    by_name = {name.lower(): name for name in case.masks}
    result = []
    for name in [by_name[item.lower()] for item in names if item.lower() in by_name] if names else case.masks:
        spoken = name.replace("_", " ")
        texts = descriptions.get(name.lower()) or descriptions.get(spoken.lower()) or (f"the {spoken}",)
        text = random.Random(f"reasoning-segmentation/{seed}/{case.id}/{name}").choice(texts)
        result.append(Query(id=name, text=text, masks=(name,)))
    return result


def read_descriptions(path: Path) -> dict[str, tuple[str, ...]]:
    """Read a JSON file of mask names with their descriptions, as M3D's `term_dictionary.json`.

    Returns:
        Texts by mask name in small letters; those of names that differ in capitals alone, together.

    Raises:
        DataError: if it cannot be used; names the file and the entry.
    """
    try:
        table: Any = json.loads(plain_file(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as cause:
        file = 'an object of mask names with a list of texts each, {"liver": ["the largest gland"]}'
        remedy = f"Give descriptions = 'FILE', {file}."
        raise DataError(f"{path}: cannot be read as JSON ({cause}). {remedy}") from cause
    if not isinstance(table, dict):
        raise DataError(f"{path}: must be an object of mask names, got {type(table).__name__}.")
    result: dict[str, tuple[str, ...]] = {}
    for name, texts in table.items():
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            why = f"{name!r} must have a list of texts, got {json.dumps(texts)[:60]}"
            raise DataError(f"{path}: {why}. Correct the entry.")
        result[name.lower()] = (*result.get(name.lower(), ()), *texts)
    return result
