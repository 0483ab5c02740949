"""What can be asked of the runs that are looked at: JSON values, PNG of slices, NIfTI of scans."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_args

from evidcore.errors import DataError, RunError
from evidcore_plugin_view import niivue
from evidcore_plugin_view.opened_run import OpenedRun

if TYPE_CHECKING:
    from evidcore_plugin_view.opened_scan import Scan
    from evidcore_plugin_view.overlay import Mask, Overlay, Plane
    from evidcore_plugin_view.question_scene import Reference, Scene

Query = Mapping[str, str]
Answer = dict[str, Any] | list[Any] | bytes


class Routes:
    """Answers by name; every value of a query is text.

    Args:
        runs: by name; "a" is the first, "b" the second.
    """

    def __init__(self, runs: Mapping[str, OpenedRun]) -> None:
        self.runs = runs
        self._scans: Any = None
        self._answers: Mapping[str, Callable[[Query], Answer]] = {
            "runs": self._runs,
            "rows": self._rows,
            "search": self._search,
            "line": self._line,
            "sentences": self._sentences,
            "results": self._results,
            "audits": self._audits,
            "scene": self._scene,
            "slice.png": self._slice,
            "volume.nii": self._volume,
            "mask.nii": self._mask,
            "shapes": self._shapes,
            "extent": self._extent,
            "value": self._value,
            "followed": self._followed,
        }

    def answer(self, name: str, query: Query) -> Answer | None:
        """Return what is asked for; None where nothing has that name.

        Raises:
            EvidError: if a run, a line or a scan is not there or cannot be read.
            ValueError: if a number is none, or lies outside a scan.
            KeyError: if the query lacks a value; names it.
        """
        found = self._answers.get(name)
        return None if found is None else found(query)

    def _run(self, name: str) -> OpenedRun:
        if name not in self.runs:
            raise RunError(f"no run is called {name!r}. There are: {', '.join(self.runs)}.")
        return self.runs[name]

    def _runs(self, query: Query) -> Answer:
        for run in self.runs.values():
            run.read_again()
        return {name: run.described() for name, run in self.runs.items()}

    def _rows(self, query: Query) -> Answer:
        return list(self._run(query["run"]).rows(query["kind"], query["stage"]))

    def _search(self, query: Query) -> Answer:
        from evidcore_plugin_view.public_lines import searched

        return (
            self._run(query["run"]).index(query["kind"], query["stage"]).containing(query["words"], searched)
        )

    def _audits(self, query: Query) -> Answer:
        from evidcore_plugin_view.staircase import staircases

        return [
            {"stage": str(result.get("stage", "")), **one}
            for result in self._run(query["run"]).head.results
            for one in staircases(result)
        ]

    def _results(self, query: Query) -> Answer:
        return [
            {
                "stage": result.get("stage"),
                "kind": result.get("kind"),
                "rows": [_plain(row) for row in result.get("rows") or ()],
                "verdict": result.get("verdict") or {},
            }
            for result in self._run(query["run"]).head.results
        ]

    def _line(self, query: Query) -> Answer:
        from evidcore_plugin_view import public_lines

        reference = _reference(query["line"])
        run = self._run(reference.run)
        line = run.line(reference.kind, reference.stage, reference.number)
        run.look_up(reference.kind, reference.stage, reference.number)
        phantom, booked = run.is_phantom(line), run.book.case(line)
        found = public_lines.public_fields(line, phantom=phantom)
        found["phantom"] = phantom
        if "reference" in line:
            found["reference"] = public_lines.public_reference(line["reference"] or {}, phantom=phantom)
        if "rollouts" in line:
            found["rollouts"] = [public_lines.rollout_json(one) for one in line["rollouts"]]
        else:
            found["text"] = public_lines.shortened(str(line.get("text", "")))
            found["turns"] = public_lines.turns_json(line.get("turns") or ())
        if booked is not None:
            found["report"], found["report_withheld"] = booked.report, booked.report_withheld
        return found

    def _sentences(self, query: Query) -> Answer:
        """Return what the sentences of a report affirm, and on which slice it is said to be seen."""
        from evidcore_plugin_view.cited_sentences import cited_sentences

        reference = _reference(query["line"])
        run = self._run(reference.run)
        line = run.line(reference.kind, reference.stage, reference.number)
        if reference.rollout is None:
            return cited_sentences(line, run.sentences)
        known = line.get("reference") or {}
        asked = {name: known.get(name) or () for name in ("present", "absent")}
        return cited_sentences({**asked, **reference.rollout_of(line)}, run.sentences)

    def _composed(self, query: Query) -> Scene:
        from evidcore_plugin_view.question_scene import compose

        references = [_reference(query[side]) for side in ("a", "b") if query.get(side)]
        for one in references:
            self._run(one.run)
        self.runs[references[0].run].look_up(references[0].kind, references[0].stage, references[0].number)
        return compose(self.runs, references)

    def _scan(self, scene: Scene) -> Scan:
        from evidcore_plugin_view.opened_scan import Scans

        if scene.volume is None:
            raise RunError(" ".join(scene.notes))
        if self._scans is None:
            self._scans = Scans()
        found: Scan = self._scans.get(scene.volume)
        return found

    def _scene(self, query: Query) -> Answer:
        from evidcore_plugin_view.overlay import AXES

        scene = self._composed(query)
        told: dict[str, Any] = {"notes": list(scene.notes), "waiting": scene.waiting, "overlays": []}
        if scene.volume is None:
            return told
        scan = self._scan(scene)
        told |= {"windows": scan.windows(), "planes": {plane: scan.plane(plane) for plane in AXES}}
        told |= {"scan": scan.name, "sides": scene.sides, "niivue": niivue.ASSET.is_file()}
        for one in scene.overlays:
            fields = ("id", "name", "role", "source", "asked")
            is_solid = bool(one.mask or one.boxes or one.follow or one.cells)
            legend = "" if one.cells is None else one.cells.legend()
            more = {"solid": is_solid, "legend": legend, "follows": one.follow is not None}
            told["overlays"].append({name: getattr(one, name) for name in fields} | more)
        return told

    def _volume(self, query: Query) -> Answer:
        return self._scan(self._composed(query)).nifti()

    def _mask(self, query: Query) -> Answer:
        """Return the voxels of an overlay, on the grid of `volume.nii`; those of a map run from 0 to 255."""
        from evidcore_plugin_view.overlay import strengths, voxels

        scene = self._composed(query)
        scan, one = self._scan(scene), scene.overlay(query["overlay"])
        if one.cells is not None:
            return scan.nifti(strengths(one.cells, scan.volume.shape_zyx))
        return scan.nifti(voxels(one, self._mask_of(one, scan), scan.volume.shape_zyx))

    def _slice(self, query: Query) -> Answer:
        scan = self._scan(self._composed(query))
        return scan.png(_plane(query), int(query["index"]), float(query["low"]), float(query["high"]))

    def _shapes(self, query: Query) -> Answer:
        """Return the shapes of some overlays on one slice, by id."""
        from evidcore_plugin_view.overlay import drawn

        scene = self._composed(query)
        scan, plane, index = self._scan(scene), _plane(query), int(query["index"])
        found = {}
        for name in query["overlays"].split("|") if query["overlays"] else ():
            one = scene.overlay(name)
            shape = drawn(one, self._mask_of(one, scan), plane, index, scan.volume.shape_zyx[0])
            if shape is not None:
                found[name] = {"outline": shape.outline, "fill": shape.fill, "shades": shape.shades}
        return found

    def _extent(self, query: Query) -> Answer:
        """Return the slices on which an overlay is seen, by plane, and on which most of it is."""
        from evidcore_plugin_view.overlay import AXES, extent, fullest

        scene = self._composed(query)
        scan, one = self._scan(scene), scene.overlay(query["overlay"])
        mask = self._mask_of(one, scan)
        seen: dict[str, Any] = {plane: extent(one, mask, plane) for plane in AXES}
        seen["fullest"] = {plane: fullest(one, mask, plane) for plane in AXES}
        return seen | {"window": None if mask is None else scan.window_around(mask)}

    def _mask_of(self, one: Overlay, scan: Scan) -> Mask | None:
        """Return the mask of an overlay, None for one that has none.

        Raises:
            RunError: if a segmenter has not made it, or cannot.
        """
        if one.follow is None:
            return None if one.mask is None else scan.mask(one.mask)
        found = self._run(one.follow.run).followed.get(one.follow)
        if found is None:
            raise RunError(f"{one.id}: its boxes are still followed. Ask again.")
        if found.part is None:
            raise RunError(found.fault)
        return found.mask()

    def _followed(self, query: Query) -> Answer:
        """Have the boxes of an answer followed; tell what became of them, and how like the truth it is."""
        scene = self._composed(query)
        one = scene.overlay(query["overlay"])
        if one.follow is None:
            raise RunError(f"{one.id}: is made of no boxes that a segmenter follows.")
        found = self._run(one.follow.run).followed.get(one.follow)
        if found is None:
            return {"waiting": True, "fault": "", "legend": "", "dsc": None}
        mask = found.mask()
        if mask is None:
            return {"waiting": False, "fault": found.fault, "legend": "", "dsc": None}
        dsc, compared = _compared(mask, self._scan(scene), scene)
        legend = f"Made of the boxes by {found.by}. {compared}"
        return {"waiting": False, "fault": "", "legend": legend.strip(), "dsc": dsc}

    def _value(self, query: Query) -> Answer:
        scan = self._scan(self._composed(query))
        return scan.value(*(int(query[axis]) for axis in "zyx"))


def _compared(mask: Mask, scan: Scan, scene: Scene) -> tuple[float | None, str]:
    """Return the DSC of a mask with what is asked about, None where that is not known, and a sentence."""
    from evidcore.data.boxes import dice

    about = " + ".join(scene.target)
    try:
        truth = [scan.mask(ref) for ref in scene.target.values()]
    except DataError as cause:
        return None, f"No DSC: {cause}"
    if not truth:
        return None, "" if mask.any() else "It holds no voxel."
    together = functools.reduce(operator.or_, truth)
    if not mask.any() and not together.any():
        return None, f"Neither it nor {about} holds a voxel."
    dsc = dice(mask, together)
    return dsc, f"DSC {dsc:.3f} with {about}."


def _reference(text: str) -> Reference:
    from evidcore_plugin_view.question_scene import Reference

    return Reference.parse(text)


def _plane(query: Query) -> Plane:
    from evidcore_plugin_view.overlay import Plane

    plane = query["plane"]
    if plane not in get_args(Plane):
        raise ValueError(f"a plane is one of {', '.join(get_args(Plane))}, got {plane!r}")
    return plane  # type: ignore[return-value]  # it was just compared


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a table shows of a result's row."""
    from evidcore_plugin_pages.tables import unit_of_row

    kept = ("name", "task", "metric", "value", "low", "high", "note", "headline", "questions", "patients")
    return {name: row[name] for name in kept if row.get(name) is not None} | {"unit": unit_of_row(row)}
