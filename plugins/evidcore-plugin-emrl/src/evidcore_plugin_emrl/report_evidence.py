"""Task `report-evidence`: write the report, and name the slice that shows what it says."""

import json
import logging
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge
from evidcore_plugin_medvol_r1.target import gold_slice, measure, require_one_volume
from evidcore_plugin_medvol_r1.target import shown_slices as shown_parts
from evidcore_plugin_reports.labels_file import once

from evidcore.api import Answer, Case, Crop, Finding, Prompt, Report, Span, Task, TextPart, View
from evidcore.case import Evidence
from evidcore.errors import RecipeError
from evidcore.text.tags import has_words, inside, shortened, tag_fault

log = logging.getLogger(__name__)

SLICE = "slice"
ORDERS = {"report-first": ("report", "evidence"), "evidence-first": ("evidence", "report")}
FORMS = {"report": '{"slice": 12}', "finding": '{"liver cyst": 12, "gallstone": 9}'}
NOTHING = "null"


class ReportEvidence(Task):
    """Ask for the report and for the slice, of those shown, on which its findings are seen best.

    The answer is `<report>…</report><evidence>{"slice": 12}</evidence>`, or `<evidence>null</evidence>` where
    nothing is found. The gold slice is the shown one on which the findings together are largest, of equal
    ones the lower. `prompt.reference` has `shown`, `present` with the `masks` of these names, and what reward
    `key-slice` goes by: `target`, or `targets` where a slice is cited for each finding; neither for a healthy
    scan. `cited` holds the slices that a gold answer names, by finding or as "slice".

    An indication in the case's notes is told. Cases without a report ask nothing, nor, unless `unshown` says
    otherwise, do those with a finding that has no mask or that no shown slice shows; the log says so of the
    first.

    Args:
        cache_folder: keeps what was measured of masks.
        order: what comes first, the report or the evidence.
        cite: one slice for the whole "report", or one for each "finding" that is affirmed:
            `{"liver cyst": 12, "gallstone": 9}`.
        think: ask for `<think>…</think>` before; gold answers then think of what is seen where.
        section: gold answers hold the whole "report", or its "impression" alone: `case.notes["impression"]`.
        margin_slices: gold answers name any shown slice up to so many slices from the gold one, drawn by the
            seed, as labels do that were put down from memory. Nothing else goes by the slice that was drawn.
        slices_of: gold answers name a slice of the "finding", or any shown slice of the "organ" that it lies
            in, drawn by the seed, as labels do that a segmenter of organs made. Its mask is named by the
            finding's `location`, with its `side` before it where there are two; cases without it ask nothing.
        unshown: what becomes of a case with a finding that has no mask or that no shown slice shows:
            "leave-out" asks nothing; "report" asks for all findings, and for the slice of the others, as
            reports tell what is known from elsewhere. Without any other, nothing is asked.
        instruction: what the model is told after it was shown the scan; "" for a sentence with the form.

    Source:
        E-MRL, arXiv:2606.23888, tells a report and a key evidence slice. Format, gold slice and options are
        ours: nothing else of the method is published.
    """

    evaluation = "report-evidence"
    needs_slice_tags = True

    def __init__(
        self,
        cache_folder: Path,
        *,
        order: Literal["report-first", "evidence-first"] = "report-first",
        cite: Literal["report", "finding"] = "report",
        think: bool = False,
        section: Literal["report", "impression"] = "report",
        margin_slices: Annotated[int, Ge(0)] = 0,
        slices_of: Literal["finding", "organ"] = "finding",
        unshown: Literal["leave-out", "report"] = "leave-out",
        instruction: str = "",
    ) -> None:
        if margin_slices and slices_of == "organ":
            raise RecipeError("report-evidence: margin_slices goes with slices_of = 'finding'; leave one out")
        self.order, self.cite, self.think, self.section = order, cite, think, section
        self.margin_slices, self.slices_of, self.unshown = margin_slices, slices_of, unshown
        self.instruction = instruction or self._form()
        self._cache_folder = cache_folder
        self._has_told = False

    def prompts(self, case: Case, view: View, seed: int) -> Sequence[Prompt]:
        """Ask once a case; the seed draws the slices that gold answers name, where there is a margin."""
        if self._written(case) is None:
            return ()
        parts, slices = _shown(case, view)
        masked = [name for name in case.present() if name in case.masks]
        areas = {name: measure(case, [name], self._cache_folder).areas for name in masked}
        present = [name for name in masked if gold_slice(areas[name], slices, 1) is not None]
        unshown = next((name for name in case.present() if name not in present), None)
        if unshown is not None and (self.unshown == "leave-out" or not present):
            not_seen = f"none of the {len(slices)} slices shown shows finding {unshown!r}"
            return self._left_out(case, not_seen if unshown in masked else f"finding {unshown!r} has no mask")
        of_organs = self.slices_of == "organ"
        shown = [item for item in case.findings if item.name in present]
        lost = next((item for item in shown if of_organs and not _organs(case, item)), None)
        if lost is not None:
            organ = lost.location or "organ"
            return self._left_out(case, f"no mask shows the {organ} of finding {lost.name!r}")
        reference: dict[str, Any] = {"target": None, "targets": {}}
        if present and self.cite == "report":
            together = measure(case, present, self._cache_folder).areas
            reference["target"] = _target(together, slices)
        elif present:
            reference["targets"] = {name: _target(areas[name], slices) for name in present}
        rng = random.Random(f"report-evidence/{seed}/{case.id}")
        targets = reference["targets"] or ({SLICE: reference["target"]} if present else {})
        reference["cited"] = {
            name: rng.choice(self._citable(case, present if name == SLICE else [name], target, slices))
            for name, target in targets.items()
        }
        return [self._prompt(case, parts, slices, present, reference)]

    def ask(self, case: Case, view: View) -> Sequence[Prompt]:
        parts, slices = _shown(case, view)
        return [self._prompt(case, parts, slices, [], {"target": None, "targets": {}, "cited": {}})]

    def gold(self, prompt: Prompt) -> tuple[str, tuple[Span, ...]]:
        """Return the radiologist's report, its labelled sentences, and the gold slice within its margin."""
        report = self._written(prompt.case)
        if report is None:
            raise ValueError(f"case {prompt.case.id!r} has no {self.section}, so there is no gold answer")
        reference = prompt.reference
        cited = reference["cited"]
        texts = {"report": report.text.strip(), "evidence": json.dumps(cited) if cited else NOTHING}
        thought = "; ".join(f"{name} on slice {z}" for name, z in cited.items() if name != SLICE)
        if SLICE in cited:
            thought = f"{', '.join(reference['present'])} on slice {cited[SLICE]}"
        written = f"<think>{thought or 'nothing abnormal'}.</think>" if self.think else ""
        spans: tuple[Span, ...] = ()
        for name in ORDERS[self.order]:
            written += f"<{name}>"
            if name == "report":
                spans = _moved(report.spans, report.text, len(written))
            written += f"{texts[name]}</{name}>"
        return written, spans

    def parse(self, prompt: Prompt, completion: str) -> Answer:
        """Read report and evidence as far as they go; `malformed` says why the form does not hold."""
        fault = tag_fault(completion, think=self.think, pairs=ORDERS[self.order])
        report, said = inside(completion, "report"), inside(completion, "evidence")
        if fault is None and not has_words(report or ""):
            fault = f"the report has no words: {shortened(report or '')!r}"
        cited, wrong = self._read(said or "", prompt.reference["shown"])
        evidence = None
        if wrong is None:
            evidence = Evidence(slice=cited[SLICE]) if SLICE in cited else Evidence(slices=cited)
        return Answer(
            text=completion,
            malformed=fault or wrong,
            think=inside(completion, "think"),
            report=report or None,
            evidence=evidence,
        )

    def _citable(
        self, case: Case, findings: Sequence[str], target: Mapping[str, Any], slices: Sequence[int]
    ) -> Sequence[int]:
        """Return the shown slices that a gold answer may name for findings."""
        if self.slices_of == "finding":
            return [z for z in slices if abs(z - target["slice"]) <= self.margin_slices]
        organs = [organ for item in case.findings if item.name in findings for organ in _organs(case, item)]
        areas = measure(case, [*findings, *dict.fromkeys(organs)], self._cache_folder).areas
        return [z for z in slices if areas.get(z, 0) > 0]

    def _written(self, case: Case) -> Report | None:
        """Return the section that gold answers hold; None where the case has none."""
        if self.section == "report" or case.report is None:
            return case.report
        text = str(case.notes.get("impression") or "").strip()
        return Report(text=text, spans=_sentences(text, case.present())) if text else None

    def _read(self, said: str, shown: Sequence[int]) -> tuple[dict[str, int], str | None]:
        """Return what is cited, and why it is not what was asked for; None where it is."""
        try:
            value: Any = json.loads(said, object_pairs_hook=once)
        except (ValueError, RecursionError):
            value = []
        if value is None:
            return {}, None
        keys = list(value) if isinstance(value, Mapping) else []
        if not keys or (self.cite == "report" and keys != [SLICE]):
            return {}, f"the evidence is {shortened(said)!r}, expected {FORMS[self.cite]} or {NOTHING}"
        for name, z in value.items():
            who = repr(shortened(name))
            if isinstance(z, bool) or not isinstance(z, int):
                return {}, f"{who} is {shortened(json.dumps(z))}, expected the number of a slice"
            if z not in shown:
                named, listed = shortened(str(z)), shortened(", ".join(map(str, shown)), 80)
                return {}, f"{who} is slice {named}, which was not shown; shown are {listed}"
        return dict(value), None

    def _form(self) -> str:
        """Return the sentence that asks for the form."""
        what = "for each finding the slice" if self.cite == "finding" else "the slice"
        texts = {"report": "…", "evidence": FORMS[self.cite]}
        form = "".join(f"<{name}>{texts[name]}</{name}>" for name in ORDERS[self.order])
        form = f"<think>…</think>{form}" if self.think else form
        what += ", of those shown, that shows it best"
        return f"Write the report and name {what}, or {NOTHING} if nothing is found:\n{form}"

    def _prompt(
        self,
        case: Case,
        parts: Sequence[Any],
        slices: Sequence[int],
        present: Sequence[str],
        reference: Mapping[str, Any],
    ) -> Prompt:
        indication = case.notes.get("indication")
        told = f"Indication: {indication}. " if indication else ""
        return Prompt(
            id=f"{case.id}:report-evidence",
            case=case,
            task="report-evidence",
            parts=(*parts, TextPart(text=told + self.instruction)),
            reference={"shown": list(slices), "present": list(present), "masks": list(present), **reference},
        )

    def _left_out(self, case: Case, why: str) -> tuple[()]:
        if not self._has_told:
            self._has_told = True
            log.warning(
                "report-evidence: case %s: %s, so nothing is asked about it, nor about any other of which "
                "this holds. Show more slices, or give masks of all findings.",
                case.id, why,
            )  # fmt: skip
        return ()


def best_evidence(prompt: Prompt) -> Evidence | None:
    """Return the slices on which a prompt's findings are seen best, margin or not; None of a healthy scan."""
    if prompt.reference["target"] is not None:
        return Evidence(slice=prompt.reference["target"]["slice"])
    targets = prompt.reference["targets"]
    return Evidence(slices={name: item["slice"] for name, item in targets.items()}) if targets else None


def shown_slices(prompt: Prompt) -> dict[int, Crop]:
    """Return the slices that a prompt shows, by index."""
    return {z: part.crop for z, part in shown_parts(prompt.parts).items()}


def _shown(case: Case, view: View) -> tuple[Sequence[Any], list[int]]:
    """Return what the view shows, and the indices of the slices."""
    require_one_volume(case)
    parts = view.render(case)
    return parts, list(shown_parts(parts))


def _organs(case: Case, finding: Finding) -> list[str]:
    """Return the masks of the organ that a finding lies in: the one on its side, or both."""
    if finding.location is None:
        return []
    sides = [finding.side] if finding.side in {"left", "right"} else ["left", "right"]
    named = [finding.location, *(f"{side} {finding.location}" for side in sides)]
    return [name for name in named if name in case.masks]


def _target(areas: Mapping[int, int], slices: Sequence[int]) -> dict[str, Any]:
    """Return a target as plain JSON."""
    return {"slice": gold_slice(areas, slices, 1), "areas": {str(z): area for z, area in areas.items()}}


def _sentences(text: str, present: Sequence[str]) -> tuple[Span, ...]:
    """Return a text's sentences; abnormal are those that name a finding that is present."""
    return tuple(
        Span(
            start=item.start(),
            end=item.end(),
            label="abnormal" if any(name.lower() in item[0].lower() for name in present) else "normal",
        )
        for item in re.finditer(r"\S.*?(?:[.!?](?=\s)|$)", text, re.DOTALL)
    )


def _moved(spans: Sequence[Span], text: str, by: int) -> tuple[Span, ...]:
    """Return the spans of a report that stands, stripped, `by` characters into an answer."""
    start, length = len(text) - len(text.lstrip()), len(text.strip())
    result = []
    for span in spans:
        first, last = max(0, span.start - start), min(length, span.end - start)
        if first < last:
            result.append(Span(start=by + first, end=by + last, label=span.label))
    return tuple(result)
